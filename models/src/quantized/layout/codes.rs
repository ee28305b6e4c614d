//! Codes and zero points of words and bytes, taken apart and put together.

use std::ops::Range;

use crate::quantized::bits::{Bits, nibbles, signed_bytes, signed_nibbles, words};

/// The output, of the eight of a word, that each nibble belongs to, lowest first.
pub(super) const OUTPUT_OF_NIBBLE: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Rows of codes `[rows, k]`, of words `[k / n, outputs]`.
pub(super) fn of_words_of_k(words: &[u8], bits: Bits, outputs: usize, rows: Range<usize>) -> Vec<u8> {
    match bits {
        Bits::Four => of_lines(words, outputs, rows, |word| signed_nibbles(word).to_le_bytes()),
        Bits::Eight => of_lines(words, outputs, rows, signed_bytes),
    }
}

/// Words `[words, outputs]` of `N` codes each as rows `[rows, words · N]` of codes.
fn of_lines<const N: usize>(
    words: &[u8],
    outputs: usize,
    rows: Range<usize>,
    unpack: impl Fn(u32) -> [u8; N],
) -> Vec<u8> {
    /// The words of so many outputs are a line of the cache.
    const OUTPUTS: usize = 16;
    /// So many lines of theirs are held there until each has been read for all of these outputs.
    const DEEP: usize = 16;
    let line = outputs * 4;
    let k = words.len() / line * N;
    let mut codes = vec![0; rows.len() * k];
    for (tile, codes) in codes.chunks_mut(OUTPUTS * k).enumerate() {
        let first = rows.start + tile * OUTPUTS;
        for (deep, lines) in words.chunks(DEEP * line).enumerate() {
            for (output, row) in (first..).zip(codes.chunks_exact_mut(k)) {
                let row = row[deep * DEEP * N..].as_chunks_mut::<N>().0;
                for (line, codes) in lines.chunks_exact(line).zip(row) {
                    *codes = unpack(line.as_chunks().0.get(output).map_or(0, |&word| u32::from_le_bytes(word)));
                }
            }
        }
    }
    codes
}

/// Rows of codes `[rows, k]`, of words `[k, n / 8]`.
pub(super) fn of_words_of_n(words: &[u8], [n, k]: [usize; 2], rows: Range<usize>) -> Vec<u8> {
    /// Inputs of a tile: a line of the cache in each row.
    const INPUTS: usize = 64;
    /// Words of a tile: such a line of each input. The tile is copied, as lines that are a power of 2 apart drive each
    /// other out of the cache before all of their words are read.
    const WORDS: usize = 16;
    let line = n / 8 * 4;
    let (first, end) = (rows.start / 8, rows.end.div_ceil(8));
    let mut codes = vec![0; rows.len() * k];
    let mut tile = [[0u32; WORDS]; INPUTS];
    for (start, lines) in (0..k).step_by(INPUTS).zip(words.chunks(INPUTS * line)) {
        let inputs = INPUTS.min(k - start);
        for at in (first..end).step_by(WORDS) {
            let width = WORDS.min(end - at);
            for (tile, line) in tile.iter_mut().zip(lines.chunks_exact(line)) {
                let line = line[at * 4..(at + width) * 4].as_chunks().0;
                tile.iter_mut().zip(line).for_each(|(word, &bytes)| *word = u32::from_le_bytes(bytes));
            }
            for word in 0..width {
                // Of each of its outputs, the inputs, eight at a time; those past the last are what the tile had
                // before.
                let mut outputs = [[0u64; INPUTS / 8]; 8];
                for (eight, tile) in tile.as_chunks::<8>().0.iter().enumerate() {
                    let block = transposed(tile.map(|line| signed_nibbles(line[word])));
                    outputs.iter_mut().zip(block).for_each(|(output, bytes)| output[eight] = bytes);
                }
                for (output, place) in outputs.iter().zip(OUTPUT_OF_NIBBLE) {
                    let row = (at + word) * 8 + place;
                    if rows.contains(&row) {
                        let codes = &mut codes[(row - rows.start) * k + start..][..inputs];
                        codes.copy_from_slice(&output.map(u64::to_le_bytes).as_flattened()[..inputs]);
                    }
                }
            }
        }
    }
    codes
}

