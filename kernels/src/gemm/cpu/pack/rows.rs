//! How values of A's rows are read before they are packed: in their weight's order, and normed.

use half::bf16;
use sinew_tensor::DType;

use super::PackRows;
use crate::cpu::line::Line;
use crate::gemm::cpu::normed_rows::RowScale;
use crate::gemm::cpu::tile::MAX_TILE;
use crate::norm::lanes::Scale;
use crate::simd::{self, LANES, Part, Reach, Simd, Stored};

/// Values that rows are asked for ahead of where they are packed: twelve rows at once are more than a core's own
/// prefetcher follows.
pub(super) const AHEAD: usize = 128;

/// The rows of a tile, and where they are packed.
pub(super) struct TileRows<'a> {
    rows: &'a PackRows<'a>,
    /// The `valid` first rows, and what their norms scale them by.
    pub ptrs: [*const u8; MAX_TILE],
    scales: [Scale; MAX_TILE],
    pub valid: usize,
    /// Rows of the tile, of which others than these count as zeros.
    pub height: usize,
    /// The order of their values, where it is not that in which they lie.
    order: Option<*const u32>,
    pub to: *mut u8,
}

impl<'a> TileRows<'a> {
    /// The rows of tile `tile` of all.
    ///
    /// # Safety
    /// Those of [`Simd`]; the rows are the operands'.
    #[inline(always)]
    pub unsafe fn of<S: Simd>(rows: &'a PackRows<'a>, tile: usize) -> Self {
        let slab = &rows.slabs[rows.slabs.partition_point(|slab| slab.tile <= tile) - 1];
        let first = (tile - slab.tile) * slab.of_tile;
        let valid = (slab.count - first).min(slab.of_tile);
        let at = slab.at + first * rows.tiles.packing.bytes(rows.panels, rows.panels.padded_k(rows.k));
        let mut tile = Self {
            rows,
            ptrs: [std::ptr::null(); MAX_TILE],
            scales: [Scale::default(); MAX_TILE],
            valid,
            height: rows.tiles.packed_height(valid),
            order: rows.order.map(|order| order.of(slab.right, rows.k)),
            to: rows.to.wrapping_add(at),
        };
        for r in 0..valid {
            tile.ptrs[r] = rows.rows.address(slab.batch, slab.row + first + r);
            if let Some(norm) = &rows.norm {
                // SAFETY: rows have K values.
                tile.scales[r] = unsafe { S::part(RowScale { norm, row: tile.line(r), k: rows.k }) };
            }
        }
        tile
    }

    /// A row, all of it.
    #[inline(always)]
    pub fn line(&self, r: usize) -> Line {
        Line::new(self.ptrs[r], self.rows.rows.dtype, self.rows.rows.k_stride)
    }

    /// Whether values are packed as they lie, where that is how they are stored.
    #[inline(always)]
    pub fn lie_as_packed(&self) -> bool {
        self.rows.norm.is_none() && self.rows.rows.k_stride == 1 && self.order.is_none()
    }

    /// Reads so many vectors of sixteen values of a row from `k` on, zeros behind its end: in order, normed and, where
    /// they are `rounded`, as bf16 if the product takes that.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row is one of the valid ones, and `out` has room.
    #[inline(always)]
    pub unsafe fn read<S: Simd>(&self, row: usize, k: usize, vectors: usize, rounded: bool, out: *mut f32) {
        // SAFETY: passed on.
        unsafe { S::part(Read { tile: self, row, k, vectors, rounded, out }) }
    }
}

/// See [`TileRows::read`].
#[derive(Clone, Copy)]
struct Read<'a> {
    tile: &'a TileRows<'a>,
    row: usize,
    k: usize,
    vectors: usize,
    rounded: bool,
    out: *mut f32,
}

impl Part for Read<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let TileRows { rows, order, ref scales, .. } = *self.tile;
        let line = self.tile.line(self.row);
        if order.is_none() && rows.norm.is_none() && (line.dtype == DType::BF16 || !(self.rounded && rows.round)) {
            // As they are: bf16 needs no rounding to it.
            let (all, there) = (self.vectors * LANES, rows.k.saturating_sub(self.k));
            // SAFETY: passed on; so many values from `k` on are the row's.
            unsafe {
                line.skip(self.k).widen::<S>(all.min(there), self.out);
                self.out.add(all.min(there)).write_bytes(0, all.saturating_sub(there));
            }
            return;
        }
        for i in 0..self.vectors {
            let k = self.k + i * LANES;
            let n = rows.k.saturating_sub(k).min(LANES);
            simd::prefetch(line.skip(k + AHEAD).ptr(), Reach::Near);
            // SAFETY: passed on; the order has K values, all of them the row's, and the norm's operands have K.
            unsafe {
                let mut x = match order {
                    Some(order) => line.load_at::<S>(order.wrapping_add(k), n),
                    None => line.skip(k).load::<S>(n),
                };
                if let Some(norm) = &rows.norm {
                    x = norm.vectors::<S>(k, n, order).apply(x, n, scales[self.row], rows.round);
                }
                if self.rounded && rows.round {
                    x = bf16::rounded::<S>(x);
                }
                S::store(self.out.add(i * LANES), x);
            }
        }
    }
}
