//! A heap of the `k` best so far, and blocks skipped whole that hold nothing better.

use sinew_memory::{Hardware, SimdLevel};

use super::{TopK, TopKDynamic, TopKStatic};
use crate::Result;
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::simd::{self, Kernel, Simd};
use crate::strided::{Address, BLOCK, Scratch, Walk, store_index};

/// An order has no rounding: every row gives the same.
const EXACT: Arithmetic = Arithmetic::named("topk.exact");

pub(super) fn rows() -> Vec<Row<TopK>> {
    leveled::rows()
}

/// Bytes of one worker's heap, in whole cache lines.
fn heap_bytes(k: usize) -> usize {
    (k * size_of::<u64>()).next_multiple_of(64)
}

/// A number that orders as f32 does, with -0 equal to 0 and every NaN above all.
#[inline(always)]
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    let flipped = bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000);
    let zero = if x == 0.0 { 0x8000_0000 } else { flipped };
    if x.is_nan() { u32::MAX } else { zero }
}

/// A candidate: larger values first, then lower indices.
#[inline(always)]
fn candidate(order: u32, index: usize) -> u64 {
    u64::from(order) << 32 | u64::from(!(index as u32))
}

fn index_of(candidate: u64) -> usize {
    !(candidate as u32) as usize
}

/// Moves the first element of a heap, whose smallest is on top, down to its place.
fn sift_down(heap: &mut [u64], mut at: usize) {
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let Some(&first) = heap.get(left) else { return };
        let child = if heap.get(right).is_some_and(|&second| second < first) { right } else { left };
        if heap[at] <= heap[child] {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

struct TopKKernel {
    fixed: TopKStatic,
    /// Over rows: values, indices, input.
    rows: Walk<3>,
    /// From element to element of a row: values, indices, input.
    steps: [usize; 3],
    width: usize,
    values: Address,
    indices: Address,
    x: Address,
    heaps: Address,
}

impl Kernel for TopKKernel {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        let TopKStatic { k, dtype, indices } = self.fixed;
        if k == 0 {
            return;
        }
        let size = dtype.size();
        // SAFETY: the workspace holds a heap for each worker, and no two tasks of one worker run at once.
        let heap = unsafe { std::slice::from_raw_parts_mut(self.heaps.at(worker, heap_bytes(k)).cast::<u64>(), k) };
        for run in self.rows.task(task) {
            for i in 0..run.len {
                let [values_at, indices_at, x_at]: [usize; 3] =
                    std::array::from_fn(|n| run.at[n] + i * self.rows.steps[n]);
                // SAFETY: the row is inside the input.
                unsafe { self.fill::<S>(self.x.at(x_at, size), heap) };
                heap.sort_unstable_by(|a, b| b.cmp(a));
                for (j, &best) in heap.iter().enumerate() {
                    let index = index_of(best);
                    let from = self.x.at(x_at + index * self.steps[2], size);
                    let to = self.values.at(values_at + j * self.steps[0], size);
                    let index_to = self.indices.at(indices_at + j * self.steps[1], indices.size());
                    // SAFETY: `j` is below `k` and the index below the width: both inside their operands. This task
                    // alone writes the row's outputs.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from, to, size);
                        store_index(indices, index_to, index);
                    }
                }
            }
        }
    }
}

impl TopKKernel {
    /// Fills the heap with the best of the row at `x`.
    ///
    /// # Safety
    /// Those of [`Simd`]; `x` is the first element of a row; the heap holds `k` of at most `width`.
    #[inline(always)]
    unsafe fn fill<S: Simd>(&self, x: *const u8, heap: &mut [u64]) {
        let (dtype, step) = (self.fixed.dtype, self.steps[2]);
        let mut scratch = Scratch::new();
        let mut filled = 0;
        let mut first = 0;
        while first < self.width {
            let len = (self.width - first).min(BLOCK);
            // SAFETY: the block is inside the row, and holds `len` values.
            let values = unsafe {
                let block = Line::new(x, dtype, step).skip(first).block::<S>(len, scratch.ptr());
                std::slice::from_raw_parts(block, len)
            };
            let mut start = 0;
            if filled < heap.len() {
                start = len.min(heap.len() - filled);
                for (i, &v) in values[..start].iter().enumerate() {
                    heap[filled + i] = candidate(ordered(v), first + i);
                }
                filled += start;
                if filled == heap.len() {
                    (0..heap.len() / 2).rev().for_each(|at| sift_down(heap, at));
                }
            }
            // An equal value further on loses to the one that is in: only larger ones are looked at.
            let bar = |heap: &[u64]| (heap[0] >> 32) as u32;
            let rest = &values[start..];
            if !rest.is_empty() && rest.iter().fold(0, |top, &v| top.max(ordered(v))) > bar(heap) {
                for (i, &v) in rest.iter().enumerate() {
                    let order = ordered(v);
                    if order > bar(heap) {
                        heap[0] = candidate(order, first + start + i);
                        sift_down(heap, 0);
                    }
                }
            }
            first += len;
        }
    }
}

impl Leveled for TopK {
    const PORTABLE: AtLevel = AtLevel { name: "topk.cpu.portable", arithmetic: EXACT, reads: 0.3, computes: 0.05 };
    const AVX2: AtLevel = AtLevel { name: "topk.cpu.avx2", arithmetic: EXACT, reads: 0.6, computes: 0.05 };
    const AVX512: AtLevel = AtLevel { name: "topk.cpu.avx512", arithmetic: EXACT, reads: 0.7, computes: 0.05 };

    /// One row is one task.
    fn cost(row: AtLevel, fixed: &TopKStatic, call: &TopKDynamic, hardware: &Hardware) -> f64 {
        let alone = hardware.threads as f64 / call.rows.clamp(1, hardware.threads) as f64;
        predicted::by_shares(TopK::work(fixed, call), hardware, row.reads / alone, row.computes / alone)
    }

    fn scratch(fixed: &TopKStatic, _: &TopKDynamic, hardware: &Hardware) -> usize {
        heap_bytes(fixed.k) * hardware.threads
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &TopKStatic,
        call: &TopKDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let x = operands.input(TopK::NAME, TopK::X, "x")?;
        let values = operands.output(TopK::NAME, TopK::VALUES, "values")?;
        let indices = operands.output(TopK::NAME, TopK::INDICES, "indices")?;
        let team = launch.team()?;
        let last = x.shape().len() - 1;
        let strides = |d: usize| [values.strides()[d], indices.strides()[d], x.strides()[d]];
        let kernel = TopKKernel {
            fixed: *fixed,
            rows: Walk::of(&x.shape()[..last], strides).weighted(call.width),
            steps: strides(last),
            width: call.width,
            values: Address(values.host_ptr()?),
            indices: Address(indices.host_ptr()?),
            x: Address::read(x.host_ptr()?),
            heaps: Address(launch.host_workspace(heap_bytes(fixed.k) * team.threads())?),
        };
        // SAFETY: `Operator::check` has seen shapes and dtypes; the addresses are those of the operands, and the
        // workspace holds a heap for each thread.
        unsafe { simd::launch(level, team, kernel.rows.tasks(), &kernel) };
        Ok(())
    }
}
