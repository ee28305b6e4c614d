//! f32, f16 and bf16 in lanes of f32. Only additions and comparisons, in one order: all levels give the same bits.

use sinew_memory::SimdLevel;
use sinew_tensor::Layout;

use super::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic, split};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, takes_lanes};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::strided::{self, Address, BLOCK, Scratch, Walk, store_index};

/// Element `i` of a row is added to lane `i % 16` of block `i / 512`; lanes in a tree, blocks in f64.
const BLOCKS: Arithmetic = Arithmetic::named("reduce.blocks");

pub(super) fn rows() -> Vec<Row<Reduce>> {
    leveled::rows()
}

/// A walk over rows (operand 0: output, 1: input) and one over the elements of a row.
pub(super) fn walks(y: &Layout, x: &Layout, dims: usize) -> (Walk<2>, Walk<1>) {
    let (rows, width) = split(x, dims);
    let strides = x.strides();
    let within = Walk::of(width, |d| [strides[rows.len() + d]]);
    let elements = width.iter().product();
    (Walk::of(rows, |d| [y.strides()[d], strides[d]]).weighted(elements), within)
}

struct ReduceKernel {
    fixed: ReduceStatic,
    rows: Walk<2>,
    within: Walk<1>,
    width: usize,
    y: Address,
    x: Address,
}

impl Kernel for ReduceKernel {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
        use ReduceFunction as F;
        let [y_step, x_step] = self.rows.steps;
        let ReduceStatic { function, input, output, .. } = self.fixed;
        let mut scratch = Scratch::new();
        for run in self.rows.task(task) {
            for i in 0..run.len {
                let to = self.y.at(run.at[0] + i * y_step, output.size());
                let x = self.x.at(run.at[1] + i * x_step, input.size());
                // SAFETY: the walks stay inside both operands, which the operator's check has seen; this task alone
                // writes the element.
                unsafe {
                    let result = match function {
                        F::Sum => self.sum::<S>(x, scratch.ptr()) as f32,
                        F::Mean => (self.sum::<S>(x, scratch.ptr()) / self.width as f64) as f32,
                        F::Max => self.extreme::<S, false>(x, scratch.ptr()).0,
                        F::Min => -self.extreme::<S, true>(x, scratch.ptr()).0,
                        F::ArgMax => {
                            store_index(output, to, self.extreme::<S, false>(x, scratch.ptr()).1);
                            continue;
                        }
                        F::ArgMin => {
                            store_index(output, to, self.extreme::<S, true>(x, scratch.ptr()).1);
                            continue;
                        }
                    };
                    Line::new(to, output, 0).store_block::<S>(1, &result);
                }
            }
        }
    }
}

impl ReduceKernel {
    /// The blocks of the row at `x` in order: 512 values each, but the last.
    ///
    /// # Safety
    /// `x` is the first element of a row.
    #[inline(always)]
    unsafe fn blocks(&self, x: *const u8, scratch: *mut f32) -> Blocks<'_> {
        Blocks { kernel: self, runs: self.within.all(), left: None, x, scratch }
    }

    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, x: *const u8, scratch: *mut f32) -> f64 {
        let mut sum = 0.0;
        // SAFETY: passed on; blocks hold as many values as they say.
        unsafe {
            let mut blocks = self.blocks(x, scratch);
            while let Some((values, len)) = blocks.next::<S>() {
                let whole = len - len % LANES;
                let mut lanes = S::splat(0.0);
                for i in (0..whole).step_by(LANES) {
                    lanes = S::add(lanes, S::load(values.add(i)));
                }
                if whole < len {
                    lanes = S::add(lanes, S::load_n(values.add(whole), len - whole));
                }
                sum += f64::from(S::reduce_add(lanes));
            }
        }
        sum
    }

    /// The largest of the row (of its negation, for the smallest) and where it is first.
    #[inline(always)]
    unsafe fn extreme<S: Simd, const NEGATE: bool>(&self, x: *const u8, scratch: *mut f32) -> (f32, usize) {
        let (mut best, mut at, mut first) = (f32::NEG_INFINITY, 0, 0);
        // SAFETY: passed on; blocks hold as many values as they say.
        unsafe {
            let sign = S::splat(if NEGATE { -1.0 } else { 1.0 });
            let mut blocks = self.blocks(x, scratch);
            while let Some((values, len)) = blocks.next::<S>() {
                let whole = len - len % LANES;
                let mut lanes = S::splat(f32::NEG_INFINITY);
                for i in (0..whole).step_by(LANES) {
                    let v = S::mul(sign, S::load(values.add(i)));
                    // The lanes' own max drops a NaN on the left.
                    lanes = S::select_nan(v, v, S::max(v, lanes));
                }
                let mut top = S::reduce_max(lanes);
                let signed = |i: usize| if NEGATE { -*values.add(i) } else { *values.add(i) };
                for i in whole..len {
                    let v = signed(i);
                    top = if v.is_nan() || v > top { v } else { top };
                }
                if top > best || top.is_nan() || first == 0 {
                    let is_top = |i: &usize| signed(*i) == top || (top.is_nan() && signed(*i).is_nan());
                    at = first + (0..len).find(is_top).unwrap_or(0);
                    best = top;
                }
                if top.is_nan() {
                    break;
                }
                first += len;
            }
        }
        (best, at)
    }
}

