//! How values of A's rows are read before they are packed: in their weight's order, and normed.

use sinew_tensor::DType;

use super::super::normed_rows::{NormedRows, Vectors};
use super::super::tile::MAX_TILE;
use crate::cpu::line::Line;
use crate::norm::lanes::Scale;
use crate::simd::{LANES, Simd, Stored};

/// The rows of a tile, and where they are packed.
pub(super) struct TileRows<T> {
    /// The `valid` first rows, and what their norms scale them by.
    pub lines: [*const T; MAX_TILE],
    pub scales: [Scale; MAX_TILE],
    pub valid: usize,
    /// Rows of the tile, of which others than these count as zeros.
    pub height: usize,
    pub to: *mut u8,
}

/// How the rows of a slab are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    /// Length of a row, elements from value to value, and their type.
    pub k: usize,
    pub k_stride: usize,
    pub dtype: DType,
    /// Normed, where there is a norm.
    pub norm: Option<&'a NormedRows>,
    /// In the order of their weight, where that is another.
    pub order: Option<*const u32>,
    /// Rounded to bf16.
    pub round: bool,
}

impl<'a> Reading<'a> {
    /// The norm's vectors for 32 values of K, where there is one.
    ///
    /// # Safety
    /// Those of [`Simd`]; the norm's operands and the order have K values.
    #[inline(always)]
    pub unsafe fn vectors<S: Simd>(&self, k: usize) -> [Option<Vectors<'a, S>>; 2] {
        let Some(norm) = self.norm else { return [None; 2] };
        // SAFETY: passed on. Not by `map`, whose closure would be a function outside of where vectors are registers.
        unsafe {
            let next = k + LANES;
            let first = norm.vectors::<S>(k, self.values(k), self.order);
            [Some(first), Some(norm.vectors::<S>(next, self.values(next), self.order))]
        }
    }

    /// Values `k..k + 16` of a row, normed where there are the norm's vectors; zeros behind its end.
    ///
    /// # Safety
    /// Those of [`Reading::vectors`]; the line has K values.
    #[inline(always)]
    pub unsafe fn load<S: Simd, T: Stored>(
        &self,
        line: *const T,
        k: usize,
        scale: Scale,
        vectors: Option<Vectors<'_, S>>,
    ) -> S::F {
        let (n, line) = (self.values(k), Line::typed(line, self.k_stride));
        // SAFETY: passed on; the order has K values, all of them the row's.
        unsafe {
            let x = match self.order {
                Some(order) => line.load_at_as::<S, T>(order.wrapping_add(k), n),
                None => line.skip(k).load_as::<S, T>(n),
            };
            match vectors {
                Some(vectors) => vectors.apply(x, n, scale, self.round),
                None => x,
            }
        }
    }

    /// How many of the values `k..k + 16` a row has.
    #[inline(always)]
    pub fn values(&self, k: usize) -> usize {
        self.k.saturating_sub(k).min(LANES)
    }
}
