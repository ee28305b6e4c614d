//! A call's state, and where the rows, keys and values of a unit of work lie.

use std::marker::PhantomData;

use sinew_tensor::PagedLayout;

use super::contents::{Run, Table};
use super::operand::Strided;
use super::plan::{Plan, State, Workspace};
use super::sequence::Sequence;
use super::{Attention, AttentionStatic, K, MASK, O, Q, TILE, V};
use crate::simd::{self, LANES, Reach};
use crate::{Operands, Operator, Result};

/// A call's state: what all its tasks share.
pub(super) struct Body<'a> {
    pub fixed: &'a AttentionStatic,
    pub plan: Plan,
    pub workspace: Workspace,
    sequences: usize,
    /// The block table, where keys are paged.
    pub table: Option<Table>,
    pub q: Strided,
    pub k: Strided,
    pub v: Strided,
    pub o: Strided,
    /// Strides of head, token and key.
    pub mask: Option<Strided>,
    pub step: Step,
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A unit over all its keys.
    Whole,
    /// A unit over one group of keys, to a partial result.
    Group,
    /// The merge of a unit's partial results.
    Merge,
}

// SAFETY: the addresses are of operands that live as long as the launch. Tasks read inputs, write rows of the output
// (or partial results) that are theirs alone, and scratch that is their worker's alone.
unsafe impl Sync for Body<'_> {}

/// Query rows of one head of keys: rows count tokens and, within each, the heads that share the keys.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// The sequence's number.
    pub index: usize,
    pub sequence: Sequence,
    pub head: usize,
    pub first_row: usize,
    pub rows: usize,
}

impl<'a> Body<'a> {
    /// The state of a call of `sequences` sequences, whose contents were read into the workspace.
    ///
    /// # Errors
    /// Operands that are missing or not on the host.
    pub(super) fn new(
        fixed: &'a AttentionStatic,
        plan: Plan,
        workspace: Workspace,
        sequences: usize,
        table: Option<Table>,
        operands: Operands<'_>,
    ) -> Result<Self> {
        let operand = |at, name| Strided::new(operands.input(Attention::NAME, at, name)?);
        let keys = |at, name| match fixed.has_scales() {
            true => Strided::codes(operands.input(Attention::NAME, at, name)?, fixed.head_dim, fixed.kv),
            false => operand(at, name),
        };
        let mask = operands.optional(MASK).filter(|_| fixed.mask.is_some());
        let heads = mask.is_some_and(|m| m.shape().len() == 3);
        let mask = mask.map(Strided::new).transpose()?;
        Ok(Self {
            fixed,
            plan,
            workspace,
            sequences,
            table,
            q: operand(Q, "q")?,
            k: keys(K, "k")?,
            v: keys(V, "v")?,
            o: Strided::new(operands.output(Attention::NAME, O, "o")?)?,
            mask: mask.map(|m| if heads { m } else { m.broadcast() }),
            step: Step::Whole,
        })
    }

    /// Units of work.
    pub(super) unsafe fn units(&self) -> usize {
        // SAFETY: `read` has written one sequence more than there are.
        unsafe { (*self.workspace.sequences.add(self.sequences)).first_unit }
    }

    /// The unit of a number. Later rows come first: causal ones have the most keys, and long tasks at the end would
    /// leave threads waiting.
    #[inline(always)]
    pub(super) unsafe fn unit(&self, number: usize) -> Unit {
        // SAFETY: `read` has written `sequences + 1` sequences with rising first units.
        unsafe {
            let all = std::slice::from_raw_parts(self.workspace.sequences, self.sequences);
            let s = all.partition_point(|s| s.first_unit <= number) - 1;
            let sequence = all[s];
            let per_head = self.plan.units_per_head(sequence.query_len);
            let local = number - sequence.first_unit;
            let first_row = (per_head - 1 - local % per_head) * self.plan.rows;
            let rows = (sequence.query_len * self.plan.group - first_row).min(self.plan.rows);
            Unit { index: s, sequence, head: local / per_head, first_row, rows }
        }
    }

    /// The keys that a row of the unit sees, masks aside.
    #[inline(always)]
    pub(super) fn keys_of_row(&self, unit: &Unit, row: usize) -> (usize, usize) {
        unit.sequence.visible(self.fixed, (unit.first_row + row) / self.plan.group)
    }