/// The blocks of a row.
struct Blocks<'a> {
    kernel: &'a ReduceKernel,
    runs: strided::Runs<'a, 1>,
    /// What is left of the run at hand: its next element, and how many.
    left: Option<(usize, usize)>,
    x: *const u8,
    scratch: *mut f32,
}

impl Blocks<'_> {
    /// The next block.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row is readable and the scratch holds a block.
    #[inline(always)]
    unsafe fn next<S: Simd>(&mut self) -> Option<(*const f32, usize)> {
        let (dtype, step) = (self.kernel.fixed.input, self.kernel.within.steps[0]);
        let mut filled = 0;
        loop {
            let (at, len) = match self.left.take() {
                Some(left) => left,
                None => match self.runs.next() {
                    Some(run) => (run.at[0], run.len),
                    None if filled > 0 => return Some((self.scratch, filled)),
                    None => return None,
                },
            };
            let from = Line::new(self.x, dtype, step).moved(at);
            let take = len.min(BLOCK - filled);
            // SAFETY: the run is inside the row, and the scratch has room for what is taken.
            unsafe {
                let room = self.scratch.add(filled);
                let values = from.block::<S>(take, room);
                if take == BLOCK {
                    return Some((values, take));
                }
                if !std::ptr::eq(values, room) {
                    std::ptr::copy_nonoverlapping(values, room, take);
                }
            }
            filled += take;
            if take < len {
                self.left = Some((at + take * step, len - take));
            }
            if filled == BLOCK {
                return Some((self.scratch, filled));
            }
        }
    }
}

impl Leveled for Reduce {
    const PORTABLE: AtLevel = AtLevel { name: "reduce.cpu.portable", arithmetic: BLOCKS, reads: 0.5, computes: 0.1 };
    const AVX2: AtLevel = AtLevel { name: "reduce.cpu.avx2", arithmetic: BLOCKS, reads: 0.85, computes: 0.15 };
    const AVX512: AtLevel = AtLevel { name: "reduce.cpu.avx512", arithmetic: BLOCKS, reads: 0.9, computes: 0.15 };

    fn takes(fixed: &ReduceStatic) -> Result<(), Refusal> {
        takes_lanes([fixed.input])
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &ReduceStatic,
        call: &ReduceDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let x = operands.input(Reduce::NAME, Reduce::X, "x")?;
        let y = operands.output(Reduce::NAME, Reduce::Y, "y")?;
        let (rows, within) = walks(y.layout(), x.layout(), fixed.dims);
        let (y, x) = (Address(y.host_ptr()?), Address::read(x.host_ptr()?));
        let kernel = ReduceKernel { fixed: *fixed, rows, within, width: call.width, y, x };
        // SAFETY: `Operator::check` has seen shapes and dtypes; the addresses are those of the operands.
        unsafe { simd::launch(level, launch.team()?, kernel.rows.tasks(), &kernel) };
        Ok(())
    }
}
