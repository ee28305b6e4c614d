//! Walking strided operands in step, and short blocks of them as contiguous f32: what elementwise kernels, casts, gathers and reductions share.

mod index;

pub(crate) use index::{Indices, largest_index, store_index};

use sinew_tensor::{Layout, MAX_RANK};

/// Elements that one task handles at least: some ten microseconds of work, against about one to hand a task out.
const GRAIN: usize = 16 * 1024;

/// Elements of a block. As f32 it is 2 KiB, so that a kernel's few blocks stay in the first-level cache and the
/// conversion costs no traffic to memory.
pub(crate) const BLOCK: usize = 512;

/// Room for a block on the stack.
#[repr(align(64))]
pub(crate) struct Scratch(std::mem::MaybeUninit<[f32; BLOCK]>);

impl Scratch {
    /// Room whose contents are unspecified.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(std::mem::MaybeUninit::uninit())
    }

    /// The first value.
    #[inline(always)]
    pub(crate) fn ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// The blocks of a row: where each begins, and its length, which is at most [`BLOCK`].
#[inline(always)]
pub(crate) fn blocks(width: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..width).step_by(BLOCK).map(move |start| (start, (width - start).min(BLOCK)))
}

/// An address that tasks share. Each task touches elements of its own through it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub *mut u8);

// SAFETY: an address alone; whoever dereferences it sees to it that tasks do not meet.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address of an operand that is only read.
    pub(crate) fn read(ptr: *const u8) -> Self {
        Self(ptr.cast_mut())
    }

    /// The address `elements` elements of `size` bytes further on.
    #[inline(always)]
    pub(crate) fn at(self, elements: usize, size: usize) -> *mut u8 {
        self.0.wrapping_add(elements * size)
    }
}

/// A run of elements that differ in one dimension only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<const N: usize> {
    /// For each operand, the element of the run's first index, counted from the element of index 0.
    pub at: [usize; N],
    /// Elements; at most [`BLOCK`].
    pub len: usize,
    /// Row-major number of the first element, if the walk kept the order of dimensions.
    pub first: usize,
}

/// `N` operands of one shape, walked in runs along one dimension.
///
/// Dimensions of size 1 are dropped, and neighbours that every operand steps through as through one are merged, so
/// that contiguous operands of any rank become one long run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<const N: usize> {
    sizes: [usize; MAX_RANK],
    strides: [[usize; N]; MAX_RANK],
    /// Dimensions outside the runs.
    rank: usize,
    inner: usize,
    /// How far each operand steps from one element of a run to the next.
    pub steps: [usize; N],
    /// Elements of a run, but of the last along the dimension.
    piece: usize,
    pieces: usize,
    units: usize,
    per_task: usize,
}

impl<const N: usize> Walk<N> {
    /// A walk in row-major order of the indices.
    #[cfg(test)]
    pub(crate) fn in_order(layouts: [&Layout; N]) -> Self {
        let strides = layouts.map(Layout::strides);
        Self::of(layouts[0].shape(), |d| strides.map(|s| s[d]))
    }

    /// A walk in whatever order suits operand 0 best: runs are along the dimension in which it steps least.
    pub(crate) fn any_order(layouts: [&Layout; N]) -> Self {
        let rank = layouts[0].rank();
        let mut order: [usize; MAX_RANK] = std::array::from_fn(|d| d);
        // By strides, the largest first. Dimensions of equal strides keep their order.
        let strides = |d: usize| layouts.map(|l| l.strides()[d]);
        for sorted in 1..rank {
            let mut at = sorted;
            while at > 0 && strides(order[at - 1]) < strides(order[at]) {
                order.swap(at - 1, at);
                at -= 1;
            }
        }
        let mut shape = [1; MAX_RANK];
        (0..rank).for_each(|d| shape[d] = layouts[0].shape()[order[d]]);
        Self::of(&shape[..rank], |d| layouts.map(|l| l.strides()[order[d]]))
    }