/// A block of 8 by 8 bytes, transposed: halves of it are exchanged, of those the quarters, and of those the bytes.
fn transposed(mut block: [u64; 8]) -> [u64; 8] {
    for (distance, low) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ffu64)] {
        let shift = distance * 8;
        for at in (0..8).filter(|at| at & distance == 0) {
            let (a, b) = (block[at], block[at + distance]);
            block[at] = a & low | (b & low) << shift;
            block[at + distance] = (a >> shift) & low | b & !low;
        }
    }
    block
}

/// The codes in bytes of two, which are whole words, as 16 bytes are 32 of them.
pub(super) fn of_nibbles(bytes: &[u8]) -> Vec<u8> {
    let mut codes = vec![0; bytes.len() * 2];
    for (word, codes) in words(bytes).zip(codes.as_chunks_mut::<8>().0) {
        *codes = nibbles(word).to_le_bytes();
    }
    codes
}

/// Rows of codes, of bytes of two, the earlier in the high bits.
pub(super) fn of_high_nibbles(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]).collect()
}

/// Codes `[rows, k]` of words `[rows, ⌈k / n⌉]`.
pub(super) fn of_rows_of_words(words: &[u8], bits: Bits, k: usize) -> Vec<u8> {
    match bits {
        Bits::Four => unpacked(words, k, |word| signed_nibbles(word).to_le_bytes()),
        Bits::Eight => unpacked(words, k, signed_bytes),
    }
}

fn unpacked<const N: usize>(packed: &[u8], k: usize, unpack: impl Fn(u32) -> [u8; N]) -> Vec<u8> {
    let line = k.div_ceil(N) * 4;
    let mut codes = vec![0; packed.len() / line * k];
    for (packed, row) in packed.chunks_exact(line).zip(codes.chunks_exact_mut(k)) {
        let (whole, rest) = row.as_chunks_mut::<N>();
        for (word, codes) in words(packed).zip(&mut *whole) {
            *codes = unpack(word);
        }
        if let Some(last) = words(&packed[whole.len() * 4..]).next() {
            rest.copy_from_slice(&unpack(last)[..rest.len()]);
        }
    }
    codes
}

/// Words `[rows, ⌈k / n⌉]` of codes `[rows, k]`, instead of what `words` holds: what [`of_rows_of_words`] takes apart.
pub fn words_of_codes(codes: &[u8], bits: Bits, k: usize, words: &mut Vec<u8>) {
    words.clear();
    words.reserve(codes.len() / k.max(1) * k.div_ceil(bits.per_word()) * 4);
    for row in codes.chunks_exact(k.max(1)) {
        for codes in row.chunks(bits.per_word()) {
            words.extend(bits.packed(codes.iter().map(|&code| code as i8)).to_le_bytes());
        }
    }
}

/// Words `[⌈rows / n⌉, groups]` of zero points `[rows, groups]`, packed along the rows, instead of what `words` holds.
pub fn words_of_zeros(zeros: &[i8], bits: Bits, groups: usize, words: &mut Vec<u8>) {
    words.clear();
    for rows in zeros.chunks(bits.per_word() * groups.max(1)) {
        for group in 0..groups {
            let column = rows.chunks_exact(groups).map(|row| row[group]);
            words.extend(bits.packed(column).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_codes_are_taken_apart_to_the_same_codes() {
        for (bits, middle) in [(Bits::Four, 8), (Bits::Eight, 128)] {
            for k in [1, 7, 8, 30, 32] {
                let given: Vec<u8> =
                    (0..3 * k).map(|i| ((i * 37 % (2 * middle)) as i16 - middle as i16) as u8).collect();
                let mut words = vec![1, 2, 3];
                words_of_codes(&given, bits, k, &mut words);
                assert_eq!(words.len(), 3 * k.div_ceil(bits.per_word()) * 4);
                assert_eq!(of_rows_of_words(&words, bits, k), given, "{bits:?}, rows of {k}");
            }
        }
        let mut words = Vec::new();
        words_of_codes(&[0xf8, 0x07, 0xff, 0x00], Bits::Four, 4, &mut words);
        assert_eq!(words, 0x87f0u32.to_le_bytes());
        // Five rows of two groups: the rows of a group are in one word.
        words_of_zeros(&[-8, 7, -7, 6, -6, 5, -5, 4, -4, 3], Bits::Four, 2, &mut words);
        assert_eq!(words, [0x43210u32.to_le_bytes(), 0xbcdefu32.to_le_bytes()].concat());
        words_of_zeros(&[-128, -127, 0, 1, 127], Bits::Eight, 1, &mut words);
        assert_eq!(words, [0x81800100u32.to_le_bytes(), 0xffu32.to_le_bytes()].concat());
    }
}
