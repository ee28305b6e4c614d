//! The ways to multiply on CPUs: one list, of which every operator with products makes its rows.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};

use super::tile::Tiles;
use super::{Gemm, GemmDynamic, GemmStatic, Rhs, cpu, cpu_blocks, cpu_int8, driver, plan};
#[cfg(target_arch = "x86_64")]
use super::{cpu_avx512bf16, cpu_blocks_avx512bf16};
use crate::rates::predicted;
use crate::{Arithmetic, Operator, Refusal, Row};

/// A way to multiply on CPUs: all that its rows have in common, whatever their operator.
pub(crate) struct Way {
    pub names: Names,
    pub arithmetic: Arithmetic,
    /// What the machine must have.
    pub level: SimdLevel,
    pub tiles: &'static Tiles,
    /// Refuses machines below a level, and what the tiles do not multiply.
    pub admit: fn(&GemmStatic, &Hardware, SimdLevel) -> Result<(), Refusal>,
    /// Operations per second and thread at a level.
    pub rate: fn(&Hardware, SimdLevel) -> f64,
}

impl Way {
    pub fn admit(&self, fixed: &GemmStatic, hardware: &Hardware) -> Result<(), Refusal> {
        (self.admit)(fixed, hardware, self.level)
    }

    pub fn rate(&self, hardware: &Hardware) -> f64 {
        (self.rate)(hardware, self.level)
    }
}

/// A type for each way, of which functions of its rows are made.
pub(crate) trait Listed {
    const WAY: Way;
}

/// What the rows of a way are called.
pub(crate) struct Names {
    pub gemm: &'static str,
    pub grouped_gemm: &'static str,
}

/// The [`Names`] of a way with this end.
macro_rules! names {
    ($way:literal) => {
        $crate::gemm::ways::Names { gemm: concat!("gemm.cpu.", $way), grouped_gemm: concat!("grouped_gemm.cpu.", $way) }
    };
}
pub(super) use names;

/// An operator with products.
pub(crate) trait Multiplies: Operator {
    /// Its row of a way.
    fn row<W: Listed>() -> Row<Self>;
}

/// The rows of an operator: all ways, best first.
pub(crate) fn rows<O: Multiplies>() -> Vec<Row<O>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks_avx512bf16::DotWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_int8::x86::VnniWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_int8::x86::Avx2Way>(),
        O::row::<cpu_int8::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu_blocks::Avx2Way>(),
        O::row::<cpu_blocks::PortableWay>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu::Avx512Way>(),
        #[cfg(target_arch = "x86_64")]
        O::row::<cpu::Avx2Way>(),
        O::row::<cpu::PortableWay>(),
    ]
}

impl Multiplies for Gemm {
    fn row<W: Listed>() -> Row<Self> {
        Row {
            name: W::WAY.names.gemm,
            device: DeviceKind::CPU,
            arithmetic: W::WAY.arithmetic,
            admits: |fixed, hardware| W::WAY.admit(fixed, hardware),
            cost: |fixed, call, hardware| cost(fixed, call, hardware, W::WAY.rate(hardware)),
            workspace: |fixed, call, hardware| plan::workspace(W::WAY.tiles, fixed, call, hardware),
            // SAFETY: passed on; the row admits machines with the level and the instructions only.
            run: |launch, fixed, call, operands| unsafe { driver::run(W::WAY.tiles, launch, fixed, call, operands) },
        }
    }
}

/// Predicted seconds at `rate` operations per second and thread.
pub(super) fn cost(fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware, rate: f64) -> f64 {
    let mut work = Gemm::work(fixed, call);
    if let Rhs::Strided(_) = fixed.b {
        // Packing a value of B costs about as much as 32 operations with it.
        work.flops += 32.0 * (call.batch * fixed.n * fixed.k) as f64;
    }
    predicted::by_rate(work, hardware, rate)
}
