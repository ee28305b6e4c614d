//! How A's rows are packed into tiles.

use std::ops::Range;

use half::{bf16, f16};
use sinew_tensor::DType;

use super::input_norm::{NormedRows, Vectors};
use super::order::Order;
use super::rows::Rows;
use super::tile::{Left, MAX_TILE, Tiles};
use crate::line::Line;
use crate::norm::lanes::Scale;
use crate::packed::{GROUP_SIZES, MAX_GROUP, PanelKind, Quantized, blocks};
use crate::simd::{self, Kernel, LANES, Reach, Simd, Stored};

/// Values that rows are asked for ahead of where they are packed: twelve rows at once are more than a core's own
/// prefetcher follows.
const AHEAD: usize = 128;

/// Rows of A that are packed together and multiplied with one right operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    /// Which right operand.
    pub right: usize,
    /// Group and row of the first one, and how many there are.
    pub group: usize,
    pub row: usize,
    pub count: usize,
    /// Rows of its tiles but the last.
    pub of_tile: usize,
    /// Tiles of the slabs before it, and where its own go, in bytes.
    pub tile: usize,
    pub at: usize,
}

/// Packs tiles of A's rows: `[steps][rows of the tile]`, where a step is one f32, a pair of bf16 or a quad of int8, with
/// what [`Left::header`] says before the steps of each group.
pub(super) struct PackRows<'a> {
    /// The rows.
    pub rows: Rows,
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
    match (left, panels.blocks()) {
        (Left::Quads, Some(format)) => most.min(k.div_ceil(LANES * format.group()).max(1)),
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

/// Sixteen steps of the first two, four or eight rows, one step behind another, by 2, 8 or 24 shuffles, where it takes
/// 64 to turn sixteen rows around; `None` for other heights.
#[inline(always)]
unsafe fn interleaved<S: Simd>(rows: &[S::F; LANES], height: usize) -> Option<[S::F; 8]> {
    let mut out = [rows[0]; 8];
    // SAFETY: passed on.
    unsafe {
        match height {
            2 => (out[0], out[1]) = S::zip(rows[0], rows[1]),
            4 => out[..4].copy_from_slice(&four::<S>([rows[0], rows[1], rows[2], rows[3]])),
            8 => {
                let even = four::<S>([rows[0], rows[2], rows[4], rows[6]]);
                let odd = four::<S>([rows[1], rows[3], rows[5], rows[7]]);
                for (i, (even, odd)) in even.into_iter().zip(odd).enumerate() {
                    (out[2 * i], out[2 * i + 1]) = S::zip(even, odd);
                }
            }
            _ => return None,
        }
    }
    Some(out)
}

/// Step `i` of the first `height` rows in vector `i`.
#[inline(always)]
unsafe fn turned<S: Simd>(rows: [S::F; LANES], height: usize) -> [S::F; LANES] {
    // SAFETY: passed on.
    unsafe {
        if height > LANES / 2 {
            return S::transpose(rows);
        }
        // With a half that is known to be zeros, half of the shuffles go away.
        let mut half = [S::splat(0.0); LANES];
        half[..LANES / 2].copy_from_slice(&rows[..LANES / 2]);
        S::transpose(half)
    }
}

/// Sixteen steps of four rows.
#[inline(always)]
unsafe fn four<S: Simd>(rows: [S::F; 4]) -> [S::F; 4] {
    // SAFETY: passed on.
    unsafe {
        let (even, odd) = (S::zip(rows[0], rows[2]), S::zip(rows[1], rows[3]));
        let (first, second) = (S::zip(even.0, odd.0), S::zip(even.1, odd.1));
        [first.0, first.1, second.0, second.1]
    }
}

/// Sixteen values of a row, or the sums of sixteen pairs of bf16.
#[inline(always)]
unsafe fn value_sums<S: Simd>(row: S::F, pairs: bool) -> S::F {
    if !pairs {
        return row;
    }
    let mut bits = [0u16; 2 * LANES];
    // SAFETY: passed on; there are thirty-two values.
    unsafe {
        S::store(bits.as_mut_ptr().cast(), row);
        let (even, odd) = S::load_bf16_pairs(bits.as_ptr());
        S::add(even, odd)
    }
}

/// Packs the first steps of a tile of `H` rows that are packed as they lie: of the `lying` that its rows have sixteen at a
/// time, as long as what is stored with the last of them stays within the tile's `steps`. Returns how many.
///
/// # Safety
/// Those of [`Simd`]; the first `H` lines have the steps that lie, and `to` has those of the tile.
#[inline(always)]
unsafe fn pack_lying<S: Simd, T, const H: usize>(
    lines: &[*const T; MAX_TILE],
    lying: usize,
    steps: usize,
    to: *mut f32,
) -> usize {
    let behind = LANES.div_ceil(H) - 1;
    let whole = lying.min(steps.saturating_sub(behind)) / LANES * LANES;
    for step in (0..whole).step_by(LANES) {
        // SAFETY: passed on; what is stored behind a step is the tile's, and overwritten by the next steps.
        unsafe {
            let mut rows = [S::splat(0.0); LANES];
            for (row, line) in rows.iter_mut().zip(lines).take(H) {
                let at = line.cast::<f32>().wrapping_add(step);
                simd::prefetch(at.cast::<T>().wrapping_add(AHEAD).cast(), Reach::Near);
                *row = S::load(at);
            }
            for (i, values) in turned::<S>(rows, H).into_iter().enumerate() {
                S::store(to.add((step + i) * H), values);
            }
        }
    }
    whole
}

/// How the rows of a slab are read.
#[derive(Clone, Copy)]
struct Reading<'a> {
    /// Normed, where there is a norm.
    norm: Option<&'a NormedRows>,
    /// In the order of their weight, where that is another.
    order: Option<*const u32>,
}

