//! A call's state, and which rows and keys a unit of work has.

use std::marker::PhantomData;

use super::contents::Table;
use super::operand::Strided;
use super::plan::{Plan, State, Workspace};
use super::sequence::Unit;
use super::source::{Piece, Source};
use super::{Attention, AttentionStatic, K, MASK, O, OLD_K, OLD_V, Q, SINKS, TILE, V};
use crate::simd::LANES;
use crate::{Operands, Operator, Result};

/// A call's state: what all its tasks share.
pub(super) struct Body<'a> {
    pub fixed: &'a AttentionStatic,
    pub plan: Plan,
    pub workspace: Workspace,
    sequences: usize,
    pub q: Strided,
    /// Keys and values in the full dtype.
    full: Source,
    /// The old ones, where they have another form.
    old: Option<Source>,
    pub o: Strided,
    /// Strides of head, token and key.
    pub mask: Option<Strided>,
    /// f32 by head of queries.
    sinks: Option<Strided>,
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
        [table, old_table]: [Option<Table>; 2],
        operands: Operands<'_>,
    ) -> Result<Self> {
        let input = |at, name| operands.input(Attention::NAME, at, name);
        let old = match fixed.old {
            Some(old) => Some(Source::new(
                [input(OLD_K, "old_k")?, input(OLD_V, "old_v")?],
                old_table,
                fixed.head_dim,
                old.dtype,
            )?),
            None => None,
        };
        let mask = operands.optional(MASK).filter(|_| fixed.mask.is_some());
        let heads = mask.is_some_and(|m| m.shape().len() == 3);
        let mask = mask.map(Strided::new).transpose()?;
        Ok(Self {
            fixed,
            plan,
            workspace,
            sequences,
            q: Strided::new(input(Q, "q")?)?,
            full: Source::new([input(K, "k")?, input(V, "v")?], table, fixed.head_dim, fixed.kv)?,
            old,
            o: Strided::new(operands.output(Attention::NAME, O, "o")?)?,
            mask: mask.map(|m| if heads { m } else { m.broadcast() }),
            sinks: operands.optional(SINKS).filter(|_| fixed.sinks).map(Strided::new).transpose()?,
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

    /// What of a unit's keys `from..to` a tile has, in one form or in both, those in full first.
    #[inline(always)]
    pub(super) fn pieces_of(&self, unit: &Unit, from: usize, to: usize, tile: usize) -> [Option<Piece<'_>>; 2] {
        let keys = |from: usize, to: usize| (from.max(tile), to.min(tile + TILE));
        let (Some(old), Some(of)) = (&self.old, self.fixed.old) else {
            return [Some(Piece { tile, rows: (0, unit.rows), keys: keys(from, to), source: &self.full }), None];
        };
        let query = unit.sequence.first_query_of_old(of, tile);
        let row = (query * self.plan.group).saturating_sub(unit.first_row).min(unit.rows);
        [((0, row), &self.full), ((row, unit.rows), old)].map(|(rows, source)| {
            let last = rows.1.checked_sub(1).filter(|&last| rows.0 <= last)?;
            let (first, behind) = (self.keys_of_row(unit, rows.0).0, self.keys_of_row(unit, last).1);
            let keys = keys(from.max(first), to.min(behind));
            (keys.0 < keys.1).then_some(Piece { tile, rows, keys, source })
        })
    }

    /// Token (among all) and head (of queries) of a row.
    #[inline(always)]
    pub(super) fn token_and_head(&self, unit: &Unit, row: usize) -> (usize, usize) {
        let row = unit.first_row + row;
        let (token, in_group) = (row / self.plan.group, row % self.plan.group);
        (unit.sequence.query_start + token, unit.head * self.plan.group + in_group)
    }

    /// The sink's logit of a head of queries.
    #[inline(always)]
    pub(super) fn sink(&self, head: usize) -> Option<f32> {
        // SAFETY: `check` saw an f32 for each head.
        self.sinks.map(|sinks| unsafe { sinks.at([head, 0, 0, 0]).cast::<f32>().read_unaligned() })
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
