//! The driver of all rows: blocks, packing, and tasks.

use std::ops::Range;

use half::{bf16, f16};
use sinew_memory::{Hardware, Team};
use sinew_tensor::{DType, View};

use super::epilogue::Finish;
use super::input_norm::NormedRows;
use super::rows::{Line, PackRows, Rows, Slab};
use super::tile::{Tile, Tiles};
use super::{A, B, BIAS, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, refuse};
use crate::packed::{Lane, PANEL, PanelKind, pack_panel};
use crate::simd::{self, Kernel, LANES, Reach, Simd, Stored};
use crate::{Launch, Operands, Operator, Result};

/// Second-level caches where the system does not tell.
const L2: usize = 1 << 20;
/// Values of K in a block where a panel is read a few times only: all but the first find it in a cache and give memory no
/// work, so their turns are to be short.
const SKINNY_BLOCK: usize = 128;
/// A slab of A has at least this many rows, however long they are: below it, reading the panels again would cost more
/// than A's coming from the next cache.
const MIN_SLAB: usize = 96;
/// The same where panels are packed again for each slab: packing a value takes as long as some hundred multiply-adds.
const MIN_SLAB_UNPACKED: usize = 512;
/// Panels of an unpacked right operand that are packed together, so that a row of it is read 512 bytes at a time.
const UNIT: usize = 4;
/// Tasks per thread that panels are split into, so that a thread that was interrupted can be helped out: of products
/// that take long, and of those of few rows, which may take as long as a dozen tasks take to hand out.
const TASKS_PER_THREAD: usize = 16;
const SKINNY_TASKS_PER_THREAD: usize = 6;
/// Values of A below which packing them is not worth waking other threads.
const INLINE_PACK: usize = 8192;
/// Full slabs that are packed together where each has a right operand of its own: a task reads one of them alone, so
/// that they need not fit into a cache together, and small ones are to keep all threads busy.
const GROUPED_SLABS: usize = 4;

