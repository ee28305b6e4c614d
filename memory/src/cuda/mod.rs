//! NVIDIA GPUs: a device, its streams, and kernels that are compiled for it when they are first used.
//!
//! Everything rests on two traits. A [`Driver`] makes the few calls of the CUDA driver that are needed, a [`Compiler`]
//! turns CUDA C++ into an image that the driver loads. The ones of this crate are NVIDIA's own, loaded when they are
//! asked for; a test brings others and runs the same device, streams and kernels on the host.
//!
//! ```no_run
//! let device = sinew_memory::open("cuda:0", &sinew_memory::DeviceOptions::default())?;
//! let stream = device.clone().stream()?;
//! # Ok::<(), sinew_memory::Error>(())
//! ```

mod device;
mod driver;
mod module;
#[cfg(not(target_os = "macos"))]
mod nvidia;
#[cfg(not(target_os = "macos"))]
mod nvrtc;
mod storage;
mod stream;

pub use device::CudaDevice;
pub use driver::{Address, CallError, CompileError, Compiler, Driver, DriverCall, Handle, Properties, architecture};
pub use module::CudaModule;
#[cfg(not(target_os = "macos"))]
pub use nvidia::Nvidia;
#[cfg(not(target_os = "macos"))]
pub(crate) use nvidia::gpus;
#[cfg(not(target_os = "macos"))]
pub use nvrtc::Nvrtc;
pub use storage::CudaStorage;
pub use stream::CudaStream;
