//! Blocks of K: how many values of a panel are multiplied with all tiles of a slab before the next (kc). Also whether a
//! weight is prefetched through the caches or past them.

use super::super::tile::{Reads, Tiles};
use super::slabs::Slabs;
use super::tasks::Tasks;
use super::{Room, Shape};

/// Values of K in a block of few rows: all tiles but the first find the panel in a cache and give memory no work, so their
/// turns are to be short.
const FEW_ROWS_BLOCK: usize = 128;
/// The part of the third-level cache from which on few rows ask for a weight past the caches. Smaller ones are those of
/// models that the cache holds, which are up to a seventh faster for it; of larger models they make no difference.
const PASSING_SHARE_OF_L3: usize = 32;

/// How K is cut into blocks, from each of which on to the next the sums of a tile are stored and loaded again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KBlocks {
    /// Values of K in a block.
    pub len: usize,
    /// Whether slabs have few rows: see [`few_rows`].
    pub few_rows: bool,
    /// Bytes of a panel's block as it is packed or expanded; 0 where panels are read in place.
    pub panel_bytes: usize,
    /// Rows of 32 sums that are kept at a time.
    pub sum_rows: usize,
}

impl KBlocks {
    /// Those of a call. In whole granules of the panels, and alike:
    ///
    /// ```text
    /// longest = room.block / (unit · bytes of a step)      a unit's block stays in the second cache, beside the slab
    ///         = 128                                        of few rows
    /// len     = padded / ⌈padded / longest⌉
    ///         = padded                                     where there is one tile, which reads a panel once
    /// ```
    ///
    /// A block is read again for each tile from the cache of A's slab. From the one before it, it would come faster; but
    /// its sums would be carried over from block to block more often.
    pub fn new(shape: &Shape, tiles: &Tiles, slabs: &Slabs, tasks: &Tasks, room: &Room) -> Self {
        let &Shape { rows, padded, kind, unpacked, tile, .. } = shape;
        let few = few_rows(shape, tiles);
        let is_few = slabs.widest <= few;
        let granule = kind.granule();
        let expansion = tiles.expansion_for(slabs.widest);
        let granule_bytes =
            expansion.map_or(kind.bytes(granule), |expansion| expansion.bytes(kind, &tiles.packing, granule));
        let longest = if is_few { FEW_ROWS_BLOCK } else { room.block / tasks.unit / granule_bytes * granule };
        let once = slabs.widest == tile && tiles.fit(rows.min(tile), None).passes == 1;
        let count = if once { 1 } else { padded.div_ceil(longest.max(granule)).max(1) };
        let len = padded.div_ceil(count).next_multiple_of(granule).min(padded);
        Self {
            len,
            few_rows: is_few,
            panel_bytes: match expansion {
                Some(expansion) => expansion.bytes(kind, &tiles.packing, len),
                None if unpacked => kind.bytes(len),
                None => 0,
            },
            // Of more rows never less, or a call with a packed weight would need more workspace than one of more rows.
            sum_rows: if len < padded { slabs.widest.saturating_mul(tasks.unit) } else { slabs.widest.min(few) },
        }
    }
}

/// The most rows that are few: those of three tiles of the highest, or of those in which codes are looked up where panels are
/// expanded for more; in whole tiles as they are cut. Of integers those of one: they are multiplied so fast that sums which are
/// carried from block to block cost more than they save.
fn few_rows(shape: &Shape, tiles: &Tiles) -> usize {
    if tiles.expansion.is_some() {
        return tiles.looked_up_rows();
    }
    let of_tiles = if tiles.packing.integers { 1 } else { 3 };
    (of_tiles * tiles.highest()).next_multiple_of(shape.tile)
}

/// How panels are read of which few rows have a block once, with a third-level cache of so many bytes, by cores that gain
/// from passing caches or are not known to.
pub(super) fn reads(shape: &Shape, blocks: &KBlocks, l3: usize, passes_caches: bool) -> Reads {
    let large = shape.kind.bytes(shape.padded).saturating_mul(shape.panels) > l3 / PASSING_SHARE_OF_L3;
    if blocks.few_rows && large && passes_caches { Reads::Once } else { Reads::Again }
}

#[cfg(test)]
mod tests {
    use sinew_tensor::{BlockFormat, BlockValues, DType};

    use super::*;
    use crate::gemm::cpu;
    use crate::packed::PanelKind;

    /// Half a second cache of 1 MiB, and a quarter of it.
    const ROOM: Room = Room { slab: 512 << 10, block: 256 << 10, shared: 0, together: 512 << 10 };

    /// Blocks of one slab of so many rows, in whole tiles.
    fn blocks(tiles: &Tiles, kind: PanelKind, rows: usize, k: usize, unpacked: bool) -> KBlocks {
        let (tile, padded) = (tiles.height(rows), kind.padded_k(k));
        let row_bytes = tiles.packing.bytes(kind, padded);
        let shape = Shape { rights: 1, rows, padded, panels: 32, kind, unpacked, tile, row_bytes };
        let widest = rows.next_multiple_of(tile);
        let slabs = Slabs { widest, rows: widest, together: 1, most: 1 };
        KBlocks::new(&shape, tiles, &slabs, &Tasks::new(&shape, &slabs), &ROOM)
    }

    fn int4(group: usize) -> PanelKind {
        PanelKind::Blocks(BlockFormat::new(BlockValues::Int4, group, DType::BF16, false).unwrap())
    }

