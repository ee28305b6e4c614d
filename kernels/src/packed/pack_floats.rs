//! Outputs into panels of floats, in registers.

use super::panel::PANEL;
use super::sixteen::{AlongK, Sixteen, load_across};
use crate::cpu::line::Line;
use crate::simd::{LANES, Simd, Stored};

/// A panel of steps: half of it is the sixteen outputs at this place of every step.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(super) unsafe fn pack_steps<S: Simd, T: Stored>(
    lines: &[Option<Line>; PANEL],
    k0: usize,
    count: usize,
    to: *mut T,
) {
    for (half, lines) in lines.chunks_exact(LANES).enumerate() {
        // SAFETY: passed on.
        unsafe {
            let to = to.add(half * LANES);
            match Sixteen::of(lines, count) {
                Sixteen::Across(side) => across_to_steps::<S, T>(side, k0, count, to),
                Sixteen::Along(along) => along_to_steps::<S, T>(&along, k0, count, to),
            }
        }
    }
}

/// The same of pairs of steps in bf16.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(super) unsafe fn pack_pairs<S: Simd>(lines: &[Option<Line>; PANEL], k0: usize, count: usize, to: *mut u8) {
    for (half, lines) in lines.chunks_exact(LANES).enumerate() {
        // SAFETY: passed on.
        unsafe {
            let to = to.add(half * LANES * 4);
            match Sixteen::of(lines, count) {
                Sixteen::Across(side) => across_to_pairs::<S>(side, k0, count, to),
                Sixteen::Along(along) => along_to_pairs::<S>(&along, k0, count, to),
            }
        }
    }
}

/// Sixteen outputs that lie side by side: a step of K is one load.
#[inline(always)]
unsafe fn across_to_steps<S: Simd, T: Stored>(side: (Line, usize), k0: usize, count: usize, to: *mut T) {
    for k in 0..count {
        // SAFETY: passed on.
        unsafe { T::store::<S>(to.add(k * PANEL), load_across::<S>(side, k0 + k)) };
    }
}

/// The same, two steps of K rounded to bf16 side by side.
#[inline(always)]
unsafe fn across_to_pairs<S: Simd>(side: (Line, usize), k0: usize, count: usize, to: *mut u8) {
    for k in (0..count).step_by(2) {
        // SAFETY: passed on; behind an odd count stands a zero.
        unsafe {
            let even = load_across::<S>(side, k0 + k);
            let odd = if k + 1 < count { load_across::<S>(side, k0 + k + 1) } else { S::splat(0.0) };
            S::store(to.cast::<f32>().add(k / 2 * PANEL), S::round_bf16_pairs(even, odd));
        }
    }
}

/// Sixteen outputs whose values lie along K: sixteen steps are turned around in registers.
#[inline(always)]
unsafe fn along_to_steps<S: Simd, T: Stored>(along: &AlongK<'_>, k0: usize, count: usize, to: *mut T) {
    for k in (0..count).step_by(LANES) {
        let n = (count - k).min(LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's.
        unsafe {
            let steps = S::transpose(along.load::<S>(k0 + k, n));
            for (step, values) in steps.into_iter().enumerate().take(n) {
                T::store::<S>(to.add((k + step) * PANEL), values);
            }
        }
    }
}

/// The same in bf16, thirty-two steps in pairs.
#[inline(always)]
unsafe fn along_to_pairs<S: Simd>(along: &AlongK<'_>, k0: usize, count: usize, to: *mut u8) {
    for k in (0..count).step_by(2 * LANES) {
        let n = (count - k).min(2 * LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's, and behind an odd number stands a zero.
        unsafe {
            let pairs = S::transpose(along.load_pairs::<S>(k0 + k, n));
            for (pair, values) in pairs.into_iter().enumerate().take(n.div_ceil(2)) {
                S::store(to.cast::<f32>().add((k / 2 + pair) * PANEL), values);
            }
        }
    }
}
