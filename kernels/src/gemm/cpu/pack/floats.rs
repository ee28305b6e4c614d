//! Tiles in steps of an f32 or of a pair of bf16.

use half::bf16;
use sinew_tensor::DType;

use super::super::normed_rows::Vectors;
use super::super::tile::{Left, MAX_TILE};
use super::reading::{Reading, TileRows};
use super::turn::{interleaved, turned};
use crate::norm::lanes::Scale;
use crate::packed::PanelKind;
use crate::simd::{self, LANES, Reach, Simd, Stored};

/// Values that rows are asked for ahead of where they are packed: twelve rows at once are more than a core's own
/// prefetcher follows.
const AHEAD: usize = 128;

/// Packs a tile as [`Left::Singles`] or [`Left::Pairs`], to multiply with panels of a kind. Where it is `NORMED` there is
/// a norm.
///
/// # Safety
/// Those of [`Reading::load`] of its rows; there is room for the tile.
#[inline(always)]
pub(super) unsafe fn pack<S: Simd, T: Stored, const NORMED: bool>(
    tile: &TileRows<T>,
    reading: Reading<'_>,
    left: Left,
    panels: PanelKind,
) {
    let &TileRows { ref lines, ref scales, valid, height, to } = tile;
    let padded = panels.padded_k(reading.k);
    let (per_step, pairs) = (left.per_step(), left == Left::Pairs);
    let steps = padded / per_step;
    let alike = match left {
        Left::Singles => reading.dtype == DType::F32 && !reading.round,
        Left::Pairs => reading.dtype == DType::BF16,
        Left::Quads | Left::Int16(_) => false,
    };
    let as_it_is = alike && !NORMED && reading.k_stride == 1 && reading.order.is_none();
    let summed = panels.blocks().filter(|_| left.header(panels) > 0).map(|format| format.group());
    if height == 1 && summed.is_none() {
        // SAFETY: the line holds K values, and the tile `steps` steps.
        unsafe {
            let whole = if as_it_is { reading.k / (per_step * LANES) * LANES } else { 0 };
            to.copy_from_nonoverlapping(lines[0].cast(), whole * size_of::<f32>());
            for step in (whole..steps).step_by(LANES) {
                let k = step * per_step;
                let values = step_values::<S, T>(lines[0], k, scales[0], &reading.vectors::<S>(k), reading, pairs);
                S::store_n(to.cast::<f32>().add(step), values, (steps - step).min(LANES));
            }
        }
        return;
    }
    // SAFETY: passed on; the tile's bytes are in the workspace.
    let (mut sums, end) =
        unsafe { ([S::splat(0.0); MAX_TILE], to.add(left.bytes(panels, padded) * height).cast::<f32>()) };
    let lying = if as_it_is && summed.is_none() && valid == height { reading.k / per_step } else { 0 };
    // Of the heights that most rows have there is a loop without conditions, which takes half the time.
    let packed = match height {
        // SAFETY: the lines hold K values, and the tile its steps.
        6 => unsafe { pack_lying::<S, T, 6>(lines, lying, steps, to.cast()) },
        12 => unsafe { pack_lying::<S, T, 12>(lines, lying, steps, to.cast()) },
        _ => 0,
    };
    for step in (packed..steps).step_by(LANES) {
        let (k, width) = (step * per_step, (steps - step).min(LANES));
        // SAFETY: lines hold K values; rows without a line stay zero; the tile holds `steps` steps and its headers.
        unsafe {
            let mut rows = [S::splat(0.0); LANES];
            let vectors = reading.vectors::<S>(k);
            for ((line, scale), row) in lines.iter().zip(scales).zip(&mut rows).take(valid) {
                *row = if as_it_is && k + per_step * LANES <= reading.k {
                    simd::prefetch(line.wrapping_add(k + AHEAD).cast(), Reach::Near);
                    S::load(line.add(k).cast())
                } else {
                    step_values::<S, T>(*line, k, *scale, &vectors, reading, pairs)
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

/// Sixteen steps of a row from `k` on: as many values, or pairs of them in bf16.
#[inline(always)]
unsafe fn step_values<S: Simd, T: Stored>(
    line: *const T,
    k: usize,
    scale: Scale,
    vectors: &[Option<Vectors<'_, S>>; 2],
    reading: Reading<'_>,
    pairs: bool,
) -> S::F {
    simd::prefetch(line.wrapping_add((k + AHEAD) * reading.k_stride).cast(), Reach::Near);
    // SAFETY: passed on.
    unsafe {
        let first = reading.load::<S, T>(line, k, scale, vectors[0]);
        if pairs {
            S::round_pairs(first, reading.load::<S, T>(line, k + LANES, scale, vectors[1]))
        } else if reading.round {
            bf16::rounded::<S>(first)
        } else {
            first
        }
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
