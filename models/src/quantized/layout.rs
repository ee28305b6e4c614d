//! How codes, scales and zero points lie in their tensors, and how rows of each are read.
//!
//! What has all outputs of an input side by side is read when a strip of columns is made, once; what lies row after row
//! when rows are asked for.

use std::borrow::Cow;
use std::ops::Range;

use half::bf16;

pub use self::codes::{words_of_codes, words_of_zeros};
use super::bits::{Bits, words};
use crate::error::Result;
use crate::tensors::Tensors;

mod codes;

/// A tensor and how what it holds is laid out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored<L> {
    pub tensor: String,
    pub layout: L,
}

/// Where codes are. Words are I32 in a file, and have their first value in their lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodesLayout {
    /// Words `[k / 8, n]` or `[k / 4, n]` along K: GPTQ.
    WordsOfK(Bits),
    /// Words `[k, n / 8]` along N, interleaved: AWQ.
    WordsOfN,
    /// Words `[n, ⌈k / 8⌉]` or `[n, ⌈k / 4⌉]` along K: compressed-tensors.
    RowsOfWords(Bits),
    /// Bytes `[n, k]`.
    Bytes,
    /// Bytes `[n, k / 2]` of two floats each: MXFP4.
    Nibbles,
    /// The same, the earlier in the high bits: bitsandbytes.
    HighNibbles,
}

/// Where scales are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScalesLayout {
    /// `[groups, n]`.
    Columns,
    /// `[⌈n / rows⌉, groups]`: so many rows share theirs.
    Rows(usize),
    /// The same of bytes that are the exponents of powers of 2, less 127; 255 is NaN (OCP's E8M0).
    Exponents(usize),
    /// `[n, groups]` of bytes, quantized themselves: bitsandbytes.
    Nested(Nested),
}

/// Scales that are quantized themselves.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Nested {
    /// What their bytes stand for.
    pub map: Box<[f32]>,
    /// The scale of each block of them.
    pub scales: Box<[f32]>,
    pub block: usize,
    pub offset: f32,
}

impl Nested {
    /// The scales of so many bytes from number `first` on, as f32.
    fn scales(&self, bytes: &[u8], first: usize) -> Vec<u8> {
        let scale = |(at, &byte): (usize, &u8)| {
            let of_block = self.scales[(first + at) / self.block];
            (self.map[usize::from(byte)] * of_block + self.offset).to_le_bytes()
        };
        bytes.iter().enumerate().flat_map(scale).collect()
    }
}

/// Where zero points are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZerosLayout {
    /// Words `[groups, n / 8]` or `[groups, n / 4]` along N, to each of which this is added: GPTQ.
    Words(Bits, u32),
    /// Words `[groups, n / 8]` along N, interleaved: AWQ.
    Interleaved,
    /// Words `[⌈n / 8⌉, groups]` or `[⌈n / 4⌉, groups]` along N: compressed-tensors.
    WordsOfRows(Bits),
    /// Bytes `[⌈n / rows⌉, groups]`.
    Bytes(usize),
}

/// What a strip has of a tensor: bytes that lie side by side, if those of its columns do.
pub(super) struct Span<'a> {
    tensors: &'a Tensors,
    tensor: &'a str,
    range: Range<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Span<'a> {
    /// Reads `lines` of so many bytes each; nothing where these are not what the columns are.
    pub fn read(tensors: &'a Tensors, tensor: &'a str, lines: Option<(Range<usize>, usize)>) -> Result<Self> {
        let (range, bytes) = match lines {
            Some((lines, line)) => {
                let range = lines.start * line..lines.end * line;
                (range.clone(), tensors.tensor_slice(tensor, range)?.bytes)
            }
            None => Default::default(),
        };
        Ok(Self { tensors, tensor, range, bytes })
    }

    /// Lets go of the pages of what was read.
    pub fn release(&self) {
        self.tensors.release_slice(self.tensor, self.range.clone());
    }

    /// Bytes of the tensor that lie row after row.
    fn slice(&self, range: Range<usize>) -> Result<Cow<'a, [u8]>> {
        Ok(self.tensors.tensor_slice(self.tensor, range)?.bytes)
    }

    /// `[rows, row_bytes]` of a tensor `[⌈n / shared⌉, row_bytes]`.
    fn rows(&self, rows: Range<usize>, shared: usize, row_bytes: usize) -> Result<Vec<u8>> {
        let (first, end) = (rows.start / shared, rows.end.div_ceil(shared));
        let bytes = self.slice(first * row_bytes..end.max(first) * row_bytes)?;
        if shared == 1 {
            return Ok(bytes.into_owned());
        }
        let mut all = Vec::with_capacity(rows.len() * row_bytes);
        for (at, block) in bytes.chunks_exact(row_bytes).enumerate() {
            let start = (first + at).saturating_mul(shared);
            let end = start.saturating_add(shared);
            for _ in start.max(rows.start)..end.min(rows.end) {
                all.extend_from_slice(block);
            }
        }
        Ok(all)
    }
}

