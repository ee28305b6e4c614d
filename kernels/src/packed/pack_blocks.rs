//! Outputs into panels of blocks: rounded group by group, or codes as a checkpoint has them.

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, DType};

use super::blocks::{self, MAX_GROUP, held_code, per_word};
use super::panel::PANEL;
use super::quantize::Block;
use super::source::Row;
use crate::simd::{LANES, Simd};

/// Words of an output in a group.
const WORDS: usize = MAX_GROUP / 4;

/// Packs values `k0..k0 + count` of 32 outputs as a panel. Those that are not there count as zeros.
///
/// # Safety
/// Those of [`Simd`]; rows hold the values, `k0` is a multiple of the format's group, and `to` may be written for the
/// panel's bytes.
#[inline(always)]
pub(super) unsafe fn pack_blocks<S: Simd>(
    rows: &[Option<Row<'_>>; PANEL],
    format: BlockFormat,
    k0: usize,
    count: usize,
    to: *mut u8,
) {
    let values = format.values();
    for k in (0..count).step_by(format.group()) {
        let n = (count - k).min(format.group());
        let mut words = [[0u32; WORDS]; PANEL];
        // SAFETY: passed on; the group's parts lie one behind another.
        unsafe {
            let scales = to.add(blocks::bytes(format, k));
            let zeros = scales.add(blocks::scales_bytes(format));
            let codes = scales.add(blocks::header_bytes(format));
            for (lane, (row, words)) in rows.iter().zip(&mut words).enumerate() {
                let block = match row {
                    None => Block::ZEROS,
                    Some(Row::Floats(line)) => {
                        let mut x = [0.0; MAX_GROUP];
                        line.skip(k0 + k).widen::<S>(n, x.as_mut_ptr());
                        Block::of::<S>(&x, n, format)
                    }
                    Some(Row::Codes(given)) => {
                        let group = (k0 + k) / format.group();
                        let mut block =
                            Block { scale: 0.0, zero: given.zeros.get(group).copied().unwrap_or(0), ..Block::ZEROS };
                        block.scale = blocks::scale_at(format.scale_dtype(), given.scales, group);
                        block.codes[..n].copy_from_slice(&given.codes[k0 + k..][..n]);
                        block
                    }
                };
                write_scale(format.scale_dtype(), scales, lane, block.scale);
                if format.zero_points() {
                    zeros.cast::<i8>().add(lane).write(block.zero);
                }
                *words = in_words(format, &block.codes);
            }
            let count = n.div_ceil(per_word(values));
            for first in (0..count).step_by(LANES) {
                for half in 0..2 {
                    let mut rows = [S::splat(0.0); LANES];
                    for (row, words) in rows.iter_mut().zip(&words[half * LANES..]) {
                        *row = S::load(words.as_ptr().add(first).cast());
                    }
                    let to = codes.cast::<f32>().add(first * PANEL + half * LANES);
                    for (word, sixteen) in S::transpose(rows).into_iter().enumerate().take(count - first) {
                        S::store(to.add(word * PANEL), sixteen);
                    }
                }
            }
        }
    }
}

/// Rounds a scale, which the dtype can have but for NaNs, to where lane `lane` of a group has it.
#[inline(always)]
unsafe fn write_scale(dtype: DType, scales: *mut u8, lane: usize, scale: f32) {
    // SAFETY: the caller names a group's scales.
    unsafe {
        match dtype {
            DType::F16 => scales.cast::<f16>().add(lane).write_unaligned(f16::from_f32(scale)),
            DType::BF16 => scales.cast::<bf16>().add(lane).write_unaligned(bf16::from_f32(scale)),
            _ => scales.cast::<f32>().add(lane).write_unaligned(scale),
        }
    }
}

/// The codes of an output in words, as panels hold them.
#[inline(always)]
fn in_words(format: BlockFormat, codes: &[u8; MAX_GROUP]) -> [u32; WORDS] {
    let values = format.values();
    let held = codes.map(|code| held_code(values, code));
    let mut words = [0; WORDS];
    let per_word = per_word(values);
    for (word, codes) in words.iter_mut().zip(held.chunks_exact(per_word)) {
        for (k, &code) in codes.iter().enumerate() {
            *word |= (u32::from(code) & blocks::mask(values)) << blocks::shift(values, k);
        }
    }
    words
}
