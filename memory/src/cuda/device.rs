//! A GPU as a device.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ScopedJoinHandle;

use super::driver::{CallError, CompileError, Compiler, Driver, Handle, Properties, architecture};
use super::module::{CudaModule, Function, Module};
use super::storage::CudaStorage;
use super::stream::CudaStream;
use crate::messages::{self, Severity};
use crate::{
    Accelerator, Caches, Device, DeviceId, DeviceKind, Error, Hardware, Location, MemoryInfo, PrivateFolder, Rates,
    Result, SimdLevel, Storage, Stream, system,
};

/// What the driver aligns allocations to, and more than any instruction asks for.
const ALIGNMENT: usize = 256;
/// Threads of a warp.
const WARP: usize = 32;
/// The most threads of a block, on every GPU there is.
const BLOCK_THREADS: usize = 1024;
/// What kernels are written for: asynchronous copies and bf16 on tensor cores came with it.
const LEAST_CAPABILITY: (u32, u32) = (8, 0);
/// From enqueueing a kernel to the next one behind it.
const LAUNCH_S: f64 = 4e-6;

/// A module, or why there is none: compiled once, whoever comes first.
type Compiled = Arc<OnceLock<Result<Module, String>>>;

/// An NVIDIA GPU.
pub struct CudaDevice {
    id: DeviceId,
    hardware: Hardware,
    architecture: String,
    compiler: Arc<dyn Compiler>,
    cache: PrivateFolder,
    modules: Mutex<HashMap<&'static str, Compiled>>,
    /// Events that are not in use: making one takes longer than recording it.
    events: Mutex<Vec<Handle>>,
    /// What other libraries keep for this device.
    libraries: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    driver: Arc<dyn Driver>,
}