    #[test]
    fn a_block_of_many_rows_takes_a_quarter_of_the_second_cache() {
        let longest = ROOM.block / PanelKind::F32.bytes(1);
        for (k, len) in [(longest, longest), (longest + 1, longest / 2 + 1), (3 * longest, longest)] {
            assert_eq!(blocks(&cpu::floats::PORTABLE, PanelKind::F32, 1000, k, false).len, len);
        }
        let unpacked = blocks(&cpu::floats::PORTABLE, PanelKind::F32, 1000, longest, true);
        assert_eq!(unpacked.len, longest / 4, "four panels are packed at a time");
        assert_eq!(unpacked.panel_bytes, ROOM.block / 4);
    }

    #[test]
    fn blocks_are_alike_and_of_whole_granules() {
        for kind in [PanelKind::F32, PanelKind::Bf16] {
            for rows in [1, 12, 13, 1000] {
                for k in [1, 127, 129, 255, 5000, 8191] {
                    let (len, padded) = (blocks(&cpu::floats::PORTABLE, kind, rows, k, false).len, kind.padded_k(k));
                    assert!(len == padded || len.is_multiple_of(kind.granule()), "{rows} rows of {k}");
                    let count = padded.div_ceil(len);
                    assert!(count * len < padded + count * kind.granule(), "{rows} rows of {k}");
                }
            }
        }
        let of_groups = blocks(&cpu::blocks::PORTABLE, int4(128), 1, 1000, false);
        assert_eq!(of_groups.len, 128, "groups are not divided");
    }

    #[test]
    fn blocks_of_few_rows_are_short() {
        let [few, many] = [12, 13].map(|rows| blocks(&cpu::floats::PORTABLE, PanelKind::F32, rows, 1024, false));
        assert_eq!((few.len, few.few_rows, few.sum_rows), (128, true, 12), "three tiles of four");
        assert_eq!((many.len, many.few_rows, many.sum_rows), (1024, false, 12));
        let few = |tiles, kind, rows| blocks(tiles, kind, rows, 1024, false).few_rows;
        assert_eq!([8, 9].map(|rows| few(&cpu::blocks::PORTABLE, int4(32), rows)), [true, false], "where two are read");
        assert_eq!([4, 5].map(|rows| few(&cpu::int8::PORTABLE, int4(32), rows)), [true, false], "of integers");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn one_tile_takes_a_panel_in_one_block() {
        let len = |rows| blocks(&cpu::floats::AVX512, PanelKind::F32, rows, 100_000, false).len;
        assert_eq!([1, 12].map(len), [100_000; 2]);
        assert!(len(13) <= FEW_ROWS_BLOCK, "two tiles share what is in a cache");
        let halves = blocks(&cpu::floats::PORTABLE, PanelKind::F32, 1, 1024, false);
        assert_eq!(halves.len, FEW_ROWS_BLOCK, "a tile that reads each half by itself is no such one");
    }

    #[test]
    fn panels_are_expanded_for_more_than_two_tiles_a_block_at_a_time() {
        let kind = int4(32);
        let in_place = blocks(&cpu::blocks::PORTABLE, kind, 8, 8192, false);
        assert_eq!(in_place.panel_bytes, 0);
        let expanded = blocks(&cpu::blocks::PORTABLE, kind, 12, 8192, false);
        // A group of 32 values: its scales, and as many steps of 32 f32.
        let group = kind.bytes(32) - 32 * 16 + 32 * 128;
        assert_eq!(expanded.panel_bytes, expanded.len / 32 * group);
        assert!(expanded.panel_bytes <= ROOM.block && expanded.len < 8192);
    }

    #[test]
    fn sums_are_kept_of_every_tile_where_blocks_carry_them() {
        let sum_rows = |rows, k, unpacked| blocks(&cpu::floats::PORTABLE, PanelKind::F32, rows, k, unpacked).sum_rows;
        assert_eq!(sum_rows(1000, 100, false), 12, "of a tile, and no fewer than of few rows in blocks");
        assert_eq!(sum_rows(1000, 10_000, false), 1000);
        assert_eq!(sum_rows(1000, 10_000, true), 4 * 1000, "of a unit's panels");
        let rows_of = |k| (1..2000).map(move |rows| sum_rows(rows, k, false));
        assert!([100, 1000, 10_000].into_iter().all(|k| rows_of(k).is_sorted()), "of more rows never less");
    }

    /// How so many panels of 512 values in f32 are read, with a third cache of 32 MiB.
    fn reads_of(panels: usize, few_rows: bool, passes_caches: bool) -> Reads {
        let (kind, padded) = (PanelKind::F32, 512);
        let shape = Shape { rights: 1, rows: 8, padded, panels, kind, unpacked: false, tile: 8, row_bytes: 4 * padded };
        reads(&shape, &KBlocks { len: 128, few_rows, panel_bytes: 0, sum_rows: 8 }, 32 << 20, passes_caches)
    }

    #[test]
    fn few_rows_ask_for_large_weights_past_the_caches_where_that_is_known_to_gain() {
        assert_eq!(reads_of(128, true, true), Reads::Once);
        assert_eq!(reads_of(128, true, false), Reads::Again, "cores that are not known to gain");
        assert_eq!(reads_of(128, false, true), Reads::Again, "many rows read a block again");
        // 64 KiB a panel.
        assert_eq!([16, 17].map(|panels| reads_of(panels, true, true)), [Reads::Again, Reads::Once], "a small weight");
    }
}
