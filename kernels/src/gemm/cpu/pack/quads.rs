//! Tiles in groups of int8 or int16: a [`Header`] of each, and quads.

use std::ops::Range;

use half::bf16;

use super::super::tile::Left;
use super::reading::{Reading, TileRows};
use super::rounded::{Quantized, take_apart};
use crate::gemm::cpu::integers::Header;
use crate::norm::lanes::Scale;
use crate::packed::{GROUP_SIZES, MAX_GROUP, PanelKind, blocks};
use crate::simd::{LANES, Simd, Stored};

/// Packs part `part` of `parts` of a tile as [`Left::Quads`], or of integers of two `BYTES` as [`Left::Int16`], to multiply
/// with panels of blocks.
///
/// # Safety
/// Those of [`Reading::load`] of its rows; there is room for the tile.
#[inline(always)]
pub(super) unsafe fn pack<S: Simd, T: Stored, const BYTES: usize>(
    tile: &TileRows<T>,
    reading: Reading<'_>,
    left: Left,
    panels: PanelKind,
    (part, parts): (usize, usize),
) {
    const LEAST: usize = GROUP_SIZES[0];
    const MIDDLE: usize = GROUP_SIZES[1];
    // SAFETY: passed on.
    unsafe {
        match panels.admitted_blocks().group() {
            LEAST => pack_groups::<S, T, LEAST, BYTES>(tile, reading, left, panels, (part, parts)),
            MIDDLE => pack_groups::<S, T, MIDDLE, BYTES>(tile, reading, left, panels, (part, parts)),
            _ => pack_groups::<S, T, MAX_GROUP, BYTES>(tile, reading, left, panels, (part, parts)),
        }
    }
}

/// The same of groups of at most `G` values.
#[inline(always)]
unsafe fn pack_groups<S: Simd, T: Stored, const G: usize, const BYTES: usize>(
    tile: &TileRows<T>,
    reading: Reading<'_>,
    left: Left,
    panels: PanelKind,
    (part, parts): (usize, usize),
) {
    let &TileRows { ref lines, ref scales, valid, height, to } = tile;
    let (lines, to) = (&lines[..valid], to.cast::<i32>());
    let format = panels.admitted_blocks();
    let (values, group) = (format.values(), format.group());
    debug_assert!(group <= G);
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
    if BYTES == 2 {
        for group in start..end {
            for row in 0..height {
                // SAFETY: there is room for headers.
                unsafe { to.add(group * stride + Header::<BYTES>::HAS_APART * height + row).write(0) };
            }
        }
    }
    let (mut x, mut apart) = ([[0.0; G]; LANES], [[0.0; G]; LANES]);
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
                let have_apart =
                    if BYTES == 2 { take_apart::<S, G>(&mut x, &mut apart, count) } else { [false; LANES] };
                let mut quantized = Quantized::<G, BYTES>::of::<S>(&x, count);
                for i in 0..count {
                    let to = to.add((first + i) * stride);
                    if BYTES == 2 {
                        let to_marks = to.add(Header::<BYTES>::MARKS * height + r);
                        if have_apart[i] {
                            quantized.set_apart(i, &apart[i]);
                            let marks = blocks::in_quads(values, &apart[i].map(|x| i8::from(x != 0.0)));
                            write_marks(&marks, group, height, to_marks);
                            (0..height).for_each(|row| to.add(Header::<BYTES>::HAS_APART * height + row).write(1));
                        } else {
                            (0..Header::<BYTES>::marks(group)).for_each(|mark| to_marks.add(mark * height).write(0));
                        }
                    }
                    to.cast::<f32>().add(Header::<BYTES>::SCALE * height + r).write(quantized.scales[i]);
                    let n = (reading.k - (first + i) * group).min(group);
                    let steps = n.div_ceil(blocks::per_word(values)) * blocks::quads(values).len();
                    let behind = to.add(left.header(panels) * height + r);
                    // What every weight is too large by, times the values, is taken off before.
                    let offset = -i32::from(blocks::offset(values));
                    let mut starts: [i32; BYTES] = std::array::from_fn(|byte| offset * quantized.sums[byte][i] as i32);
                    let mut quads: [_; BYTES] =
                        std::array::from_fn(|byte| blocks::in_quads(values, &quantized.values[byte][i]));
                    if let (Left::Int16(layout), [start, second], [firsts, seconds]) =
                        (left, &mut starts[..], &mut quads[..])
                    {
                        [*start, *second] = layout.starts(*start, *second);
                        for (first, second) in firsts.iter_mut().zip(seconds) {
                            [*first, *second] = layout.words(*first, *second);
                        }
                    }
                    for (word, (start, quads)) in starts.iter().zip(&quads).enumerate() {
                        to.add((Header::<BYTES>::STARTS + word) * height + r).write(*start);
                        for (step, &quad) in quads.iter().enumerate().take(steps) {
                            behind.add((step * BYTES + word) * height).write(quad);
                        }
                    }
                }
            }
        }
    }
}

/// Writes the [marks](Header::MARKS) of a group: a bit for each byte of its steps that is not 0.
///
/// # Safety
/// There is room for them, in a tile of `height` rows.
#[cold]
unsafe fn write_marks(marks: &[i32], group: usize, height: usize, to: *mut i32) {
    for (i, steps) in marks[..group / 4].chunks(8).enumerate() {
        let bytes = steps.iter().flat_map(|step| step.to_le_bytes()).enumerate();
        let bits = bytes.fold(0u32, |bits, (at, byte)| bits | u32::from(byte != 0) << at);
        // SAFETY: passed on.
        unsafe { to.add(i * height).write(bits as i32) };
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
