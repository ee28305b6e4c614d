//! The driver of all rows: blocks, packing, and tasks.

use sinew_memory::{Hardware, Team};
use sinew_tensor::DType;

use super::epilogue::Finish;
use super::rows::{Line, PackRows, Rows};
use super::tile::{Tile, Tiles};
use super::{A, B, BIAS, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, refuse};
use crate::packed::{Lane, PANEL, PanelKind, pack_panel};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::{Launch, Operands, Operator, Result};

/// Steps of K that a tile works through before the next tile takes over, where there are several: 512 steps of a bf16
/// panel are 32 KiB, which stay in a first-level cache of 48 with room for A's stream.
const BLOCK_K: usize = 512;
/// A slab of A has at least this many rows, however long they are: below it, reading the panels again would cost more
/// than A's coming from the next cache.
const MIN_SLAB: usize = 96;
/// The same where panels are packed again for each slab: packing a value takes as long as some hundred multiply-adds.
const MIN_SLAB_UNPACKED: usize = 512;
/// Panels of an unpacked right operand that are packed together, so that a row of it is read 512 bytes at a time.
const UNIT: usize = 4;
/// Tasks per thread that panels are split into, so that a thread that was interrupted can be helped out.
const TASKS_PER_THREAD: usize = 6;
/// Values of A below which packing them is not worth waking other threads.
const INLINE_PACK: usize = 8192;

/// How a call is cut up.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Distinct right operands, and rows that each is multiplied with.
    groups: usize,
    rows: usize,
    /// Steps of A's packing, and values of K in each.
    steps: usize,
    per_step: usize,
    /// Rows and groups of A that are packed at a time.
    slab: usize,
    together: usize,
    tile: usize,
    /// Values of K in a block.
    block: usize,
    /// Panels of the right operand, and how they hold it.
    panels: usize,
    kind: PanelKind,
    /// Panels that a task takes at a time: packs, or reads.
    unit: usize,
    /// Bytes of workspace: packed rows of a group, and of each worker its panels and its sums.
    group_bytes: usize,
    panel_bytes: usize,
    sums: usize,
    threads: usize,
}

impl Plan {
    fn new(
        tiles: &Tiles,
        kind: PanelKind,
        fixed: &GemmStatic,
        call: &GemmDynamic,
        shared: bool,
        hardware: &Hardware,
    ) -> Self {
        let padded = kind.padded_k(fixed.k);
        let tile = tiles.full().height;
        let per_step = if tiles.pairs { 2 } else { 1 };
        let steps = padded / per_step;
        let (groups, rows) = if shared { (1, call.batch * call.m) } else { (call.batch, call.m) };
        let cache = if hardware.caches.l2 == 0 { 1 << 20 } else { hardware.caches.l2 } / 2;
        let strided = matches!(fixed.b, Rhs::Strided(_));
        let least = if strided { MIN_SLAB_UNPACKED } else { MIN_SLAB };
        let slab = (cache / (steps * 4).max(1)).max(least).min(rows).next_multiple_of(tile);
        let group_bytes = slab * steps * 4;
        let together = (cache / group_bytes.max(1)).clamp(1, groups.max(1));
        let block = if slab == tile { padded } else { padded.min(BLOCK_K) };
        let unit = if strided { UNIT } else { 1 };
        let panel_bytes = if strided { kind.bytes(block) } else { 0 };
        let carried = if block < padded { slab * unit } else { tile };
        Self {
            groups,
            rows,
            steps,
            per_step,
            slab,
            together,
            tile,
            block,
            panels: fixed.outputs().panels(),
            kind,
            unit,
            group_bytes,
            panel_bytes,
            sums: carried * PANEL * 4,
            threads: hardware.threads,
        }
    }

    /// Bytes that keep each part on its own cache lines.
    fn worker_bytes(&self) -> usize {
        (self.panel_bytes * self.unit + self.sums).next_multiple_of(64)
    }

    fn rows_bytes(&self) -> usize {
        (self.group_bytes * self.together).next_multiple_of(64)
    }

