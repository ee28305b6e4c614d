//! One body in lanes of f32, at three levels.

use sinew_memory::SimdLevel;

use super::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::cpu::row_walk::RowWalk;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, takes_lanes};
use crate::simd::{self, Kernel, LANES, Simd, math};
use crate::strided::{BLOCK, Scratch, blocks};

/// Sums of exponentials in sixteen lanes by four, blocks of 512 in f32, blocks added in f64; multiply and add round
/// apart.
const MUL_ADD: Arithmetic = Arithmetic::named("softmax.mul-add16");
/// The same sums with multiply and add fused.
const FMA: Arithmetic = Arithmetic::named("softmax.fma16");

/// The rows of [`Softmax`].
pub(super) fn rows() -> Vec<Row<Softmax>> {
    leveled::rows()
}

impl Leveled for Softmax {
    const PORTABLE: AtLevel = AtLevel { name: "softmax.cpu.portable", arithmetic: MUL_ADD, reads: 0.6, computes: 0.05 };
    const AVX2: AtLevel = AtLevel { name: "softmax.cpu.avx2", arithmetic: FMA, reads: 0.8, computes: 0.2 };
    const AVX512: AtLevel = AtLevel { name: "softmax.cpu.avx512", arithmetic: FMA, reads: 0.85, computes: 0.27 };

    fn takes(fixed: &SoftmaxStatic) -> Result<(), Refusal> {
        takes_lanes([Some(fixed.x), Some(fixed.out), fixed.mask].into_iter().flatten())
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &SoftmaxStatic,
        call: &SoftmaxDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let y = operands.output(Softmax::NAME, Softmax::Y, "y")?;
        let x = operands.optional(Softmax::X).unwrap_or(y);
        let mask = operands.optional(Softmax::MASK);
        let kernel = Body {
            width: call.width,
            scale: fixed.scale.get(),
            log: fixed.log,
            rows: RowWalk::new([Some(y.layout()), Some(x.layout()), mask.map(|m| m.layout())]),
            y: Line::of(y)?,
            x: Line::of(x)?,
            mask: mask.map(Line::of).transpose()?,
        };
        // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within
        // their buffers, and the indices of an output share no elements, so that tasks do not meet.
        unsafe { simd::launch(level, launch.team()?, kernel.rows.tasks(), &kernel) };
        Ok(())
    }
}

struct Body {
    width: usize,
    scale: f32,
    log: bool,
    /// Of output, input and mask.
    rows: RowWalk<3>,
    y: Line,
    x: Line,
    mask: Option<Line>,
}

/// How a row's numbers become exponents: `t = factor_in · x + mask`, and `(t - largest) · factor_out`.
///
/// Without a mask the scale comes last, since the difference of two inputs is exact where it matters and a product is
/// not: `factor_in` is the scale's sign alone. With one it must come before the sum.
#[derive(Clone, Copy)]
struct Exponent {
    factor_in: f32,
    factor_out: f32,
    largest: f32,
}

/// Room for blocks of a task's operands.
struct Room {
    x: Scratch,
    mask: Scratch,
    y: Scratch,
}

impl Kernel for Body {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        // SAFETY: rows stay inside the operands.
        unsafe {
            match self.mask {
                Some(mask) => self.task_rows::<S, true>(mask, task),
                // Not read.
                None => self.task_rows::<S, false>(self.x, task),
            }
        }
    }
}

impl Body {
    /// The rows of a task.
    ///
    /// # Safety
    /// Those of [`Simd`]; the rows are inside the operands.
    #[inline(always)]
    unsafe fn task_rows<S: Simd, const MASKED: bool>(&self, mask: Line, task: usize) {
        let mut room = Room { x: Scratch::new(), mask: Scratch::new(), y: Scratch::new() };
        for [y_at, x_at, mask_at] in self.rows.task(task) {
            // SAFETY: passed on.
            unsafe {
                self.row::<S, MASKED>(self.y.moved(y_at), self.x.moved(x_at), mask.moved(mask_at), &mut room);
            }
        }
    }