    /// A walk over the dimensions of `shape`, in which dimension `d` has the strides `strides(d)`.
    pub(crate) fn of(shape: &[usize], strides: impl Fn(usize) -> [usize; N]) -> Self {
        debug_assert!(shape.len() <= MAX_RANK);
        let mut walk = Self {
            sizes: [1; MAX_RANK],
            strides: [[0; N]; MAX_RANK],
            rank: 0,
            inner: 1,
            steps: [0; N],
            piece: BLOCK,
            pieces: 1,
            units: 0,
            per_task: 1,
        };
        if shape.contains(&0) {
            return Self { inner: 0, ..walk };
        }
        for (d, &size) in shape.iter().enumerate().filter(|&(_, &size)| size != 1) {
            let step = strides(d);
            if walk.rank > 0 {
                let outer = &mut walk.strides[walk.rank - 1];
                if (0..N).all(|n| outer[n] == step[n] * size) {
                    *outer = step;
                    walk.sizes[walk.rank - 1] *= size;
                    continue;
                }
            }
            walk.sizes[walk.rank] = size;
            walk.strides[walk.rank] = step;
            walk.rank += 1;
        }
        if walk.rank > 0 {
            walk.rank -= 1;
            walk.inner = walk.sizes[walk.rank];
            walk.steps = walk.strides[walk.rank];
        }
        walk.weighted(1)
    }

    /// The same walk in smaller runs and tasks, for kernels that spend so many elements' work on each.
    pub(crate) fn weighted(mut self, weight: usize) -> Self {
        let grain = GRAIN.div_ceil(weight.max(1));
        self.piece = grain.min(BLOCK);
        self.pieces = self.inner.div_ceil(self.piece);
        // A walk over nothing stays one.
        let some = usize::from(self.inner > 0);
        self.units = some * self.sizes[..self.rank].iter().product::<usize>() * self.pieces;
        self.per_task = grain.div_ceil(self.inner.clamp(1, self.piece));
        self
    }

    /// The tasks that share the walk.
    pub(crate) fn tasks(&self) -> usize {
        self.units.div_ceil(self.per_task)
    }

    /// The runs of a task.
    ///
    /// An iterator and not a callback: kernels must be compiled whole inside the function that enables their
    /// instructions, and a closure may stay outside.
    #[inline(always)]
    pub(crate) fn task(&self, task: usize) -> Runs<'_, N> {
        let start = task * self.per_task;
        self.units(start, (start + self.per_task).min(self.units))
    }

    /// Where the `i`-th element is in each operand, counted in the walk's own order.
    #[inline(always)]
    pub(crate) fn nth(&self, i: usize) -> [usize; N] {
        let (mut rest, last) = (i / self.inner.max(1), i % self.inner.max(1));
        let mut at = self.steps.map(|step| step * last);
        for d in (0..self.rank).rev() {
            let index = rest % self.sizes[d];
            rest /= self.sizes[d];
            (0..N).for_each(|n| at[n] += index * self.strides[d][n]);
        }
        at
    }

    /// Size and strides of each dimension that is left, outermost first; there is at least one.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn dimensions(&self) -> impl DoubleEndedIterator<Item = (usize, [usize; N])> {
        (0..self.rank).map(|d| (self.sizes[d], self.strides[d])).chain([(self.inner, self.steps)])
    }

    /// Every run.
    #[inline(always)]
    pub(crate) fn all(&self) -> Runs<'_, N> {
        self.units(0, self.units)
    }

    #[inline(always)]
    fn units(&self, start: usize, end: usize) -> Runs<'_, N> {
        let mut runs = Runs {
            walk: self,
            left: end.saturating_sub(start),
            index: [0; MAX_RANK],
            at: [0; N],
            piece: start % self.pieces,
            first: start / self.pieces * self.inner,
        };
        let mut rest = start / self.pieces;
        for d in (0..self.rank).rev() {
            runs.index[d] = rest % self.sizes[d];
            rest /= self.sizes[d];
            (0..N).for_each(|n| runs.at[n] += runs.index[d] * self.strides[d][n]);
        }
        runs
    }
}

/// Runs of a [`Walk`].
pub(crate) struct Runs<'a, const N: usize> {
    walk: &'a Walk<N>,
    left: usize,
    index: [usize; MAX_RANK],
    at: [usize; N],
    piece: usize,
    first: usize,
}

