//! What is known of the hardware: instruction set, caches, cores, limits.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::{DeviceKind, Error};

/// How far the CPU's vector instructions reach, each level holding those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SimdLevel {
    /// Plain Rust, whatever the target's baseline is.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with its int8 dot products.
    Avx512Vnni,
    /// AVX-512 with its bfloat16 dot products as well; every CPU that has these has those of int8.
    Avx512Bf16,
}

impl SimdLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 5] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16];

    /// The highest level that this machine has, found once.
    pub fn detected() -> Self {
        static LEVEL: OnceLock<SimdLevel> = OnceLock::new();
        *LEVEL.get_or_init(detect)
    }

    /// Lanes of f32 that a core multiplies and adds in one cycle, by an estimate for cost models: two vectors of them.
    pub fn f32_lanes(self) -> usize {
        match self {
            Self::Portable => 4,
            Self::Avx2 => 16,
            Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => 32,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
    if vnni && is_x86_feature_detected!("avx512bf16") {
        SimdLevel::Avx512Bf16
    } else if vnni {
        SimdLevel::Avx512Vnni
    } else if avx512 {
        SimdLevel::Avx512
    } else if avx2 {
        SimdLevel::Avx2
    } else {
        SimdLevel::Portable
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> SimdLevel {
    SimdLevel::Portable
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512vnni",
            Self::Avx512Bf16 => "avx512bf16",
        })
    }
}

impl FromStr for SimdLevel {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|level| level.to_string() == s).ok_or_else(|| {
            let levels = Self::ALL.map(|level| level.to_string()).join(", ");
            Error::Invalid(format!("no SIMD level `{s}`; there are {levels}"))
        })
    }
}

/// Sizes of the data caches in bytes: per core for L1 and L2, shared for L3. 0 where unknown or absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First level.
    pub l1d: usize,
    /// Second level.
    pub l2: usize,
    /// Third level.
    pub l3: usize,
}

/// Rates that bound kernels: estimates for cost models, per thread unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second that all threads together read from memory.
    pub read_bytes_per_s: f64,
    /// f32 multiply-adds times two per second and thread.
    pub f32_flops_per_s: f64,
    /// bf16 multiply-adds times two per second and thread, with f32 sums. Of a CPU the rate of f32: how much faster or
    /// slower its bf16 dot products are is for their kernels to know.
    pub bf16_flops_per_s: f64,
    /// Seconds to start and join one kernel.
    pub launch_s: f64,
}

/// What a GPU offers the kernels that run on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerator {
    /// CUDA's compute capability, major and minor: (9, 0) for Hopper. `None` where the device is not CUDA's.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether kernels may use 16-bit floats as they are stored.
    pub f16: bool,
    /// Whether products of bf16 operands are multiplied as such, not widened first.
    pub bf16_products: bool,
    /// Fewest and most threads that exchange values without memory; `None` where kernels cannot.
    pub subgroup_size: Option<(usize, usize)>,
    /// Memory in bytes that the threads of a workgroup share.
    pub workgroup_bytes: usize,
    /// The most threads of a workgroup.
    pub workgroup_threads: usize,
    /// The largest range of a buffer in bytes that a kernel sees at once.
    pub max_binding_bytes: usize,
    /// The most buffers that a kernel sees at once.
    pub max_bindings: usize,
}

/// What kernels' predicates and costs may know of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The kind of device.
    pub kind: DeviceKind,
    /// The maker's name for it.
    pub name: String,
    /// SIMD level that kernels may use; [`SimdLevel::Portable`] for devices that are not CPUs.
    pub simd: SimdLevel,
    /// Threads (CPU) or compute units (GPU) that work at once.
    pub threads: usize,
    /// Cache sizes.
    pub caches: Caches,
    /// Rates.
    pub rates: Rates,
    /// What a GPU offers; `None` where the device is none.
    pub accelerator: Option<Accelerator>,
}

/// Name, what decides the choice of kernels, and how much works at once.
impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, simd, threads, accelerator, .. } = self;
        match accelerator {
            None => write!(f, "{name}, {simd}, {threads} threads"),
            Some(Accelerator { compute_capability: Some(capability), .. }) => {
                f.write_str(&Self::of_gpu(name, *capability, *threads))
            }
            Some(Accelerator { f16, subgroup_size, .. }) => f.write_str(&Self::of_adapter(name, *f16, *subgroup_size)),
        }
    }
}

/// Threads that it takes to read memory at its full rate, where nothing was measured.
const READERS: usize = 8;

impl Hardware {
    /// Bytes per second that `threads` threads together read where one alone reads `alone`: an estimate.
    pub(crate) fn read_rate(alone: f64, threads: usize) -> f64 {
        alone * threads.clamp(1, READERS) as f64
    }

    /// An NVIDIA GPU in the words of hardware, opened or not.
    pub(crate) fn of_gpu(name: &str, (major, minor): (u32, u32), multiprocessors: usize) -> String {
        format!("{name}, compute {major}.{minor}, {multiprocessors} multiprocessors")
    }

    /// The same of an adapter.
    pub(crate) fn of_adapter(name: &str, f16: bool, subgroups: Option<(usize, usize)>) -> String {
        let subgroups = subgroups.map_or_else(String::new, |(least, most)| format!(", subgroups of {least} to {most}"));
        format!("{name}{}{subgroups}", if f16 { ", f16" } else { "" })
    }

    /// One thread of the same machine: what a choice that must not depend on the number of threads is made by.
    pub fn one_thread(&self) -> Self {
        let alone = self.rates.read_bytes_per_s / Self::read_rate(1.0, self.threads);
        Self { threads: 1, rates: Rates { read_bytes_per_s: alone, ..self.rates }, ..self.clone() }
    }

    /// The same machine with its SIMD level capped.
    pub fn capped(&self, level: SimdLevel) -> Self {
        Self { simd: self.simd.min(level), ..self.clone() }
    }
}
