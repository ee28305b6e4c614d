//! Tiles in steps of an f32 or of a pair of bf16.

use std::mem::MaybeUninit;

use sinew_tensor::DType;

use super::PackRows;
use super::rows::{AHEAD, TileRows};
use crate::cpu::line::Line;
use crate::gemm::cpu::tile::MAX_TILE;
use crate::simd::{self, LANES, Part, Reach, Simd};

/// Values of a row that are read at a time, where they are not packed as they lie.
const READ: usize = 256;

/// Packs a tile in steps of one f32 or, if `PAIRS`, of two bf16.
///
/// # Safety
/// The machine has the level; the rows are the operands', and there is room for the tile.
pub(super) unsafe fn pack<S: Simd, const PAIRS: bool>(rows: &PackRows<'_>, tile: usize) {
    // SAFETY: passed on.
    unsafe { S::part(Tile::<PAIRS> { rows, tile }) }
}

#[derive(Clone, Copy)]
struct Tile<'a, const PAIRS: bool> {
    rows: &'a PackRows<'a>,
    tile: usize,
}

impl<const PAIRS: bool> Part for Tile<'_, PAIRS> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, tile } = self;
        debug_assert_eq!(rows.parts, 1, "a task packs a tile of floats");
        let (panels, packing, per_step) = (rows.panels, &rows.tiles.packing, 1 + PAIRS as usize);
        // SAFETY: passed on.
        let tile = unsafe { TileRows::of::<S>(rows, tile) };
        let TileRows { valid, height, .. } = tile;
        let padded = panels.padded_k(rows.k);
        let steps = padded / per_step;
        let alike = if PAIRS { rows.rows.dtype == DType::BF16 } else { rows.rows.dtype == DType::F32 && !rows.round };
        let as_it_is = alike && tile.lie_as_packed();
        // Or widened as they are loaded.
        let loaded = as_it_is || !PAIRS && tile.lie_as_packed() && (rows.rows.dtype == DType::BF16 || !rows.round);
        let to: *mut f32 = tile.to.cast();
        let mut step = 0;
        if as_it_is {
            let lying = rows.k / per_step;
            // Of the heights that most rows have there is a loop without conditions, which takes half the time.
            // SAFETY: the rows hold K values, and the tile its steps.
            unsafe {
                match height {
                    1 => {
                        step = lying / LANES * LANES;
                        // As bytes: a row of bf16 need not lie where a word does.
                        to.cast::<u8>().copy_from_nonoverlapping(tile.ptrs[0], step * size_of::<f32>());
                    }
                    6 if valid == 6 => step = pack_lying::<S, 6>(&tile.ptrs, lying, steps, AHEAD * 4 / per_step, to),
                    12 if valid == 12 => step = pack_lying::<S, 12>(&tile.ptrs, lying, steps, AHEAD * 4 / per_step, to),
                    _ => {}
                }
            }
        }
        let end = to.wrapping_add(packing.bytes(panels, padded) / 4 * height);
        let mut room = MaybeUninit::<[f32; MAX_TILE * READ]>::uninit();
        let room: *mut f32 = room.as_mut_ptr().cast();
        while step < steps {
            let first = step;
            let behind = steps.min(first + READ / per_step);
            // Sixteen steps at a time, of which none may be behind the row's end.
            let direct = loaded && behind * per_step <= rows.k && (behind - first).is_multiple_of(LANES);
            for r in 0..if direct { 0 } else { valid } {
                let vectors = ((behind - first) * per_step).div_ceil(LANES);
                // SAFETY: passed on; there is room for as many values of each row, and for whole pairs of vectors.
                unsafe { tile.read::<S>(r, first * per_step, vectors, !PAIRS, room.add(r * READ)) };
            }
            while step < behind {
                let width = (behind - step).min(LANES);
                // SAFETY: rows hold K values, or were read; those that there are not stay zero; the tile holds
                // `steps` steps.
                unsafe {
                    let mut turned_rows = [S::splat(0.0); LANES];
                    for r in 0..valid {
                        turned_rows[r] = if direct {
                            let at = if PAIRS { Line::typed(tile.ptrs[r].cast::<f32>(), 1) } else { tile.line(r) }
                                .skip(step);
                            simd::prefetch(at.skip(AHEAD / per_step).ptr(), Reach::Near);
                            at.load::<S>(LANES)
                        } else {
                            let at = room.add(r * READ + (step - first) * per_step);
                            if PAIRS {
                                let second = if width * 2 > LANES { S::load(at.add(LANES)) } else { S::splat(0.0) };
                                S::round_pairs(S::load(at), second)
                            } else {
                                S::load(at)
                            }
                        };
                    }
                    store_steps::<S>(turned_rows, height, width, to.add(step * height), end);
                }
                step += width;
            }
        }
    }
}

/// Stores `width` steps of `height` rows.
#[inline(always)]
unsafe fn store_steps<S: Simd>(rows: [S::F; LANES], height: usize, width: usize, to: *mut f32, end: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        if height == 1 {
            return S::store_n(to, rows[0], width);
        }
        if let Some(steps) = interleaved::<S>(&rows, height) {
            let words = width * height;
            for i in 0..words.div_ceil(LANES) {
                S::store_n(to.add(i * LANES), steps[i], (words - i * LANES).min(LANES));
            }
            return;
        }
        // Each step is stored as sixteen rows, of which the next one overwrites those that there are not: a masked store
        // takes many times as long on some processors that have AVX2 only.
        let steps = turned::<S>(rows, height);
        for i in 0..width {
            let to = to.add(i * height);
            if end.offset_from_unsigned(to) >= LANES {
                S::store(to, steps[i]);
            } else {
                S::store_n(to, steps[i], height);
            }
        }
    }
}

/// Packs the first steps of a tile of `H` rows that are packed as they lie: of the `lying` that its rows have sixteen at a
/// time, as long as what is stored with the last of them stays within the tile's `steps`. Returns how many.
///
/// # Safety
/// Those of [`Simd`]; the first `H` rows have the steps that lie, and `to` has those of the tile.
#[inline(always)]
unsafe fn pack_lying<S: Simd, const H: usize>(
    ptrs: &[*const u8; MAX_TILE],
    lying: usize,
    steps: usize,
    ahead: usize,
    to: *mut f32,
) -> usize {
    let behind = LANES.div_ceil(H) - 1;
    let whole = lying.min(steps.saturating_sub(behind)) / LANES * LANES;
    let mut step = 0;
    while step < whole {
        // SAFETY: passed on; what is stored behind a step is the tile's, and overwritten by the next steps.
        unsafe {
            let mut rows = [S::splat(0.0); LANES];
            for r in 0..H {
                let at = ptrs[r].cast::<f32>().wrapping_add(step);
                simd::prefetch(at.cast::<u8>().wrapping_add(ahead), Reach::Near);
                rows[r] = S::load(at);
            }
            let steps = turned::<S>(rows, H);
            for i in 0..LANES {
                S::store(to.add((step + i) * H), steps[i]);
            }
        }
        step += LANES;
    }
    whole
}

/// Sixteen steps of the first two, four or eight rows, one step behind another, by 2, 8 or 24 shuffles, where it takes
/// 64 to turn sixteen rows around; `None` for other heights.
///
/// # Safety
/// Those of [`Simd`].
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
///
/// # Safety
/// Those of [`Simd`].
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
