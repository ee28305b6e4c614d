//! The arithmetic of a norm in lanes of f32: one formula, whether rows are written or packed.

use super::{NormFormula, NormKind};
use crate::cpu::line::Line;
use crate::simd::{LANES, Simd};
use crate::strided::blocks;

/// What decides the values of a row, besides its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formula {
    pub kind: NormKind,
    /// Added to the weight.
    pub offset: f32,
    eps: f64,
}

/// What is subtracted from a row and what it is multiplied with. The mean is in two parts, so that a row far from 0
/// loses nothing when it is subtracted. That of an RMS norm is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scale {
    mean: [f32; 2],
    inverse: f32,
}

/// A [`Scale`] in every lane.
#[derive(Clone, Copy)]
pub(crate) struct ScaleLanes<S: Simd> {
    mean: [S::F; 2],
    inverse: S::F,
}

impl Formula {
    /// That of a problem.
    pub fn of(formula: &NormFormula) -> Self {
        Self { kind: formula.kind, offset: formula.weight_offset.get(), eps: f64::from(formula.eps.get()) }
    }

    /// The statistics of a row of `width` elements. `kept` holds it already, if it is not null.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row can be read; `room` holds a block.
    #[inline(always)]
    pub unsafe fn scale<S: Simd, const CENTRED: bool>(
        &self,
        x: Line,
        width: usize,
        kept: *const f32,
        room: *mut f32,
    ) -> Scale {
        let count = width as f64;
        let mut mean = [0.0; 2];
        // SAFETY: passed on.
        unsafe {
            if CENTRED {
                // Sums of differences from the first element: exact to their own size however far the row is from 0.
                let mut total = 0.0;
                let mut first = 0.0;
                for (start, len) in blocks(width) {
                    let from = if kept.is_null() { x.skip(start).block::<S>(len, room) } else { kept };
                    if start == 0 {
                        first = *from;
                    }
                    total += f64::from(sum::<S, true, false>(from, [first, 0.0], len));
                }
                let exact = f64::from(first) + total / count;
                let high = exact as f32;
                mean = [high, (exact - f64::from(high)) as f32];
            }
            let mut total = 0.0;
            for (start, len) in blocks(width) {
                let from = if kept.is_null() { x.skip(start).block::<S>(len, room) } else { kept };
                total += f64::from(sum::<S, CENTRED, true>(from, mean, len));
            }
            Scale { mean, inverse: (1.0 / (total / count + self.eps).sqrt()) as f32 }
        }
    }
}

impl Scale {
    /// It in every lane.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn lanes<S: Simd>(self) -> ScaleLanes<S> {
        // SAFETY: passed on.
        unsafe {
            ScaleLanes { mean: [S::splat(self.mean[0]), S::splat(self.mean[1])], inverse: S::splat(self.inverse) }
        }
    }
}

impl<S: Simd> ScaleLanes<S> {
    /// `(x - mean) · inverse · weight + bias`, where the weight has its offset. Without `CENTRED` no mean is
    /// subtracted, which for a mean of 0 gives the same bits.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn apply<const CENTRED: bool>(self, x: S::F, weight: S::F, bias: S::F) -> S::F {
        // SAFETY: passed on.
        unsafe { S::fma(S::mul(centre::<S, CENTRED>(x, self.mean), self.inverse), weight, bias) }
    }
}

/// `x - mean`, where `CENTRED`.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn centre<S: Simd, const CENTRED: bool>(x: S::F, mean: [S::F; 2]) -> S::F {
    // SAFETY: passed on.
    if CENTRED { unsafe { S::sub(S::sub(x, mean[0]), mean[1]) } } else { x }
}

/// Vectors that are summed side by side, so that one does not wait for the other.
const SIDE: usize = 4;

/// The sum of a block, or of its squares where `SQUARED`, after subtracting `mean` where `CENTRED`.
///
/// Element `i` goes to lane `i` of [`LANES`] · [`SIDE`] sums, which are added pairwise.
///
/// # Safety
/// Those of [`Simd`]; `p` holds `len` values.
#[inline(always)]
unsafe fn sum<S: Simd, const CENTRED: bool, const SQUARED: bool>(p: *const f32, mean: [f32; 2], len: usize) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let zero = S::splat(0.0);
        let all = mean.map(|m| [m; LANES]);
        let mean = [S::load(all[0].as_ptr()), S::load(all[1].as_ptr())];
        let mut sums = [zero; SIDE];
        let mut i = 0;
        while i + LANES * SIDE <= len {
            for (k, sum) in sums.iter_mut().enumerate() {
                let v = centre::<S, CENTRED>(S::load(p.add(i + k * LANES)), mean);
                *sum = if SQUARED { S::fma(v, v, *sum) } else { S::add(*sum, v) };
            }
            i += LANES * SIDE;
        }
        for sum in &mut sums {
            if i >= len {
                break;
            }
            let n = (len - i).min(LANES);
            // Lanes past the end hold 0 in all three, and so in the difference.
            let mean = if CENTRED { [S::load_n(all[0].as_ptr(), n), S::load_n(all[1].as_ptr(), n)] } else { mean };
            let v = centre::<S, CENTRED>(S::load_n(p.add(i), n), mean);
            *sum = if SQUARED { S::fma(v, v, *sum) } else { S::add(*sum, v) };
            i += n;
        }
        S::reduce_add(S::add(S::add(sums[0], sums[2]), S::add(sums[1], sums[3])))
    }
}
