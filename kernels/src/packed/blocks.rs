//! Panels of block-quantized weights: where the parts of a group lie, and how codes are held in them.
//!
//! A group of a panel is `[32]` scales, `[32]` zero points of a byte where the format has any, and words of 32 bits
//! `[words][32]`, each of which holds 4 or 8 codes of one output. So a vector register holds as many steps of sixteen
//! outputs, and a shift brings the codes of one step, or of two as pairs of 16 bits, to where a table is looked up.

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::panel::PANEL;

/// Values along K that can share a scale in panels, the fewest first.
pub const GROUP_SIZES: [usize; 3] = [32, 64, 128];
/// The most of them.
pub const MAX_GROUP: usize = GROUP_SIZES[GROUP_SIZES.len() - 1];

/// What scales can be held as.
pub(crate) const SCALES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Every format that panels can be in.
pub(crate) fn held() -> impl Iterator<Item = BlockFormat> {
    let with = |values| GROUP_SIZES.into_iter().flat_map(move |group| SCALES.map(|scale| (values, group, scale)));
    BlockValues::ALL.into_iter().flat_map(with).flat_map(|(values, group, scale)| {
        [false, true].into_iter().filter_map(move |zeros| BlockFormat::new(values, group, scale, zeros).ok())
    })
}

/// Codes of an output in a word.
pub(crate) const fn per_word(values: BlockValues) -> usize {
    32 / values.bits()
}

/// K with what fills the last word.
pub(crate) fn padded_k(values: BlockValues, k: usize) -> usize {
    k.checked_next_multiple_of(per_word(values)).unwrap_or(usize::MAX)
}

/// Bytes of the scales of a group.
pub(crate) const fn scales_bytes(format: BlockFormat) -> usize {
    PANEL * format.scale_dtype().size()
}

/// Bytes before the codes of a group.
pub(crate) const fn header_bytes(format: BlockFormat) -> usize {
    scales_bytes(format) + if format.zero_points() { PANEL } else { 0 }
}

/// Bytes of a panel of `k` values along K.
pub(crate) fn bytes(format: BlockFormat, k: usize) -> usize {
    let codes = padded_k(format.values(), k).saturating_mul(PANEL * format.values().bits() / 8);
    codes.saturating_add(k.div_ceil(format.group()).saturating_mul(header_bytes(format)))
}

/// Bytes of a line: a word of 32 bits of each of a panel's outputs.
pub(crate) const LINE: usize = 4 * PANEL;

/// Where in its word the code of step `k` begins, in bits: even steps are in its low half and odd ones in its high
/// half, so that two that follow each other are at the same place of a half each.
pub(crate) const fn shift(values: BlockValues, k: usize) -> usize {
    shift_of(per_word(values), k)
}

/// The same in words of so many codes.
pub(crate) const fn shift_of(per_word: usize, k: usize) -> usize {
    k % per_word / 2 * (32 / per_word) + k % 2 * 16
}

/// A word of eight codes of four bits, which are the low halves of these bytes, the first the lowest: each at its
/// [`shift`].
pub(crate) const fn word_of_nibbles(codes: u64) -> u32 {
    /// Those at even steps, sixteen bits apart, side by side.
    const fn halves(codes: u64) -> u32 {
        let apart = codes & 0x000f_000f_000f_000f;
        ((apart | apart >> 12 | apart >> 24 | apart >> 36) & 0xffff) as u32
    }
    halves(codes) | halves(codes >> 8) << 16
}

/// A word of four codes of eight bits: each at its [`shift`].
pub(crate) const fn word_of_bytes([a, b, c, d]: [u8; 4]) -> u32 {
    u32::from_le_bytes([a, c, b, d])
}

/// The steps whose codes are the four bytes of a word; of words of eight codes, those whose codes are the low halves of
/// its bytes, and those whose codes are the high ones.
pub(crate) const fn quads(values: BlockValues) -> &'static [[usize; 4]] {
    if values.bits() == 8 { &[[0, 2, 1, 3]] } else { &[[0, 4, 1, 5], [2, 6, 3, 7]] }
}

/// The most quads of a group.
pub(crate) const MOST_QUADS: usize = MAX_GROUP / 4;

/// The bytes of a group in the order of [`quads`], which plain arithmetic on words brings them into; zeros behind it.
#[inline(always)]
pub(crate) fn in_quads(values: BlockValues, bytes: &[i8]) -> [i32; MOST_QUADS] {
    let fours = bytes.as_chunks::<4>().0;
    let word = |i: usize| {
        let [a, b, c, d] = fours[i];
        u32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
    };
    let mut quads = [0; MOST_QUADS];
    if values.bits() == 8 {
        for i in 0..fours.len() {
            let word = word(i);
            quads[i] = (word & 0xff00_00ff | (word & 0xff00) << 8 | (word >> 8) & 0xff00) as i32;
        }
        return quads;
    }
    for i in (0..fours.len()).step_by(2) {
        let (low, high) = (word(i), word(i + 1));
        quads[i] = zipped(low, high);
        quads[i + 1] = zipped(low >> 16, high >> 16);
    }
    quads
}

