//! Rooflines (Williams, Waterman and Patterson 2009): the least time that a device's limits leave for a problem.

use std::fmt;
use std::sync::Arc;

use sinew_kernels::rates::{ArithmeticPeaks, Description, Peaks};
use sinew_kernels::{Factors, Work};
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
    /// Whether memory's was measured: else it is the estimate that predictions rest on.
    pub memory_measured: bool,
    /// Whether those of arithmetic were: on GPUs they never are.
    pub arithmetic_measured: bool,
}

impl Limits {
    /// The estimates of a device's [`Rates`](sinew_memory::Rates): known at once, and right within a factor.
    pub fn estimated(hardware: &Hardware) -> Self {
        let (memory_bytes_per_s, arithmetic) = (hardware.rates.read_bytes_per_s, ArithmeticPeaks::estimated(hardware));
        Self { memory_bytes_per_s, arithmetic, memory_measured: false, arithmetic_measured: false }
    }

    /// The limits of a device as they were described before, such as by `sinew devices --measure`; of arithmetic on
    /// GPUs the estimate: what products reach there is no limit.
    pub fn described(hardware: &Hardware, description: &Description) -> Self {
        Self::estimated(hardware).with(description.memory_bytes_per_s(), description.arithmetic)
    }

    /// The limits of a device as [`Peaks`] measures them, in a second or two; of arithmetic on GPUs the estimate.
    ///
    /// # Errors
    /// Out of memory, or a failed device.
    pub fn measure(device: &Arc<dyn Device>) -> Result<Self> {
        let Peaks { memory_bytes_per_s, arithmetic } = Peaks::measure(device)?;
        Ok(Self::estimated(device.hardware()).with(Some(memory_bytes_per_s), arithmetic))
    }

    /// Those that were measured in the place of estimates.
    fn with(self, memory_bytes_per_s: Option<f64>, arithmetic: Option<ArithmeticPeaks>) -> Self {
        Self {
            memory_bytes_per_s: memory_bytes_per_s.unwrap_or(self.memory_bytes_per_s),
            arithmetic: arithmetic.unwrap_or(self.arithmetic),
            memory_measured: memory_bytes_per_s.is_some(),
            arithmetic_measured: arithmetic.is_some(),
        }
    }

    /// Operations per second of arithmetic with operands of a kind.
    fn operations_per_s(&self, factors: Factors) -> f64 {
        let peaks = Peaks { memory_bytes_per_s: self.memory_bytes_per_s, arithmetic: Some(self.arithmetic) };
        peaks.flops_per_s(factors).unwrap_or(self.arithmetic.f32_flops_per_s)
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
    pub fn least(&self, work: Work, factors: impl Into<Factors>) -> (f64, Bound) {
        let memory = work.bytes / self.memory_bytes_per_s;
        let arithmetic = work.flops / self.operations_per_s(factors.into());
        if arithmetic > memory { (arithmetic, Bound::Arithmetic) } else { (memory, Bound::Memory) }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArithmeticPeaks { f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s } = self.arithmetic;
        let [memory, f32, bf16, int8] =
            [self.memory_bytes_per_s, f32_flops_per_s, bf16_flops_per_s, int8_ops_per_s].map(|rate| rate / 1e9);
        let how = match (self.memory_measured, self.arithmetic_measured) {
            (true, true) => "measured",
            (false, false) => "estimated",
            (true, false) => "memory measured, arithmetic estimated",
            (false, true) => "memory estimated, arithmetic measured",
        };
        write!(f, "{memory:.1} GB/s; GFLOP/s: f32 {f32:.0}, bf16 {bf16:.0}, int8 {int8:.0} ({how})")
    }
}

#[cfg(test)]
mod tests {
    use sinew_kernels::rates::Bandwidth;
    use sinew_memory::Cpu;

    use super::*;

    #[test]
    fn limits_say_of_each_half_whether_it_was_measured() {
        let arithmetic = ArithmeticPeaks { f32_flops_per_s: 3e9, bf16_flops_per_s: 5e9, int8_ops_per_s: 7e9 };
        let of_memory = Bandwidth { threads: 1, read_bytes_per_s: None, copy_bytes_per_s: 2e9 };
        let cpu = Cpu::get();
        let (hardware, estimated) = (cpu.hardware(), Limits::estimated(cpu.hardware()));
        let of_gpu = Description { bandwidth: vec![of_memory], arithmetic: None, products: None, fork_join_s: 1e-6 };
        let of_cpu = Description { arithmetic: Some(arithmetic), ..of_gpu.clone() };
        let of_none = Description { bandwidth: Vec::new(), ..of_cpu.clone() };
        for (limits, memory, arithmetic, how) in [
            (estimated, estimated.memory_bytes_per_s, estimated.arithmetic, "(estimated)"),
            (Limits::described(hardware, &of_cpu), 2e9, arithmetic, "(measured)"),
            (
                Limits::described(hardware, &of_gpu),
                2e9,
                estimated.arithmetic,
                "(memory measured, arithmetic estimated)",
            ),
            (
                Limits::described(hardware, &of_none),
                estimated.memory_bytes_per_s,
                arithmetic,
                "(memory estimated, arithmetic measured)",
            ),
        ] {
            assert_eq!((limits.memory_bytes_per_s, limits.arithmetic), (memory, arithmetic), "{limits}");
            assert!(limits.to_string().ends_with(how), "{limits}");
        }
    }
}
