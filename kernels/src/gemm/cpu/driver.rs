//! The driver of all rows of tiles: packs A's rows, hands out panels, and multiplies them block by block.

use std::ops::Range;

use sinew_memory::Team;
use sinew_tensor::{DType, View};

use super::finish::{Finish, Place};
use super::normed_rows::NormedRows;
use super::pack::{self, PackRows};
use super::plan::{Plan, Slab};
use super::rows::{OperandRows, Order};
use super::tile::{Block, Reads, Tile, Tiles};
use crate::cpu::line::Line;
use crate::gemm::{A, B, BIAS, D, Gemm, GemmDynamic, GemmStatic, ORDER, RESIDUAL, Residual, Rhs, refuse};
use crate::packed::{PANEL, PanelKind, pack_panel};
use crate::simd::{self, Kernel, LANES, Simd};
use crate::{Compute, Launch, Operands, Operator, Result};

/// Values of A below which packing them is not worth waking other threads.
const INLINE_PACK: usize = 8192;

/// How panels hold the right operand.
fn panel_kind(fixed: &GemmStatic) -> Result<PanelKind> {
    fixed.panel_kind().ok_or_else(|| refuse(format!("the right operand of {fixed} cannot be held in panels")))
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
    let kind = panel_kind(fixed)?;
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
    let out = OperandRows::new(operands.output(Gemm::NAME, D, "D")?.view(), call.m)?;
    let residual = match fixed.epilogue.residual {
        Some(Residual::Output) => Some(out),
        Some(Residual::Input(_)) => {
            Some(OperandRows::new(operands.input(Gemm::NAME, RESIDUAL, "the residual")?, call.m)?)
        }
        None => None,
    };
    let bias = match fixed.epilogue.bias {
        Some(dtype) => {
            let bias = operands.input(Gemm::NAME, BIAS, "the bias")?;
            Some(Line::new(bias.host_ptr()?, dtype, bias.strides()[0]))
        }
        None => None,
    };
    let a = OperandRows::new(operands.input(Gemm::NAME, A, "A")?, call.m)?;
    let norm = NormedRows::new(fixed, operands)?;
    let finish = Finish { epilogue: fixed.epilogue, outputs: fixed.outputs(), bias, bias_step: 0, out, residual };
    let order = Order::new(fixed, operands.optional(ORDER))?;
    let product = Product { tiles, fixed, plan, right, finish, a, norm, order };
    // SAFETY: passed on; all rows of the batch are the operands'.
    unsafe { product.run(launch, team, (0..plan.shape.rights).map(|right| (right, right, 0..plan.shape.rows))) }
}

/// The operands of rows that fall into groups, each of which has a packed weight of its own.
pub(crate) struct Grouped<'v, 'a> {
    pub groups: usize,
    /// `[1, rows, K]`.
    pub a: &'v View<'a>,
    /// The packed weights, one behind another.
    pub b: &'v View<'a>,
    /// `[groups, N]`, where the problem has a bias.
    pub bias: Option<&'v View<'a>>,
    /// One of each weight, where the problem is gathered.
    pub order: Option<Order>,
    /// `[1, rows, columns]`.
    pub out: &'v View<'a>,
}

/// Runs a product of rows that fall into groups, one behind another: `out[i] = epilogue(a[i] · B[g] + bias[g])` for `i`
/// in `offsets(g)..offsets(g + 1)`. There is no residual.
///
/// # Safety
/// The operands are those of the problem and of its types; offsets do not decrease and are at most `rows`; the machine
/// has the level of the tiles, and what their loop needs besides.
pub(crate) unsafe fn run_grouped(
    tiles: &'static Tiles,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    operands: Grouped<'_, '_>,
    offsets: impl Fn(usize) -> usize,
) -> Result<()> {
    let Grouped { groups, a, b, bias, order, out } = operands;
    let team = launch.team()?;
    let hardware = launch.stream().device().hardware();
    let kind = panel_kind(fixed)?;
    let rows = a.shape()[1];
    let plan = Plan::grouped(tiles, kind, fixed, groups, rows, hardware);
    let panel_bytes = kind.bytes(fixed.k);
    let right = Right::Packed { ptr: b.host_ptr()?, panel_bytes, bytes: plan.shape.panels * panel_bytes };
    let (a, out) = (OperandRows::new(a, rows)?, OperandRows::new(out, rows)?);
    let bias_step = bias.map_or(0, |bias| bias.strides()[0]);
    let bias = bias.map(Line::of).transpose()?;
    let finish = Finish { epilogue: fixed.epilogue, outputs: fixed.outputs(), bias, bias_step, out, residual: None };
    let product = Product { tiles, fixed, plan, right, finish, a, norm: None, order };
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
    a: OperandRows,
    norm: Option<NormedRows>,
    order: Option<Order>,
}

