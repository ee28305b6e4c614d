//! What devices this machine has, and opening one by name.

use std::fmt;
use std::sync::Arc;

use crate::system;
use crate::{
    Bytes, Caches, Cpu, Device, DeviceKind, Error, Hardware, PrivateFolder, Result, SimdLevel, level_from_environment,
};

/// How a device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Threads of a CPU; all that the process may use where it is `None`.
    pub threads: Option<usize>,
    /// The SIMD level of a CPU; that which [`level_from_environment`] gives where it is `None`.
    pub simd: Option<SimdLevel>,
    /// Where the compiled kernels of a GPU are kept.
    pub kernels: PrivateFolder,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { threads: None, simd: None, kernels: PrivateFolder::of_user("kernels") }
    }
}

/// A device that was looked for: what was found, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovered {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its name for [`open`], such as `cuda:0`; the kind alone where there is none.
    pub name: String,
    /// What was found.
    pub found: Found,
}

/// What was found of a kind of device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Found {
    /// The host's processor.
    Host(Host),
    /// An NVIDIA GPU.
    Gpu(Gpu),
    /// A Vulkan, Metal or DX12 adapter.
    Adapter(Adapter),
    /// None can be used.
    Nothing {
        /// Why, in a line.
        reason: String,
    },
}

/// The host's processor and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The maker's name for it.
    pub name: String,
    /// The widest vector instructions it has, capped by `SINEW_SIMD`.
    pub simd: SimdLevel,
    /// Data caches.
    pub caches: Caches,
    /// Logical cores of the machine.
    pub cores: usize,
    /// Threads that this process may run at once.
    pub threads: usize,
    /// The container's CPU quota in cores.
    pub cpu_quota: Option<f64>,
    /// The container's memory limit.
    pub memory_limit_bytes: Option<usize>,
    /// Memory in all, the container's limit applied.
    pub total_bytes: usize,
    /// Memory that could be allocated now.
    pub available_bytes: usize,
}

/// An NVIDIA GPU, as its driver describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// The maker's name for it.
    pub name: String,
    /// Compute capability, major and minor: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most memory that the threads of a block share.
    pub shared_bytes: usize,
    /// Memory in all.
    pub total_bytes: usize,
    /// The newest CUDA version that the driver knows, major and minor.
    pub driver_version: (u32, u32),
}

/// A Vulkan, Metal or DX12 adapter, as wgpu describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The maker's name for it.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// What it is: `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` (software) or `Other`.
    pub device_type: String,
    /// The driver and its version.
    pub driver: String,
    /// The largest range of a buffer that a kernel sees at once.
    pub max_binding_bytes: u64,
    /// The largest buffer.
    pub max_buffer_bytes: u64,
    /// Memory that the threads of a workgroup share.
    pub max_workgroup_bytes: u32,
    /// Whether shaders have 16-bit floats.
    pub f16: bool,
    /// Whether shaders have subgroup operations.
    pub subgroups: bool,
    /// Smallest and largest subgroup, in threads.
    pub subgroup_size: (u32, u32),
}

impl Discovered {
    /// The [`Hardware`] of a GPU or an adapter in words, as it is once the device is [opened](open): what is kept of a
    /// device is found by them without opening it. `None` of what cannot be told before that: a CPU is opened with as
    /// many threads as are asked for.
    ///
    /// ```
    /// assert_eq!(sinew_memory::discover()[0].hardware_words(), None);
    /// ```
    pub fn hardware_words(&self) -> Option<String> {
        match &self.found {
            // As many as the driver says, and one where it says none.
            Found::Gpu(gpu) => {
                Some(Hardware::of_gpu(&gpu.name, gpu.compute_capability, gpu.multiprocessors.max(1) as usize))
            }
            Found::Adapter(adapter) => {
                let (least, most) = adapter.subgroup_size;
                let subgroups = adapter.subgroups.then_some((least as usize, most as usize));
                Some(Hardware::of_adapter(&adapter.name, adapter.f16, subgroups))
            }
            Found::Host(_) | Found::Nothing { .. } => None,
        }
    }
}

impl fmt::Display for Discovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.found {
            Found::Host(host) => {
                write!(f, "{name}: {}, {}, {} cores, {} threads", host.name, host.simd, host.cores, host.threads)?;
                if let Some(quota) = host.cpu_quota {
                    write!(f, " (quota {quota:.1})")?;
                }
                let Caches { l1d, l2, l3 } = host.caches;
                write!(f, ", caches {} / {} / {}", Bytes(l1d), Bytes(l2), Bytes(l3))?;
                write!(f, ", {} of {} available", Bytes(host.available_bytes), Bytes(host.total_bytes))?;
                match host.memory_limit_bytes {
                    Some(limit) => write!(f, " (limit {})", Bytes(limit)),
                    None => Ok(()),
                }
            }
            Found::Gpu(gpu) => {
                let ((major, minor), (cuda, cuda_minor)) = (gpu.compute_capability, gpu.driver_version);
                write!(f, "{name}: {}, compute {major}.{minor}, {} SMs", gpu.name, gpu.multiprocessors)?;
                write!(f, ", {}, driver for CUDA {cuda}.{cuda_minor}", Bytes(gpu.total_bytes))
            }
            Found::Adapter(adapter) => {
                write!(f, "{name}: {}, {} {}", adapter.name, adapter.backend, adapter.device_type)?;
                write!(f, ", {}, bindings up to {} bytes", adapter.driver, adapter.max_binding_bytes)?;
                write!(f, "{}", if adapter.f16 { ", f16" } else { "" })?;
                match adapter.subgroup_size {
                    (small, large) if adapter.subgroups => write!(f, ", subgroups of {small} to {large}"),
                    _ => Ok(()),
                }
            }
            Found::Nothing { reason } => write!(f, "{name}: none: {reason}"),
        }
    }
}