impl CodesLayout {
    /// Whether values lie input after input, all outputs of one side by side.
    pub fn lies_by_columns(self) -> bool {
        matches!(self, Self::WordsOfK(_) | Self::WordsOfN)
    }

    /// Columns whose values share words.
    pub fn columns_of_word(self) -> usize {
        match self {
            Self::WordsOfK(bits) => bits.per_word(),
            _ => 1,
        }
    }

    /// Bytes of a row of `k` codes, where they lie side by side.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            Self::RowsOfWords(bits) => Some(k.div_ceil(bits.per_word()) * 4),
            Self::Bytes => Some(k),
            Self::Nibbles | Self::HighNibbles => Some(k / 2),
            Self::WordsOfK(_) | Self::WordsOfN => None,
        }
    }

    /// The lines that some columns of `n` rows are, and the bytes of each.
    pub fn lines(self, n: usize, columns: Range<usize>) -> Option<(Range<usize>, usize)> {
        match self {
            Self::WordsOfK(bits) => Some((columns.start / bits.per_word()..columns.end / bits.per_word(), n * 4)),
            Self::WordsOfN => Some((columns, n / 8 * 4)),
            Self::RowsOfWords(_) | Self::Bytes | Self::Nibbles | Self::HighNibbles => None,
        }
    }

    /// `[rows, columns]` of `n` rows.
    pub fn read(self, span: &Span<'_>, [n, columns]: [usize; 2], rows: Range<usize>) -> Result<Vec<u8>> {
        let slice = || {
            // These are read with all their columns.
            let row_bytes = self.row_bytes(columns).unwrap_or(0);
            span.slice(rows.start * row_bytes..rows.end * row_bytes)
        };
        Ok(match self {
            Self::WordsOfK(bits) => codes::of_words_of_k(&span.bytes, bits, n, rows),
            Self::WordsOfN => codes::of_words_of_n(&span.bytes, [n, columns], rows),
            Self::RowsOfWords(bits) => codes::of_rows_of_words(&slice()?, bits, columns),
            Self::Bytes => slice()?.into_owned(),
            Self::Nibbles => codes::of_nibbles(&slice()?),
            Self::HighNibbles => codes::of_high_nibbles(&slice()?),
        })
    }
}

impl ScalesLayout {
    /// The lines that scales of `size` bytes of some groups of `n` rows are, and the bytes of each.
    pub fn lines(&self, n: usize, groups: Range<usize>, size: usize) -> Option<(Range<usize>, usize)> {
        match self {
            Self::Columns => Some((groups, n * size)),
            Self::Rows(_) | Self::Exponents(_) | Self::Nested(_) => None,
        }
    }

    /// `[rows, groups]` of `n` rows, of `size` bytes each, in the dtype that they have in memory.
    pub fn read(&self, span: &Span<'_>, [n, groups]: [usize; 2], size: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Columns => match size {
                2 => columns(span.bytes.as_chunks::<2>().0, n, rows, groups).as_flattened().to_vec(),
                _ => columns(span.bytes.as_chunks::<4>().0, n, rows, groups).as_flattened().to_vec(),
            },
            Self::Rows(shared) => span.rows(rows, *shared, groups * size)?,
            Self::Exponents(shared) => {
                let exponents = span.rows(rows, *shared, groups)?;
                exponents.iter().flat_map(|&exponent| power(exponent).to_le_bytes()).collect()
            }
            Self::Nested(nested) => {
                let first = rows.start * groups;
                nested.scales(&span.slice(first..rows.end * groups)?, first)
            }
        })
    }
}

