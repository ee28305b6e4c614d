//! How A's rows are packed into tiles: what each microkernel names as its [`Packing`].

mod floats;
mod integers;
mod rounded;
mod rows;

use super::integers::{Header, QuadLayout};
use super::normed_rows::NormedRows;
use super::plan::Slab;
use super::rows::{OperandRows, Order};
use super::tile::{Packing, Tiles};
use crate::packed::PanelKind;
use crate::simd::{LANES, Simd};

/// Rows of A that are packed into tiles: `[steps][words][rows of the tile]`, with a header before the steps of each group.
pub(crate) struct PackRows<'a> {
    /// The rows.
    pub(super) rows: OperandRows,
    /// The norm of each, where it is their norm that is packed.
    pub(super) norm: Option<NormedRows>,
    /// The order of their values, where it is not that in which they lie.
    pub(super) order: Option<Order>,
    /// Which of them.
    pub(super) slabs: &'a [Slab],
    /// Length of a row, and the kind of the panels, which says what padding they have.
    pub(super) k: usize,
    pub(super) panels: PanelKind,
    /// Whether values are rounded to bf16.
    pub(super) round: bool,
    /// The tiles.
    pub(super) tiles: &'static Tiles,
    /// Tasks that a tile is packed by: see [`parts`].
    pub(super) parts: usize,
    /// Where tiles go.
    pub(super) to: *mut u8,
}

// SAFETY: tasks write disjoint parts of tiles through the pointer and only read the rest.
unsafe impl Sync for PackRows<'_> {}

/// Tasks that a tile may be packed by, `most` at most, each some of its groups. Quantizing the few rows of a step takes
/// longer than a fork, and a thread finds what it packs where it wrote it. Of floats there is one task: what is stored of a
/// step reaches into the next.
pub(super) fn parts(packing: &Packing, panels: PanelKind, k: usize, most: usize) -> usize {
    match panels.blocks() {
        Some(format) if packing.integers => most.min(k.div_ceil(LANES * format.group()).max(1)),
        _ => 1,
    }
}

/// f32, one to a step.
pub(super) const fn singles<S: Simd>() -> Packing {
    Packing { per_step: 1, words: 1, integers: false, header: |_| 0, pack: floats::pack::<S, false> }
}

/// Pairs of bf16.
pub(super) const fn pairs<S: Simd>() -> Packing {
    Packing { per_step: 2, pack: floats::pack::<S, true>, ..singles::<S>() }
}

/// Quads of int8, in the order in which panels have theirs.
pub(super) const fn int8<S: Simd>() -> Packing {
    Packing {
        per_step: 4,
        words: 1,
        integers: true,
        header: |format| Header::<1>::words(format.group()),
        pack: |rows, task| {
            // SAFETY: passed on.
            unsafe { integers::pack::<S, 1>(rows, task, QuadLayout::Bytes) }
        },
    }
}

/// The same as whole values of 16 bits: [`QuadLayout::Whole`].
pub(super) const fn int8_whole<S: Simd>() -> Packing {
    Packing {
        words: 2,
        pack: |rows, task| {
            // SAFETY: passed on.
            unsafe { integers::pack::<S, 1>(rows, task, QuadLayout::Whole) }
        },
        ..int8::<S>()
    }
}

/// Quads of int16 in that order, two words to each: [`QuadLayout::Bytes`]. Values that int16 does not hold beside the others of
/// their group are there as bf16, and are marked in the header.
pub(super) const fn int16_in_bytes<S: Simd>() -> Packing {
    Packing {
        words: 2,
        header: |format| Header::<2>::words(format.group()),
        pack: |rows, task| {
            // SAFETY: passed on.
            unsafe { integers::pack::<S, 2>(rows, task, QuadLayout::Bytes) }
        },
        ..int8::<S>()
    }
}