impl CudaDevice {
    /// A device on a driver, whose kernels are compiled by `compiler` and kept in `cache`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for a GPU that is older than compute capability 8.0; calls of the driver that fail.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(driver: Arc<dyn Driver>, compiler: Arc<dyn Compiler>, cache: PrivateFolder) -> Result<Arc<Self>> {
        let unnamed = DeviceId { kind: DeviceKind::CUDA, index: 0 };
        let properties = driver.properties().map_err(|error| failed(unnamed, "opening the device", &error))?;
        let id = DeviceId { index: properties.ordinal, ..unnamed };
        if properties.compute_capability < LEAST_CAPABILITY {
            let ((least, least_minor), (major, minor)) = (LEAST_CAPABILITY, properties.compute_capability);
            let name = &properties.name;
            let reason =
                format!("needs compute capability {least}.{least_minor}, the GPU ({name}) has {major}.{minor}");
            return Err(Error::NoDevice { name: id.to_string(), reason });
        }
        Ok(Arc::new(Self {
            id,
            hardware: describe(&properties),
            architecture: architecture(properties.compute_capability),
            compiler,
            cache,
            modules: Mutex::default(),
            events: Mutex::default(),
            libraries: Mutex::default(),
            driver,
        }))
    }

    /// The device of that number through NVIDIA's driver and compiler, its kernels kept in a folder.
    ///
    /// # Errors
    /// No driver, no such device, or calls that fail.
    #[cfg(not(target_os = "macos"))]
    pub fn open(ordinal: u32, kernels: PrivateFolder) -> Result<Arc<Self>> {
        Self::new(Arc::new(super::Nvidia::open(ordinal)?), Arc::new(super::Nvrtc), kernels)
    }

    /// The device behind Sinew's own handle, if it is a GPU of NVIDIA's.
    pub fn of(device: &Arc<dyn Device>) -> Option<Arc<Self>> {
        let device: Arc<dyn Any + Send + Sync> = device.clone();
        device.downcast().ok()
    }

    /// Host memory that this device's kernels reach: a device to allocate from, for a pool for example.
    pub fn pinned(self: &Arc<Self>) -> Arc<dyn Device> {
        Arc::new(Pinned { device: self.clone() })
    }

    /// Compiles modules on as many threads as the process has, so that no kernel waits for it later.
    ///
    /// # Errors
    /// The first module that cannot be compiled or loaded.
    pub fn prefetch(&self, modules: &[&'static CudaModule]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.with_module(module, |_| Ok(()))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = system::available_threads().min(modules.len());
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let outcome = |thread: ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(self.error("compiling", "a thread of the compiler panicked")))
            };
            // Every thread is joined: one that panicked and was not would take the scope down with it.
            threads.into_iter().map(outcome).fold(Ok(()), Result::and)
        })
    }

    /// What a library of NVIDIA's keeps for this device, opened at the first call, with the device's context current to
    /// the thread. It lives as long as the device.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn library<T: Any + Send + Sync>(&self, open: impl FnOnce() -> Result<T, CallError>) -> Result<Arc<T>> {
        let mut libraries = self.libraries.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(opened) = libraries.get(&TypeId::of::<T>()).and_then(|library| library.clone().downcast().ok()) {
            return Ok(opened);
        }
        let opened = self.driver.enter().and_then(|()| open());
        let opened = Arc::new(opened.map_err(|error| self.failed("opening a library", &error))?);
        libraries.insert(TypeId::of::<T>(), opened.clone());
        Ok(opened)
    }

    /// A kernel of a module, which is compiled or found in the cache at the first call.
    pub(super) fn function(&self, module: &'static CudaModule, kernel: &'static str) -> Result<Arc<Function>> {
        self.with_module(module, |loaded| loaded.function(kernel).map_err(|error| self.failed(kernel, &error)))
    }

    fn with_module<T>(&self, module: &'static CudaModule, f: impl FnOnce(&Module) -> Result<T>) -> Result<T> {
        let place = {
            let mut modules = self.modules.lock().unwrap_or_else(|e| e.into_inner());
            modules.entry(module.name).or_default().clone()
        };
        match place.get_or_init(|| self.load(module)) {
            Ok(loaded) => f(loaded),
            Err(reason) => Err(self.error(&format!("compiling {}", module.name), reason)),
        }
    }

    fn load(&self, module: &CudaModule) -> Result<Module, String> {
        match self.image(module) {
            Ok(image) => Module::load(&self.driver, &image).map_err(|error| error.to_string()),
            Err(CompileError::Source(reason)) => Err(reason),
            Err(CompileError::Compiler(reason)) => {
                // The driver compiles PTX itself, for this GPU, without what only this GPU has.
                let Some(ptx) = module.fallback() else { return Err(reason) };
                let text = format_args!("kernels of {} run from PTX for compute capability 8.0: {reason}", module.name);
                messages::send(Severity::Warning, text);
                Module::load(&self.driver, ptx.as_bytes()).map_err(|error| format!("{reason}; {error}"))
            }
        }
    }

    fn image(&self, module: &CudaModule) -> Result<Vec<u8>, CompileError> {
        let text = module.text();
        let describe = self.compiler.describe(&self.architecture).map_err(CompileError::Compiler)?;
        let compile = || self.compiler.compile(module.name, &text, &self.architecture);
        self.cache.image(module.name, &[&describe, &text], compile)
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// An event that nobody uses.
    pub(super) fn take_event(&self) -> Result<Handle, CallError> {
        let kept = self.events.lock().unwrap_or_else(|e| e.into_inner()).pop();
        kept.map_or_else(|| self.driver.create_event(), Ok)
    }

    /// Takes an event back.
    pub(super) fn keep_event(&self, event: Handle) {
        self.events.lock().unwrap_or_else(|e| e.into_inner()).push(event);
    }

    pub(super) fn failed(&self, operation: &str, error: &CallError) -> Error {
        failed(self.id, operation, error)
    }

    pub(super) fn error(&self, operation: &str, reason: impl Into<String>) -> Error {
        Error::Device { device: self.id, operation: operation.into(), reason: reason.into() }
    }

    fn out_of_memory(&self, asked: usize, error: &CallError) -> Error {
        match self.driver.memory() {
            Ok((available, total)) if error.out_of_memory => {
                Error::OutOfMemory { device: self.id, asked, available, total, holders: None, fits: available }
            }
            _ => self.failed("allocation", error),
        }
    }
}

