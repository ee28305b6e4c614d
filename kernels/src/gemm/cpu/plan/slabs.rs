//! Slabs: how many rows of A are packed and multiplied together (mc).

use super::{Room, Shape};

/// Rows that a slab of A has where the second cache holds fewer, if they take no more than a part of the third: A is read
/// in order, as fast from there, and a slab that the second cache holds almost is read more slowly than either, with
/// the panels once more for each. Fewer than the least are not worth that at all.
const LONG_SLAB: usize = 360;
const MIN_SLAB: usize = 96;
/// The same where panels are packed again for each slab: packing a value takes as long as some hundred multiply-adds.
const MIN_SLAB_UNPACKED: usize = 512;
/// Full slabs that are packed together where each has a right operand of its own: a task reads one of them alone, so
/// that they need not fit into a cache together, and small ones are to keep all threads busy.
const GROUPED_SLABS: usize = 4;

/// Rows of A that are packed together and multiplied with one right operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    /// Which right operand.
    pub right: usize,
    /// The first of them, which of the batch it is in, and how many there are.
    pub batch: usize,
    pub row: usize,
    pub count: usize,
    /// Rows of its tiles but the last.
    pub of_tile: usize,
    /// Tiles of the slabs before it, and where its own go, in bytes.
    pub tile: usize,
    pub at: usize,
}

/// How the rows of a call are cut into slabs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slabs {
    /// Rows that a slab may have.
    pub widest: usize,
    /// Rows of a full slab.
    pub rows: usize,
    /// Full slabs that are packed at a time.
    pub together: usize,
    /// Slabs at most at a time, smaller ones counted.
    pub most: usize,
}

impl Slabs {
    /// Those of products of one height. In whole tiles, and no more than there are:
    ///
    /// ```text
    /// widest   = max(least, room.slab / row_bytes)                 a slab stays in the second cache
    /// least    = room.shared / row_bytes, from 96 to 360; 512 of unpacked panels
    /// together = room.together / (widest · row_bytes)              slabs stay in the caches of all threads
    /// rows     = all in slabs alike, where they are packed at once; widest otherwise
    /// ```
    ///
    /// As much is packed together as those caches hold: fewer forks, after each of which threads wait for the last task,
    /// and to each thread slabs of its own.
    pub fn new(shape: &Shape, room: &Room) -> Self {
        let &Shape { rights, rows, tile, row_bytes, .. } = shape;
        let least = match shape.unpacked {
            true => MIN_SLAB_UNPACKED,
            false => (room.shared / row_bytes.max(1)).clamp(MIN_SLAB, LONG_SLAB),
        };
        let widest = (room.slab / row_bytes.max(1)).max(least).min(rows).next_multiple_of(tile).max(tile);
        let of_rows = rows.div_ceil(widest).max(1);
        let all = rights.max(1).saturating_mul(of_rows);
        let held = match widest.saturating_mul(row_bytes) {
            0 => 1,
            bytes => room.together / bytes,
        };
        let rows = if all <= held { rows.div_ceil(of_rows).next_multiple_of(tile) } else { widest };
        let together = held.clamp(1, all);
        Self { widest, rows, together, most: together }
    }

    /// Those of rows that fall into up to `groups` groups of any heights, each with a right operand of its own.
    pub fn grouped(self, rows: usize, groups: usize) -> Self {
        // The last tile of a group is at most twice as high as its rows.
        let together = (2 * rows).div_ceil(self.widest).clamp(1, GROUPED_SLABS);
        Self { rows: self.widest, together, most: groups.min(rows) + GROUPED_SLABS, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::PanelKind;

    /// Half a second cache of 1 MiB, and a quarter of a third of 16 MiB, for two threads.
    const ROOM: Room = Room { slab: 512 << 10, block: 256 << 10, shared: 4 << 20, together: 4 << 20 };

    /// So many rows of f32, in tiles of twelve.
    fn shape(rows: usize, k: usize) -> Shape {
        let kind = PanelKind::F32;
        Shape { rights: 1, rows, padded: k, panels: 32, kind, unpacked: false, tile: 12, row_bytes: 4 * k }
    }

    #[test]
    fn a_slab_of_short_rows_stays_in_the_second_cache() {
        for k in [64, 256, 300] {
            let slabs = Slabs::new(&shape(1 << 20, k), &ROOM);
            let rows = ROOM.slab / (4 * k);
            assert_eq!(slabs.widest, rows.next_multiple_of(12), "K of {k}");
            assert_eq!(slabs.together, ROOM.together / (slabs.widest * 4 * k), "K of {k}");
        }
    }

    #[test]
    fn a_slab_of_long_rows_takes_its_part_of_the_third_cache() {
        // 128 rows would be in the second; 360 take 1.4 MiB of the 4 MiB, 256 all of them, and 96 are the least.
        let widest = |k| Slabs::new(&shape(4096, k), &ROOM).widest;
        assert_eq!([1024, 4096, 1 << 20].map(widest), [360, 264, 96]);
        let unpacked = Shape { unpacked: true, ..shape(4096, 1 << 20) };
        assert_eq!(Slabs::new(&unpacked, &ROOM).widest, 516, "panels that are packed again for each");
    }

    #[test]
    fn slabs_are_whole_tiles_of_all_rows() {
        for rows in [0, 1, 11, 12, 13, 500, 1000] {
            for k in [1, 100, 1000, 100_000] {
                for rights in [0, 1, 14] {
                    let slabs = Slabs::new(&Shape { rights, ..shape(rows, k) }, &ROOM);
                    assert!(slabs.rows.is_multiple_of(12) && slabs.rows <= slabs.widest, "{rows} rows of {k}");
                    assert!(slabs.widest < rows.max(1) + 12, "no slab is larger than the rows: {rows} of {k}");
                    assert!((1..=rights.max(1) * rows.div_ceil(slabs.rows.max(1)).max(1)).contains(&slabs.together));
                }
            }
        }
    }

    #[test]
    fn slabs_that_are_packed_at_once_are_alike() {
        // The second cache holds 516 rows of 256, all of them the caches do.
        let slabs = Slabs::new(&shape(1200, 256), &ROOM);
        assert_eq!((slabs.widest, slabs.rows, slabs.together), (516, 408, 3));
        let slabs = Slabs::new(&shape(1 << 20, 256), &ROOM);
        assert_eq!((slabs.widest, slabs.rows, slabs.together), (516, 516, 7));
    }

    #[test]
    fn groups_have_a_slab_each_and_four_full_ones_at_most() {
        let slabs = |rows, groups| Slabs::new(&shape(rows, 256), &ROOM).grouped(rows, groups);
        let few = slabs(8, 60);
        assert_eq!((few.rows, few.together, few.most), (12, 2, 8 + 4), "a row to each group at most");
        let many = slabs(10_000, 60);
        assert_eq!((many.rows, many.together, many.most), (516, 4, 60 + 4));
    }
}
