//! NVIDIA's own driver, found at run time.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::driver::{Address, CallError, Driver, DriverCall, Handle, Properties};
use crate::{Error, Gpu, Result};

/// Whether the driver is there and ready.
///
/// # Errors
/// Why it is not.
fn ready() -> Result<(), String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let start = || {
        // Asked first, since cudarc panics at the first call into a library that is not there.
        // SAFETY: this loads the driver's library, whose initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err("no CUDA driver is installed (libcuda was not found)".into());
        }
        result::init().map_err(|error| failed("cuInit")(error).to_string())
    };
    READY.get_or_init(start).clone()
}

fn failed(call: &'static str) -> impl Fn(DriverError) -> CallError {
    move |error| {
        let text = error.error_string().or_else(|_| error.error_name());
        let reason =
            text.map_or_else(|_| format!("error {}", error.0 as u32), |text| text.to_string_lossy().into_owned());
        CallError { call, reason, out_of_memory: error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY }
    }
}

/// The GPUs of the driver, at least one, or why there is none.
pub(crate) fn gpus() -> Result<Vec<Gpu>, String> {
    ready()?;
    let words = |error: CallError| error.to_string();
    let count = result::device::get_count().map_err(failed("cuDeviceGetCount")).map_err(words)?;
    let mut version = 0;
    // SAFETY: `version` is a valid place to write to.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion")).map_err(words)?;
    let version = u32::try_from(version).unwrap_or(0);
    let describe = |ordinal| {
        let device = result::device::get(ordinal).map_err(failed("cuDeviceGet"))?;
        let Properties { name, compute_capability, multiprocessors, shared_bytes, .. } = properties(device)?;
        Ok(Gpu {
            name,
            compute_capability,
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(u32::MAX),
            shared_bytes,
            // SAFETY: `device` comes from the driver.
            total_bytes: unsafe { result::device::total_mem(device) }.map_err(failed("cuDeviceTotalMem"))?,
            driver_version: (version / 1000, version % 1000 / 10),
        })
    };
    let gpus = (0..count).map(describe).collect::<DriverCall<Vec<_>>>().map_err(words)?;
    if gpus.is_empty() { Err("the CUDA driver has no GPU".into()) } else { Ok(gpus) }
}