    /// One row, in three passes: the largest, the sum, the result.
    ///
    /// # Safety
    /// As for [`Body::task_rows`].
    #[inline(always)]
    unsafe fn row<S: Simd, const MASKED: bool>(&self, y: Line, x: Line, mask: Line, room: &mut Room) {
        let mut exponent = Exponent {
            factor_in: if MASKED { self.scale } else { 1f32.copysign(self.scale) },
            factor_out: if MASKED { 1.0 } else { self.scale.abs() },
            largest: f32::NEG_INFINITY,
        };
        // Exponentials wait for their sum where there is room in f32: in a row of one block, or in the output itself.
        let single = self.width <= BLOCK;
        let waiting = !self.log && (single || y.is_plain());
        // SAFETY: blocks stay inside the rows, and rooms hold a block.
        unsafe {
            for (start, len) in blocks(self.width) {
                let from = operands::<S, MASKED>(x, mask, start, len, room);
                exponent.largest = exponent.largest.max(largest::<S, MASKED>(exponent, from, len));
            }
            if exponent.largest == f32::NEG_INFINITY {
                // Every exponential is to be 0, not that of -∞ + ∞.
                exponent.largest = 0.0;
            }
            let mut total = 0.0;
            for (start, len) in blocks(self.width) {
                let from = operands::<S, MASKED>(x, mask, start, len, room);
                let to = if waiting { y.skip(start).place(room.y.ptr()) } else { room.y.ptr() };
                total += f64::from(exponentials::<S, MASKED>(exponent, from, to, len));
            }
            // What is added to the exponents for the logarithm, and what exponentials are multiplied with.
            let shift = if total == 0.0 { f32::NEG_INFINITY } else { -total.ln() as f32 };
            let inverse = if total == 0.0 { 0.0 } else { (1.0 / total) as f32 };
            for (start, len) in blocks(self.width) {
                let to = y.skip(start).place(room.y.ptr());
                if self.log {
                    let from = operands::<S, MASKED>(x, mask, start, len, room);
                    shifted::<S, MASKED>(exponent, shift, from, to, len);
                } else {
                    if !waiting {
                        let from = operands::<S, MASKED>(x, mask, start, len, room);
                        exponentials::<S, MASKED>(exponent, from, to, len);
                    }
                    multiply::<S>(to, inverse, len);
                }
                y.skip(start).store_block::<S>(len, to);
            }
        }
    }
}

/// A block of the input and of the mask.
///
/// # Safety
/// Those of [`Line::block`].
#[inline(always)]
unsafe fn operands<S: Simd, const MASKED: bool>(
    x: Line,
    mask: Line,
    start: usize,
    len: usize,
    room: &mut Room,
) -> [*const f32; 2] {
    // SAFETY: passed on.
    unsafe {
        let x = x.skip(start).block::<S>(len, room.x.ptr());
        [x, if MASKED { mask.skip(start).block::<S>(len, room.mask.ptr()) } else { x }]
    }
}

/// `t` for sixteen elements, or the first `n` of them.
///
/// # Safety
/// Those of [`Simd`]; both hold as many values from `i` on.
#[inline(always)]
unsafe fn scores<S: Simd, const MASKED: bool>(
    exponent: Exponent,
    [x, mask]: [*const f32; 2],
    i: usize,
    n: usize,
) -> S::F {
    let factor = exponent.factor_in;
    // SAFETY: passed on.
    unsafe {
        let (x, mask) = if n == LANES {
            (S::load(x.add(i)), S::load(mask.add(i)))
        } else {
            (S::load_n(x.add(i), n), S::load_n(mask.add(i), n))
        };
        if MASKED { S::fma(x, S::splat(factor), mask) } else { S::mul(x, S::splat(factor)) }
    }
}

/// `v` in the first `n` lanes, and `other` behind them.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn first<S: Simd>(v: S::F, n: usize, other: f32) -> S::F {
    const NUMBERS: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: passed on; the array holds sixteen.
    unsafe { S::select_lt(S::load(NUMBERS.as_ptr()), S::splat(n as f32), v, S::splat(other)) }
}

