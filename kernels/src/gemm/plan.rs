//! How a call is cut up: slabs of A's rows, blocks of K, panels and tasks, and the workspace that they take.

use sinew_memory::Hardware;

use super::pack::Slab;
use super::tile::{Left, Reads, Tiles};
use super::{GemmDynamic, GemmStatic, Rhs};
use crate::packed::{PANEL, PanelKind};
use crate::rates::cores;

/// Second-level caches where the system does not tell.
const L2: usize = 1 << 20;
/// Values of K in a block of few rows: all tiles but the first find the panel in a cache and give memory no work, so their
/// turns are to be short.
const SKINNY_BLOCK: usize = 128;
/// Rows that a slab of A has where the second cache holds fewer, if they take no more than a part of the third: A is read
/// in order, as fast from there, and a slab that the second cache holds almost is read more slowly than either, with
/// the panels once more for each. Fewer than the least are not worth that at all.
const LONG_SLAB: usize = 360;
const MIN_SLAB: usize = 96;
/// The same where panels are packed again for each slab: packing a value takes as long as some hundred multiply-adds.
const MIN_SLAB_UNPACKED: usize = 512;
/// The part of the third-level cache that A's packed rows may take: the weights pass through it as well.
const SHARE_OF_L3: usize = 4;
/// The part of the third-level cache from which on few rows ask for a weight past the caches. Smaller ones are those of
/// models that the cache holds, which are up to a seventh faster for it; of larger models they make no difference.
const PASSING_SHARE_OF_L3: usize = 32;
/// Panels of an unpacked right operand that are packed together, so that a row of it is read 512 bytes at a time.
const UNIT: usize = 4;
/// Bytes of panels that a task reads, about, where they are not one panel's: those that it reads again for another tile
/// counted again, and as many as take a hundred times as long as handing out a task. Larger tasks would leave threads
/// waiting for the last one: where a thread had but six, as other programs' memory traffic slows one down, by a
/// twentieth of the time.
const TASK_BYTES: usize = 32 << 10;
/// Full slabs that are packed together where each has a right operand of its own: a task reads one of them alone, so
/// that they need not fit into a cache together, and small ones are to keep all threads busy.
const GROUPED_SLABS: usize = 4;

/// How a call is cut up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Distinct right operands, and rows that each is multiplied with.
    pub groups: usize,
    pub rows: usize,
    /// Values along K, zeros behind them included.
    pub padded: usize,
    /// Rows that a slab may have.
    widest: usize,
    /// Rows of a full slab.
    pub slab: usize,
    /// Full slabs that are packed at a time.
    pub together: usize,
    /// Slabs at most at a time, smaller ones counted.
    pub slabs: usize,
    /// Values of K in a block.
    pub block: usize,
    /// How often a block of a panel of packed weights is read.
    pub reads: Reads,
    /// Panels of the right operand, and how they hold it.
    pub panels: usize,
    pub kind: PanelKind,
    /// Panels that a task takes at a time: packs, or reads; and how often it does.
    pub unit: usize,
    pub units_per_task: usize,
    /// Bytes of a packed row.
    pub row_bytes: usize,
    /// Bytes of a panel's block as it is packed or expanded, of which a worker has `unit`; 0 where panels are read in
    /// place.
    pub panel_bytes: usize,
    /// Bytes of a worker's sums.
    pub sums: usize,
    /// Workers.
    pub threads: usize,
}

