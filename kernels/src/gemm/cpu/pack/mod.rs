//! How A's rows are packed into tiles.

mod floats;
mod quads;
mod reading;
mod rounded;
mod turn;

use half::{bf16, f16};
use sinew_tensor::DType;

use super::normed_rows::NormedRows;
use super::order::Order;
use super::plan::Slab;
use super::rows::OperandRows;
use super::tile::{Left, MAX_TILE, Tiles};
use crate::cpu::line::Line;
use crate::norm::lanes::Scale;
use crate::packed::PanelKind;
use crate::simd::{Kernel, LANES, Simd, Stored};
use reading::{Reading, TileRows};

/// Packs tiles of A's rows: `[steps][rows of the tile]`, where a step is one f32, a pair of bf16 or a quad of int8 or, in
/// two words, of int16, with what [`Left::header`] says before the steps of each group.
pub(super) struct PackRows<'a> {
    /// The rows.
    pub rows: OperandRows,
    /// The norm of each, where it is their norm that is packed.
    pub norm: Option<NormedRows>,
    /// The order of their values, where it is not that in which they lie.
    pub order: Option<Order>,
    /// Which of them.
    pub slabs: &'a [Slab],
    /// Length of a row, and the kind of the panels, which says what padding they have.
    pub k: usize,
    pub panels: PanelKind,
    /// Whether values are rounded to bf16.
    pub round: bool,
    /// The tiles.
    pub tiles: &'static Tiles,
    /// Tasks that a tile is packed by: see [`parts`].
    pub parts: usize,
    /// Where tiles go.
    pub to: *mut u8,
}

/// Tasks that a tile may be packed by, `most` at most, each some of its groups. Quantizing the few rows of a step takes
/// longer than a fork, and a thread finds what it packs where it wrote it. Of what is no quads there is one task: what
/// is stored of a step reaches into the next.
pub(super) fn parts(left: Left, panels: PanelKind, k: usize, most: usize) -> usize {
    match panels.blocks() {
        Some(format) if left.of_integers() => most.min(k.div_ceil(LANES * format.group()).max(1)),
        _ => 1,
    }
}

// SAFETY: tasks write disjoint parts of tiles through the pointer and only read the rest.
unsafe impl Sync for PackRows<'_> {}

impl Kernel for PackRows<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        // SAFETY: the driver checked the rows and made room for their tiles.
        unsafe {
            match (self.rows.dtype, self.norm.is_some()) {
                (DType::F16, false) => self.tile::<S, f16, false>(task),
                (DType::BF16, false) => self.tile::<S, bf16, false>(task),
                (_, false) => self.tile::<S, f32, false>(task),
                (DType::F16, true) => self.tile::<S, f16, true>(task),
                (DType::BF16, true) => self.tile::<S, bf16, true>(task),
                (_, true) => self.tile::<S, f32, true>(task),
            }
        }
    }
}

impl PackRows<'_> {
    /// Packs a part of a tile, whose rows are `T`s and, if it is `NORMED`, have a norm.
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Stored, const NORMED: bool>(&self, task: usize) {
        let (tile, part) = (task / self.parts, task % self.parts);
        let slab = &self.slabs[self.slabs.partition_point(|slab| slab.tile <= tile) - 1];
        let first = (tile - slab.tile) * slab.of_tile;
        let valid = (slab.count - first).min(slab.of_tile);
        let (left, panels) = (self.tiles.left, self.panels);
        let to = self.to.wrapping_add(slab.at + first * left.bytes(panels, panels.padded_k(self.k)));
        let mut lines = [std::ptr::null::<T>(); MAX_TILE];
        for (i, line) in lines.iter_mut().enumerate().take(valid) {
            *line = self.rows.address(slab.batch, slab.row + first + i).cast();
        }
        let norm = if NORMED { self.norm.as_ref() } else { None };
        let mut scales = [Scale::default(); MAX_TILE];
        if let Some(norm) = norm {
            for (line, scale) in lines.iter().zip(&mut scales).take(valid) {
                // SAFETY: lines hold K values.
                *scale = unsafe { norm.scale::<S>(Line::typed(*line, self.rows.k_stride), self.k) };
            }
        }
        let tile = TileRows { lines, scales, valid, height: self.tiles.packed_height(valid), to };
        let reading = Reading {
            k: self.k,
            k_stride: self.rows.k_stride,
            dtype: self.rows.dtype,
            norm,
            order: self.order.map(|order| order.of(slab.right, self.k)),
            round: self.round,
        };
        // SAFETY: passed on; rows without a line count as zeros.
        unsafe {
            match (left, panels.blocks()) {
                (Left::Quads, Some(_)) => quads::pack::<S, T, 1>(&tile, reading, left, panels, (part, self.parts)),
                (Left::Int16(_), Some(_)) => quads::pack::<S, T, 2>(&tile, reading, left, panels, (part, self.parts)),
                _ => floats::pack::<S, T, NORMED>(&tile, reading, left, panels),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{Cpu, SimdLevel, Team};
    use sinew_tensor::{BlockFormat, BlockValues, Element, Tensor};

    use super::*;
    use crate::gemm::cpu;
    use crate::packed::GROUP_SIZES;
    use crate::simd;

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
        let size = tiles.left.bytes(panels, k) / 4 * height;
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
        // SAFETY: the rows are the tensor's, and there is room for their tile.
        unsafe { simd::launch(tiles.level, &here, parts, &pack) };
        assert!(packed[size..].iter().all(|&word| word == u32::MAX), "{count} rows of {k}");
        packed.truncate(size);
        (height, packed)
    }

    /// A tile of all heights is where its rows are, at any length.
    fn packs<T: Element + Stored>(tiles: &'static Tiles, panels: PanelKind, value: impl Fn(usize) -> T) {
        let (per_step, size) = (tiles.left.per_step(), size_of::<T>());
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
        assert_eq!(parts(Left::Singles, PanelKind::F32, 1 << 20, 9), 1);
    }

    fn parts_of_groups_are_packed_alike(tiles: &'static Tiles, group: usize) {
        let format = BlockFormat::new(BlockValues::Int4, group, DType::BF16, false).unwrap();
        let panels = PanelKind::Blocks(format);
        for (k, most) in [(1, 1), (group, 1), (15 * group + 8, 1), (16 * group + 1, 2), (50 * group - 8, 4)] {
            assert_eq!(parts(tiles.left, panels, k, 9), most);
            for count in 1..=tiles.highest() {
                let values: Vec<f32> = (0..count * k).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
                let whole = packed(tiles, panels, &values, count, 1);
                for parts in [2, 3, 7] {
                    let of = format!("{:?}, {count} rows of {k} by {parts}", tiles.left);
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