fn properties(device: sys::CUdevice) -> DriverCall<Properties> {
    let attribute = |attribute| {
        // SAFETY: `device` comes from the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map(|value| usize::try_from(value).unwrap_or(0)).map_err(failed("cuDeviceGetAttribute"))
    };
    // Newer drivers no longer know the clocks of every GPU.
    let rate = |name| attribute(name).unwrap_or(0);
    let version = |name| attribute(name).map(|value| value as u32);
    Ok(Properties {
        ordinal: u32::try_from(device).unwrap_or(0),
        name: result::device::get_name(device).map_err(failed("cuDeviceGetName"))?,
        compute_capability: (
            version(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            version(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: rate(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        memory_clock_khz: rate(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
        memory_bus_bits: rate(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        l2_bytes: rate(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

/// One GPU through NVIDIA's driver, in its primary context.
#[derive(Debug)]
pub struct Nvidia {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be current to any number of threads, and the driver's calls are safe to make from all of them.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

impl Nvidia {
    /// The GPU of that number.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: no driver, or no such GPU, or one that cannot be used now.
    pub fn open(ordinal: u32) -> Result<Self> {
        let none = |reason: String| Error::NoDevice { name: format!("cuda:{ordinal}"), reason };
        let words = |error: CallError| none(error.to_string());
        ready().map_err(none)?;
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let device = result::device::get(number).map_err(failed("cuDeviceGet")).map_err(words)?;
        // SAFETY: `device` comes from the driver; the context is released on drop.
        let context = unsafe { result::primary_ctx::retain(device) };
        Ok(Self { device, context: context.map_err(failed("cuDevicePrimaryCtxRetain")).map_err(words)? })
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // SAFETY: it was retained once, when it was opened.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

fn stream(handle: Handle) -> sys::CUstream {
    handle as sys::CUstream
}

fn event(handle: Handle) -> sys::CUevent {
    handle as sys::CUevent
}

// SAFETY: these are the properties of NVIDIA's driver. Handles are its own pointers, which `CudaDevice` gives back to
// the driver that they came from.
unsafe impl Driver for Nvidia {
    fn properties(&self) -> DriverCall<Properties> {
        properties(self.device)
    }

    /// Nearly every call asks for it.
    fn enter(&self) -> DriverCall<()> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))
    }

    fn memory(&self) -> DriverCall<(usize, usize)> {
        self.enter()?;
        result::mem_get_info().map_err(failed("cuMemGetInfo"))
    }

    fn allocate(&self, bytes: usize) -> DriverCall<Address> {
        self.enter()?;
        // SAFETY: any size may be asked for.
        unsafe { result::malloc_sync(bytes) }.map_err(failed("cuMemAlloc"))
    }

    unsafe fn free(&self, address: Address) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::free_sync(address) }.map_err(failed("cuMemFree"))
    }

    fn allocate_host(&self, bytes: usize) -> DriverCall<*mut u8> {
        self.enter()?;
        // SAFETY: any size may be asked for. With unified addressing, which every 64-bit system has, kernels reach it
        // at the same address.
        let pointer = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        pointer.map(<*mut c_void>::cast).map_err(failed("cuMemHostAlloc"))
    }

    unsafe fn free_host(&self, pointer: *mut u8) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::free_host(pointer.cast()) }.map_err(failed("cuMemFreeHost"))
    }

    fn create_stream(&self) -> DriverCall<Handle> {
        self.enter()?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        made.map(|stream| stream as Handle).map_err(failed("cuStreamCreate"))
    }

    fn destroy_stream(&self, handle: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the handle is one of `create_stream`; so below, and for events those of `create_event`.
        unsafe { result::stream::destroy(stream(handle)) }.map_err(failed("cuStreamDestroy"))
    }

    fn synchronize_stream(&self, handle: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::stream::synchronize(stream(handle)) }.map_err(failed("cuStreamSynchronize"))
    }

    fn synchronize(&self) -> DriverCall<()> {
        self.enter()?;
        result::ctx::synchronize().map_err(failed("cuCtxSynchronize"))
    }

    fn create_event(&self) -> DriverCall<Handle> {
        self.enter()?;
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        made.map(|event| event as Handle).map_err(failed("cuEventCreate"))
    }

    fn destroy_event(&self, handle: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::event::destroy(event(handle)) }.map_err(failed("cuEventDestroy"))
    }

    fn record_event(&self, handle: Handle, on: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::event::record(event(handle), stream(on)) }.map_err(failed("cuEventRecord"))
    }

    fn query_event(&self, handle: Handle) -> DriverCall<bool> {
        self.enter()?;
        // SAFETY: as above.
        match unsafe { result::event::query(event(handle)) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(failed("cuEventQuery")(error)),
        }
    }

    fn synchronize_event(&self, handle: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::event::synchronize(event(handle)) }.map_err(failed("cuEventSynchronize"))
    }

    fn wait_event(&self, on: Handle, handle: Handle) -> DriverCall<()> {
        self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { result::stream::wait_event(stream(on), event(handle), flags) }.map_err(failed("cuStreamWaitEvent"))
    }

    unsafe fn upload(&self, to: Address, from: *const u8, bytes: usize, on: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream(on)) }
            .result()
            .map_err(failed("cuMemcpyHtoDAsync"))
    }

    unsafe fn download(&self, to: *mut u8, from: Address, bytes: usize, on: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream(on)) }
            .result()
            .map_err(failed("cuMemcpyDtoHAsync"))
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize, on: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise. Either address may be of pinned memory, which this call finds out by itself.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, stream(on)) }.result().map_err(failed("cuMemcpyAsync"))
    }

    unsafe fn clear(&self, to: Address, bytes: usize, on: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(to, 0, bytes, stream(on)) }.map_err(failed("cuMemsetD8Async"))
    }

    fn load_module(&self, image: &[u8]) -> DriverCall<Handle> {
        self.enter()?;
        // PTX is read up to a zero; a CUBIN knows its own length.
        let terminated = [image, &[0]].concat();
        // SAFETY: the image is one that NVIDIA's compiler made, whole, and is copied by the driver.
        let module = unsafe { result::module::load_data(terminated.as_ptr().cast()) };
        module.map(|module| module as Handle).map_err(failed("cuModuleLoadData"))
    }

    unsafe fn unload_module(&self, module: Handle) -> DriverCall<()> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::module::unload(module as sys::CUmodule) }.map_err(failed("cuModuleUnload"))
    }

    fn function(&self, module: Handle, name: &str) -> DriverCall<Handle> {
        self.enter()?;
        let missing = |reason: String| CallError { call: "cuModuleGetFunction", reason, out_of_memory: false };
        let symbol = CString::new(name).map_err(|error| missing(error.to_string()))?;
        // SAFETY: the module is one of `load_module`.
        let function = unsafe { result::module::get_function(module as sys::CUmodule, symbol) };
        let function = function.map_err(failed("cuModuleGetFunction"));
        function.map(|function| function as Handle).map_err(|e| missing(format!("{name}: {}", e.reason)))
    }

    fn allow_shared(&self, function: Handle, bytes: u32) -> DriverCall<()> {
        self.enter()?;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is one of `function`.
        unsafe { result::function::set_function_attribute(function as sys::CUfunction, attribute, bytes) }
            .map_err(failed("cuFuncSetAttribute"))
    }

    unsafe fn launch(
        &self,
        function: Handle,
        [x, y, z]: [u32; 3],
        block: u32,
        shared_bytes: u32,
        on: Handle,
        parameters: &[u8],
    ) -> DriverCall<()> {
        self.enter()?;
        // The driver copies the struct before the call returns, and writes to nothing.
        let mut places = [parameters.as_ptr().cast_mut().cast::<c_void>()];
        let function = function as sys::CUfunction;
        // SAFETY: the caller's promise.
        unsafe { result::launch_kernel(function, (x, y, z), (block, 1, 1), shared_bytes, stream(on), &mut places) }
            .map_err(failed("cuLaunchKernel"))
    }
}