impl Product<'_> {
    /// Multiplies runs of rows, each told with its right operand's number and where in the batch its rows are counted from.
    ///
    /// # Safety
    /// The rows are the operands'.
    unsafe fn run(
        &self,
        launch: &Launch<'_>,
        team: &Team,
        runs: impl Iterator<Item = (usize, usize, Range<usize>)>,
    ) -> Result<()> {
        let plan = &self.plan;
        if plan.shape.rights == 0 || plan.shape.rows == 0 || plan.shape.panels == 0 {
            return Ok(());
        }
        let workspace = launch.host_workspace(plan.workspace.bytes())?;
        debug_assert!(team.threads() <= plan.threads);
        let here = Team::new(1)?;
        let list: *mut Slab = workspace.cast();
        let (mut slabs, mut tiles, mut packed) = (0, 0, 0);
        // SAFETY: the first `slabs` of the list were written, which has room for as many as the plan says; they go into
        // the rows' part of the workspace.
        let flush = |slabs, tiles, packed| unsafe {
            self.multiply_slabs(team, &here, std::slice::from_raw_parts(list, slabs), tiles, packed, workspace)
        };
        for (right, batch, rows) in runs {
            for row in rows.clone().step_by(plan.slabs.rows) {
                let count = (rows.end - row).min(plan.slabs.rows);
                let height = self.tiles.packed_rows(count);
                if slabs == plan.slabs.most || packed + height > plan.slabs.rows * plan.slabs.together {
                    flush(slabs, tiles, packed);
                    (slabs, tiles, packed) = (0, 0, 0);
                }
                let of_tile = self.tiles.height(count);
                let slab = Slab { right, batch, row, count, of_tile, tile: tiles, at: packed * plan.shape.row_bytes };
                // SAFETY: there are fewer than the list has room for.
                unsafe { list.add(slabs).write(slab) };
                slabs += 1;
                tiles += count.div_ceil(of_tile);
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
    unsafe fn multiply_slabs(
        &self,
        team: &Team,
        here: &Team,
        slabs: &[Slab],
        tiles: usize,
        packed: usize,
        workspace: *mut u8,
    ) {
        if slabs.is_empty() {
            return;
        }
        let (plan, k) = (&self.plan, self.fixed.k);
        let to = workspace.wrapping_add(plan.workspace.list);
        let inline = packed * k <= INLINE_PACK;
        let parts = if inline {
            1
        } else {
            pack::parts(&self.tiles.packing, plan.shape.kind, k, team.threads().div_ceil(tiles))
        };
        let pack = PackRows {
            rows: self.a,
            norm: self.norm,
            order: self.order,
            slabs,
            k,
            panels: plan.shape.kind,
            round: self.fixed.compute == Compute::Bf16,
            tiles: self.tiles,
            parts,
            to,
        };
        let packers = if inline { here } else { team };
        // Units of panels are shared out in contiguous runs: a thread reads on where it stopped.
        let units = plan.shape.panels.div_ceil(plan.tasks.unit);
        let runs = units.div_ceil(plan.tasks.units);
        let multiply =
            Multiply { product: self, slabs, units, runs, packed: to, scratch: to.wrapping_add(plan.workspace.rows) };
        // SAFETY: the plan sized the workspace for these rows and for every worker, `check` vouches for the operands,
        // and the caller for the level.
        unsafe {
            packers.run(tiles * parts, |task, _| (self.tiles.packing.pack)(&pack, task));
            simd::launch(self.tiles.level, team, slabs.len() * runs, &multiply);
        }
    }
}

/// Where the right operands lie.
#[derive(Clone, Copy, Debug)]
enum Right {
    /// Weights one behind another, `bytes` apart: 0 where all products share one.
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
        let scratch = self.scratch.wrapping_add(worker * plan.workspace.worker);
        for unit in run * self.units / self.runs..(run + 1) * self.units / self.runs {
            let first = unit * plan.tasks.unit;
            // SAFETY: passed on; scratch is this worker's.
            unsafe { self.panels::<S>(slab, first, (first + plan.tasks.unit).min(plan.shape.panels), scratch) };
        }
    }
}

impl Multiply<'_> {
    /// All rows of the slab with panels `first..end`.
    #[inline(always)]
    unsafe fn panels<S: Simd>(&self, slab: &Slab, first: usize, end: usize, scratch: *mut u8) {
        let Product { tiles, fixed, plan, right, finish, .. } = self.product;
        let (kind, padded) = (plan.shape.kind, plan.shape.padded);
        let expansion = tiles.expansion_for(slab.count);
        let all_sums: *mut f32 = scratch.wrapping_add(plan.workspace.panels).cast();
        let a = self.packed.wrapping_add(slab.at);
        let mut k = 0;
        loop {
            let width = (padded - k).min(plan.blocks.len);
            let last = k + width == padded;
            if let Right::Strided { .. } = right {
                let values = fixed.k.min(k + width) - k;
                for panel in first..end {
                    let to = scratch.wrapping_add((panel - first) * plan.blocks.panel_bytes);
                    // SAFETY: lines hold the values; scratch holds the panels of a unit.
                    unsafe { pack_panel::<S>(&self.lines(slab, panel), kind, k, values, to) };
                }
            }
            for panel in first..end {
                let own = scratch.wrapping_add((panel - first) * plan.blocks.panel_bytes);
                let (b, reads) = match *right {
                    Right::Packed { ptr, panel_bytes, bytes } => {
                        let packed = ptr.wrapping_add(slab.right * bytes + panel * panel_bytes + kind.bytes(k));
                        match expansion {
                            None => (packed, plan.reads),
                            Some(expansion) => {
                                // SAFETY: the panel has the block, and scratch has room for it.
                                unsafe { (expansion.expand)(kind, packed, width / tiles.packing.per_step, own) };
                                (own.cast_const(), Reads::Again)
                            }
                        }
                    }
                    Right::Strided { .. } => {
                        debug_assert!(expansion.is_none(), "panels that are packed here are not expanded");
                        (own.cast_const(), Reads::Again)
                    }
                };
                // SAFETY: passed on.
                let bias = unsafe { finish.panel_bias::<S>(slab.right, panel) };
                for tile in (0..slab.count).step_by(slab.of_tile) {
                    let rows = (slab.count - tile).min(slab.of_tile);
                    let Tile { height, run, .. } = *tiles.fit(rows, expansion);
                    let sums = if plan.blocks.len < padded {
                        all_sums.wrapping_add(((panel - first) * plan.slabs.rows + tile) * PANEL)
                    } else {
                        all_sums
                    };
                    let place = Place { batch: slab.batch, row: slab.row + tile, rows, panel };
                    if last {
                        finish.prefetch_residual(place);
                    }
                    // SAFETY: the tile was packed at this height, of which what follows `k` values is this block's;
                    // sums of the tile are this worker's.
                    unsafe {
                        let a = a.add(tile * plan.shape.row_bytes + tiles.packing.bytes(kind, k) * height);
                        let steps = width / tiles.packing.per_step;
                        run(Block { panels: kind, reads, a, b, steps, sums, carry: k > 0 });
                        if last {
                            finish.write_tile::<S>(place, sums, &bias);
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

    /// The 32 outputs of a panel of an unpacked right operand.
    #[inline(always)]
    fn lines(&self, slab: &Slab, panel: usize) -> [Option<Line>; PANEL] {
        let Product { fixed, right, .. } = self.product;
        let mut lines = [None; PANEL];
        if let Right::Strided { ptr, dtype, batch, k, n } = *right {
            for half in 0..2 {
                let held = fixed.outputs().half_panel(panel, half);
                for (line, output) in lines[half * LANES..].iter_mut().zip(held) {
                    *line = Some(Line::new(ptr, dtype, k).moved(slab.right * batch + output * n));
                }
            }
        }
        lines
    }
}