/// How a call is cut up.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Distinct right operands, and rows that each is multiplied with.
    groups: usize,
    rows: usize,
    /// Values along K, zeros behind them included.
    padded: usize,
    /// Rows of a full slab, and as many of those as are packed at a time; smaller ones may be up to `slabs`.
    slab: usize,
    together: usize,
    slabs: usize,
    /// Tasks that they are to be multiplied in.
    tasks: usize,
    tile: usize,
    /// Values of K in a block.
    block: usize,
    /// Panels of the right operand, and how they hold it.
    panels: usize,
    kind: PanelKind,
    /// Panels that a task takes at a time: packs, or reads.
    unit: usize,
    /// Bytes of workspace: a packed row, and of each worker its panels and its sums.
    row_bytes: usize,
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
        let (groups, rows) = if shared { (1, call.batch * call.m) } else { (call.batch, call.m) };
        let cache = if hardware.caches.l2 == 0 { L2 } else { hardware.caches.l2 } / 2;
        let strided = matches!(fixed.b, Rhs::Strided(_));
        let least = if strided { MIN_SLAB_UNPACKED } else { MIN_SLAB };
        let row_bytes = tiles.left.bytes(padded);
        let slab = (cache / row_bytes.max(1)).max(least).min(rows).next_multiple_of(tile);
        let skinny = slab <= 2 * tile;
        let unit = if strided { UNIT } else { 1 };
        // As much as the threads' caches hold: fewer forks, and to each thread slabs of its own.
        let all = groups.max(1) * rows.div_ceil(slab.max(1)).max(1);
        let together = (cache * hardware.threads / (slab * row_bytes).max(1)).clamp(1, all);
        // A block of a panel is read again for each tile, from the cache of A's slab, which it takes half as much of.
        // From the one before it, it would come faster; but its sums would be carried over from block to block.
        let granule = kind.granule();
        let longest = if skinny { SKINNY_BLOCK } else { cache / 2 / unit / kind.bytes(granule) * granule };
        let once = slab == tile && tiles.fit(rows.min(tile)).passes == 1;
        let blocks = if once { 1 } else { padded.div_ceil(longest.max(granule)).max(1) };
        let block = padded.div_ceil(blocks).next_multiple_of(granule).min(padded);
        let panel_bytes = if strided { kind.bytes(block) } else { 0 };
        let carried = if block < padded { slab * unit } else { tile };
        Self {
            groups,
            rows,
            padded,
            slab,
            together,
            slabs: together,
            tasks: hardware.threads * if skinny { SKINNY_TASKS_PER_THREAD } else { TASKS_PER_THREAD },
            tile,
            block,
            panels: fixed.outputs().panels(),
            kind,
            unit,
            row_bytes,
            panel_bytes,
            sums: carried * PANEL * 4,
            threads: hardware.threads,
        }
    }

    /// The plan where rows fall into up to `groups` groups, each with a right operand of its own.
    fn grouped(self, groups: usize) -> Self {
        let slabs = groups.min(self.rows) + GROUPED_SLABS;
        // The last tile of a group is at most twice as high as its rows.
        let together = (2 * self.rows).div_ceil(self.slab.max(1)).clamp(1, GROUPED_SLABS);
        Self { together, slabs, ..self }
    }

    /// Bytes that keep each part on its own cache lines.
    fn worker_bytes(&self) -> usize {
        (self.panel_bytes * self.unit + self.sums).next_multiple_of(64)
    }

    fn rows_bytes(&self) -> usize {
        (self.row_bytes * self.slab * self.together).next_multiple_of(64)
    }

    fn list_bytes(&self) -> usize {
        (self.slabs * size_of::<Slab>()).next_multiple_of(64)
    }

    fn bytes(&self) -> usize {
        self.list_bytes() + self.rows_bytes() + self.worker_bytes() * self.threads
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
        Rhs::Packed(_) => Right::Packed { ptr: b.host_ptr()?, panel_bytes: kind.bytes(fixed.k), bytes: 0 },
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
    let a = Rows::new(operands.input(Gemm::NAME, A, "A")?, call.m)?;
    let norm = NormedRows::new(fixed, operands)?;
    let finish = Finish { epilogue: fixed.epilogue, bias };
    let product = Product { tiles, fixed, plan, right, finish, a, norm, out, residual };
    // SAFETY: passed on; all rows of all groups are the operands'.
    unsafe { product.run(launch, team, (0..plan.groups).map(|group| (group, group, 0..plan.rows))) }
}

/// Workspace of a product of rows that fall into groups: see [`run_grouped`].
pub(crate) fn grouped_workspace(
    tiles: &Tiles,
    fixed: &GemmStatic,
    groups: usize,
    rows: usize,
    hardware: &Hardware,
) -> usize {
    let Some(kind) = fixed.panel_kind() else { return 0 };
    let call = GemmDynamic { batch: 1, m: rows };
    Plan::new(tiles, kind, fixed, &call, true, hardware).grouped(groups).bytes()
}

