//! Rooflines (Williams, Waterman and Patterson 2009): the least time that a device's limits leave for a problem.

use std::fmt;
use std::sync::Arc;

use sinew_kernels::rates::{ArithmeticPeaks, Description, Peaks};
use sinew_kernels::{Compute, Work};
use sinew_memory::{Device, Hardware};

use crate::Result;

/// Which limit of a device leaves a problem the most time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Reading and writing memory.
    Memory,
    /// Arithmetic.
    Arithmetic,
}

impl Bound {
    /// The name, as in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a device does at most, with all its threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes of memory per second.
    pub memory_bytes_per_s: f64,
    /// Operations per second, a multiply-add being two.
    pub arithmetic: ArithmeticPeaks,
    /// Whether they were measured: else they are the estimates that predictions rest on.
    pub measured: bool,
}

impl Limits {
    /// The estimates of a device's [`Rates`](sinew_memory::Rates): known at once, and right within a factor.
    pub fn estimated(hardware: &Hardware) -> Self {
        let (memory_bytes_per_s, arithmetic) = (hardware.rates.read_bytes_per_s, ArithmeticPeaks::estimated(hardware));
        Self { memory_bytes_per_s, arithmetic, measured: false }
    }

    /// The limits of a device as they were described before, such as by `sinew devices --measure`; of arithmetic on
    /// GPUs the estimate.
    pub fn described(hardware: &Hardware, description: &Description) -> Self {
        let estimated = Self::estimated(hardware);
        Self {
            memory_bytes_per_s: description.memory_bytes_per_s().unwrap_or(estimated.memory_bytes_per_s),
            arithmetic: description.arithmetic.unwrap_or(estimated.arithmetic),
            measured: true,
        }
    }

    /// The limits of a device as [`Peaks`] measures them, in a second or two; of arithmetic on GPUs the estimate.
    ///
    /// # Errors
    /// Out of memory, or a failed device.
    pub fn measure(device: &Arc<dyn Device>) -> Result<Self> {
        let peaks = Peaks::measure(device)?;
        let arithmetic = peaks.arithmetic.unwrap_or(Self::estimated(device.hardware()).arithmetic);
        Ok(Self { memory_bytes_per_s: peaks.memory_bytes_per_s, arithmetic, measured: true })
    }

    /// Operations per second of arithmetic with operands of a kind.
    fn operations_per_s(&self, compute: Compute) -> f64 {
        let peaks = Peaks { memory_bytes_per_s: self.memory_bytes_per_s, arithmetic: Some(self.arithmetic) };
        peaks.flops_per_s(compute).unwrap_or(self.arithmetic.f32_flops_per_s)
    }

    /// The least seconds for so much work, and which limit that is.
    ///
    /// ```
    /// use sinew_kernels::{Compute, Work};
    /// use sinew_memory::{Cpu, Device};
    /// use sinew_ops::{Bound, Limits};
    ///
    /// let limits = Limits::estimated(Cpu::get().hardware());
    /// let (seconds, bound) = limits.least(Work { flops: 1e3, bytes: 1e9 }, Compute::F32);
    /// assert_eq!((seconds, bound), (1e9 / limits.memory_bytes_per_s, Bound::Memory));
    /// ```
    pub fn least(&self, work: Work, compute: Compute) -> (f64, Bound) {
        let memory = work.bytes / self.memory_bytes_per_s;
        let arithmetic = work.flops / self.operations_per_s(compute);
        if arithmetic > memory { (arithmetic, Bound::Arithmetic) } else { (memory, Bound::Memory) }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s } = self.arithmetic;
        let [memory, f32, bf16, int8] =
            [self.memory_bytes_per_s, f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s].map(|rate| rate / 1e9);
        let how = if self.measured { "measured" } else { "estimated" };
        write!(f, "{memory:.1} GB/s; GFLOP/s: f32 {f32:.0}, bf16 {bf16:.0}, int8 {int8:.0} ({how})")
    }
}