/// Looks for devices of every kind: the CPU first, then each GPU, and a reason for each kind that has none.
///
/// This asks the CUDA driver and Vulkan, which takes a moment; [`open`] asks only for the kind that it opens. It does
/// not fail: what goes wrong is a reason.
///
/// ```
/// use sinew_memory::{DeviceKind, discover};
/// assert_eq!(discover()[0].kind, DeviceKind::CPU);
/// ```
pub fn discover() -> Vec<Discovered> {
    let host = Discovered { kind: DeviceKind::CPU, name: "cpu".into(), found: Found::Host(host()) };
    let gpus = named(DeviceKind::CUDA, cuda::gpus(), Found::Gpu);
    let adapters = named(DeviceKind::WGPU, webgpu::adapters(), Found::Adapter);
    std::iter::once(host).chain(gpus).chain(adapters).collect()
}

/// Kinds of devices that have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cpu,
    Cuda,
    Wgpu,
}

/// The kind that a name of a device begins with, and the number behind it.
fn split(name: &str) -> Result<(Kind, usize)> {
    let no_device = |reason: String| Error::NoDevice { name: name.to_owned(), reason };
    let (kind, digits) = name.split_once(':').map_or((name, None), |(kind, digits)| (kind, Some(digits)));
    let known = match kind {
        "cpu" => Kind::Cpu,
        "cuda" => Kind::Cuda,
        "wgpu" => Kind::Wgpu,
        _ => return Err(no_device("devices are cpu, cuda, cuda:N, wgpu and wgpu:N".into())),
    };
    let index = digits.map_or(Ok(0), |digits| {
        let index = digits.parse::<usize>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        index.ok_or_else(|| no_device(format!("`{digits}` is no device number; write {kind}:0")))
    })?;
    match (known, index) {
        (Kind::Cpu, 1..) => Err(no_device("there is one CPU device; write cpu".into())),
        of_name => Ok(of_name),
    }
}

/// Refuses what is no name of a device, without looking for any: whether there is one of a name, [`open`] says.
///
/// # Errors
/// [`Error::NoDevice`], with the names that there are.
///
/// ```
/// assert!(sinew_memory::check_name("cuda:1").is_ok());
/// assert!(sinew_memory::check_name("abacus").is_err());
/// ```
pub fn check_name(name: &str) -> Result<()> {
    split(name).map(|_| ())
}

/// Opens a device: `cpu`, `cuda`, `cuda:1`, `wgpu`, `wgpu:1`.
///
/// Only the kind that is named is touched: `cpu` loads no GPU driver.
///
/// # Errors
/// [`Error::NoDevice`] where there is no such device or no kernel for it, and why; [`Error::Invalid`] for a number of
/// threads that cannot be, or an unreadable `SINEW_SIMD`.
///
/// ```
/// use sinew_memory::DeviceOptions;
///
/// let cpu = sinew_memory::open("cpu", &DeviceOptions { threads: Some(1), ..DeviceOptions::default() })?;
/// assert_eq!(cpu.hardware().threads, 1);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
pub fn open(name: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    let &DeviceOptions { threads, simd, ref kernels } = options;
    let no_device = |reason: String| Error::NoDevice { name: name.to_owned(), reason };
    let (kind, index) = split(name)?;
    let available = match kind {
        Kind::Cpu => {
            let asked = simd.map(|level| level.min(SimdLevel::detected()));
            let usual = level_from_environment();
            let is_usual = usual.as_ref().is_ok_and(|usual| asked.is_none_or(|asked| asked == *usual));
            let level = asked.map_or(usual, Ok)?;
            return match threads {
                // One team of threads for all that ask for the usual level.
                None if is_usual => Ok(Cpu::get()),
                threads => Cpu::with(threads.unwrap_or_else(system::available_threads), level),
            };
        }
        Kind::Cuda => named(DeviceKind::CUDA, cuda::gpus(), Found::Gpu),
        Kind::Wgpu => {
            return webgpu::open(index, kernels).map_err(|error| match error {
                // As it was asked for: `wgpu` is `wgpu:0`.
                Error::NoDevice { reason, .. } => no_device(reason),
                error => error,
            });
        }
    };
    #[cfg(all(feature = "cuda", not(target_os = "macos")))]
    if let Some(Discovered { found: Found::Gpu(_), .. }) = available.get(index) {
        return cuda::open(u32::try_from(index).unwrap_or(u32::MAX), kernels);
    }
    Err(no_device(match available.get(index).map(|device| &device.found) {
        Some(Found::Nothing { reason }) => reason.clone(),
        _ => match &available[..] {
            [Discovered { found: Found::Nothing { reason }, .. }] => reason.clone(),
            found => {
                let names: Vec<_> = found.iter().map(|device| device.name.as_str()).collect();
                format!("there are {}", names.join(", "))
            }
        },
    }))
}

