//! How a call is divided that sees more of an operand than a binding holds.
//!
//! Most calls do the same for each of many rows or elements, and several dispatches may share those, each of which
//! binds what its own rows have of an operand. Where a single row has more than a binding holds, or rows lie wherever a
//! table says, the operand is bound as several bindings, among which the text's functions choose by the index.

use sinew_memory::Hardware;
use sinew_memory::webgpu::{Binding, MAX_BINDINGS};
use sinew_tensor::MAX_RANK;

use super::call::Few;
use super::interface::MOST_OPERANDS;

/// Dimensions of a walk, and one beside it.
pub(super) const MOST_DIMENSIONS: usize = MAX_RANK + 1;
/// Indices that a dispatch has a multiple of, where it has as many: tiles stay whole, and wide loads aligned.
const GRAIN: usize = 64;

/// What a device binds at once.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a binding.
    pub(super) bytes: usize,
    /// Bindings of a dispatch.
    pub(super) bindings: usize,
}

impl Limits {
    pub(super) fn of(hardware: &Hardware) -> Self {
        // A binding has a multiple of 16 bytes, which is what is rounded down to here.
        let limits = hardware.accelerator.as_ref().map(|offers| (offers.max_binding_bytes & !15, offers.max_bindings));
        let (bytes, bindings) = limits.unwrap_or((0, 0));
        Self { bytes, bindings: bindings.min(MAX_BINDINGS) }
    }

    /// The most bytes that are sure to fit, wherever they begin.
    pub(super) fn room(&self) -> usize {
        self.bytes.saturating_sub(Binding::ALIGNMENT)
    }

    /// Bytes of each of an operand's several bindings: a power of two, so that an index is told apart by its bits.
    pub(super) fn window(&self) -> usize {
        1 << self.bytes.max(Binding::ALIGNMENT).ilog2()
    }
}

/// A dimension that several dispatches may share.
#[derive(Clone, Copy)]
pub(super) struct Dimension {
    pub(super) size: usize,
    /// The parameters that say how many of its indices a dispatch has, and which is the first.
    pub(super) size_at: usize,
    pub(super) first_at: Option<usize>,
    /// Whether it is one of those that are counted through by one number.
    pub(super) is_counted: bool,
    /// Elements from an index to the next, by operand.
    pub(super) strides: [usize; MOST_OPERANDS],
}

/// The dispatches of a call, one after another.
pub(super) struct Division {
    dimensions: Few<Dimension, MOST_DIMENSIONS>,
    /// Indices that a dispatch has of each dimension, but for the last, and the first one of this dispatch.
    sizes: [usize; MOST_DIMENSIONS],
    first: [usize; MOST_DIMENSIONS],
}

impl Division {
    /// One dispatch for all.
    pub(super) fn new(dimensions: Few<Dimension, MOST_DIMENSIONS>) -> Self {
        let mut sizes = [0; MOST_DIMENSIONS];
        sizes.iter_mut().zip(dimensions.iter()).for_each(|(size, dimension)| *size = dimension.size);
        Self { dimensions, sizes, first: [0; MOST_DIMENSIONS] }
    }

    /// Elements between the first and the last that so many indices of dimension `d` see of an operand.
    fn reach(&self, d: usize, size: usize, operand: usize) -> usize {
        size.saturating_sub(1) * self.dimensions[d].strides[operand]
    }

    /// Elements that one index sees of an operand that has `extent` in all.
    fn least(&self, operand: usize, extent: usize) -> usize {
        let reaches = (0..self.dimensions.len()).map(|d| self.reach(d, self.dimensions[d].size, operand));
        extent.saturating_sub(reaches.sum())
    }

    /// Makes dispatches smaller, until one sees at most `room` elements of an operand that has `extent` in all. `false`
    /// where one index alone sees more.
    pub(super) fn narrow(&mut self, operand: usize, extent: usize, room: usize) -> bool {
        let least = self.least(operand, extent);
        if least > room {
            return false;
        }
        loop {
            let reaches = (0..self.dimensions.len()).map(|d| self.reach(d, self.sizes[d], operand));
            let seen = least + reaches.clone().sum::<usize>();
            let Some((reach, d)) = reaches.zip(0..).max().filter(|_| seen > room) else { return true };
            // As many as fit beside what the other dimensions reach, which are taken next where none do.
            let stride = self.dimensions[d].strides[operand];
            let most = 1 + room.saturating_sub(seen - reach) / stride.max(1);
            self.sizes[d] = if most > GRAIN { most / GRAIN * GRAIN } else { most };
        }
    }