    /// The keys that any row of the unit sees.
    #[inline(always)]
    pub(super) fn keys_of(&self, unit: &Unit) -> (usize, usize) {
        (self.keys_of_row(unit, 0).0, self.keys_of_row(unit, unit.rows - 1).1)
    }

    /// Token (among all) and head (of queries) of a row.
    #[inline(always)]
    pub(super) fn token_and_head(&self, unit: &Unit, row: usize) -> (usize, usize) {
        let row = unit.first_row + row;
        let (token, in_group) = (row / self.plan.group, row % self.plan.group);
        (unit.sequence.query_start + token, unit.head * self.plan.group + in_group)
    }

    #[inline(always)]
    pub(super) unsafe fn reset(&self, state: &State, rows: usize) {
        // SAFETY: the state has room for the rows.
        unsafe {
            for r in 0..rows {
                *state.max.add(r) = f32::NEG_INFINITY;
            }
            state.sum.write_bytes(0, rows * LANES);
            state.acc.write_bytes(0, rows * self.plan.width);
        }
    }

    /// Addresses of the keys and values `from..to` of a tile.
    #[inline(always)]
    pub(super) unsafe fn locate(
        &self,
        unit: &Unit,
        from: usize,
        to: usize,
        tile: usize,
        keys: &mut [*const u8; TILE],
        values: &mut [*const u8; TILE],
    ) {
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
                let (mut k, mut v) = (self.k.at([id, unit.head, slot, 0]), self.v.at([id, unit.head, slot, 0]));
                for i in key - tile..key - tile + n {
                    (keys[i], values[i]) = (k, v);
                    (k, v) = (k.wrapping_add(steps[0]), v.wrapping_add(steps[1]));
                }
                if self.fixed.has_scales() {
                    for operand in [&self.k, &self.v] {
                        simd::prefetch(self.scales_of_run(operand, unit, table, slot, id), Reach::Near);
                    }
                }
                key += n;
            }
        }
    }

    /// The scales of the keys `from..to` of a tile, and of their values; zeros for others, as their weights are.
    #[inline(always)]
    pub(super) unsafe fn scales(&self, unit: &Unit, from: usize, to: usize, tile: usize) -> Option<Scales> {
        let table = self.table.filter(|_| self.fixed.has_scales())?;
        let mut scales = Scales { keys: [0.0; TILE], values: [0.0; TILE] };
        let mut key = from.max(tile);
        let to = to.min(tile + TILE);
        while key < to {
            // SAFETY: `read` has checked the blocks of all visible keys, and each has as many scales as slots.
            unsafe {
                let Run { id, slot, n } = table.run(unit.index, key, to);
                for (operand, scales) in [(&self.k, &mut scales.keys), (&self.v, &mut scales.values)] {
                    let from = self.scales_of_run(operand, unit, table, slot, id);
                    let to = scales.as_mut_ptr().add(key - tile);
                    std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), n * PagedLayout::SCALE_BYTES);
                }
                key += n;
            }
        }
        Some(scales)
    }

    /// Where the scales begin of the slots from `slot` on of a block.
    #[inline(always)]
    unsafe fn scales_of_run(&self, of: &Strided, unit: &Unit, table: Table, slot: usize, id: usize) -> *const u8 {
        // SAFETY: behind the codes of a head of a block lie their scales.
        unsafe { of.at([id, unit.head, table.block_size(), 0]).add(slot * PagedLayout::SCALE_BYTES) }
    }
}

/// The scales of a tile's keys and values, where they have any.
pub(super) struct Scales {
    pub keys: [f32; TILE],
    pub values: [f32; TILE],
}

/// The body with a way to multiply.
pub(super) struct Way<'a, P> {
    body: &'a Body<'a>,
    way: PhantomData<P>,
}

impl<'a, P> Way<'a, P> {
    #[inline(always)]
    pub fn of(body: &'a Body<'a>) -> Self {
        Self { body, way: PhantomData }
    }
}

impl<'a, P> std::ops::Deref for Way<'a, P> {
    type Target = Body<'a>;
    #[inline(always)]
    fn deref(&self) -> &Body<'a> {
        self.body
    }
}
