//! How a call is cut up.
//!
//! The cuts are BLIS's (Van Zee and van de Geijn 2015), each at a size that a cache or the number of registers gives, and
//! each decided in a file of its own:
//!
//! | what is cut | into | BLIS's | so that |
//! |---|---|---|---|
//! | rows of A | [`Slabs`] | mc | a slab's packed rows stay in the second-level cache, all of K |
//! | a slab | [tiles](Tiles) | mr | a tile's sums stay in registers |
//! | K | [`KBlocks`] | kc | the block of a panel that is read again for each tile stays beside the slab |
//! | outputs | [panels](PanelKind) | nr | as weights were packed when they were loaded |
//! | panels | [`Tasks`] | nc | a task is long beside handing it out, and short beside the wait for the last |
//!
//! None of it changes a bit of a result: sums over K are one chain, whatever blocks carry them.

mod caches;
mod k_blocks;
mod reads;
mod shape;
mod slabs;
mod tasks;
mod workspace;

use sinew_memory::Hardware;

use super::tile::{Reads, Tiles};
use crate::gemm::{GemmDynamic, GemmStatic, Rhs};
use crate::packed::PanelKind;
use crate::rates::cores;
use caches::Room;
use k_blocks::KBlocks;
use shape::Shape;
pub(super) use slabs::Slab;
use slabs::Slabs;
use tasks::Tasks;
use workspace::Workspace;

/// How a call is cut up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub shape: Shape,
    pub slabs: Slabs,
    pub tasks: Tasks,
    pub blocks: KBlocks,
    /// How often a block of a panel of packed weights is read.
    pub reads: Reads,
    pub workspace: Workspace,
    /// Workers.
    pub threads: usize,
}

impl Plan {
    /// The plan of products that share one right operand, or have one each.
    pub fn new(
        tiles: &Tiles,
        kind: PanelKind,
        fixed: &GemmStatic,
        call: &GemmDynamic,
        shared: bool,
        hardware: &Hardware,
    ) -> Self {
        let Hardware { caches, threads, .. } = hardware;
        let room = Room::new(caches, *threads);
        let shape = Shape::new(tiles, kind, fixed, call, shared);
        let slabs = Slabs::new(&shape, &room);
        let tasks = Tasks::new(&shape, &slabs);
        let blocks = KBlocks::new(&shape, tiles, &slabs, &tasks, &room);
        let reads = reads::reads(&shape, &blocks, caches.l3, cores::known().passes_caches);
        let workspace = Workspace::new(&shape, &slabs, &tasks, &blocks, *threads);
        Self { shape, slabs, tasks, blocks, reads, workspace, threads: *threads }
    }

    /// The plan of `rows` rows that fall into up to `groups` groups, each with a right operand of its own.
    pub fn grouped(
        tiles: &Tiles,
        kind: PanelKind,
        fixed: &GemmStatic,
        groups: usize,
        rows: usize,
        hardware: &Hardware,
    ) -> Self {
        let plan = Self::new(tiles, kind, fixed, &GemmDynamic { batch: 1, m: rows }, true, hardware);
        let slabs = plan.slabs.grouped(rows, groups);
        let workspace = Workspace::new(&plan.shape, &slabs, &plan.tasks, &plan.blocks, plan.threads);
        Self { slabs, workspace, ..plan }
    }
}

/// Bytes of workspace of a call, whatever the strides are.
pub(super) fn workspace(tiles: &Tiles, fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware) -> usize {
    // The rows admit nothing that cannot be held in panels.
    let Some(kind) = fixed.panel_kind() else { return 0 };
    let bytes = |shared| Plan::new(tiles, kind, fixed, call, shared, hardware).workspace.bytes();
    match fixed.b {
        Rhs::Packed(_) => bytes(true),
        Rhs::Strided(_) => bytes(true).max(bytes(false)),
    }
}

/// Bytes of workspace of a product of rows that fall into groups: see [`run_grouped`](super::driver::run_grouped).
pub(crate) fn grouped_workspace(
    tiles: &Tiles,
    fixed: &GemmStatic,
    groups: usize,
    rows: usize,
    hardware: &Hardware,
) -> usize {
    let Some(kind) = fixed.panel_kind() else { return 0 };
    Plan::grouped(tiles, kind, fixed, groups, rows, hardware).workspace.bytes()
}
