//! What is cut up: the sizes of a call, and how its operands are held.

use super::super::tile::Tiles;
use crate::gemm::{GemmDynamic, GemmStatic, Rhs};
use crate::packed::PanelKind;

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
