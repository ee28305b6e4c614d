//! How a call is divided into blocks.
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

mod k_blocks;
mod slabs;
mod tasks;
mod workspace;

use sinew_memory::{Caches, Hardware};

use super::tile::{Reads, Tiles};
use crate::gemm::{GemmDynamic, GemmStatic, Rhs};
use crate::packed::PanelKind;
use crate::rates::cores;
use k_blocks::KBlocks;
pub(super) use slabs::Slab;
use slabs::Slabs;
use tasks::Tasks;
use workspace::Workspace;

/// Bytes of the second-level cache where the system does not tell.
const L2: usize = 1 << 20;
/// The part of it that a slab of A takes. A block of panels takes half as much beside it, and the rest is left to the
/// output and what else passes through.
const SLAB_SHARE_OF_L2: usize = 2;
/// The part of the third-level cache that A's packed rows may take: the weights pass through it as well.
const ROWS_SHARE_OF_L3: usize = 4;

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
        let reads = k_blocks::reads(&shape, &blocks, caches.l3, cores::known().passes_caches);
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

/// A call as its plan sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Distinct right operands, and rows that each is multiplied with.
    pub rights: usize,
    pub rows: usize,
    /// Values along K, zeros behind them included.
    pub padded: usize,
    /// Panels of the right operand, and how they hold it.
    pub panels: usize,
    pub kind: PanelKind,
    /// Whether the right operand lies in no panels, and tasks pack what they multiply with.
    pub unpacked: bool,
    /// Rows of a full tile.
    pub tile: usize,
    /// Bytes of a packed row.
    pub row_bytes: usize,
}

impl Shape {
    /// That of a call whose products share one right operand, so that the rows of all are one's, or have one each.
    pub fn new(tiles: &Tiles, kind: PanelKind, fixed: &GemmStatic, call: &GemmDynamic, shared: bool) -> Self {
        let (rights, rows) = if shared { (1, call.batch.saturating_mul(call.m)) } else { (call.batch, call.m) };
        let padded = kind.padded_k(fixed.k);
        Self {
            rights,
            rows,
            padded,
            panels: fixed.outputs().panels(),
            kind,
            unpacked: matches!(fixed.b, Rhs::Strided(_)),
            tile: tiles.height(rows),
            row_bytes: tiles.packing.bytes(kind, padded),
        }
    }
}

/// How many bytes of A and of its panels are to be in a cache at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// For a slab, in a thread's own cache.
    pub slab: usize,
    /// For a block of panels, beside it.
    pub block: usize,
    /// For packed rows, in the cache that threads share.
    pub shared: usize,
    /// For packed rows of all threads: in the caches of their own, or in the shared one where that has more.
    pub together: usize,
}

impl Room {
    /// In these caches of a machine, for so many threads.
    pub fn new(caches: &Caches, threads: usize) -> Self {
        let slab = if caches.l2 == 0 { L2 } else { caches.l2 } / SLAB_SHARE_OF_L2;
        let shared = caches.l3 / ROWS_SHARE_OF_L3;
        Self { slab, block: slab / 2, shared, together: (slab * threads).max(shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_block_and_what_passes_share_the_second_cache() {
        let caches = Caches { l1d: 32 << 10, l2: 2 << 20, l3: 32 << 20 };
        let room = Room::new(&caches, 2);
        assert_eq!([room.slab, room.block, room.shared], [1 << 20, 512 << 10, 8 << 20]);
        assert!(room.slab + room.block < caches.l2);
    }

    #[test]
    fn rows_of_all_threads_are_in_whichever_caches_hold_more() {
        let caches = Caches { l1d: 32 << 10, l2: 1 << 20, l3: 16 << 20 };
        assert_eq!([1, 8, 9, 64].map(|threads| Room::new(&caches, threads).together >> 19), [8, 8, 9, 64]);
    }

    #[test]
    fn a_second_cache_of_unknown_size_counts_as_a_common_one() {
        let unknown = Room::new(&Caches { l1d: 0, l2: 0, l3: 0 }, 1);
        assert_eq!([unknown.slab, unknown.shared, unknown.together], [512 << 10, 0, 512 << 10]);
    }
}