impl Plan {
    pub fn new(
        tiles: &Tiles,
        kind: PanelKind,
        fixed: &GemmStatic,
        call: &GemmDynamic,
        shared: bool,
        hardware: &Hardware,
    ) -> Self {
        let padded = kind.padded_k(fixed.k);
        let (groups, rows) = if shared { (1, call.batch.saturating_mul(call.m)) } else { (call.batch, call.m) };
        let tile = tiles.height(rows);
        let cache = if hardware.caches.l2 == 0 { L2 } else { hardware.caches.l2 } / 2;
        let strided = matches!(fixed.b, Rhs::Strided(_));
        let shared_cache = hardware.caches.l3 / SHARE_OF_L3;
        let row_bytes = tiles.left.bytes(kind, padded);
        let least = match strided {
            true => MIN_SLAB_UNPACKED,
            false => (shared_cache / row_bytes.max(1)).clamp(MIN_SLAB, LONG_SLAB),
        };
        let widest = (cache / row_bytes.max(1)).max(least).min(rows).next_multiple_of(tile).max(tile);
        let expandable = tiles.expansion.is_some() && kind.blocks().is_some() && !strided;
        // Rows that are few: those of three tiles of the highest, or of two where panels are expanded for more. Integers
        // are multiplied so fast that sums which are carried from block to block cost more than they save.
        let of_tiles = match tiles.left {
            Left::Quads => 1,
            Left::Singles | Left::Pairs if expandable => 2,
            Left::Singles | Left::Pairs => 3,
        };
        let few = (of_tiles * tiles.highest()).next_multiple_of(tile);
        let skinny = widest <= few;
        let unit = if strided { UNIT } else { 1 };
        // As much as the threads' caches hold, or a part of the one that they share: fewer forks, after each of which
        // threads wait for the last task, and to each thread slabs of its own. Where that is all rows, slabs are alike.
        let of_rows = rows.div_ceil(widest).max(1);
        let all = groups.max(1).saturating_mul(of_rows);
        let held = match widest.saturating_mul(row_bytes) {
            0 => 1,
            bytes => (cache * hardware.threads).max(shared_cache) / bytes,
        };
        let slab = if all <= held { rows.div_ceil(of_rows).next_multiple_of(tile) } else { widest };
        let together = held.clamp(1, all);
        // A block of a panel is read again for each tile, from the cache of A's slab, which it takes half as much of.
        // From the one before it, it would come faster; but its sums would be carried over from block to block.
        let granule = kind.granule();
        let expansion = tiles.expansion_for(widest).filter(|_| !strided);
        let step_bytes = expansion.map_or(kind.bytes(granule), |expansion| expansion.bytes(kind, tiles.left, granule));
        let longest = if skinny { SKINNY_BLOCK } else { cache / 2 / unit / step_bytes * granule };
        let once = widest == tile && tiles.fit(rows.min(tile), None).passes == 1;
        let blocks = if once { 1 } else { padded.div_ceil(longest.max(granule)).max(1) };
        let block = padded.div_ceil(blocks).next_multiple_of(granule).min(padded);
        let unit_bytes = kind.bytes(padded).saturating_mul(unit * slab.div_ceil(tile));
        let panel_bytes = match expansion {
            Some(expansion) => expansion.bytes(kind, tiles.left, block),
            None if strided => kind.bytes(block),
            None => 0,
        };
        // Of more rows never less, or a call with a packed weight would need more workspace than one of more rows.
        let carried = if block < padded { widest.saturating_mul(unit) } else { widest.min(few) };
        let panels = fixed.outputs().panels();
        let large = kind.bytes(padded).saturating_mul(panels) > hardware.caches.l3 / PASSING_SHARE_OF_L3;
        let passes = skinny && large && cores::known().passes_caches;
        Self {
            groups,
            rows,
            padded,
            widest,
            slab,
            together,
            slabs: together,
            block,
            reads: if passes { Reads::Once } else { Reads::Again },
            panels,
            kind,
            unit,
            units_per_task: TASK_BYTES / unit_bytes.max(1) + 1,
            row_bytes,
            panel_bytes,
            sums: carried.saturating_mul(PANEL * 4),
            threads: hardware.threads,
        }
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
        let slabs = groups.min(plan.rows) + GROUPED_SLABS;
        // The last tile of a group is at most twice as high as its rows.
        let together = (2 * plan.rows).div_ceil(plan.widest).clamp(1, GROUPED_SLABS);
        Self { slab: plan.widest, together, slabs, ..plan }
    }

    pub fn worker_bytes(&self) -> usize {
        lines(self.panel_bytes.saturating_mul(self.unit).saturating_add(self.sums))
    }

    pub fn rows_bytes(&self) -> usize {
        lines(self.row_bytes.saturating_mul(self.slab).saturating_mul(self.together))
    }

    pub fn list_bytes(&self) -> usize {
        lines(self.slabs.saturating_mul(size_of::<Slab>()))
    }

    /// Bytes of workspace; where that is more than can be counted, the most, which nothing has room for.
    pub fn bytes(&self) -> usize {
        let workers = self.worker_bytes().saturating_mul(self.threads);
        self.list_bytes().saturating_add(self.rows_bytes()).saturating_add(workers)
    }
}

/// Bytes that keep each part on its own cache lines.
fn lines(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(64).unwrap_or(usize::MAX)
}

/// Workspace of a call, whatever the strides are.
pub(super) fn workspace(tiles: &Tiles, fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware) -> usize {
    // The rows admit nothing that cannot be held in panels.
    let Some(kind) = fixed.panel_kind() else { return 0 };
    let plan = |shared| Plan::new(tiles, kind, fixed, call, shared, hardware).bytes();
    match fixed.b {
        Rhs::Packed(_) => plan(true),
        Rhs::Strided(_) => plan(true).max(plan(false)),
    }
}

/// Workspace of a product of rows that fall into groups: see [`run_grouped`](super::driver::run_grouped).
pub(crate) fn grouped_workspace(
    tiles: &Tiles,
    fixed: &GemmStatic,
    groups: usize,
    rows: usize,
    hardware: &Hardware,
) -> usize {
    let Some(kind) = fixed.panel_kind() else { return 0 };
    Plan::grouped(tiles, kind, fixed, groups, rows, hardware).bytes()
}

#[cfg(test)]
mod tests {
    use sinew_memory::Cpu;
    use sinew_tensor::DType;

    use super::super::Compute;
    use super::super::cpu;
    use super::*;
    use crate::packed;

    /// The plan of `rows` rows with a weight of f32, `n` outputs of 512, and a third cache of 32 MiB.
    fn plan(rows: usize, n: usize) -> Plan {
        let weight = Rhs::Packed(&packed::F32);
        let fixed = GemmStatic::new(n, 512, DType::F32, weight, DType::F32, Compute::F32);
        let mut hardware = Cpu::get().hardware().clone();
        hardware.caches.l3 = 32 << 20;
        let call = GemmDynamic { batch: 1, m: rows };
        Plan::new(&cpu::PORTABLE, PanelKind::F32, &fixed, &call, true, &hardware)
    }

    #[test]
    fn few_rows_ask_for_large_weights_past_the_caches_where_that_is_known_to_gain() {
        let few = if cores::known().passes_caches { Reads::Once } else { Reads::Again };
        assert_eq!([1, 8].map(|rows| plan(rows, 4096).reads), [few; 2]);
        assert_eq!([plan(512, 4096).reads, plan(1, 512).reads], [Reads::Again; 2], "many rows, or a small weight");
    }
}
