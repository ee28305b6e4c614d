//! Where keys and values lie, and their scales.

use sinew_tensor::{DType, PagedLayout, View};

use super::TILE;
use super::ahead::Located;
use super::contents::{Run, Table};
use super::operand::Strided;
use super::pack::TileRows;
use super::sequence::Unit;
use crate::Result;
use crate::simd::{self, Reach};

/// Keys and values of one form.
#[derive(Clone, Copy)]
pub(super) struct Source {
    k: Strided,
    v: Strided,
    /// The block table, where they are paged.
    table: Option<Table>,
    scaled: bool,
    head_dim: usize,
}

/// A tile as some rows of a unit see it.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    /// The tile's first key.
    pub tile: usize,
    /// The first of the rows, and the one behind the last.
    pub rows: (usize, usize),
    /// The keys of the tile that any of them sees.
    pub keys: (usize, usize),
    pub source: &'a Source,
}

/// The scales of a tile's keys and values, where they have any.
pub(super) struct Scales {
    pub keys: [f32; TILE],
    pub values: [f32; TILE],
}

impl Source {
    /// That of operands of `dtype`.
    ///
    /// # Errors
    /// Memory that the host cannot reach.
    pub fn new([k, v]: [&View<'_>; 2], table: Option<Table>, head_dim: usize, dtype: DType) -> Result<Self> {
        let scaled = PagedLayout::has_scales(dtype);
        let operand = |view: &View<'_>| match scaled {
            true => Strided::codes(view, head_dim, dtype),
            false => Strided::new(view),
        };
        Ok(Self { k: operand(k)?, v: operand(v)?, table, scaled, head_dim })
    }

    /// Where the keys and values of a piece lie.
    ///
    /// # Safety
    /// The piece is of this source and of the unit, whose sequence was read by [`super::contents::read`].
    #[inline(always)]
    pub unsafe fn locate(&self, unit: &Unit, piece: &Piece<'_>) -> Located {
        let bytes = self.head_dim * self.k.dtype.size();
        let mut at = Located { rows: [[std::ptr::null(); TILE]; 2], bytes };
        let [keys, values] = &mut at.rows;
        // SAFETY: passed on.
        unsafe { self.addresses(unit, piece, keys, values) };
        at
    }

    #[inline(always)]
    unsafe fn addresses(
        &self,
        unit: &Unit,
        piece: &Piece<'_>,
        keys: &mut [*const u8; TILE],
        values: &mut [*const u8; TILE],
    ) {
        let (tile, (from, to)) = (piece.tile, piece.keys);
        debug_assert!(tile <= from && from <= to && to <= tile + TILE);
        let Some(table) = self.table else {
            for key in from..to {
                let token = unit.sequence.kv_start + key;
                // SAFETY: `read` has seen that all sequences' keys are inside the operand.
                unsafe {
                    keys[key - tile] = self.k.at([token, unit.head, 0, 0]);
                    values[key - tile] = self.v.at([token, unit.head, 0, 0]);
                }
            }
            return;
        };
        let steps = [&self.k, &self.v].map(|operand| operand.strides[2] * operand.dtype.size());
        let mut key = from;
        while key < to {
            // SAFETY: `read` has checked the blocks of all visible keys.
            unsafe {
                let Run { id, slot, n } = table.run(unit.index, key, to);
                for (operand, step, rows) in [(&self.k, steps[0], &mut *keys), (&self.v, steps[1], &mut *values)] {
                    let first = operand.at([id, unit.head, slot, 0]);
                    for (i, row) in rows[key - tile..][..n].iter_mut().enumerate() {
                        *row = first.wrapping_add(i * step);
                    }
                }
                if self.scaled {
                    for operand in [&self.k, &self.v] {
                        simd::prefetch(scales_of_run(operand, unit, table, slot, id), Reach::Near);
                    }
                }
                key += n;
            }
        }
    }

    /// The rows of keys that were located.
    #[inline(always)]
    pub fn keys<'r>(&self, at: &'r Located) -> TileRows<'r> {
        self.rows(&at.rows[0], &self.k)
    }

    /// The rows of values that were located.
    #[inline(always)]
    pub fn values<'r>(&self, at: &'r Located) -> TileRows<'r> {
        self.rows(&at.rows[1], &self.v)
    }

    #[inline(always)]
    fn rows<'r>(&self, ptrs: &'r [*const u8; TILE], operand: &Strided) -> TileRows<'r> {
        let last = if self.table.is_some() { 3 } else { 2 };
        TileRows { ptrs, dtype: operand.dtype, step: operand.strides[last], n: self.head_dim }
    }

    /// The scales of a piece's keys and values; zeros for others of the tile, as their weights are.
    ///
    /// # Safety
    /// As for [`Source::locate`].
    #[inline(always)]
    pub unsafe fn scales(&self, unit: &Unit, piece: &Piece<'_>) -> Option<Scales> {
        let table = self.table.filter(|_| self.scaled)?;
        let mut scales = Scales { keys: [0.0; TILE], values: [0.0; TILE] };
        let (mut key, to) = piece.keys;
        while key < to {
            // SAFETY: `read` has checked the blocks of all visible keys, and each has as many scales as slots.
            unsafe {
                let Run { id, slot, n } = table.run(unit.index, key, to);
                for (operand, scales) in [(&self.k, &mut scales.keys), (&self.v, &mut scales.values)] {
                    let from = scales_of_run(operand, unit, table, slot, id);
                    let to = scales.as_mut_ptr().add(key - piece.tile);
                    std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), n * PagedLayout::SCALE_BYTES);
                }
                key += n;
            }
        }
        Some(scales)
    }
}

/// Where the scales begin of the slots from `slot` on of a block.
///
/// # Safety
/// The block is in the cache and has the slot.
#[inline(always)]
unsafe fn scales_of_run(of: &Strided, unit: &Unit, table: Table, slot: usize, id: usize) -> *const u8 {
    // SAFETY: behind the codes of a head of a block lie their scales.
    unsafe { of.at([id, unit.head, table.block_size(), 0]).add(slot * PagedLayout::SCALE_BYTES) }
}
