//! RMS and layer norm over the last dimension, with the residual added before.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod lanes;
pub(crate) mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::DType;

use crate::operator::{Operands, Operator, Row, Work, count_of, expect, refuse};
use crate::table::joined;
use crate::{F32Bits, Result};

/// The rows of [`Norm`].
pub fn rows() -> Vec<Row<Norm>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / √(mean(x²) + eps) · w + b` (Zhang and Sennrich 2019).
    Rms,
    /// `(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b` (Ba et al. 2016).
    Layer,
}

/// A norm of every row of `[.., width]`, computed in f32 with sums in blocks.
///
/// Operands, in any strides and of any rank from 1 on:
/// - input [`Norm::X`] `[.., width]`: absent where [`NormStatic::in_place`] is set;
/// - input [`Norm::WEIGHT`] `[width]`, [`Norm::BIAS`] `[width]`: where the static part names their dtypes;
/// - output [`Norm::Y`] of `x`'s shape;
/// - output [`Norm::RESIDUAL`] of `x`'s shape, where the static part names its dtype: `x` is added to it, and `y` is
///   the norm of the sum as it is stored.
#[derive(Debug)]
pub struct Norm;

impl Norm {
    /// Input: the rows, or what is added to the residual.
    pub const X: usize = 0;
    /// Input: `w`; 1 where absent.
    pub const WEIGHT: usize = 1;
    /// Input: `b`; 0 where absent.
    pub const BIAS: usize = 2;
    /// Output: the normed rows.
    pub const Y: usize = 0;
    /// Output that is also read: the residual stream.
    pub const RESIDUAL: usize = 1;
}

/// What a norm makes of a row, wherever it is computed: by [`Norm`], or by a product of its left operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormFormula {
    /// Which norm.
    pub kind: NormKind,
    /// What is added to the mean square or variance: `rms_norm_eps`, `layer_norm_eps`.
    pub eps: F32Bits,
    /// The weight's dtype, where there is one.
    pub weight: Option<DType>,
    /// Added to the weight: 1 for Gemma, whose weights are stored as differences from 1; else 0.
    pub weight_offset: F32Bits,
    /// The bias's dtype, where there is one.
    pub bias: Option<DType>,
}

impl NormFormula {
    /// The dtypes of weight and bias.
    pub(crate) fn vectors(&self) -> [Option<DType>; 2] {
        [self.weight, self.bias]
    }
}

impl Default for NormFormula {
    /// RMS with eps 1e-6, without weight and bias.
    fn default() -> Self {
        let (eps, weight_offset) = (F32Bits::new(1e-6), F32Bits::new(0.0));
        Self { kind: NormKind::Rms, eps, weight: None, weight_offset, bias: None }
    }
}

/// The static part of [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormStatic {
    /// Elements of a row.
    pub width: usize,
    /// What is computed of each.
    pub formula: NormFormula,
    /// The input's dtype: f32, f16 or bf16, as all others.
    pub x: DType,
    /// The output's dtype.
    pub out: DType,
    /// The residual's dtype, where `x` is added to one.
    pub residual: Option<DType>,
    /// The output's own values are normed and overwritten: there is no input [`Norm::X`] and no residual.
    pub in_place: bool,
}

impl Default for NormStatic {
    /// The default formula of rows of width 0 in f32, and nothing else.
    fn default() -> Self {
        Self {
            width: 0,
            formula: NormFormula::default(),
            x: DType::F32,
            out: DType::F32,
            residual: None,
            in_place: false,
        }
    }
}

impl fmt::Display for NormStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, formula, x, out, residual, in_place } = self;
        let NormFormula { kind, eps, weight, weight_offset, bias } = formula;
        let kind = if *kind == NormKind::Rms { "rms" } else { "layer" };
        write!(f, "{kind} width {width} eps {eps} {x} to {out}")?;
        if *in_place {
            write!(f, " in place")?;
        }
        if let Some(dtype) = weight {
            write!(f, " weight {dtype}")?;
        }
        if weight_offset.get() != 0.0 {
            write!(f, " plus {weight_offset}")?;
        }
        if let Some(dtype) = bias {
            write!(f, " bias {dtype}")?;
        }
        if let Some(dtype) = residual {
            write!(f, " residual {dtype}")?;
        }
        Ok(())
    }
}

/// The dynamic part of [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormDynamic {
    /// Rows: all indices of the leading dimensions.
    pub rows: usize,
}

impl NormDynamic {
    /// The call for operands of this shape.
    pub fn of(shape: &[usize]) -> Self {
        Self { rows: shape.split_last().map_or(1, |(_, leading)| leading.iter().product()) }
    }
}

impl fmt::Display for NormDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.rows, "row"))
    }
}

impl NormStatic {
    /// The dtypes of all operands.
    fn dtypes(&self) -> impl Iterator<Item = DType> {
        let [weight, bias] = self.formula.vectors();
        [Some(self.x), Some(self.out), weight, bias, self.residual].into_iter().flatten()
    }
}

impl Operator for Norm {
    const NAME: &'static str = "norm";
    type Static = NormStatic;
    type Dynamic = NormDynamic;

    fn bucket(_: NormDynamic) -> NormDynamic {
        // Rows of the table differ in speed by a factor, whatever the number of rows.
        NormDynamic { rows: 16 }
    }

    fn anchor(_: &NormStatic) -> NormDynamic {
        NormDynamic { rows: 16 }
    }

    fn check(fixed: &NormStatic, call: &NormDynamic, operands: Operands<'_>) -> Result<()> {
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        let shape = y.shape();
        if shape.last() != Some(&fixed.width) || NormDynamic::of(shape) != *call {
            let reason = format!("y is {:?}; the problem has {call} of {} elements", y.layout(), fixed.width);
            return Err(refuse(Self::NAME, reason));
        }
        expect(Self::NAME, "y", y, fixed.out, shape)?;
        if fixed.in_place {
            if fixed.x != fixed.out || fixed.residual.is_some() || operands.optional(Self::X).is_some() {
                let reason = "in place takes one dtype, no residual and no input x";
                return Err(refuse(Self::NAME, format!("{fixed}: {reason}")));
            }
        } else {
            expect(Self::NAME, "x", operands.input(Self::NAME, Self::X, "x")?, fixed.x, shape)?;
        }
        if let Some(dtype) = fixed.residual {
            expect(Self::NAME, "residual", operands.output(Self::NAME, Self::RESIDUAL, "residual")?, dtype, shape)?;
        }
        let width = [fixed.width];
        let [weight, bias] = fixed.formula.vectors();
        for (position, name, dtype) in [(Self::WEIGHT, "weight", weight), (Self::BIAS, "bias", bias)] {
            match (dtype, operands.optional(position)) {
                (Some(dtype), _) => {
                    expect(Self::NAME, name, operands.input(Self::NAME, position, name)?, dtype, &width)?
                }
                (None, Some(_)) => return Err(refuse(Self::NAME, format!("{fixed} takes no {name}"))),
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn work(fixed: &NormStatic, call: &NormDynamic) -> Work {
        let n = (call.rows * fixed.width) as f64;
        let passes = if fixed.formula.kind == NormKind::Rms { 4.0 } else { 8.0 };
        let each = fixed.x.size() + fixed.out.size() + 2 * fixed.residual.map_or(0, DType::size);
        let once = fixed.formula.vectors().into_iter().flatten().map(DType::size).sum::<usize>();
        Work { flops: n * passes, bytes: n * each as f64 + (fixed.width * once) as f64 }
    }
}
