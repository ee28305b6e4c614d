//! What a task does: a unit of query rows over its keys, tile by tile.

use std::marker::PhantomData;

use super::contents::{self, Sequence, Table};
use super::pack::TileRows;
use super::plan::{Plan, Scratch, State, Workspace};
use super::products::{Float, Products};
use super::rows::{Line, Strided};
use super::tile::block_rows;
use super::{Attention, AttentionDynamic, AttentionStatic, Compute, GROUP, K, MASK, O, Q, TILE, V};
use crate::simd::{Kernel, LANES, Simd};
use crate::{Launch, Operands, Operator, Result};

/// A call's state: a [`Kernel`] whose tasks are units of query rows, or a unit and a group of keys, or merges of those.
pub(super) struct Body<'a> {
    pub fixed: &'a AttentionStatic,
    pub plan: Plan,
    pub workspace: Workspace,
    sequences: usize,
    table: Option<Table>,
    q: Strided,
    k: Strided,
    v: Strided,
    pub o: Strided,
    /// Strides of head, token and key.
    pub mask: Option<Strided>,
    step: Step,
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
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

/// Reads the contents, and runs the body's tasks with `launch_tasks`.
///
/// # Safety
/// The operands have passed `check`; `launch_tasks` runs [`Way::run_task`] with the instructions of `P` enabled.
pub(super) unsafe fn run_body<P: Products>(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
    launch_tasks: &dyn Fn(&sinew_memory::Team, usize, &Body<'_>),
) -> Result<()> {
    let team = launch.team()?;
    let plan = Plan::new::<P>(fixed, call, team.threads());
    let workspace = plan.workspace(launch, team.threads())?;
    // SAFETY: passed on; the workspace has room for the sequences.
    let table = unsafe { contents::read(fixed, call, &plan, operands, workspace.sequences)? };
    if call.tokens == 0 {
        return Ok(());
    }
    // SAFETY: `read` has written one sequence more than there are.
    let units = unsafe { (*workspace.sequences.add(call.sequences)).first_unit };
    let operand = |at, name| Strided::new(operands.input(Attention::NAME, at, name)?);
    let mask = operands.optional(MASK).filter(|_| fixed.mask.is_some());
    let heads = mask.is_some_and(|m| m.shape().len() == 3);
    let mask = mask.map(Strided::new).transpose()?;
    let mut body = Body {
        fixed,
        plan,
        workspace,
        sequences: call.sequences,
        table,
        q: operand(Q, "q")?,
        k: operand(K, "k")?,
        v: operand(V, "v")?,
        o: Strided::new(operands.output(Attention::NAME, O, "o")?)?,
        mask: mask.map(|m| if heads { m } else { m.broadcast() }),
        step: Step::Whole,
    };
    match plan.split {
        None => launch_tasks(team, units, &body),
        Some(groups) => {
            body.step = Step::Group;
            launch_tasks(team, units * groups, &body);
            body.step = Step::Merge;
            launch_tasks(team, units, &body);
        }
    }
    Ok(())
}

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

impl Body<'_> {
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
        let mut key = from;
        while key < to {
            let (block, slot) = (key / table.block_size(), key % table.block_size());
            let n = (table.block_size() - slot).min(to - key);
            // SAFETY: `read` has checked the blocks of all visible keys.
            unsafe {
                let id = table.block(unit.index, block);
                let (mut k, mut v) = (self.k.at([id, unit.head, slot, 0]), self.v.at([id, unit.head, slot, 0]));
                for i in key - tile..key - tile + n {
                    (keys[i], values[i]) = (k, v);
                    (k, v) = (k.wrapping_add(self.k.strides[2]), v.wrapping_add(self.v.strides[2]));
                }
            }
            key += n;
        }
    }
}

impl Kernel for Body<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        // SAFETY: passed on; the body was made for a plan of this level's way.
        unsafe { Way::<Float<S>>::of(self).run_task(task, worker) }
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

impl<P: Products> Way<'_, P> {
    /// Runs one task.
    ///
    /// # Safety
    /// Called with the instructions of `P` enabled, by one thread at a time per worker.
    #[inline(always)]
    pub(super) unsafe fn run_task(&self, task: usize, worker: usize) {
        let groups = if self.step == Step::Group { self.plan.split.unwrap_or(1) } else { 1 };
        // SAFETY: the body was made by `run_body`, which says what holds.
        unsafe {
            let unit = self.unit(task / groups);
            let scratch = self.workspace.scratch::<P::E>(&self.plan, worker);
            let (from, to) = self.keys_of(&unit);
            let (mut first, mut behind) = (from / GROUP, to.div_ceil(GROUP));
            match self.step {
                Step::Merge => return self.merge(&unit, &scratch, first, behind),
                Step::Whole => self.reset(&scratch.total, unit.rows),
                Step::Group => {
                    let group = task % groups;
                    if !(first..behind).contains(&group) {
                        return;
                    }
                    (first, behind) = (group, group + 1);
                }
            }
            self.pack_queries(&unit, &scratch);
            for group in first..behind {
                self.group(&unit, &scratch, group);
                if self.step == Step::Group {
                    return self.put_partials(&unit, &scratch.group, group);
                }
                for r in 0..unit.rows {
                    self.merge_row(&scratch.total, r, &scratch.group, r);
                }
            }
            self.finish(&unit, &scratch.total);
        }
    }

    #[inline(always)]
    unsafe fn pack_queries(&self, unit: &Unit, scratch: &Scratch<P::E>) {
        for r in 0..unit.rows {
            let (token, head) = self.token_and_head(unit, r);
            // SAFETY: token and head are inside the operand; scratch has a place for each row of a unit.
            unsafe {
                let ptr = self.q.at([token, head, 0, 0]);
                let line = Line { ptr, stride: self.q.strides[2], n: self.fixed.head_dim, dtype: self.q.dtype };
                let round = self.fixed.compute == Compute::Bf16;
                P::pack_query(line, scratch.queries.add(r * self.plan.depth), self.plan.depth, round);
            }
        }
    }

    /// Computes one group of keys for a unit, into the scratch's group state.
    #[inline(always)]
    unsafe fn group(&self, unit: &Unit, scratch: &Scratch<P::E>, group: usize) {
        let (from, to) = self.keys_of(unit);
        let (from, to) = (from.max(group * GROUP), to.min((group + 1) * GROUP));
        // SAFETY: passed on; the keys are visible to a row of the unit, so `read` has checked where they lie.
        unsafe {
            self.reset(&scratch.group, unit.rows);
            let mut tile = from / TILE * TILE;
            while tile < to {
                let mut keys = [std::ptr::null(); TILE];
                let mut values = [std::ptr::null(); TILE];
                self.locate(unit, from.max(tile), to.min(tile + TILE), tile, &mut keys, &mut values);
                let line = |s: &Strided, dim: usize| Line {
                    ptr: std::ptr::null(),
                    stride: s.strides[dim],
                    n: self.fixed.head_dim,
                    dtype: s.dtype,
                };
                let last = if self.table.is_some() { 3 } else { 2 };
                let rows = TileRows { ptrs: &keys, line: line(&self.k, last) };
                P::pack_keys(rows, scratch.keys, self.plan.depth);
                let rows = TileRows { ptrs: &values, line: line(&self.v, last) };
                let finite = P::pack_values(rows, scratch.values, self.plan.width);
                let mut row = 0;
                while row < unit.rows {
                    let rows = block_rows(unit.rows - row, P::ROWS);
                    self.block(unit, scratch, tile, row, rows, finite);
                    row += rows;
                }
                tile += TILE;
            }
        }
    }
}