/// Numbers what was found, or says why there is nothing.
fn named<T>(kind: DeviceKind, found: Result<Vec<T>, String>, describe: fn(T) -> Found) -> Vec<Discovered> {
    match found {
        Ok(devices) => devices
            .into_iter()
            .enumerate()
            .map(|(index, device)| Discovered { kind, name: format!("{kind}:{index}"), found: describe(device) })
            .collect(),
        Err(reason) => vec![Discovered { kind, name: kind.to_string(), found: Found::Nothing { reason } }],
    }
}

fn host() -> Host {
    let memory = system::memory();
    Host {
        name: system::cpu_name(),
        simd: level_from_environment().unwrap_or_else(|_| SimdLevel::detected()),
        caches: system::caches(),
        cores: system::logical_cores(),
        threads: system::available_threads(),
        cpu_quota: system::cgroup_cpus(),
        memory_limit_bytes: system::cgroup_memory().map(|(limit, _)| limit),
        total_bytes: memory.total,
        available_bytes: memory.available,
    }
}

#[cfg(all(feature = "cuda", not(target_os = "macos")))]
mod cuda {
    use std::sync::Arc;

    use crate::cuda::CudaDevice;
    pub(super) use crate::cuda::gpus;
    use crate::{Device, PrivateFolder, Result};

    pub fn open(index: u32, kernels: &PrivateFolder) -> Result<Arc<dyn Device>> {
        Ok(CudaDevice::open(index, kernels.clone())?)
    }
}

#[cfg(all(feature = "cuda", target_os = "macos"))]
mod cuda {
    pub fn gpus() -> Result<Vec<super::Gpu>, String> {
        Err("there is no CUDA on macOS".into())
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    pub fn gpus() -> Result<Vec<super::Gpu>, String> {
        Err("built without the `cuda` feature".into())
    }
}

#[cfg(feature = "wgpu")]
mod webgpu {
    use std::sync::Arc;

    pub(super) use crate::webgpu::found as adapters;
    use crate::webgpu::{WgpuDevice, WgpuOptions};
    use crate::{Device, PrivateFolder, Result};

    pub(super) fn open(index: usize, kernels: &PrivateFolder) -> Result<Arc<dyn Device>> {
        Ok(WgpuDevice::open(index, &WgpuOptions { cache: kernels.clone(), ..WgpuOptions::default() })?)
    }
}

#[cfg(not(feature = "wgpu"))]
mod webgpu {
    pub fn adapters() -> Result<Vec<super::Adapter>, String> {
        Err("built without the `wgpu` feature".into())
    }

    pub(super) fn open(
        index: usize,
        _kernels: &crate::PrivateFolder,
    ) -> crate::Result<std::sync::Arc<dyn crate::Device>> {
        let reason = "built without the `wgpu` feature".into();
        Err(crate::Error::NoDevice { name: format!("wgpu:{index}"), reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accelerator, Rates};

    #[test]
    fn a_gpu_is_called_the_same_before_and_after_it_is_opened() {
        let gpu = Gpu {
            name: "Some GPU".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            shared_bytes: 1 << 17,
            total_bytes: 1 << 36,
            driver_version: (13, 0),
        };
        let opened = Hardware {
            kind: DeviceKind::CUDA,
            name: gpu.name.clone(),
            simd: SimdLevel::Portable,
            threads: 132,
            caches: Caches { l1d: 1, l2: 2, l3: 0 },
            rates: Rates { read_bytes_per_s: 1.0, f32_flops_per_s: 1.0, bf16_flops_per_s: 1.0, launch_s: 1.0 },
            accelerator: Some(Accelerator {
                compute_capability: Some((9, 0)),
                f16: true,
                bf16_products: true,
                subgroup_size: Some((32, 32)),
                workgroup_bytes: 1,
                workgroup_threads: 1,
                max_binding_bytes: 1,
                max_bindings: 1,
            }),
        };
        let found = Discovered { kind: DeviceKind::CUDA, name: "cuda:0".into(), found: Found::Gpu(gpu) };
        assert_eq!(found.hardware_words(), Some(opened.to_string()));
        let nothing = Found::Nothing { reason: "no driver".into() };
        assert_eq!(Discovered { found: nothing, ..found }.hardware_words(), None);
    }
}