    /// Where this dispatch begins in an operand that has `extent` elements in all, and how many it sees.
    pub(super) fn part(&self, operand: usize, extent: usize) -> (usize, usize) {
        let begin = self.first.iter().zip(self.dimensions.iter()).map(|(first, d)| first * d.strides[operand]).sum();
        let reaches = (0..self.dimensions.len()).map(|d| self.reach(d, self.count(d), operand));
        (begin, self.least(operand, extent) + reaches.sum::<usize>())
    }

    /// Indices that this dispatch has of a dimension.
    fn count(&self, d: usize) -> usize {
        self.sizes[d].min(self.dimensions[d].size - self.first[d])
    }

    /// The dimensions, with the first index and the number of indices that this dispatch has of each.
    pub(super) fn dimensions(&self) -> impl Iterator<Item = (&Dimension, usize, usize)> {
        self.dimensions.iter().enumerate().map(|(d, dimension)| (dimension, self.first[d], self.count(d)))
    }

    /// Goes on to the next dispatch; `false` where there is none.
    pub(super) fn advance(&mut self) -> bool {
        for d in (0..self.dimensions.len()).rev() {
            self.first[d] += self.sizes[d];
            if self.first[d] < self.dimensions[d].size {
                return true;
            }
            self.first[d] = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(dimensions: &[(usize, [usize; 2])]) -> Division {
        let none = Dimension { size: 0, size_at: 0, first_at: None, is_counted: true, strides: [0; MOST_OPERANDS] };
        let mut few = Few::new(none);
        for &(size, [a, b]) in dimensions {
            let mut strides = [0; MOST_OPERANDS];
            [strides[0], strides[1]] = [a, b];
            few.push("test", Dimension { size, strides, ..none }).unwrap();
        }
        Division::new(few)
    }

    /// Every index of two dimensions, as often as dispatches have it; none sees more than `room` of an operand.
    fn taken(division: &mut Division, extents: [usize; 2], room: usize) -> Vec<[usize; 2]> {
        let mut all = Vec::new();
        loop {
            let parts: Vec<_> = division.dimensions().map(|(_, first, count)| first..first + count).collect();
            for (operand, extent) in extents.into_iter().enumerate() {
                let (begin, seen) = division.part(operand, extent);
                assert!(seen <= room && begin + seen <= extent);
            }
            all.extend(parts[0].clone().flat_map(|i| parts[1].clone().map(move |j| [i, j])));
            if !division.advance() {
                return all;
            }
        }
    }

    #[test]
    fn a_transposition_is_divided_in_both_dimensions_and_takes_every_element_once() {
        let (rows, columns) = (300, 170);
        let mut division = division(&[(rows, [columns, 1]), (columns, [1, rows])]);
        let (extent, room) = (rows * columns, 4096);
        assert!((0..2).all(|operand| division.narrow(operand, extent, room)));
        let mut all = taken(&mut division, [extent; 2], room);
        all.sort_unstable();
        assert!(all.into_iter().eq((0..rows).flat_map(|i| (0..columns).map(move |j| [i, j]))));
    }

    #[test]
    fn a_row_larger_than_a_binding_is_not_divided() {
        // Rows of 100 elements that the dimensions do not step through.
        let mut division = division(&[(10, [100, 0]), (1, [0, 0])]);
        assert!(!division.narrow(0, 1000, 99));
        assert!(division.narrow(0, 1000, 100) && division.narrow(1, 1, 100));
        assert_eq!(taken(&mut division, [1000, 1], 100).len(), 10);
    }

    #[test]
    fn nothing_is_one_dispatch_of_nothing() {
        let mut division = division(&[(0, [1, 1])]);
        assert_eq!(division.dimensions().map(|(_, first, count)| (first, count)).collect::<Vec<_>>(), [(0, 0)]);
        assert!(!division.advance());
    }
}