impl<const N: usize> Iterator for Runs<'_, N> {
    type Item = Run<N>;

    #[inline(always)]
    fn next(&mut self) -> Option<Run<N>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let walk = self.walk;
        let skip = self.piece * walk.piece;
        let run = Run {
            at: std::array::from_fn(|n| self.at[n] + skip * walk.steps[n]),
            len: (walk.inner - skip).min(walk.piece),
            first: self.first + skip,
        };
        self.piece += 1;
        if self.piece == walk.pieces {
            self.piece = 0;
            self.first += walk.inner;
            for d in (0..walk.rank).rev() {
                self.index[d] += 1;
                (0..N).for_each(|n| self.at[n] += walk.strides[d][n]);
                if self.index[d] < walk.sizes[d] {
                    break;
                }
                (0..N).for_each(|n| self.at[n] -= self.index[d] * walk.strides[d][n]);
                self.index[d] = 0;
            }
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked<const N: usize>(walk: &Walk<N>) -> Vec<[usize; N]> {
        let mut all = Vec::new();
        for task in 0..walk.tasks() {
            for run in walk.task(task) {
                for i in 0..run.len {
                    all.push(std::array::from_fn(|n| run.at[n] + i * walk.steps[n]));
                }
            }
        }
        all
    }

    #[test]
    fn a_walk_in_order_names_the_elements_in_order() {
        let a = Layout::contiguous(&[3, 700, 30]).unwrap();
        let b = Layout::contiguous(&[3, 30, 700]).unwrap().transpose(1, 2).unwrap();
        let walk = Walk::in_order([&a, &b]);
        let want: Vec<_> = a.indices().zip(b.indices()).map(|(a, b)| [a, b]).collect();
        assert_eq!(walked(&walk), want);
        assert!((0..want.len()).all(|i| walk.nth(i) == want[i]));
        assert!(walk.tasks() > 1);
    }

    #[test]
    fn a_walk_in_any_order_names_every_element_once_and_merges_what_it_can() {
        let a = Layout::contiguous(&[4, 5, 6]).unwrap().transpose(0, 2).unwrap();
        let walk = Walk::any_order([&a, &a]);
        assert_eq!(walk.rank, 0);
        assert_eq!(walked(&walk), (0..120).map(|i| [i, i]).collect::<Vec<_>>());
        let b = Layout::contiguous(&[6, 5, 4]).unwrap();
        let mut pairs = walked(&Walk::any_order([&a, &b]));
        pairs.sort_unstable();
        let mut want: Vec<_> = a.indices().zip(b.indices()).map(|(a, b)| [a, b]).collect();
        want.sort_unstable();
        assert_eq!(pairs, want);
    }

    #[test]
    fn a_weighted_walk_names_the_same_elements_in_more_tasks() {
        let a = Layout::contiguous(&[70, 100]).unwrap();
        let b = Layout::strided(&[70, 100], &[103, 1], 2).unwrap();
        let (plain, weighted) = (Walk::in_order([&a, &b]), Walk::in_order([&a, &b]).weighted(1000));
        assert_eq!(walked(&plain), walked(&weighted));
        assert!(weighted.tasks() > 100 * plain.tasks());
    }

    #[test]
    fn empty_and_single_elements_are_walked() {
        let none = Layout::contiguous(&[3, 0, 2]).unwrap();
        assert_eq!(walked(&Walk::in_order([&none])), Vec::<[usize; 1]>::new());
        assert_eq!(walked(&Walk::in_order([&none]).weighted(9)), Vec::<[usize; 1]>::new());
        for one in [Layout::contiguous(&[]).unwrap(), Layout::contiguous(&[1, 1]).unwrap()] {
            assert_eq!(walked(&Walk::any_order([&one])), vec![[0]]);
        }
        let broadcast = Layout::strided(&[2, 600], &[0, 0], 0).unwrap();
        assert_eq!(walked(&Walk::in_order([&broadcast])), vec![[0]; 1200]);
    }
}
