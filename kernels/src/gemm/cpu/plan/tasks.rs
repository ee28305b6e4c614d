//! Tasks: how many panels a thread multiplies a slab with before it takes more (nc).

use super::Shape;
use super::slabs::Slabs;

/// Panels of an unpacked right operand that are packed together, so that a row of it is read 512 bytes at a time.
const UNIT_UNPACKED: usize = 4;
/// Bytes of panels that a task reads, about, where they are not one panel's: those that it reads again for another tile
/// counted again, and as many as take a hundred times as long as handing out a task. Larger tasks would leave threads
/// waiting for the last one: where a thread had but six, as other programs' memory traffic slows one down, by a
/// twentieth of the time.
const TASK_BYTES: usize = 32 << 10;

/// How the panels of a call are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tasks {
    /// Panels that a task takes at a time: packs, or reads.
    pub unit: usize,
    /// How often it does.
    pub units: usize,
}

impl Tasks {
    /// Those of a call:
    ///
    /// ```text
    /// unit  = 1; 4 of unpacked panels
    /// units = 32 KiB / (bytes of a unit · tiles of a slab) + 1
    /// ```
    pub fn new(shape: &Shape, slabs: &Slabs) -> Self {
        let unit = if shape.unpacked { UNIT_UNPACKED } else { 1 };
        let bytes = shape.kind.bytes(shape.padded).saturating_mul(unit * slabs.rows.div_ceil(shape.tile));
        Self { unit, units: TASK_BYTES / bytes.max(1) + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::PanelKind;

    fn tasks(rows: usize, k: usize, unpacked: bool) -> Tasks {
        let kind = PanelKind::F32;
        let shape = Shape { rights: 1, rows, padded: k, panels: 32, kind, unpacked, tile: 12, row_bytes: 4 * k };
        Tasks::new(&shape, &Slabs { widest: rows, rows, together: 1, most: 1 })
    }

    #[test]
    fn a_task_reads_as_many_bytes_however_long_panels_are() {
        // A panel of 8 values is 1 KiB.
        assert_eq!([8, 64, 128, 256].map(|k| tasks(12, k, false).units), [33, 5, 3, 2]);
        assert_eq!(tasks(12, 1 << 20, false).units, 1, "or a panel at least");
        assert_eq!(tasks(12, 0, false).units, (32 << 10) + 1, "of nothing any number");
    }

    #[test]
    fn what_is_read_for_another_tile_counts_again() {
        assert_eq!([12, 24, 96].map(|rows| tasks(rows, 8, false).units), [33, 17, 5]);
    }

    #[test]
    fn panels_that_are_packed_as_they_are_multiplied_go_by_four() {
        let tasks = tasks(12, 8, true);
        assert_eq!((tasks.unit, tasks.units), (4, 9));
    }
}