    fn bytes(&self) -> usize {
        self.rows_bytes() + self.worker_bytes() * self.threads
    }
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

/// Runs a call.
///
/// # Safety
/// That of [`crate::Row::run`]; the machine has the level of the tiles, and what their loop needs besides.
pub(super) unsafe fn run(
    tiles: &'static Tiles,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let team = launch.team()?;
    let hardware = launch.stream().device().hardware();
    let Some(kind) = fixed.panel_kind() else {
        return Err(refuse(format!("the right operand of {fixed} cannot be held in panels")));
    };
    let b = operands.input(Gemm::NAME, B, "B")?;
    let right = match fixed.b {
        Rhs::Packed(_) => Right::Packed { ptr: b.host_ptr()?, panel_bytes: kind.bytes(fixed.k) },
        Rhs::Strided(dtype) => {
            let (ptr, strides) = (b.host_ptr()?, b.strides());
            Right::Strided { ptr, dtype, batch: strides[0], k: strides[1], n: strides[2] }
        }
    };
    let shared = match right {
        Right::Packed { .. } => true,
        Right::Strided { batch, .. } => batch == 0 || call.batch == 1,
    };
    let plan = Plan::new(tiles, kind, fixed, call, shared, hardware);
    if plan.groups == 0 || plan.rows == 0 || plan.panels == 0 {
        return Ok(());
    }
    let workspace = launch.host_workspace(plan.bytes())?;
    debug_assert!(team.threads() <= plan.threads);
    let a = Rows::new(operands.input(Gemm::NAME, A, "A")?, call.m)?;
    let out = Rows::new(operands.output(Gemm::NAME, D, "D")?.view(), call.m)?;
    let residual = match fixed.epilogue.residual {
        Some(Residual::Output) => Some(out),
        Some(Residual::Input(_)) => Some(Rows::new(operands.input(Gemm::NAME, RESIDUAL, "the residual")?, call.m)?),
        None => None,
    };
    let bias = match fixed.epilogue.bias {
        Some(dtype) => {
            let bias = operands.input(Gemm::NAME, BIAS, "the bias")?;
            Some(Line { ptr: bias.host_ptr()?, step: bias.strides()[0], dtype })
        }
        None => None,
    };
    let finish = Finish { epilogue: fixed.epilogue, bias };
    let here = Team::new(1)?;
    for group in (0..plan.groups).step_by(plan.together) {
        let groups = (plan.groups - group).min(plan.together);
        for row in (0..plan.rows).step_by(plan.slab) {
            let count = (plan.rows - row).min(plan.slab);
            let pack = PackRows {
                rows: a,
                group,
                row,
                count,
                k: fixed.k,
                panels: kind,
                round: fixed.compute == super::Compute::Bf16,
                tiles,
                to: workspace,
                group_bytes: plan.group_bytes,
            };
            let packing = groups * count.div_ceil(plan.tile);
            let packers = if groups * count * fixed.k <= INLINE_PACK { &here } else { team };
            // Units of panels are shared out in contiguous runs: a thread reads on where it stopped.
            let units = plan.panels.div_ceil(plan.unit);
            let runs = (team.threads() * TASKS_PER_THREAD).div_ceil(groups).clamp(1, units);
            let multiply = Multiply {
                tiles,
                fixed,
                plan,
                right,
                finish,
                out,
                residual,
                group,
                row,
                count,
                units,
                runs,
                packed: workspace,
                scratch: workspace.wrapping_add(plan.rows_bytes()),
            };
            // SAFETY: the plan sized the workspace for these rows and for every worker, `check` vouches for the
            // operands, and the caller for the level.
            unsafe {
                simd::launch(tiles.level, packers, packing, &pack);
                simd::launch(tiles.level, team, groups * runs, &multiply);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Right {
    Packed { ptr: *const u8, panel_bytes: usize },
    Strided { ptr: *const u8, dtype: DType, batch: usize, k: usize, n: usize },
}

/// The product of a packed slab with runs of panels.
struct Multiply<'a> {
    tiles: &'static Tiles,
    fixed: &'a GemmStatic,
    plan: Plan,
    right: Right,
    finish: Finish,
    out: Rows,
    residual: Option<Rows>,
    group: usize,
    row: usize,
    count: usize,
    units: usize,
    runs: usize,
    packed: *const u8,
    scratch: *mut u8,
}

// SAFETY: tasks write disjoint columns of the output, and scratch of their own worker; the rest is only read.
unsafe impl Sync for Multiply<'_> {}

impl Kernel for Multiply<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        let plan = &self.plan;
        let (group, run) = (task / self.runs, task % self.runs);
        let scratch = self.scratch.wrapping_add(worker * plan.worker_bytes());
        for unit in run * self.units / self.runs..(run + 1) * self.units / self.runs {
            let first = unit * plan.unit;
            // SAFETY: passed on; scratch is this worker's.
            unsafe { self.panels::<S>(group, first, (first + plan.unit).min(plan.panels), scratch) };
        }
    }
}

impl Multiply<'_> {
    /// All rows of the slab with panels `first..end`.
    #[inline(always)]
    unsafe fn panels<S: Simd>(&self, group: usize, first: usize, end: usize, scratch: *mut u8) {
        let (plan, kind) = (&self.plan, self.plan.kind);
        let padded = plan.steps * plan.per_step;
        let all_sums: *mut f32 = scratch.wrapping_add(plan.panel_bytes * plan.unit).cast();
        let a = self.packed.wrapping_add(group * plan.group_bytes);
        let mut k = 0;
        loop {
            let width = (padded - k).min(plan.block);
            let last = k + width == padded;
            if let Right::Strided { .. } = self.right {
                let values = self.fixed.k.min(k + width) - k;
                for panel in first..end {
                    let to = scratch.wrapping_add((panel - first) * plan.panel_bytes);
                    // SAFETY: lanes hold the values; scratch holds the panels of a unit.
                    unsafe { pack_panel::<S>(&self.lanes(group, panel), kind, k, values, to) };
                }
            }
            for panel in first..end {
                let b = match self.right {
                    Right::Packed { ptr, panel_bytes } => ptr.wrapping_add(panel * panel_bytes + kind.bytes(k)),
                    Right::Strided { .. } => scratch.cast_const().wrapping_add((panel - first) * plan.panel_bytes),
                };
                // SAFETY: passed on.
                let bias = unsafe { self.finish.panel_bias::<S>(panel, self.fixed.outputs()) };
                for tile in (0..self.count).step_by(plan.tile) {
                    let rows = (self.count - tile).min(plan.tile);
                    let Tile { height, run } = *self.tiles.fit(rows);
                    let sums = if plan.block < padded {
                        all_sums.wrapping_add(((panel - first) * plan.slab + tile) * PANEL)
                    } else {
                        all_sums
                    };
                    // SAFETY: the tile was packed at this height with `steps` steps, of which `width / per_step` from
                    // step `k / per_step` on are this block's; sums of the tile are this worker's.
                    unsafe {
                        let a = a.add((tile * plan.steps + k / plan.per_step * height) * 4);
                        run(kind, a, b, width / plan.per_step, sums, k > 0);
                        if last {
                            self.finish::<S>(group, tile, rows, panel, sums, &bias);
                        }
                    }
                }
            }
            if last {
                break;
            }
            k += width;
        }
    }

    /// Writes the results of a tile.
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        group: usize,
        tile: usize,
        rows: usize,
        panel: usize,
        sums: *const f32,
        bias: &[f32; PANEL],
    ) {
        debug_assert!(rows <= self.plan.tile);
        let outputs = self.fixed.outputs();
        let first = panel * outputs.columns_per_panel();
        let columns = (outputs.columns() - first).min(outputs.columns_per_panel());
        for r in 0..rows {
            let (group, row) = (self.group + group, self.row + tile + r);
            let out = self.out.line(group, row).from(first);
            let residual = self.residual.map(|rows| rows.line(group, row).from(first));
            // SAFETY: passed on: rows and columns are inside the result.
            unsafe { self.finish.row::<S>(sums.add(r * PANEL), bias, out, residual, columns) };
        }
    }

    /// The 32 outputs of a panel of an unpacked right operand.
    #[inline(always)]
    fn lanes(&self, group: usize, panel: usize) -> [Lane; PANEL] {
        let mut lanes = [Lane::EMPTY; PANEL];
        if let Right::Strided { ptr, dtype, batch, k, n } = self.right {
            for half in 0..2 {
                let held = self.fixed.outputs().half_panel(panel, half);
                for (lane, output) in lanes[half * LANES..].iter_mut().zip(held) {
                    let at = (self.group + group) * batch + output * n;
                    *lane = Lane { ptr: ptr.wrapping_add(at * dtype.size()), step: k, dtype };
                }
            }
        }
        lanes
    }
}
