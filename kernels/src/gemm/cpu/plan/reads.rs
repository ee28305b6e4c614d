//! Whether a weight is asked for through the caches, or past them.

use super::super::tile::Reads;
use super::k_blocks::KBlocks;
use super::shape::Shape;

/// The part of the third-level cache from which on few rows ask for a weight past the caches. Smaller ones are those of
/// models that the cache holds, which are up to a seventh faster for it; of larger models they make no difference.
const PASSING_SHARE_OF_L3: usize = 32;

/// How panels are read of which few rows have a block once, with a third-level cache of so many bytes, by cores that gain
/// from passing caches or are not known to.
pub(super) fn reads(shape: &Shape, blocks: &KBlocks, l3: usize, passes_caches: bool) -> Reads {
    let large = shape.kind.bytes(shape.padded).saturating_mul(shape.panels) > l3 / PASSING_SHARE_OF_L3;
    if blocks.few_rows && large && passes_caches { Reads::Once } else { Reads::Again }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::PanelKind;

    /// How so many panels of 512 values in f32 are read, with a third cache of 32 MiB.
    fn of(panels: usize, few_rows: bool, passes_caches: bool) -> Reads {
        let (kind, padded) = (PanelKind::F32, 512);
        let shape = Shape { rights: 1, rows: 8, padded, panels, kind, unpacked: false, tile: 8, row_bytes: 4 * padded };
        reads(&shape, &KBlocks { len: 128, few_rows, panel_bytes: 0, sum_rows: 8 }, 32 << 20, passes_caches)
    }

    #[test]
    fn few_rows_ask_for_large_weights_past_the_caches_where_that_is_known_to_gain() {
        assert_eq!(of(128, true, true), Reads::Once);
        assert_eq!(of(128, true, false), Reads::Again, "cores that are not known to gain");
        assert_eq!(of(128, false, true), Reads::Again, "many rows read a block again");
        // 64 KiB a panel.
        assert_eq!([16, 17].map(|panels| of(panels, true, true)), [Reads::Again, Reads::Once], "a small weight");
    }
}
