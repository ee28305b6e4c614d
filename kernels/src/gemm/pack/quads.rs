//! Tiles in groups of int8 or int16: each row's scale, what its sums start from, and quads.

use std::ops::Range;

use half::bf16;

use super::super::tile::Left;
use super::reading::{Reading, TileRows};
use super::rounded::Quantized;
use crate::norm::lanes::Scale;
use crate::packed::{GROUP_SIZES, MAX_GROUP, PanelKind, blocks};
use crate::simd::{LANES, Simd, Stored};

/// Packs part `part` of `parts` of a tile as [`Left::Quads`], or of integers of two `BYTES` as [`Left::WideQuads`], to
/// multiply with panels of blocks.
///
/// # Safety
/// Those of [`Reading::load`] of its rows; there is room for the tile.
#[inline(always)]
pub(super) unsafe fn pack<S: Simd, T: Stored, const BYTES: usize>(
    tile: &TileRows<T>,
    reading: Reading<'_>,
    panels: PanelKind,
    (part, parts): (usize, usize),
) {
    const LEAST: usize = GROUP_SIZES[0];
    const MIDDLE: usize = GROUP_SIZES[1];
    // SAFETY: passed on.
    unsafe {
        match panels.admitted_blocks().group() {
            LEAST => pack_groups::<S, T, LEAST, BYTES>(tile, reading, panels, (part, parts)),
            MIDDLE => pack_groups::<S, T, MIDDLE, BYTES>(tile, reading, panels, (part, parts)),
            _ => pack_groups::<S, T, MAX_GROUP, BYTES>(tile, reading, panels, (part, parts)),
        }
    }
}

/// The same of groups of at most `G` values.
#[inline(always)]
unsafe fn pack_groups<S: Simd, T: Stored, const G: usize, const BYTES: usize>(
    tile: &TileRows<T>,
    reading: Reading<'_>,
    panels: PanelKind,
    (part, parts): (usize, usize),
) {
    let &TileRows { ref lines, ref scales, valid, height, to } = tile;
    let (lines, to) = (&lines[..valid], to.cast::<i32>());
    let format = panels.admitted_blocks();
    let (values, group) = (format.values(), format.group());
    debug_assert!(group <= G);
    let left = if BYTES == 1 { Left::Quads } else { Left::WideQuads };
    let groups = reading.k.div_ceil(group);
    // Words of 32 bits from a group to the next.
    let stride = left.bytes(panels, group) / 4 * height;
    let blocks = groups.div_ceil(LANES);
    let [start, end] = [part, part + 1].map(|part| (part * blocks / parts * LANES).min(groups));
    if lines.len() < height {
        let all = left.bytes(panels, reading.k) / 4 * height;
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
                unsafe { group_values::<S, T, G>(*line, k..(k + group).min(reading.k), *scale, reading, x) };
            }
            // SAFETY: passed on; the tile holds the groups.
            unsafe {
                let quantized = Quantized::<G, BYTES>::of::<S>(&x, count);
                let mut to = to.add(first * stride + r);
                for i in 0..count {
                    to.cast::<f32>().write(quantized.scales[i]);
                    let n = (reading.k - (first + i) * group).min(group);
                    let steps = n.div_ceil(blocks::per_word(values)) * blocks::quads(values).len();
                    for (byte, (bytes, sums)) in quantized.values.iter().zip(&quantized.sums).enumerate() {
                        // What every weight is too large by, times the values, is taken off before.
                        let start = -i32::from(blocks::offset(values)) * sums[i] as i32;
                        to.add((1 + byte) * height).write(start);
                        let quads = blocks::in_quads(values, &bytes[i]);
                        for (step, &quad) in quads.iter().enumerate().take(steps) {
                            to.add((1 + BYTES + step * BYTES + byte) * height).write(quad);
                        }
                    }
                    to = to.add(stride);
                }
            }
        }
    }
}

/// The values `k` of a row in `x`, and zeros behind them.
#[inline(always)]
unsafe fn group_values<S: Simd, T: Stored, const G: usize>(
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
            let vectors = reading.norm.map(|norm| norm.vectors::<S>(at, reading.values(at), reading.order));
            let loaded = reading.load::<S, T>(line, at, scale, vectors);
            let loaded = if reading.round { bf16::rounded::<S>(loaded) } else { loaded };
            S::store(x.as_mut_ptr().add(i * LANES), loaded);
        }
    }
    x[vectors * LANES..].fill(0.0);
}
