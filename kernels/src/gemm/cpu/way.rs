//! A way to multiply on CPUs, which each file of loops tells of itself.

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::BlockFormat;

use super::tile::Tiles;
use crate::cpu::leveled::needs;
use crate::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use crate::packed::PanelKind;
use crate::rates::predicted;
use crate::{Arithmetic, Compute, Operator, Refusal, Row};

/// A way to multiply on CPUs: all that its rows have in common, whatever their operator.
pub(crate) struct Way {
    pub names: Names,
    pub arithmetic: Arithmetic,
    /// What the machine must have. [`Tiles::level`] is what packing and epilogue are compiled for, which may be less.
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

/// A type for each way: what [`Multiplies::row`] is generic over.
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
        $crate::gemm::cpu::way::Names {
            gemm: concat!("gemm.cpu.", $way),
            grouped_gemm: concat!("grouped_gemm.cpu.", $way),
        }
    };
}
pub(super) use names;

/// An operator with products.
pub(crate) trait Multiplies: Operator {
    /// Builds this operator's row from a way.
    fn row<W: Listed>() -> Row<Self>;
}

/// The blocks of weights that floats are multiplied with; machines below a level and all else are refused.
pub(super) fn float_blocks(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<BlockFormat, Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind().and_then(PanelKind::blocks) {
        Some(_) if fixed.compute == Compute::Int8 => Err("does not compute in int8".into()),
        Some(format) => Ok(format),
        None => Err("multiplies block-quantized weights only".into()),
    }
}

/// The same where activations are multiplied as bf16.
pub(super) fn bf16_blocks(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<BlockFormat, Refusal> {
    let format = float_blocks(fixed, hardware, level)?;
    if fixed.compute == Compute::Bf16 { Ok(format) } else { Err("computes in bf16, the problem asks for f32".into()) }
}

/// Predicted seconds at `rate` operations per second and thread.
pub(in crate::gemm) fn cost(fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware, rate: f64) -> f64 {
    let mut work = Gemm::work(fixed, call);
    if let Rhs::Strided(_) = fixed.b {
        // Packing a value of B costs about as much as 32 operations with it.
        work.flops += 32.0 * (call.batch * fixed.n * fixed.k) as f64;
    }
    predicted::by_rate(work, hardware, rate)
}