/// The lower two bytes of two words, taken in turn.
#[inline(always)]
fn zipped(a: u32, b: u32) -> i32 {
    let (a, b) = ((a & 0xffff | a << 8) & 0xff_00ff, (b & 0xffff | b << 8) & 0xff_00ff);
    (a | b << 8) as i32
}

/// What integers are too large by as panels hold them, so that instructions can take them for unsigned.
pub(crate) const fn offset(values: BlockValues) -> u8 {
    match values {
        BlockValues::Int4 => 8,
        BlockValues::Int8 => 128,
        BlockValues::F4E2M1 | BlockValues::Nf4 | BlockValues::F8E4M3 | BlockValues::F8E5M2 => 0,
    }
}

/// A code as panels hold it, or back: an offset of half the range turns the highest bit of integers over.
pub(crate) const fn held_code(values: BlockValues, code: u8) -> u8 {
    code ^ offset(values)
}

/// Bits of a code.
pub(crate) const fn mask(values: BlockValues) -> u32 {
    (1 << values.bits()) - 1
}

/// A scale, widened.
pub(crate) fn scale_at(dtype: DType, scales: &[u8], at: usize) -> f32 {
    match dtype {
        DType::F16 => f16::from_le_bytes([scales[2 * at], scales[2 * at + 1]]).to_f32(),
        DType::BF16 => bf16::from_le_bytes([scales[2 * at], scales[2 * at + 1]]).to_f32(),
        _ => f32::from_le_bytes([scales[4 * at], scales[4 * at + 1], scales[4 * at + 2], scales[4 * at + 3]]),
    }
}

/// An element of a packed weight.
pub(crate) struct Element {
    /// What its code stands for.
    pub q: f32,
    /// The scale and the zero point of its group.
    pub scale: f32,
    pub zero: f32,
}

/// Step `k` of an output of a panel.
pub(crate) fn element(format: BlockFormat, panel: &[u8], lane: usize, k: usize) -> Element {
    let values = format.values();
    let first = k / format.group() * format.group();
    let (scales, group) = panel[bytes(format, first)..].split_at(scales_bytes(format));
    let (zero, words) = match format.zero_points() {
        true => (f32::from(group[lane] as i8), &group[PANEL..]),
        false => (0.0, group),
    };
    let at = ((k - first) / per_word(values) * PANEL + lane) * 4;
    let word = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
    let code = (word >> shift(values, k)) & mask(values);
    Element {
        q: values.value(held_code(values, code as u8)),
        scale: scale_at(format.scale_dtype(), scales, lane),
        zero,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quads_are_the_steps_of_the_bytes_of_a_word() {
        for values in BlockValues::ALL {
            let mut shifts = Vec::new();
            for (part, quad) in quads(values).iter().enumerate() {
                for (byte, &k) in quad.iter().enumerate() {
                    assert_eq!(shift(values, k), 8 * byte + 4 * part, "{values:?}");
                    shifts.push(shift(values, k));
                }
            }
            shifts.sort_unstable();
            assert!(shifts.into_iter().eq((0..32).step_by(values.bits())), "{values:?}");
        }
    }

    #[test]
    fn bytes_are_brought_into_the_order_of_quads() {
        let bytes: [i8; MAX_GROUP] = std::array::from_fn(|i| (2 * i) as i8);
        for values in [BlockValues::Int4, BlockValues::Int8] {
            let quads = |word: &[i8]| quads(values).iter().map(|four| four.map(|k| word[k] as u8)).collect::<Vec<_>>();
            let expected: Vec<_> = bytes.chunks(per_word(values)).flat_map(quads).map(i32::from_le_bytes).collect();
            assert_eq!(in_quads(values, &bytes)[..], expected[..], "{values:?}");
        }
    }

    #[test]
    fn the_highest_bit_of_integers_is_turned_over() {
        assert_eq!([0x8, 0xf, 0x0, 0x7].map(|code| held_code(BlockValues::Int4, code)), [0x0, 0x7, 0x8, 0xf]);
        assert_eq!([0x80, 0xff, 0, 0x7f].map(|code| held_code(BlockValues::Int8, code)), [0, 0x7f, 0x80, 0xff]);
    }

    #[test]
    fn a_word_has_each_code_at_its_shift() {
        let at_shifts = |values, codes: &[u8]| {
            codes
                .iter()
                .enumerate()
                .fold(0, |word, (k, &code)| word | (u32::from(code) & mask(values)) << shift(values, k))
        };
        for seed in 0..200u64 {
            let codes = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed << 7).to_le_bytes();
            assert_eq!(word_of_nibbles(u64::from_le_bytes(codes)), at_shifts(BlockValues::Int4, &codes));
            let codes = [codes[0], codes[3], codes[5], codes[6]];
            assert_eq!(word_of_bytes(codes), at_shifts(BlockValues::Int8, &codes));
        }
    }
}
