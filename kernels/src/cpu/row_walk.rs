//! Rows of strided operands as tasks: what norms and softmax share.

use sinew_tensor::{Layout, MAX_RANK};

/// Elements that one task handles at least. A task costs about a microsecond to hand out, and a norm goes through
/// this many in some five.
const GRAIN: usize = 8 * 1024;

/// The rows of `N` operands that have the same leading dimensions. A row is one index of all dimensions but the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowWalk<const N: usize> {
    sizes: [usize; MAX_RANK],
    strides: [[usize; N]; MAX_RANK],
    rank: usize,
    rows: usize,
    per_task: usize,
}

impl<const N: usize> RowWalk<N> {
    /// Rows of `layouts`, all of one shape and of at least one dimension. A layout that is absent stays where it is.
    pub(crate) fn new(layouts: [Option<&Layout>; N]) -> Self {
        let shape = layouts.iter().flatten().next().map_or(&[0][..], |layout| layout.shape());
        debug_assert!(layouts.iter().flatten().all(|layout| layout.shape() == shape));
        let (width, leading) = shape.split_last().map_or((0, shape), |(&width, leading)| (width, leading));
        let mut rows = Self {
            sizes: [1; MAX_RANK],
            strides: [[0; N]; MAX_RANK],
            rank: leading.len(),
            rows: if width == 0 { 0 } else { leading.iter().product() },
            per_task: GRAIN.div_ceil(width.max(1)),
        };
        rows.sizes[..leading.len()].copy_from_slice(leading);
        for d in 0..leading.len() {
            rows.strides[d] = layouts.map(|layout| layout.map_or(0, |l| l.strides()[d]));
        }
        rows
    }

    /// The tasks that share the rows.
    pub(crate) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.per_task)
    }

    /// For each row of a task, where it begins in each operand, in elements from the operand's first.
    #[inline(always)]
    pub(crate) fn task(&self, task: usize) -> RowIter<'_, N> {
        let start = task * self.per_task;
        let mut iter = RowIter {
            rows: self,
            index: [0; MAX_RANK],
            at: [0; N],
            left: self.rows.saturating_sub(start).min(self.per_task),
        };
        let mut rest = start;
        for d in (0..self.rank).rev() {
            let size = self.sizes[d].max(1);
            iter.index[d] = rest % size;
            rest /= size;
            (0..N).for_each(|n| iter.at[n] += iter.index[d] * self.strides[d][n]);
        }
        iter
    }
}

/// The rows of a task.
pub(crate) struct RowIter<'a, const N: usize> {
    rows: &'a RowWalk<N>,
    index: [usize; MAX_RANK],
    at: [usize; N],
    left: usize,
}

impl<const N: usize> Iterator for RowIter<'_, N> {
    type Item = [usize; N];

    #[inline(always)]
    fn next(&mut self) -> Option<[usize; N]> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at;
        for d in (0..self.rows.rank).rev() {
            let strides = &self.rows.strides[d];
            self.index[d] += 1;
            (0..N).for_each(|n| self.at[n] += strides[n]);
            if self.index[d] < self.rows.sizes[d] {
                break;
            }
            (0..N).for_each(|n| self.at[n] -= self.index[d] * strides[n]);
            self.index[d] = 0;
        }
        Some(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_name_every_row_once_and_in_order() {
        let a = Layout::contiguous(&[3, 50, 7, 300]).unwrap();
        let b = Layout::contiguous(&[7, 50, 3, 300]).unwrap().transpose(0, 2).unwrap();
        let rows = RowWalk::new([Some(&a), None, Some(&b)]);
        assert!(rows.tasks() > 1);
        let all: Vec<_> = (0..rows.tasks()).flat_map(|task| rows.task(task)).collect();
        let one = |l: &Layout| l.narrow(3, 0, 1).unwrap();
        let (a, b) = (one(&a), one(&b));
        let want: Vec<_> = a.indices().zip(b.indices()).map(|(a, b)| [a, 0, b]).collect();
        assert_eq!(all, want);
    }

    #[test]
    fn a_single_row_is_one_task_and_an_empty_one_none() {
        let vector = Layout::contiguous(&[100_000]).unwrap();
        let rows = RowWalk::new([Some(&vector)]);
        assert_eq!((rows.tasks(), rows.task(0).collect::<Vec<_>>()), (1, vec![[0]]));
        for shape in [[0, 5], [5, 0]] {
            assert_eq!(RowWalk::new([Some(&Layout::contiguous(&shape).unwrap())]).tasks(), 0);
        }
    }
}
