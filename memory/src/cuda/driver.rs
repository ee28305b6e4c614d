//! The seams to the CUDA driver, which has the calls that Sinew makes and no more, and to the compiler of kernels.

use std::fmt;

/// What the driver knows a stream, an event, a module or a function by.
pub type Handle = u64;
/// An address as kernels see it.
pub type Address = u64;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The call, as NVIDIA names it: `cuMemAlloc`.
    pub call: &'static str,
    /// The driver's own words.
    pub reason: String,
    /// Whether there was not enough memory.
    pub out_of_memory: bool,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.reason)
    }
}

impl std::error::Error for CallError {}

/// The result of a call of the driver.
pub type DriverCall<T> = Result<T, CallError>;

/// What the driver says of a GPU. Rates are 0 where it says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Which of the driver's GPUs it is.
    pub ordinal: u32,
    /// The maker's name for it.
    pub name: String,
    /// Compute capability, major and minor: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Cycles of a multiprocessor in 1,000 per second.
    pub clock_khz: usize,
    /// Cycles of the memory in 1,000 per second; each carries two bits on every wire.
    pub memory_clock_khz: usize,
    /// Wires to the memory.
    pub memory_bus_bits: usize,
    /// The cache that all multiprocessors share, in bytes.
    pub l2_bytes: usize,
    /// The most shared memory in bytes that a block may ask for.
    pub shared_bytes: usize,
}

/// One GPU through the CUDA driver. Calls may come from any thread.
///
/// # Safety
/// Memory of [`Driver::allocate_host`] is valid for reads and writes of the host until it is freed, and no two live
/// allocations overlap. Work of one stream runs in the order in which it was enqueued, and a synchronisation returns
/// when all of it is done.
pub unsafe trait Driver: fmt::Debug + Send + Sync {
    /// What the GPU is.
    fn properties(&self) -> DriverCall<Properties>;
    /// Makes the GPU's context current to the calling thread, for a library of NVIDIA's that works in it.
    fn enter(&self) -> DriverCall<()>;
    /// Free and total bytes of its memory.
    fn memory(&self) -> DriverCall<(usize, usize)>;

    /// Allocates device memory, at least one byte, aligned to 256.
    fn allocate(&self, bytes: usize) -> DriverCall<Address>;
    /// Frees device memory.
    ///
    /// # Safety
    /// The address is one of [`Driver::allocate`], freed once, and no work uses it any more.
    unsafe fn free(&self, address: Address) -> DriverCall<()>;
    /// Allocates pinned host memory, at least one byte, that kernels reach at the same address.
    fn allocate_host(&self, bytes: usize) -> DriverCall<*mut u8>;
    /// Frees pinned host memory.
    ///
    /// # Safety
    /// As for [`Driver::free`].
    unsafe fn free_host(&self, pointer: *mut u8) -> DriverCall<()>;

    /// Makes a stream that does not wait for the default stream.
    fn create_stream(&self) -> DriverCall<Handle>;
    /// Gives a stream up; what is enqueued still runs.
    fn destroy_stream(&self, stream: Handle) -> DriverCall<()>;
    /// Waits for a stream.
    fn synchronize_stream(&self, stream: Handle) -> DriverCall<()>;
    /// Waits for all work of the GPU.
    fn synchronize(&self) -> DriverCall<()>;

    /// Makes an event.
    fn create_event(&self) -> DriverCall<Handle>;
    /// Gives an event up.
    fn destroy_event(&self, event: Handle) -> DriverCall<()>;
    /// Marks the present end of a stream with an event.
    fn record_event(&self, event: Handle, stream: Handle) -> DriverCall<()>;
    /// Whether what an event marks is done.
    fn query_event(&self, event: Handle) -> DriverCall<bool>;
    /// Waits until it is.
    fn synchronize_event(&self, event: Handle) -> DriverCall<()>;
    /// Makes later work of a stream wait for an event.
    fn wait_event(&self, stream: Handle, event: Handle) -> DriverCall<()>;

    /// Enqueues a copy from host to device.
    ///
    /// # Safety
    /// Both ranges stay valid, and the source unchanged, until the stream has passed the copy.
    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize, stream: Handle) -> DriverCall<()>;
    /// Enqueues a copy from device to host.
    ///
    /// # Safety
    /// Both ranges stay valid, and nothing else uses the destination, until the stream has passed the copy.
    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize, stream: Handle) -> DriverCall<()>;
    /// Enqueues a copy on the device.
    ///
    /// # Safety
    /// Both ranges stay valid until the stream has passed the copy.
    unsafe fn copy(&self, to: Address, from: Address, bytes: usize, stream: Handle) -> DriverCall<()>;
    /// Enqueues a fill with zeros.
    ///
    /// # Safety
    /// The range stays valid until the stream has passed it.
    unsafe fn clear(&self, to: Address, bytes: usize, stream: Handle) -> DriverCall<()>;

    /// Loads an image that a [`super::Compiler`] made.
    fn load_module(&self, image: &[u8]) -> DriverCall<Handle>;
    /// Unloads a module.
    ///
    /// # Safety
    /// No function of it is used any more.
    unsafe fn unload_module(&self, module: Handle) -> DriverCall<()>;
    /// The kernel of that name.
    fn function(&self, module: Handle, name: &str) -> DriverCall<Handle>;
    /// Lets a kernel be launched with that much dynamic shared memory.
    fn allow_shared(&self, function: Handle, bytes: u32) -> DriverCall<()>;
    /// Enqueues a kernel with its one parameter, a struct that is passed by value.
    ///
    /// # Safety
    /// `parameters` are of the kernel's own type, and whatever they point at fits what the kernel does, and stays valid
    /// until the stream has passed it.
    unsafe fn launch(
        &self,
        function: Handle,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: &[u8],
    ) -> DriverCall<()>;
}

/// Turns CUDA C++ into an image that the driver loads.
pub trait Compiler: fmt::Debug + Send + Sync {
    /// Everything besides the source that decides the image: name and version of the compiler, architecture, options.
    /// An image is kept under it.
    ///
    /// # Errors
    /// Why there is no compiler, or why it knows no such architecture.
    fn describe(&self, architecture: &str) -> Result<String, String>;

    /// Compiles a source; `name` is what messages call it.
    ///
    /// # Errors
    /// What the compiler says of the source, or why it compiles none.
    fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>, CompileError>;
}

/// Why there is no image of a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// What the compiler says of a source that it refuses.
    #[error("{0}")]
    Source(String),
    /// Why the compiler can compile no source: it is missing, too old or incomplete. What was compiled before may do.
    #[error("{0}")]
    Compiler(String),
}

/// The architecture that is compiled for: the GPU's own, on Hopper with the instructions that only it has.
pub fn architecture((major, minor): (u32, u32)) -> String {
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}
