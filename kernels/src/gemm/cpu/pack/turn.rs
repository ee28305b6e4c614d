//! Registers of rows turned into steps of a tile: sixteen steps of a row to a register before, a step's rows in order after.

use crate::simd::{LANES, Simd};

/// Sixteen steps of the first two, four or eight rows, one step behind another, by 2, 8 or 24 shuffles, where it takes
/// 64 to turn sixteen rows around; `None` for other heights.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub(super) unsafe fn interleaved<S: Simd>(rows: &[S::F; LANES], height: usize) -> Option<[S::F; 8]> {
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
pub(super) unsafe fn turned<S: Simd>(rows: [S::F; LANES], height: usize) -> [S::F; LANES] {
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
