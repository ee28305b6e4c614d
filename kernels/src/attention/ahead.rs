//! Where a tile's keys and values lie, and asking for the next tile's while one is multiplied.

use std::cell::Cell;

use super::TILE;
use crate::simd::{self, Reach};

/// Bytes of a line of a cache.
const LINE: usize = 64;

/// Addresses of the keys and values of a tile; null where there is none.
pub(super) struct Located {
    /// Of the keys, and of the values.
    pub rows: [[*const u8; TILE]; 2],
    /// Of a row.
    pub bytes: usize,
}

/// What is needed next and asked for meanwhile: a little with each step of the products, as a core that waits for more
/// lines than it can count does nothing else.
pub(super) struct Ahead<'a> {
    rows: Cell<&'a [*const u8]>,
    of_a_step: usize,
    bytes: usize,
}

impl<'a> Ahead<'a> {
    /// Of what lies somewhere, if anything is, over `steps` steps at least.
    #[inline(always)]
    pub fn new(next: Option<&'a Located>, steps: usize) -> Self {
        let rows = next.map_or(&[][..], |at| at.rows.as_flattened());
        let bytes = next.map_or(0, |at| at.bytes);
        Self { rows: Cell::new(rows), of_a_step: rows.len().div_ceil(steps.max(1)), bytes }
    }

    /// Asks for all of it.
    pub fn now(&self) {
        let mut rows = self.steps(self.rows.get().len());
        while !rows.done() {
            rows.ask();
        }
    }

    /// What falls to the next steps.
    #[inline(always)]
    pub fn steps(&self, steps: usize) -> Steps {
        let rows = self.rows.get();
        let (now, later) = rows.split_at(rows.len().min(steps * self.of_a_step));
        self.rows.set(later);
        let std::ops::Range { start, end } = now.as_ptr_range();
        Steps {
            next: start,
            end,
            of_a_step: self.of_a_step,
            second: LINE.min(self.bytes.saturating_sub(1)),
            bytes: self.bytes,
        }
    }
}

/// See [`Ahead::steps`].
pub(super) struct Steps {
    next: *const *const u8,
    end: *const *const u8,
    of_a_step: usize,
    /// From a row's first line to its second, if it has two.
    second: usize,
    bytes: usize,
}

impl Steps {
    #[inline(always)]
    fn done(&self) -> bool {
        self.next >= self.end
    }

    /// Asks for what falls to a step.
    #[inline(always)]
    pub fn ask(&mut self) {
        for _ in 0..self.of_a_step {
            if self.done() {
                return;
            }
            // SAFETY: `next` is one of a slice of rows that outlives this.
            let row = unsafe { *self.next };
            simd::prefetch(row, Reach::Near);
            simd::prefetch(row.wrapping_add(self.second), Reach::Near);
            for line in (2 * LINE..self.bytes).step_by(LINE) {
                simd::prefetch(row.wrapping_add(line), Reach::Near);
            }
            self.next = self.next.wrapping_add(1);
        }
    }
}