/// The largest `t` of a block that is not NaN.
///
/// # Safety
/// Those of [`Simd`]; operands hold `len` values.
#[inline(always)]
unsafe fn largest<S: Simd, const MASKED: bool>(exponent: Exponent, from: [*const f32; 2], len: usize) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let mut largest = [S::splat(f32::NEG_INFINITY); 2];
        let whole = len - len % LANES;
        for i in (0..whole).step_by(LANES) {
            // The second is what max gives where one is NaN.
            let k = i / LANES % 2;
            largest[k] = S::max(scores::<S, MASKED>(exponent, from, i, LANES), largest[k]);
        }
        if whole < len {
            let n = len - whole;
            let last = first::<S>(scores::<S, MASKED>(exponent, from, whole, n), n, f32::NEG_INFINITY);
            largest[0] = S::max(last, largest[0]);
        }
        S::reduce_max(S::max(largest[0], largest[1]))
    }
}

/// Vectors that are summed side by side.
const SIDE: usize = 4;

/// Writes the exponentials of a block to `to` and returns their sum.
///
/// Vector `i` goes to sum `i` of [`SIDE`]; the sums are added pairwise.
///
/// # Safety
/// Those of [`Simd`]; operands and `to` hold `len` values; `to` may be the input.
#[inline(always)]
unsafe fn exponentials<S: Simd, const MASKED: bool>(
    exponent: Exponent,
    from: [*const f32; 2],
    to: *mut f32,
    len: usize,
) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let (largest, factor) = (S::splat(exponent.largest), S::splat(exponent.factor_out));
        let mut sums = [S::splat(0.0); SIDE];
        let mut i = 0;
        while i + LANES * SIDE <= len {
            for (k, sum) in sums.iter_mut().enumerate() {
                let t = scores::<S, MASKED>(exponent, from, i + k * LANES, LANES);
                let e = math::exp::<S>(S::mul(S::sub(t, largest), factor));
                S::store(to.add(i + k * LANES), e);
                *sum = S::add(*sum, e);
            }
            i += LANES * SIDE;
        }
        for sum in &mut sums {
            if i >= len {
                break;
            }
            let n = (len - i).min(LANES);
            let t = scores::<S, MASKED>(exponent, from, i, n);
            let e = first::<S>(math::exp::<S>(S::mul(S::sub(t, largest), factor)), n, 0.0);
            S::store_n(to.add(i), e, n);
            *sum = S::add(*sum, e);
            i += n;
        }
        S::reduce_add(S::add(S::add(sums[0], sums[2]), S::add(sums[1], sums[3])))
    }
}

/// Multiplies a block.
///
/// # Safety
/// Those of [`Simd`]; `y` holds `len` values.
#[inline(always)]
unsafe fn multiply<S: Simd>(y: *mut f32, by: f32, len: usize) {
    // SAFETY: passed on.
    unsafe {
        let by = S::splat(by);
        let whole = len - len % LANES;
        for i in (0..whole).step_by(LANES) {
            S::store(y.add(i), S::mul(S::load(y.add(i)), by));
        }
        if whole < len {
            let n = len - whole;
            S::store_n(y.add(whole), S::mul(S::load_n(y.add(whole), n), by), n);
        }
    }
}

/// Writes the exponents of a block plus `shift`.
///
/// # Safety
/// As for [`exponentials`].
#[inline(always)]
unsafe fn shifted<S: Simd, const MASKED: bool>(
    exponent: Exponent,
    shift: f32,
    from: [*const f32; 2],
    to: *mut f32,
    len: usize,
) {
    // SAFETY: passed on.
    unsafe {
        let (largest, factor, shift) = (S::splat(exponent.largest), S::splat(exponent.factor_out), S::splat(shift));
        for i in (0..len).step_by(LANES) {
            let n = (len - i).min(LANES);
            let t = scores::<S, MASKED>(exponent, from, i, n);
            S::store_n(to.add(i), S::fma(S::sub(t, largest), factor, shift), n);
        }
    }
}