/// Runs a product of rows that fall into groups, one behind another, each of which is multiplied with a packed weight
/// of its own: `out[i] = epilogue(a[i] · B[g])` for `i` in `offsets(g)..offsets(g + 1)`. There is no bias and no
/// residual.
///
/// # Safety
/// `a` is `[1, rows, K]`, `out` is `[1, rows, columns]` and `b` holds `groups` packed weights, all of the problem's
/// types; offsets do not decrease and are at most `rows`; the launch holds [`grouped_workspace`]; the machine has the
/// level of the tiles, and what their loop needs besides.
pub(crate) unsafe fn run_grouped(
    tiles: &'static Tiles,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    groups: usize,
    [a, b, out]: [&View<'_>; 3],
    offsets: impl Fn(usize) -> usize,
) -> Result<()> {
    let team = launch.team()?;
    let hardware = launch.stream().device().hardware();
    let Some(kind) = fixed.panel_kind() else {
        return Err(refuse(format!("the right operand of {fixed} cannot be held in panels")));
    };
    let rows = a.shape()[1];
    let plan = Plan::new(tiles, kind, fixed, &GemmDynamic { batch: 1, m: rows }, true, hardware).grouped(groups);
    let panel_bytes = kind.bytes(fixed.k);
    let right = Right::Packed { ptr: b.host_ptr()?, panel_bytes, bytes: plan.panels * panel_bytes };
    let finish = Finish { epilogue: fixed.epilogue, bias: None };
    let (a, out) = (Rows::new(a, rows)?, Rows::new(out, rows)?);
    let product = Product { tiles, fixed, plan, right, finish, a, norm: None, out, residual: None };
    // SAFETY: passed on.
    unsafe { product.run(launch, team, (0..groups).map(|group| (group, 0, offsets(group)..offsets(group + 1)))) }
}

/// A call with its operands.
struct Product<'a> {
    tiles: &'static Tiles,
    fixed: &'a GemmStatic,
    plan: Plan,
    right: Right,
    finish: Finish,
    a: Rows,
    norm: Option<NormedRows>,
    out: Rows,
    residual: Option<Rows>,
}

impl Product<'_> {
    /// Multiplies runs of rows, each told with its right operand's number and the group that [`Rows`] count it in.
    ///
    /// # Safety
    /// The rows are the operands', and the launch holds the plan's workspace.
    unsafe fn run(
        &self,
        launch: &Launch<'_>,
        team: &Team,
        runs: impl Iterator<Item = (usize, usize, Range<usize>)>,
    ) -> Result<()> {
        let plan = &self.plan;
        if plan.groups == 0 || plan.rows == 0 || plan.panels == 0 {
            return Ok(());
        }
        let workspace = launch.host_workspace(plan.bytes())?;
        debug_assert!(team.threads() <= plan.threads);
        let here = Team::new(1)?;
        let list: *mut Slab = workspace.cast();
        let (mut slabs, mut tiles, mut packed) = (0, 0, 0);
        // SAFETY: the first `slabs` of the list were written, which has room for as many as the plan says; they go into
        // the rows' part of the workspace.
        let flush = |slabs, tiles, packed| unsafe {
            self.round(team, &here, std::slice::from_raw_parts(list, slabs), tiles, packed, workspace)
        };
        for (right, group, rows) in runs {
            for row in rows.clone().step_by(plan.slab) {
                let count = (rows.end - row).min(plan.slab);
                let height = self.tiles.packed_rows(count);
                if slabs == plan.slabs || packed + height > plan.slab * plan.together {
                    flush(slabs, tiles, packed);
                    (slabs, tiles, packed) = (0, 0, 0);
                }
                let slab = Slab { right, group, row, count, tile: tiles, at: packed * plan.row_bytes };
                // SAFETY: there are fewer than the list has room for.
                unsafe { list.add(slabs).write(slab) };
                slabs += 1;
                tiles += count.div_ceil(plan.tile);
                packed += height;
            }
        }
        flush(slabs, tiles, packed);
        Ok(())
    }

    /// Packs slabs and multiplies them.
    ///
    /// # Safety
    /// The slabs are of the operands' rows, and the workspace is the plan's.
    unsafe fn round(&self, team: &Team, here: &Team, slabs: &[Slab], tiles: usize, packed: usize, workspace: *mut u8) {
        if slabs.is_empty() {
            return;
        }
        let (plan, k) = (&self.plan, self.fixed.k);
        let to = workspace.wrapping_add(plan.list_bytes());
        let pack = PackRows {
            rows: self.a,
            norm: self.norm,
            slabs,
            k,
            panels: plan.kind,
            round: self.fixed.compute == super::Compute::Bf16,
            tiles: self.tiles,
            to,
        };
        let packers = if packed * k <= INLINE_PACK { here } else { team };
        // Units of panels are shared out in contiguous runs: a thread reads on where it stopped.
        let units = plan.panels.div_ceil(plan.unit);
        let runs = plan.tasks.div_ceil(slabs.len()).clamp(1, units);
        let multiply =
            Multiply { product: self, slabs, units, runs, packed: to, scratch: to.wrapping_add(plan.rows_bytes()) };
        // SAFETY: the plan sized the workspace for these rows and for every worker, `check` vouches for the operands,
        // and the caller for the level.
        unsafe {
            simd::launch(self.tiles.level, packers, tiles, &pack);
            simd::launch(self.tiles.level, team, slabs.len() * runs, &multiply);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Right {
    /// Weights one behind another, `bytes` apart.
    Packed {
        ptr: *const u8,
        panel_bytes: usize,
        bytes: usize,
    },
    Strided {
        ptr: *const u8,
        dtype: DType,
        batch: usize,
        k: usize,
        n: usize,
    },
}

/// Where the results of a tile and a panel go.
#[derive(Clone, Copy)]
struct Written {
    group: usize,
    row: usize,
    rows: usize,
    first: usize,
    columns: usize,
}

/// The products of packed slabs with runs of panels.
struct Multiply<'a> {
    product: &'a Product<'a>,
    slabs: &'a [Slab],
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
        let plan = &self.product.plan;
        let (slab, run) = (&self.slabs[task / self.runs], task % self.runs);
        let scratch = self.scratch.wrapping_add(worker * plan.worker_bytes());
        for unit in run * self.units / self.runs..(run + 1) * self.units / self.runs {
            let first = unit * plan.unit;
            // SAFETY: passed on; scratch is this worker's.
            unsafe { self.panels::<S>(slab, first, (first + plan.unit).min(plan.panels), scratch) };
        }
    }
}

