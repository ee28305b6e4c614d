//! CUDA on the host: a driver and a compiler with which Sinew's CUDA device, streams and kernels run on the CPU.
//!
//! The compiler is g++, over the same source text with `shim.h` before it; the driver keeps memory with guards around
//! it, and works its streams off on threads of their own. It is made to find mistakes, not to be fast: a missing
//! barrier, a copy that is not waited for, a write past an end or a struct that Rust lays out otherwise shows. A
//! library that answers to cuBLASLt's name and calls stands beside it.

#![cfg(target_os = "linux")]

mod compiler;
mod cublaslt;
mod driver;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use sinew_memory::cuda::CudaDevice;
use sinew_memory::{Device, Error, PrivateFolder, Result};

pub use compiler::Gxx;
pub use cublaslt::products;
pub use driver::HostDriver;

/// A device of compute capability 8.0 on this machine's processor, with compiled kernels kept in `cache`; `None` where
/// kernels cannot be compiled or run, after printing why.
///
/// # Errors
/// A device that cannot be made; and that kernels cannot be compiled, where `SINEW_REQUIRE_GXX` is set.
pub fn device(cache: impl AsRef<Path>) -> Result<Option<Arc<dyn Device>>> {
    Ok(opened(cache)?.map(|Opened { device, .. }| device))
}

/// A device with its driver, which tells what it did.
#[derive(Debug)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its driver.
    pub driver: Arc<HostDriver>,
}

/// [`device`] with its driver.
///
/// # Errors
/// As [`device`].
pub fn opened(cache: impl AsRef<Path>) -> Result<Option<Opened>> {
    match Gxx::find() {
        Ok(compiler) => {
            let cache = PrivateFolder::at(cache.as_ref().join("cuda-on-host"));
            cublaslt::load(&cache, compiler.version())
                .map_err(|reason| Error::NoDevice { name: "cuBLASLt on the host".into(), reason })?;
            let driver = HostDriver::new();
            Ok(Some(Opened { device: CudaDevice::new(driver.clone(), Arc::new(compiler), cache)?, driver }))
        }
        Err(reason) if std::env::var_os("SINEW_REQUIRE_GXX").is_some() => {
            Err(Error::NoDevice { name: "cuda on the host".into(), reason })
        }
        Err(reason) => {
            // Past what libtest keeps back of a test that passes.
            let _ = writeln!(io::stderr(), "skipped: {reason}");
            Ok(None)
        }
    }
}
