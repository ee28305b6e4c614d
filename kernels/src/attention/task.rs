//! What a task does: a unit of query rows over its keys, tile by tile.

use sinew_memory::Team;

use super::ahead::Ahead;
use super::body::{Body, Step, Way};
use super::contents;
use super::plan::{Plan, Scratch};
use super::products::{Float, Products, block_rows};
use super::sequence::Unit;
use super::tile::{Tile, parts};
use super::{AttentionDynamic, AttentionStatic, Compute, GROUP, TILE};
use crate::simd::{Kernel, Simd};
use crate::{Launch, Operands, Result};

/// Reads the contents, and runs the body's tasks with `launch_tasks`.
///
/// # Safety
/// The operands have passed `check`; `launch_tasks` runs [`Way::run_task`] with the instructions of `P` enabled.
pub(super) unsafe fn run_body<P: Products>(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
    launch_tasks: &dyn Fn(&Team, usize, &Body<'_>),
) -> Result<()> {
    let team = launch.team()?;
    let plan = Plan::new::<P>(fixed, call, team.threads());
    let workspace = plan.workspace(launch, team.threads())?;
    // SAFETY: passed on; the workspace has room for the sequences.
    let tables = unsafe { contents::read(fixed, call, &plan, operands, workspace.sequences)? };
    if call.tokens == 0 {
        return Ok(());
    }
    let mut body = Body::new(fixed, plan, workspace, call.sequences, tables, operands)?;
    // SAFETY: `read` has written the sequences, and one more.
    let units = unsafe { body.units() };
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

/// Tasks are units of query rows, or a unit and a group of keys, or merges of those.
impl Kernel for Body<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        // SAFETY: passed on; the body was made for a plan of this level's way.
        unsafe { Way::<Float<S>>::of(self).run_task(task, worker) }
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
                let line = self.q.line([token, head, 0, 0], 2);
                let round = self.fixed.compute == Compute::Bf16;
                let to = scratch.queries.add(r * self.plan.depth);
                P::pack_query(line, self.fixed.head_dim, to, self.plan.depth, round);
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
            let tiles = (from / TILE * TILE..to).step_by(TILE);
            let mut pieces = tiles.flat_map(|tile| self.pieces_of(unit, from, to, tile)).flatten();
            let mut here = pieces.next().map(|piece| (piece, piece.source.locate(unit, &piece)));
            Ahead::new(here.as_ref().map(|(_, at)| at), 1).now();
            while let Some((piece, at)) = here {
                // Blocks of a cache lie anywhere: what comes next is asked for while this piece is multiplied.
                let next = pieces.next().map(|piece| (piece, piece.source.locate(unit, &piece)));
                let source = piece.source;
                P::pack_keys(source.keys(&at), scratch.keys, self.plan.depth);
                let finite = P::pack_values(source.values(&at), scratch.values, self.plan.width);
                let scales = source.scales(unit, &piece);
                let finite = finite && scales.as_ref().is_none_or(|s| s.values.iter().all(|x| x.is_finite()));
                let (first, behind) = piece.rows;
                let together = (behind - first).min(block_rows::<P>());
                let steps = self.fixed.head_dim.div_ceil(P::PAIR) + TILE / P::PAIR;
                let ahead = Ahead::new(next.as_ref().map(|(_, at)| at), parts(together, P::ROWS).count() * steps);
                for (row, rows) in parts(behind - first, block_rows::<P>()) {
                    let tile = Tile { start: piece.tile, finite, scales: scales.as_ref(), ahead: &ahead };
                    self.block(unit, scratch, tile, first + row, rows);
                }
                here = next;
            }
        }
    }
}