impl ZerosLayout {
    /// The lines that those of some groups of `n` rows are, and the bytes of each.
    pub fn lines(self, n: usize, groups: Range<usize>) -> Option<(Range<usize>, usize)> {
        match self {
            Self::Words(bits, _) => Some((groups, n / bits.per_word() * 4)),
            Self::Interleaved => Some((groups, n / 8 * 4)),
            Self::WordsOfRows(_) | Self::Bytes(_) => None,
        }
    }

    /// `[rows, groups]` of `n` rows.
    pub fn read(self, span: &Span<'_>, [n, groups]: [usize; 2], rows: Range<usize>) -> Result<Vec<i8>> {
        let mut zeros = vec![0; rows.len() * groups];
        let mut put = |row: usize, group: usize, zero: i8| {
            if rows.contains(&row) {
                zeros[(row - rows.start) * groups + group] = zero;
            }
        };
        let words_of = |bits: Bits| rows.start / bits.per_word()..rows.end.div_ceil(bits.per_word());
        // A line of words for each group.
        let mut of_lines = |bits: Bits, added: u32, row_in_word: [usize; 8]| {
            let Range { start, end } = words_of(bits);
            for (group, line) in span.bytes.chunks_exact(n / bits.per_word() * 4).enumerate() {
                for (at, word) in words(line).enumerate().take(end).skip(start) {
                    let values = bits.unpacked(word.wrapping_add(added));
                    values.zip(row_in_word).for_each(|(zero, row)| put(at * bits.per_word() + row, group, zero));
                }
            }
        };
        match self {
            Self::Words(bits, added) => of_lines(bits, added, [0, 1, 2, 3, 4, 5, 6, 7]),
            Self::Interleaved => of_lines(Bits::Four, 0, codes::OUTPUT_OF_NIBBLE),
            Self::WordsOfRows(bits) => {
                let Range { start, end } = words_of(bits);
                let bytes = span.slice(start * groups * 4..end * groups * 4)?;
                for (at, word) in words(&bytes).enumerate() {
                    let (row, group) = ((start + at / groups) * bits.per_word(), at % groups);
                    bits.unpacked(word).enumerate().for_each(|(i, zero)| put(row + i, group, zero));
                }
            }
            Self::Bytes(shared) => {
                return Ok(span.rows(rows, shared, groups)?.into_iter().map(|byte| byte as i8).collect());
            }
        }
        Ok(zeros)
    }
}

impl Stored<ZerosLayout> {
    /// Whether all are in the middle, which stands for 0.
    pub fn are_middle(&self, tensors: &Tensors) -> Result<bool> {
        tensors.all_slices(&self.tensor, |bytes| match self.layout {
            ZerosLayout::Words(bits, added) => words(bytes).all(|word| word.wrapping_add(added) == bits.middle()),
            ZerosLayout::Interleaved => words(bytes).all(|word| word == Bits::Four.middle()),
            ZerosLayout::WordsOfRows(bits) => words(bytes).all(|word| word == bits.middle()),
            ZerosLayout::Bytes(_) => bytes.iter().all(|&zero| zero == 0),
        })
    }
}

/// `[rows, groups]` of a tensor `[groups, n]`.
fn columns<T: Copy>(values: &[T], n: usize, rows: Range<usize>, groups: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(rows.len() * groups);
    for row in rows {
        all.extend(values.chunks_exact(n).map(|group| group[row]));
    }
    all
}

/// 2^(exponent − 127), of which 2^-127 is subnormal in bf16; 255 is NaN.
pub(super) fn power(exponent: u8) -> bf16 {
    match exponent {
        0 => bf16::from_bits(0x0040),
        255 => bf16::NAN,
        _ => bf16::from_bits(u16::from(exponent) << 7),
    }
}
