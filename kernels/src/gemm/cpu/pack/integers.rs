//! Tiles in groups of int8 or int16: a [`Header`] of each, and quads.

use std::mem::MaybeUninit;

use sinew_tensor::BlockValues;

use super::PackRows;
use super::rounded::{Quantized, ROOM, take_apart};
use super::rows::TileRows;
use crate::gemm::cpu::integers::{Header, QuadLayout};
use crate::packed::{MAX_GROUP, blocks};
use crate::simd::{LANES, Part, Simd};

/// Packs some groups of a tile as int8 or int16 in a layout.
///
/// # Safety
/// The machine has the level; the rows are the operands', the panels blocks, and there is room for the tile.
pub(super) unsafe fn pack<S: Simd, const BYTES: usize>(rows: &PackRows<'_>, task: usize, layout: QuadLayout) {
    // SAFETY: passed on.
    unsafe { S::part(Groups::<BYTES> { rows, task, layout }) }
}

#[derive(Clone, Copy)]
struct Groups<'a, const BYTES: usize> {
    rows: &'a PackRows<'a>,
    task: usize,
    layout: QuadLayout,
}

impl<const BYTES: usize> Part for Groups<'_, BYTES> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, task, layout } = self;
        let (part, parts) = (task % rows.parts, rows.parts);
        let (panels, packing, k) = (rows.panels, &rows.tiles.packing, rows.k);
        // SAFETY: passed on.
        let tile = unsafe { TileRows::of::<S>(rows, task / parts) };
        let TileRows { valid, height, .. } = tile;
        let to: *mut i32 = tile.to.cast();
        let format = panels.admitted_blocks();
        let (values, group) = (format.values(), format.group());
        let groups = k.div_ceil(group);
        // Words of 32 bits from a group to the next.
        let stride = packing.bytes(panels, group) / 4 * height;
        let header = (packing.header)(format);
        let blocks = groups.div_ceil(LANES);
        let [start, end] = [part, part + 1].map(|part| (part * blocks / parts * LANES).min(groups));
        if valid < height {
            let all = packing.bytes(panels, k) / 4 * height;
            let [start, end] = [start, end].map(|group| (group * stride).min(all));
            // SAFETY: those are the tile's.
            unsafe { to.add(start).write_bytes(0, end - start) };
        }
        if BYTES == 2 {
            for at in start..end {
                // SAFETY: there is room for headers.
                unsafe { to.add(at * stride + Header::<BYTES>::HAS_APART * height).write_bytes(0, height) };
            }
        }
        let mut room = MaybeUninit::<[[f32; ROOM]; 2]>::uninit();
        let room: *mut f32 = room.as_mut_ptr().cast();
        let mut quantized = Quantized::<BYTES>::new();
        for r in 0..valid {
            let mut first = start;
            while first < end {
                let count = (end - first).min(LANES);
                // SAFETY: passed on; there is room for sixteen groups, and the tile holds these.
                unsafe {
                    tile.read::<S>(r, first * group, count * group / LANES, true, room);
                    let x = std::slice::from_raw_parts_mut(room, count * group);
                    let apart = room.add(ROOM);
                    let have_apart = if BYTES == 2 { take_apart::<S>(x, apart, group) } else { [false; LANES] };
                    quantized.round::<S>(x, group);
                    for i in 0..count {
                        let to = to.add((first + i) * stride);
                        if BYTES == 2 {
                            let to_marks = to.add(Header::<BYTES>::MARKS * height + r);
                            if have_apart[i] {
                                let apart = std::slice::from_raw_parts(apart.add(i * group), group);
                                quantized.set_apart(i, apart);
                                write_marks(apart, values, height, to_marks);
                                for row in 0..height {
                                    to.add(Header::<BYTES>::HAS_APART * height + row).write(1);
                                }
                            } else {
                                for mark in 0..Header::<BYTES>::marks(group) {
                                    to_marks.add(mark * height).write(0);
                                }
                            }
                        }
                        to.cast::<f32>().add(Header::<BYTES>::SCALE * height + r).write(quantized.scales[i]);
                        let n = (k - (first + i) * group).min(group);
                        let steps = n.div_ceil(blocks::per_word(values)) * blocks::quads(values).len();
                        let behind = to.add(header * height + r);
                        // What every weight is too large by, times the values, is taken off before.
                        let offset = -i32::from(blocks::offset(values));
                        // Of upper and of lower bytes: of one byte there are lower ones only.
                        let mut starts = [0; 2];
                        let mut quads = [[0; blocks::MOST_QUADS]; 2];
                        for byte in 0..BYTES {
                            starts[2 - BYTES + byte] = offset * quantized.sums[byte][i] as i32;
                            quads[2 - BYTES + byte] = blocks::in_quads(values, quantized.values(byte, i, group));
                        }
                        let [upper, lower] = starts;
                        let starts = if BYTES == 1 { [lower, 0] } else { layout.starts(upper, lower) };
                        for word in 0..BYTES {
                            to.add((Header::<BYTES>::STARTS + word) * height + r).write(starts[word]);
                        }
                        let count = layout.count(BYTES);
                        for step in 0..steps {
                            let words = layout.words(quads[0][step], quads[1][step]);
                            for (word, bits) in words[2 - count..].iter().enumerate() {
                                behind.add((step * count + word) * height).write(*bits);
                            }
                        }
                    }
                }
                first += count;
            }
        }
    }
}

/// Writes the [marks](Header::MARKS) of a group: a bit for each byte of its steps that is not 0.
///
/// # Safety
/// There is room for them, in a tile of `height` rows.
#[cold]
unsafe fn write_marks(apart: &[f32], values: BlockValues, height: usize, to: *mut i32) {
    let mut bytes = [0; MAX_GROUP];
    for (byte, x) in bytes.iter_mut().zip(apart) {
        *byte = i8::from(*x != 0.0);
    }
    let marks = blocks::in_quads(values, &bytes[..apart.len()]);
    for (i, steps) in marks[..apart.len() / 4].chunks(8).enumerate() {
        let bytes = steps.iter().flat_map(|step| step.to_le_bytes()).enumerate();
        let bits = bytes.fold(0u32, |bits, (at, byte)| bits | u32::from(byte != 0) << at);
        // SAFETY: passed on.
        unsafe { to.add(i * height).write(bits as i32) };
    }
}
