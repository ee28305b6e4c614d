//! Outputs into panels: of floats or of blocks, a panel to a task.

use half::f16;

use super::pack_blocks::PackBlocks;
use super::pack_floats::{pack_pairs, pack_steps};
use super::panel::PANEL;
use super::panel_kind::PanelKind;
use super::rows::{WeightRow, Weights};
use crate::cpu::line::Line;
use crate::simd::{Kernel, LANES, Part, Simd};

/// Packs values `k0..k0 + count` of 32 outputs as a panel, which holds [`PanelKind::padded_k`] of `count` steps. Those
/// that are not there count as zeros.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(crate) unsafe fn pack_panel<S: Simd>(
    lines: &[Option<Line>; PANEL],
    kind: PanelKind,
    k0: usize,
    count: usize,
    to: *mut u8,
) {
    // SAFETY: passed on.
    unsafe { S::part(PackPanel { lines, kind, k0, count, to }) }
}

/// See [`pack_panel`].
#[derive(Clone, Copy)]
struct PackPanel<'a> {
    lines: &'a [Option<Line>; PANEL],
    kind: PanelKind,
    k0: usize,
    count: usize,
    to: *mut u8,
}

impl Part for PackPanel<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { lines, kind, k0, count, to } = self;
        // SAFETY: passed on; blocks of K are of whole groups.
        unsafe {
            match kind {
                PanelKind::F32 => pack_steps::<S, f32>(lines, k0, count, to.cast()),
                PanelKind::F16 => pack_steps::<S, f16>(lines, k0, count, to.cast()),
                PanelKind::Bf16 => pack_pairs::<S>(lines, k0, count, to),
                PanelKind::Blocks(format) => {
                    let rows = &lines.map(|line| line.map(WeightRow::Floats));
                    S::part(PackBlocks { rows, format, k0, count, per_channel: false, to });
                }
            }
        }
    }
}

/// A task packs a panel.
pub(super) struct Packing<'a> {
    pub kind: PanelKind,
    pub weights: &'a Weights<'a>,
    /// The first of the weights' values in rows of `k`.
    pub start: usize,
    pub k: usize,
    pub packed: *mut u8,
}

// SAFETY: tasks write disjoint panels through the pointer and only read the rest.
unsafe impl Sync for Packing<'_> {}

impl Kernel for Packing<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, panel: usize, _worker: usize) {
        let (weights, outputs) = (self.weights, self.weights.outputs());
        let mut rows = [None; PANEL];
        for half in 0..2 {
            for (to, row) in rows[half * LANES..].iter_mut().zip(outputs.half_panel(panel, half)) {
                *to = weights.row(row);
            }
        }
        // SAFETY: `pack` checked that rows are in their pieces, that they fit the format, and that the panel is in the
        // packed bytes.
        unsafe {
            let to = self.packed.add(panel * self.kind.bytes(self.k) + self.kind.bytes(self.start));
            match self.kind {
                PanelKind::Blocks(format) => {
                    let (count, per_channel) = (weights.k(), weights.is_per_channel());
                    S::part(PackBlocks { rows: &rows, format, k0: 0, count, per_channel, to });
                }
                kind @ (PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16) => {
                    pack_panel::<S>(&rows.map(|row| row.and_then(WeightRow::line)), kind, 0, weights.k(), to);
                }
            }
        }
    }
}