/// Packs int16 as whole values: [`QuadLayout::Whole`].
pub(super) const fn int16_whole<S: Simd>() -> Packing {
    Packing {
        pack: |rows, task| {
            // SAFETY: passed on.
            unsafe { integers::pack::<S, 2>(rows, task, QuadLayout::Whole) }
        },
        ..int16_in_bytes::<S>()
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use sinew_memory::{Cpu, SimdLevel, Team};
    use sinew_tensor::{BlockFormat, BlockValues, DType, Element, Tensor};

    use super::*;
    use crate::gemm::cpu;
    use crate::packed::GROUP_SIZES;
    use crate::simd::Stored;

    /// What is behind a tile, which is another thread's.
    const BEHIND: usize = 64;

    /// The words of a tile of `values`, `count` rows of them, packed by so many tasks.
    fn packed<T: Element>(
        tiles: &'static Tiles,
        panels: PanelKind,
        values: &[T],
        count: usize,
        parts: usize,
    ) -> (usize, Vec<u32>) {
        let (here, k) = (Team::new(1).unwrap(), values.len() / count);
        let tensor = Tensor::from_slice(&Cpu::get(), values, &[1, count, k]).unwrap();
        let height = tiles.packed_height(count);
        let size = tiles.packing.bytes(panels, k) / 4 * height;
        let mut packed = vec![u32::MAX; size + BEHIND];
        let pack = PackRows {
            rows: OperandRows::new(&tensor.view(), count).unwrap(),
            norm: None,
            order: None,
            slabs: &[Slab { right: 0, batch: 0, row: 0, count, of_tile: tiles.height(count), tile: 0, at: 0 }],
            k,
            panels,
            round: false,
            tiles,
            parts,
            to: packed.as_mut_ptr().cast(),
        };
        // SAFETY: the rows are the tensor's, there is room for their tile, and the machine has the level.
        here.run(parts, |task, _| unsafe { (tiles.packing.pack)(&pack, task) });
        assert!(packed[size..].iter().all(|&word| word == u32::MAX), "{count} rows of {k}");
        packed.truncate(size);
        (height, packed)
    }

    /// A tile of all heights is where its rows are, at any length.
    fn packs<T: Element + Stored>(tiles: &'static Tiles, panels: PanelKind, value: impl Fn(usize) -> T) {
        let (per_step, size) = (tiles.packing.per_step, size_of::<T>());
        for k in 1..=100 {
            for count in 1..=tiles.highest() {
                let values: Vec<T> = (0..count * k).map(&value).collect();
                let (height, packed) = packed(tiles, panels, &values, count, 1);
                assert_eq!(packed.len(), panels.padded_k(k) / per_step * height);
                for (step, words) in packed.chunks(height).enumerate() {
                    let mut expected = vec![0; height * 4];
                    for row in 0..count {
                        for i in (0..per_step).filter(|i| step * per_step + i < k) {
                            let value = &values[row * k + step * per_step + i..][..1];
                            // SAFETY: floats have bytes.
                            let bytes = unsafe { std::slice::from_raw_parts(value.as_ptr().cast::<u8>(), size) };
                            expected[row * 4 + i * size..][..size].copy_from_slice(bytes);
                        }
                    }
                    let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    assert_eq!(words, expected, "{count} rows of {k}, step {step}");
                }
            }
        }
    }

    /// The second of two rows of an odd number of bf16 begins between words.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_row_of_bf16_may_begin_between_words() {
        let (tiles, k) = (&cpu::floats_avx512bf16::DOTS, 65);
        if tiles.level > SimdLevel::detected() {
            return;
        }
        let values: Vec<bf16> = (0..2 * k).map(|i| bf16::from_f32(i as f32)).collect();
        let tensor = Tensor::from_slice(&Cpu::get(), &values, &[1, 2, k]).unwrap();
        let mut packed = vec![u32::MAX; k.div_ceil(2)];
        let pack = PackRows {
            rows: OperandRows::new(&tensor.view(), 2).unwrap(),
            norm: None,
            order: None,
            slabs: &[Slab { right: 0, batch: 0, row: 1, count: 1, of_tile: tiles.height(1), tile: 0, at: 0 }],
            k,
            panels: PanelKind::Bf16,
            round: true,
            tiles,
            parts: 1,
            to: packed.as_mut_ptr().cast(),
        };
        // SAFETY: the row is the tensor's, there is room for its tile, and the machine has the level.
        unsafe { (tiles.packing.pack)(&pack, 0) };
        let pair =
            |pair: &[bf16]| u32::from(pair[0].to_bits()) | u32::from(pair.get(1).map_or(0, |x| x.to_bits())) << 16;
        assert_eq!(packed, values[k..].chunks(2).map(pair).collect::<Vec<_>>());
    }

    /// However many tasks pack a tile, its words are the same.
    #[test]
    fn parts_of_a_tile_are_packed_alike() {
        let all = [
            &cpu::int8::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            &cpu::int16::VNNI,
            #[cfg(target_arch = "x86_64")]
            &cpu::int16::AVX2,
        ];
        for tiles in all.into_iter().filter(|tiles| tiles.level <= SimdLevel::detected()) {
            for group in GROUP_SIZES {
                parts_of_groups_are_packed_alike(tiles, group);
            }
        }
        assert_eq!(parts(&cpu::floats::PORTABLE.packing, PanelKind::F32, 1 << 20, 9), 1);
    }

    fn parts_of_groups_are_packed_alike(tiles: &'static Tiles, group: usize) {
        let format = BlockFormat::new(BlockValues::Int4, group, DType::BF16, false).unwrap();
        let panels = PanelKind::Blocks(format);
        for (k, most) in [(1, 1), (group, 1), (15 * group + 8, 1), (16 * group + 1, 2), (50 * group - 8, 4)] {
            assert_eq!(parts(&tiles.packing, panels, k, 9), most);
            for count in 1..=tiles.highest() {
                let values: Vec<f32> = (0..count * k).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
                let whole = packed(tiles, panels, &values, count, 1);
                for parts in [2, 3, 7] {
                    let of = format!("{}, {count} rows of {k} by {parts}", tiles.level);
                    assert_eq!(packed(tiles, panels, &values, count, parts), whole, "{of}");
                }
            }
        }
    }

    #[test]
    fn tiles_are_packed_within_their_bounds() {
        let levels = [
            &cpu::floats::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            &cpu::floats::AVX2,
            #[cfg(target_arch = "x86_64")]
            &cpu::floats::AVX512,
        ];
        for tiles in levels {
            packs(tiles, PanelKind::F32, |i| i as f32 + 0.5);
        }
        // How pairs are packed says nothing of what multiplies them.
        #[cfg(target_arch = "x86_64")]
        packs(&cpu::floats_avx512bf16::DOTS, PanelKind::Bf16, |i| bf16::from_f32(i as f32));
    }
}