impl PackRows<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Stored, const NORMED: bool>(&self, task: usize) {
        let (tile, part) = (task / self.parts, task % self.parts);
        let slab = &self.slabs[self.slabs.partition_point(|slab| slab.tile <= tile) - 1];
        let first = (tile - slab.tile) * slab.of_tile;
        let valid = (slab.count - first).min(slab.of_tile);
        let height = self.tiles.fit(valid, None).height;
        let padded = self.panels.padded_k(self.k);
        let left = self.tiles.left;
        let to = self.to.wrapping_add(slab.at + first * left.bytes(self.panels, padded));
        let mut lines = [std::ptr::null::<T>(); MAX_TILE];
        for (i, line) in lines.iter_mut().enumerate().take(valid) {
            *line = self.rows.address(slab.group, slab.row + first + i).cast();
        }
        let norm = if NORMED { self.norm.as_ref() } else { None };
        let order = self.order.map(|order| order.of(slab.right, self.k));
        let reading = Reading { norm, order };
        let mut scales = [Scale::default(); MAX_TILE];
        if let Some(norm) = norm {
            for (line, scale) in lines.iter().zip(&mut scales).take(valid) {
                // SAFETY: lines hold K values.
                *scale = unsafe { norm.scale::<S>(Line::typed(*line, self.rows.k_stride), self.k) };
            }
        }
        if let (Left::Quads, Some(format)) = (left, self.panels.blocks()) {
            const LEAST: usize = GROUP_SIZES[0];
            const MIDDLE: usize = GROUP_SIZES[1];
            // SAFETY: passed on; rows without a line count as zeros.
            return unsafe {
                match format.group() {
                    LEAST => self.quads::<S, T, LEAST>(&lines[..valid], reading, &scales, height, part, to),
                    MIDDLE => self.quads::<S, T, MIDDLE>(&lines[..valid], reading, &scales, height, part, to),
                    _ => self.quads::<S, T, MAX_GROUP>(&lines[..valid], reading, &scales, height, part, to),
                }
            };
        }
        let (per_step, pairs) = (left.per_step(), left == Left::Pairs);
        let steps = padded / per_step;
        let alike = match left {
            Left::Singles => self.rows.dtype == DType::F32 && !self.round,
            Left::Pairs => self.rows.dtype == DType::BF16,
            Left::Quads => false,
        };
        let as_it_is = alike && !NORMED && self.rows.k_stride == 1 && order.is_none();
        let summed = self.panels.blocks().filter(|_| left.header(self.panels) > 0).map(|format| format.group());
        if height == 1 && summed.is_none() {
            // SAFETY: the line holds K values, and the tile `steps` steps.
            unsafe {
                let whole = if as_it_is { self.k / (per_step * LANES) * LANES } else { 0 };
                to.copy_from_nonoverlapping(lines[0].cast(), whole * size_of::<f32>());
                for step in (whole..steps).step_by(LANES) {
                    let k = step * per_step;
                    let values =
                        self.step::<S, T>(lines[0], k, scales[0], &self.vectors::<S>(reading, k), order, pairs);
                    S::store_n(to.cast::<f32>().add(step), values, (steps - step).min(LANES));
                }
            }
            return;
        }
        // SAFETY: passed on; the tile's bytes are in the workspace.
        let (mut sums, end) =
            unsafe { ([S::splat(0.0); MAX_TILE], to.add(left.bytes(self.panels, padded) * height).cast::<f32>()) };
        let lying = if as_it_is && summed.is_none() && valid == height { self.k / per_step } else { 0 };
        // Of the heights that most rows have there is a loop without conditions, which takes half the time.
        let packed = match height {
            // SAFETY: the lines hold K values, and the tile its steps.
            6 => unsafe { pack_lying::<S, T, 6>(&lines, lying, steps, to.cast()) },
            12 => unsafe { pack_lying::<S, T, 12>(&lines, lying, steps, to.cast()) },
            _ => 0,
        };
        for step in (packed..steps).step_by(LANES) {
            let (k, width) = (step * per_step, (steps - step).min(LANES));
            // SAFETY: lines hold K values; rows without a line stay zero; the tile holds `steps` steps and its headers.
            unsafe {
                let mut rows = [S::splat(0.0); LANES];
                let vectors = self.vectors::<S>(reading, k);
                for ((line, scale), row) in lines.iter().zip(&scales).zip(&mut rows).take(valid) {
                    *row = if as_it_is && k + per_step * LANES <= self.k {
                        simd::prefetch(line.wrapping_add(k + AHEAD).cast(), Reach::Near);
                        S::load(line.add(k).cast())
                    } else {
                        self.step::<S, T>(*line, k, *scale, &vectors, order, pairs)
                    };
                }
                let mut to = to.cast::<f32>().add(step * height);
                if let Some(group) = summed {
                    for (sum, row) in sums.iter_mut().zip(rows).take(height) {
                        let before = if k.is_multiple_of(group) { S::splat(0.0) } else { *sum };
                        *sum = S::add(before, value_sums::<S>(row, pairs));
                    }
                    let header = to.add(k / group * height).sub(k % group / per_step * height);
                    if (k + LANES * per_step).is_multiple_of(group) || step + LANES >= steps {
                        for (r, sum) in sums.into_iter().enumerate().take(height) {
                            header.add(r).write(S::reduce_add(sum));
                        }
                    }
                    to = to.add((k / group + 1) * height);
                }
                if let Some(steps) = interleaved::<S>(&rows, height) {
                    for (i, values) in steps.into_iter().enumerate().take((width * height).div_ceil(LANES)) {
                        S::store_n(to.add(i * LANES), values, (width * height - i * LANES).min(LANES));
                    }
                } else {
                    // Each step is stored as sixteen rows, of which the next one overwrites those that there are not:
                    // a masked store takes many times as long on some processors that have AVX2 only.
                    for (i, values) in turned::<S>(rows, height).into_iter().enumerate().take(width) {
                        let to = to.add(i * height);
                        if end.offset_from_unsigned(to) >= LANES {
                            S::store(to, values);
                        } else {
                            S::store_n(to, values, height);
                        }
                    }
                }
            }
        }
    }

    /// The norm's vectors for 32 values of K, where there is one.
    #[inline(always)]
    unsafe fn vectors<'a, S: Simd>(&self, reading: Reading<'a>, k: usize) -> [Option<Vectors<'a, S>>; 2] {
        let Some(norm) = reading.norm else { return [None; 2] };
        // SAFETY: passed on.
        [k, k + LANES].map(|k| Some(unsafe { norm.vectors::<S>(k, self.values(k), reading.order) }))
    }

    /// Sixteen steps of a row from `k` on: as many values, or pairs of them in bf16.
    #[inline(always)]
    unsafe fn step<S: Simd, T: Stored>(
        &self,
        line: *const T,
        k: usize,
        scale: Scale,
        vectors: &[Option<Vectors<'_, S>>; 2],
        order: Option<*const u32>,
        pairs: bool,
    ) -> S::F {
        simd::prefetch(line.wrapping_add((k + AHEAD) * self.rows.k_stride).cast(), Reach::Near);
        // SAFETY: passed on.
        unsafe {
            let first = self.load::<S, T>(line, k, scale, vectors[0], order);
            if pairs {
                S::round_pairs(first, self.load::<S, T>(line, k + LANES, scale, vectors[1], order))
            } else if self.round {
                bf16::rounded::<S>(first)
            } else {
                first
            }
        }
    }

    /// Groups of int8: each row's scale, what its sums start from, and quads. Groups have at most `G` values.
    #[inline(always)]
    unsafe fn quads<S: Simd, T: Stored, const G: usize>(
        &self,
        lines: &[*const T],
        reading: Reading<'_>,
        scales: &[Scale],
        height: usize,
        part: usize,
        to: *mut u8,
    ) {
        let (format, to) = (self.panels.admitted_blocks(), to.cast::<i32>());
        let (values, group) = (format.values(), format.group());
        debug_assert!(group <= G);
        let groups = self.k.div_ceil(group);
        // Words of 32 bits from a group to the next.
        let stride = Left::Quads.bytes(self.panels, group) / 4 * height;
        let blocks = groups.div_ceil(LANES);
        let [start, end] = [part, part + 1].map(|part| (part * blocks / self.parts * LANES).min(groups));
        if lines.len() < height {
            let all = Left::Quads.bytes(self.panels, self.k) / 4 * height;
            let [start, end] = [start, end].map(|group| (group * stride).min(all));
            // SAFETY: those are the tile's.
            unsafe { to.add(start).write_bytes(0, end - start) };
        }
        let mut x = [[0.0; G]; LANES];
        for (r, (line, scale)) in lines.iter().zip(scales).enumerate() {
            for first in (start..end).step_by(LANES) {
                let count = (end - first).min(LANES);
                for (i, x) in x.iter_mut().enumerate().take(count) {
                    let k = (first + i) * group;
                    // SAFETY: passed on.
                    unsafe { self.group::<S, T, G>(*line, k..(k + group).min(self.k), *scale, reading, x) };
                }
                // SAFETY: passed on; the tile holds the groups.
                unsafe {
                    let quantized = Quantized::<G>::of::<S>(&x, count);
                    let mut to = to.add(first * stride + r);
                    for i in 0..count {
                        to.cast::<f32>().write(quantized.scales[i]);
                        // What every weight is too large by, times the values, is taken off before.
                        to.add(height).write(-i32::from(blocks::offset(values)) * quantized.sums[i] as i32);
                        let n = (self.k - (first + i) * group).min(group);
                        let steps = n.div_ceil(blocks::per_word(values)) * blocks::quads(values).len();
                        let quads = blocks::in_quads(values, &quantized.values[i]);
                        for (step, &quad) in quads.iter().enumerate().take(steps) {
                            to.add((2 + step) * height).write(quad);
                        }
                        to = to.add(stride);
                    }
                }
            }
        }
    }

    /// The values `k` of a row in `x`, and zeros behind them.
    #[inline(always)]
    unsafe fn group<S: Simd, T: Stored, const G: usize>(
        &self,
        line: *const T,
        k: Range<usize>,
        scale: Scale,
        reading: Reading<'_>,
        x: &mut [f32; G],
    ) {
        // No constant number of times: written out, the loop takes more variables than there are registers.
        let vectors = k.len().div_ceil(LANES);
        for i in 0..vectors {
            let at = k.start + i * LANES;
            // SAFETY: passed on; vectors are inside the group.
            unsafe {
                let vectors = reading.norm.map(|norm| norm.vectors::<S>(at, self.values(at), reading.order));
                let loaded = self.load::<S, T>(line, at, scale, vectors, reading.order);
                S::store(x.as_mut_ptr().add(i * LANES), loaded);
            }
        }
        x[vectors * LANES..].fill(0.0);
    }

    /// Values `k..k + 16` of a row in an order, normed where there are the norm's vectors; zeros behind its end.
    #[inline(always)]
    unsafe fn load<S: Simd, T: Stored>(
        &self,
        line: *const T,
        k: usize,
        scale: Scale,
        vectors: Option<Vectors<'_, S>>,
        order: Option<*const u32>,
    ) -> S::F {
        let (n, line) = (self.values(k), Line::typed(line, self.rows.k_stride));
        // SAFETY: passed on; the order has K values, all of them the row's.
        unsafe {
            let x = match order {
                Some(order) => line.load_at_as::<S, T>(order.wrapping_add(k), n),
                None => line.skip(k).load_as::<S, T>(n),
            };
            match vectors {
                Some(vectors) => vectors.apply(x, n, scale, self.round),
                None => x,
            }
        }
    }

    /// How many of the values `k..k + 16` a row has.
    #[inline(always)]
    fn values(&self, k: usize) -> usize {
        self.k.saturating_sub(k).min(LANES)
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{Cpu, Team};
    use sinew_tensor::{BlockFormat, BlockValues, Element, Tensor};

    use super::super::{cpu, cpu_int8};
    use super::*;

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
        let height = tiles.fit(count, None).height;
        let size = tiles.left.bytes(panels, k) / 4 * height;
        let mut packed = vec![u32::MAX; size + BEHIND];
        let pack = PackRows {
            rows: Rows::new(&tensor.view(), count).unwrap(),
            norm: None,
            order: None,
            slabs: &[Slab { right: 0, group: 0, row: 0, count, of_tile: tiles.height(count), tile: 0, at: 0 }],
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
        let tiles = &cpu_int8::PORTABLE;
        for group in GROUP_SIZES {
            let format = BlockFormat::new(BlockValues::Int4, group, DType::BF16, false).unwrap();
            let panels = PanelKind::Blocks(format);
            for (k, most) in [(1, 1), (group, 1), (15 * group + 8, 1), (16 * group + 1, 2), (50 * group - 8, 4)] {
                assert_eq!(parts(tiles.left, panels, k, 9), most);
                for count in 1..=tiles.highest() {
                    let values: Vec<f32> = (0..count * k).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
                    let whole = packed(tiles, panels, &values, count, 1);
                    for parts in [2, 3, 7] {
                        assert_eq!(
                            packed(tiles, panels, &values, count, parts),
                            whole,
                            "{count} rows of {k} by {parts}"
                        );
                    }
                }
            }
        }
        assert_eq!(parts(Left::Singles, PanelKind::F32, 1 << 20, 9), 1);
    }

    #[test]
    fn tiles_are_packed_within_their_bounds() {
        let levels = [
            &cpu::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            &cpu::AVX2,
            #[cfg(target_arch = "x86_64")]
            &cpu::AVX512,
        ];
        for tiles in levels {
            packs(tiles, PanelKind::F32, |i| i as f32 + 0.5);
        }
        // How pairs are packed says nothing of what multiplies them.
        #[cfg(target_arch = "x86_64")]
        packs(&super::super::cpu_avx512bf16::DOTS, PanelKind::Bf16, |i| bf16::from_f32(i as f32));
    }
}