fn failed(device: DeviceId, operation: &str, error: &CallError) -> Error {
    Error::Device { device, operation: operation.to_owned(), reason: error.to_string() }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        self.id
    }
    fn hardware(&self) -> &Hardware {
        &self.hardware
    }
    fn memory(&self) -> Result<MemoryInfo> {
        let (available, total) = self.driver.memory().map_err(|error| self.failed("memory", &error))?;
        Ok(MemoryInfo { total, available })
    }
    fn alignment(&self) -> usize {
        ALIGNMENT
    }
    fn location(&self) -> Location {
        Location::Device
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        let address = self.driver.allocate(bytes.max(1)).map_err(|error| self.out_of_memory(bytes, &error))?;
        Ok(Arc::new(CudaStorage::on_device(&self.driver, self.id, address, bytes)))
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        Ok(CudaStream::new(self)?)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        for event in self.events.get_mut().unwrap_or_else(|e| e.into_inner()).drain(..) {
            drop(self.driver.destroy_event(event));
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({}, {}, {})", self.id, self.hardware.name, self.architecture)
    }
}

/// The host's memory as far as a GPU reaches it.
#[derive(Debug)]
struct Pinned {
    device: Arc<CudaDevice>,
}

impl Device for Pinned {
    fn id(&self) -> DeviceId {
        self.device.id
    }
    fn hardware(&self) -> &Hardware {
        &self.device.hardware
    }
    fn memory(&self) -> Result<MemoryInfo> {
        Ok(crate::system::memory())
    }
    fn alignment(&self) -> usize {
        ALIGNMENT
    }
    fn location(&self) -> Location {
        Location::Pinned
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        let CudaDevice { driver, id, .. } = &*self.device;
        let pointer = driver.allocate_host(bytes.max(1)).map_err(|error| {
            let MemoryInfo { total, available } = crate::system::memory();
            match error.out_of_memory {
                true => {
                    Error::OutOfMemory { device: *id, asked: bytes, available, total, holders: None, fits: available }
                }
                false => self.device.failed("allocation of pinned memory", &error),
            }
        })?;
        let null = || self.device.error("allocation of pinned memory", "the driver gave no address");
        let pointer = NonNull::new(pointer).ok_or_else(null)?;
        // SAFETY: the driver just made it, for so many bytes.
        Ok(Arc::new(unsafe { CudaStorage::pinned(driver, *id, pointer, bytes) }))
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        self.device.clone().stream()
    }
}

/// Hardware for the predicates and costs of kernels. Rates come from clocks where the driver tells them; they are
/// starting values, of which the ratios decide.
fn describe(properties: &Properties) -> Hardware {
    let capability = properties.compute_capability;
    // Multiply-adds of a multiprocessor in a cycle, in f32 and in bf16 on tensor cores (CUDA C++ Programming Guide,
    // "Arithmetic Instructions", and the architectures' white papers).
    let (lanes, tensor) = match capability {
        (8, 0) => (64.0, 1024.0),
        (8, _) => (128.0, 512.0),
        (9, _) => (128.0, 2048.0),
        (10, _) => (128.0, 4096.0),
        (major, _) if major > 10 => (128.0, 512.0),
        _ => (64.0, 64.0),
    };
    // Where the driver does not tell: an A100, an H100, a B200, and a card for a desk.
    let usual = match capability {
        (8, 0) => 1.5e12,
        (9, _) => 3.3e12,
        (10, _) => 8e12,
        _ => 5e11,
    };
    let hertz = if properties.clock_khz > 0 { properties.clock_khz as f64 * 1e3 } else { 1.5e9 };
    let told = 2.0 * properties.memory_clock_khz as f64 * 1e3 * properties.memory_bus_bits as f64 / 8.0;
    Hardware {
        kind: DeviceKind::CUDA,
        name: properties.name.clone(),
        simd: SimdLevel::Portable,
        threads: properties.multiprocessors.max(1),
        caches: Caches { l1d: properties.shared_bytes, l2: properties.l2_bytes, l3: 0 },
        rates: Rates {
            read_bytes_per_s: if told > 0.0 { told } else { usual },
            f32_flops_per_s: 2.0 * lanes * hertz,
            bf16_flops_per_s: 2.0 * tensor * hertz,
            launch_s: LAUNCH_S,
        },
        accelerator: Some(Accelerator {
            compute_capability: Some(capability),
            f16: true,
            bf16_products: true,
            subgroup_size: Some((WARP, WARP)),
            workgroup_bytes: properties.shared_bytes,
            workgroup_threads: BLOCK_THREADS,
            // Kernels take addresses: nothing is bound.
            max_binding_bytes: usize::MAX,
            max_bindings: usize::MAX,
        }),
    }
}
