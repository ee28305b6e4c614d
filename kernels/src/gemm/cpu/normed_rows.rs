//! The norm of a product's left operand, computed while its rows are packed.

use sinew_tensor::DType;

use crate::cpu::line::Line;
use crate::gemm::{Gemm, GemmStatic, NORM_BIAS, NORM_WEIGHT};
use crate::norm::NormKind;
use crate::norm::lanes::{Formula, Scale};
use crate::simd::{LANES, Part, Simd, Stored};
use crate::strided::Scratch;
use crate::{Operands, Operator, Result};

/// An [`InputNorm`](crate::gemm::InputNorm) with its operands' addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormedRows {
    formula: Formula,
    weight: Option<Line>,
    bias: Option<Line>,
    to: DType,
}

/// A norm's weights, their offset added, and biases for sixteen values of every row.
#[derive(Clone, Copy)]
pub(super) struct Vectors<'a, S: Simd> {
    norm: &'a NormedRows,
    weight: S::F,
    bias: S::F,
}

impl NormedRows {
    /// The norm of a problem, if it has one.
    pub fn new(fixed: &GemmStatic, operands: Operands<'_>) -> Result<Option<Self>> {
        let Some(norm) = fixed.norm_alone() else { return Ok(None) };
        let line = |dtype: Option<DType>, position, name| -> Result<Option<Line>> {
            let Some(dtype) = dtype else { return Ok(None) };
            let view = operands.input(Gemm::NAME, position, name)?;
            Ok(Some(Line::new(view.host_ptr()?, dtype, view.strides()[0])))
        };
        Ok(Some(Self {
            formula: Formula::of(&norm.formula),
            weight: line(norm.formula.weight, NORM_WEIGHT, "the norm's weight")?,
            bias: line(norm.formula.bias, NORM_BIAS, "the norm's bias")?,
            to: norm.out,
        }))
    }

    /// Weight and bias of values `k..k + n`, at most 16, of a row in an order.
    ///
    /// # Safety
    /// Those of [`Simd`]; both have these values, and the order has them.
    #[inline(always)]
    pub unsafe fn vectors<S: Simd>(&self, k: usize, n: usize, order: Option<*const u32>) -> Vectors<'_, S> {
        // SAFETY: passed on.
        unsafe {
            let weight = match self.weight {
                Some(line) => load::<S>(line, k, n, order),
                None => S::splat(1.0),
            };
            let bias = match self.bias {
                Some(line) => load::<S>(line, k, n, order),
                None => S::splat(0.0),
            };
            Vectors { norm: self, weight: S::add(weight, S::splat(self.formula.offset)), bias }
        }
    }
}

/// The statistics of a row of `k` values, which can be read.
#[derive(Clone, Copy)]
pub(super) struct RowScale<'a> {
    pub norm: &'a NormedRows,
    pub row: Line,
    pub k: usize,
}

impl Part for RowScale<'_> {
    type Out = Scale;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Scale {
        let Self { norm: NormedRows { formula, .. }, row, k } = self;
        let mut room = Scratch::new();
        let room = room.ptr();
        // SAFETY: passed on; the room holds a block.
        unsafe {
            match formula.kind {
                NormKind::Rms => formula.scale::<S, false>(row, k, std::ptr::null(), room),
                NormKind::Layer => formula.scale::<S, true>(row, k, std::ptr::null(), room),
            }
        }
    }
}

/// The first `n` of sixteen values of a line from `k` on. Not a closure: called twice, one would be compiled by itself,
/// without the level's instructions.
///
/// # Safety
/// Those of [`NormedRows::vectors`].
#[inline(always)]
unsafe fn load<S: Simd>(line: Line, k: usize, n: usize, order: Option<*const u32>) -> S::F {
    // SAFETY: passed on.
    unsafe {
        match order {
            Some(order) => line.load_at::<S>(order.wrapping_add(k), n),
            None => line.skip(k).load::<S>(n),
        }
    }
}

impl<S: Simd> Vectors<'_, S> {
    /// The first `n` of sixteen values of a row, normed and rounded; zeros behind them. Where they are `rounded` to
    /// bf16 next, they are not rounded to it here.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn apply(self, x: S::F, n: usize, scale: Scale, rounded: bool) -> S::F {
        // SAFETY: passed on.
        unsafe {
            let normed = scale.lanes::<S>().apply::<true>(x, self.weight, self.bias);
            let normed = match self.norm.to {
                DType::F16 => half::f16::rounded::<S>(normed),
                DType::BF16 if !rounded => half::bf16::rounded::<S>(normed),
                _ => normed,
            };
            if n == LANES {
                return normed;
            }
            // The norm of zeros that are none of the row's may be infinite, and NaN as soon as it is multiplied.
            let mut values = [0.0f32; LANES];
            S::store(values.as_mut_ptr(), normed);
            S::load_n(values.as_ptr(), n)
        }
    }
}