impl Multiply<'_> {
    /// All rows of the slab with panels `first..end`.
    #[inline(always)]
    unsafe fn panels<S: Simd>(&self, slab: &Slab, first: usize, end: usize, scratch: *mut u8) {
        let Product { tiles, fixed, plan, right, finish, .. } = self.product;
        let kind = plan.kind;
        let padded = plan.padded;
        let all_sums: *mut f32 = scratch.wrapping_add(plan.panel_bytes * plan.unit).cast();
        let a = self.packed.wrapping_add(slab.at);
        let mut k = 0;
        loop {
            let width = (padded - k).min(plan.block);
            let last = k + width == padded;
            if let Right::Strided { .. } = right {
                let values = fixed.k.min(k + width) - k;
                for panel in first..end {
                    let to = scratch.wrapping_add((panel - first) * plan.panel_bytes);
                    // SAFETY: lanes hold the values; scratch holds the panels of a unit.
                    unsafe { pack_panel::<S>(&self.lanes(slab, panel), kind, k, values, to) };
                }
            }
            for panel in first..end {
                let b = match *right {
                    Right::Packed { ptr, panel_bytes, bytes } => {
                        ptr.wrapping_add(slab.right * bytes + panel * panel_bytes + kind.bytes(k))
                    }
                    Right::Strided { .. } => scratch.cast_const().wrapping_add((panel - first) * plan.panel_bytes),
                };
                // SAFETY: passed on.
                let bias = unsafe { finish.panel_bias::<S>(panel, fixed.outputs()) };
                for tile in (0..slab.count).step_by(plan.tile) {
                    let rows = (slab.count - tile).min(plan.tile);
                    let Tile { height, run, .. } = *tiles.fit(rows);
                    let sums = if plan.block < padded {
                        all_sums.wrapping_add(((panel - first) * plan.slab + tile) * PANEL)
                    } else {
                        all_sums
                    };
                    if last {
                        self.prefetch_residual(slab, tile, rows, panel);
                    }
                    // SAFETY: the tile was packed at this height, of which what follows `k` values is this block's;
                    // sums of the tile are this worker's.
                    unsafe {
                        let a = a.add(tile * plan.row_bytes + tiles.left.bytes(k) * height);
                        run(kind, a, b, width / tiles.left.per_step(), sums, k > 0);
                        if last {
                            self.finish::<S>(slab, tile, rows, panel, sums, &bias);
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

    /// Asks for what [`Multiply::finish`] adds to a tile, while its products are summed.
    #[inline(always)]
    fn prefetch_residual(&self, slab: &Slab, tile: usize, rows: usize, panel: usize) {
        let Some(residual) = self.product.residual else { return };
        let outputs = self.product.fixed.outputs();
        let first = panel * outputs.columns_per_panel();
        let bytes = outputs.columns_per_panel() * residual.dtype.size();
        for r in 0..rows {
            let line = residual.line(slab.group, slab.row + tile + r).from(first);
            for at in (0..bytes).step_by(64) {
                simd::prefetch(line.ptr.wrapping_add(at), Reach::Near);
            }
        }
    }

    /// Writes the results of a tile.
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        slab: &Slab,
        tile: usize,
        rows: usize,
        panel: usize,
        sums: *mut f32,
        bias: &[f32; PANEL],
    ) {
        let Product { fixed, plan, finish, out, residual, .. } = self.product;
        debug_assert!(rows <= plan.tile);
        let outputs = fixed.outputs();
        let first = panel * outputs.columns_per_panel();
        let columns = (outputs.columns() - first).min(outputs.columns_per_panel());
        let tile = Written { group: slab.group, row: slab.row + tile, rows, first, columns };
        let side_by_side = |rows: &Rows| rows.k_stride == 1 && rows.dtype == out.dtype;
        let whole = columns.is_multiple_of(LANES) && side_by_side(out) && residual.iter().all(side_by_side);
        // SAFETY: passed on: rows and columns are inside the result.
        unsafe {
            finish.apply::<S>(sums, rows, bias);
            match out.dtype {
                DType::F32 if whole => self.write::<S, f32>(tile, sums),
                DType::F16 if whole => self.write::<S, f16>(tile, sums),
                DType::BF16 if whole => self.write::<S, bf16>(tile, sums),
                _ => {
                    for r in 0..rows {
                        let line = |rows: &Rows| rows.line(tile.group, tile.row + r).from(first);
                        finish.store::<S>(sums.add(r * PANEL), line(out), residual.as_ref().map(line), columns);
                    }
                }
            }
        }
    }

    /// Rounds results to rows of `T`s, to which a residual of `T`s may be added.
    #[inline(always)]
    unsafe fn write<S: Simd, T: Stored>(&self, tile: Written, results: *const f32) {
        let Product { finish, out, residual, .. } = self.product;
        for r in 0..tile.rows {
            let address = |rows: &Rows| rows.address(tile.group, tile.row + r).cast::<T>().wrapping_add(tile.first);
            let residual = residual.as_ref().map(address);
            // SAFETY: passed on.
            unsafe {
                finish.store_whole::<S, T>(results.add(r * PANEL), address(out).cast_mut(), residual, tile.columns);
            }
        }
    }

    /// The 32 outputs of a panel of an unpacked right operand.
    #[inline(always)]
    fn lanes(&self, slab: &Slab, panel: usize) -> [Lane; PANEL] {
        let Product { fixed, right, .. } = self.product;
        let mut lanes = [Lane::EMPTY; PANEL];
        if let Right::Strided { ptr, dtype, batch, k, n } = *right {
            for half in 0..2 {
                let held = fixed.outputs().half_panel(panel, half);
                for (lane, output) in lanes[half * LANES..].iter_mut().zip(held) {
                    let at = slab.right * batch + output * n;
                    *lane = Lane { ptr: ptr.wrapping_add(at * dtype.size()), step: k, dtype };
                }
            }
        }
        lanes
    }
}
