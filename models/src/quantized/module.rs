//! A quantized weight in a checkpoint, and rows of it.

use std::borrow::Cow;
use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use sinew_ops::layers::{Codes, Encoding};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::probe::Probe;
use super::{awq, bitsandbytes, compressed, gptq, mxfp4};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};

/// A quantized weight `[n, k]` in a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredModule {
    name: String,
    shape: [usize; 2],
    dtype: DType,
    values: BlockValues,
    codes: Stored<CodesLayout>,
    scales: Stored<ScalesLayout>,
    scale_dtype: DType,
    zeros: Option<Stored<ZerosLayout>>,
    groups: Groups,
    blocks: Option<BlockFormat>,
    /// What else was read.
    others: Vec<String>,
}

/// A tensor and how what it holds is laid out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored<L> {
    pub tensor: String,
    pub layout: L,
}

/// Bits of an integer, of which there are as many in a word of 32 bits as fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    Four,
    Eight,
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
    Nested(bitsandbytes::Nested),
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

/// The groups of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Groups {
    /// Columns of each, if they are not scattered; the last may have fewer.
    pub size: usize,
    pub count: usize,
    /// The group of each column, where it is not `i / size`.
    pub index: Option<Vec<u32>>,
}

/// Columns of the groups in which weights are packed.
const PACKED: [usize; 3] = [128, 64, 32];

/// What a format says of a module: [`StoredModule::new`].
pub(super) struct Parts {
    pub shape: [usize; 2],
    pub dtype: DType,
    pub values: BlockValues,
    pub codes: Stored<CodesLayout>,
    pub scales: Stored<ScalesLayout>,
    pub scale_dtype: DType,
    pub zeros: Option<Stored<ZerosLayout>>,
    pub groups: Groups,
    pub others: Vec<String>,
}

/// Rows of a weight, as they are packed.
#[derive(Debug, Clone, PartialEq)]
pub enum Rows {
    /// As they are stored, with a scale for each packed group.
    Blocks(BlockRows),
    /// `[rows, k]` of floats, little-endian: what cannot be packed otherwise.
    Values(Vec<u8>, DType),
}

/// Quantized rows: [`Codes`] that own what they hold.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockRows {
    /// What they are.
    pub format: BlockFormat,
    /// `[rows, k]`, one in each byte.
    pub codes: Vec<u8>,
    /// `[rows, groups]` of the format's dtype, little-endian.
    pub scales: Vec<u8>,
    /// `[rows, groups]` where the format has zero points, else none.
    pub zeros: Vec<i8>,
}

impl BlockRows {
    /// Them, as a packer takes them.
    pub fn codes(&self) -> Codes<'_> {
        Codes { format: self.format, codes: &self.codes, scales: &self.scales, zeros: &self.zeros }
    }
}

impl Bits {
    pub fn of(bits: usize) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Values of a word.
    pub fn per_word(self) -> usize {
        32 / self.count()
    }

    pub fn values(self) -> BlockValues {
        match self {
            Self::Four => BlockValues::Int4,
            Self::Eight => BlockValues::Int8,
        }
    }

    /// 1 for each value of a word.
    pub fn ones(self) -> u32 {
        match self {
            Self::Four => 0x1111_1111,
            Self::Eight => 0x0101_0101,
        }
    }

    /// The word whose values all are in the middle, which stands for 0.
    fn middle(self) -> u32 {
        match self {
            Self::Four => 0x8888_8888,
            Self::Eight => 0x8080_8080,
        }
    }

    /// The word of some values, lowest first, to which the middle is added.
    pub fn packed(self, values: impl Iterator<Item = i8>) -> u32 {
        let (count, mask) = (self.count(), (1 << self.count()) - 1);
        let shifted = |value: i8| (u32::from(value as u8) & mask) ^ (1 << (count - 1));
        let place = |(at, value): (usize, i8)| shifted(value) << (at * count);
        values.enumerate().map(place).fold(0, |word, value| word | value)
    }

    /// The values of a word, lowest first, less the middle.
    fn unpacked(self, word: u32) -> impl Iterator<Item = i8> {
        let (bytes, count) = match self {
            Self::Four => (signed_nibbles(word), 8),
            Self::Eight => (u64::from(u32::from_le_bytes(signed_bytes(word))), 4),
        };
        bytes.to_le_bytes().into_iter().take(count).map(|byte| byte as i8)
    }
}

/// The eight nibbles of a word as a byte each, lowest first.
pub(super) fn nibbles(word: u32) -> u64 {
    let mut bytes = u64::from(word);
    bytes = (bytes | bytes << 16) & 0x0000_ffff_0000_ffff;
    bytes = (bytes | bytes << 8) & 0x00ff_00ff_00ff_00ff;
    (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// The same less 8 each, in two's complement.
pub(super) fn signed_nibbles(word: u32) -> u64 {
    // With the highest bit set no byte borrows from the next.
    const HIGHEST: u64 = 0x8080_8080_8080_8080;
    ((nibbles(word) | HIGHEST) - 0x0808_0808_0808_0808) ^ HIGHEST
}

/// The four bytes of a word, lowest first, less 128 each, in two's complement.
pub(super) fn signed_bytes(word: u32) -> [u8; 4] {
    (word ^ 0x8080_8080).to_le_bytes()
}

/// The words of a tensor of I32.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

impl Groups {
    /// Groups of `size` of `k` columns.
    pub fn of(k: usize, size: usize) -> Self {
        Self { size, count: k.div_ceil(size), index: None }
    }

    /// One for the row.
    pub fn whole(k: usize) -> Self {
        Self { size: k.next_multiple_of(PACKED[0]), count: 1, index: None }
    }

    /// Columns of the groups in which they are packed: the largest of which theirs are made up.
    fn packed(&self) -> Option<usize> {
        if self.index.is_some() {
            return None;
        }
        let whole = (self.count == 1).then_some(PACKED[0]);
        PACKED.into_iter().find(|packed| self.size.is_multiple_of(*packed)).or(whole)
    }
}

impl StoredModule {
    /// A module whose tensors have been found to fit. Zero points that are all in the middle are left out.
    pub(super) fn new(probe: &Probe<'_>, parts: Parts) -> Result<Self> {
        let Parts { shape, dtype, values, codes, scales, scale_dtype, zeros, groups, mut others } = parts;
        probe.times(shape[0], shape[1])?;
        let zeros = match zeros {
            Some(zeros) if zeros.are_middle(probe.checkpoint)? => {
                others.push(zeros.tensor);
                None
            }
            zeros => zeros,
        };
        let format = |group| BlockFormat::new(values, group, scale_dtype, zeros.is_some());
        let blocks = groups.packed().map(format).transpose()?;
        let name = probe.module.to_owned();
        Ok(Self { name, shape, dtype, values, codes, scales, scale_dtype, zeros, groups, blocks, others })
    }

    /// `[n, k]`: outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// What the format's own code dequantizes to: f16, bf16 or f32.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How it is packed: in blocks, where its groups are made up of groups of 128, 64 or 32 columns, and else as
    /// floats.
    pub fn encoding(&self) -> Encoding {
        self.blocks.map_or(Encoding::Float(self.dtype), Encoding::Blocks)
    }

    /// The names of its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let zeros = self.zeros.as_ref().map(|zeros| &zeros.tensor);
        [&self.codes.tensor, &self.scales.tensor].into_iter().chain(zeros).chain(&self.others).map(String::as_str)
    }

    /// Rows of it, as they are packed in [`encoding`](Self::encoding).
    ///
    /// # Errors
    /// Rows that it does not have, or a file that can no longer be read.
    pub fn rows(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<Rows> {
        let Some(format) = self.blocks else {
            return Ok(Rows::Values(self.dequantized(checkpoint, rows)?, self.dtype));
        };
        self.check(checkpoint, &rows)?;
        let scales = self.scales(checkpoint, rows.clone())?;
        let zeros = self.zeros(checkpoint, rows.clone())?;
        let packed: Vec<usize> = match self.groups.count {
            1 => vec![0; self.shape[1].div_ceil(format.group())],
            _ => (0..self.shape[1]).step_by(format.group()).map(|column| column / self.groups.size).collect(),
        };
        let scales = match self.scale_dtype.size() {
            2 => repeated(scales.as_chunks::<2>().0, self.groups.count, &packed).as_flattened().to_vec(),
            _ => repeated(scales.as_chunks::<4>().0, self.groups.count, &packed).as_flattened().to_vec(),
        };
        let zeros = repeated(&zeros, self.groups.count, &packed);
        let codes = self.codes(checkpoint, rows)?;
        Ok(Rows::Blocks(BlockRows { format, codes, scales, zeros }))
    }

    /// Rows `[rows, k]` of floats in [`dtype`](Self::dtype), little-endian, as the format's own code dequantizes them.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn dequantized(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<Vec<u8>> {
        self.check(checkpoint, &rows)?;
        let [_, k] = self.shape;
        let Groups { size, count, index } = &self.groups;
        let values: [f32; 256] = std::array::from_fn(|code| self.values.value(code as u8));
        let scales = widened(&self.scales(checkpoint, rows.clone())?, self.scale_dtype);
        let zeros = self.zeros(checkpoint, rows.clone())?;
        let codes = self.codes(checkpoint, rows.clone())?;
        let row_bytes = k * self.dtype.size();
        let (mut rounding, mut rounded) = (Rounding::new(self.dtype, k), vec![0; rows.len() * row_bytes]);
        let (mut line, mut shifts) = (vec![0.0f32; k], vec![0.0f32; *count]);
        let lines = codes.chunks_exact(k).zip(scales.chunks_exact(*count)).zip(rounded.chunks_exact_mut(row_bytes));
        for (row, ((codes, scales), bytes)) in lines.enumerate() {
            if let Some(zeros) = zeros.get(row * count..(row + 1) * count) {
                shifts.iter_mut().zip(zeros).for_each(|(shift, &zero)| *shift = f32::from(zero));
            }
            match index {
                None => {
                    let groups = line.chunks_mut(*size).zip(codes.chunks(*size)).zip(scales.iter().zip(&shifts));
                    for ((line, codes), (scale, shift)) in groups {
                        for (value, &code) in line.iter_mut().zip(codes) {
                            *value = scale * (values[usize::from(code)] - shift);
                        }
                    }
                }
                Some(index) => {
                    for ((value, &code), &group) in line.iter_mut().zip(codes).zip(index) {
                        let group = group as usize;
                        *value = scales[group] * (values[usize::from(code)] - shifts[group]);
                    }
                }
            }
            rounding.round(&line, bytes);
        }
        Ok(rounded)
    }

    fn check(&self, checkpoint: &Checkpoint, rows: &Range<usize>) -> Result<()> {
        let n = self.shape[0];
        if rows.start <= rows.end && rows.end <= n {
            return Ok(());
        }
        let problem =
            format!("rows {}..{} of module `{}`, which has {n}", rows.start, rows.end, self.name.escape_debug());
        Err(Error::Checkpoint { file: checkpoint.name().to_owned(), problem })
    }

    /// `[rows, k]`.
    fn codes(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<Vec<u8>> {
        let ([n, k], name) = (self.shape, &self.codes.tensor);
        let slice = |row_bytes: usize| -> Result<Cow<'_, [u8]>> {
            Ok(checkpoint.tensor_slice(name, rows.start * row_bytes..rows.end * row_bytes)?.bytes)
        };
        Ok(match self.codes.layout {
            CodesLayout::WordsOfK(bits) => gptq::codes(&checkpoint.tensor(name)?.bytes, bits, n, rows),
            CodesLayout::WordsOfN => awq::codes(&checkpoint.tensor(name)?.bytes, [n, k], rows),
            CodesLayout::RowsOfWords(bits) => compressed::codes(&slice(k.div_ceil(bits.per_word()) * 4)?, bits, k),
            CodesLayout::Bytes => slice(k)?.into_owned(),
            CodesLayout::Nibbles => mxfp4::codes(&slice(k / 2)?),
            CodesLayout::HighNibbles => bitsandbytes::codes(&slice(k / 2)?),
        })
    }

    /// `[rows, groups]` in the dtype that they have in memory.
    fn scales(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<Vec<u8>> {
        let (size, groups, name) = (self.scale_dtype.size(), self.groups.count, &self.scales.tensor);
        match &self.scales.layout {
            ScalesLayout::Columns => {
                let bytes = checkpoint.tensor(name)?.bytes;
                Ok(match size {
                    2 => columns(bytes.as_chunks::<2>().0, self.shape[0], rows, groups).as_flattened().to_vec(),
                    _ => columns(bytes.as_chunks::<4>().0, self.shape[0], rows, groups).as_flattened().to_vec(),
                })
            }
            ScalesLayout::Rows(shared) => rows_of(checkpoint, name, rows, *shared, groups * size),
            ScalesLayout::Exponents(shared) => {
                let exponents = rows_of(checkpoint, name, rows, *shared, groups)?;
                Ok(exponents.iter().flat_map(|&exponent| mxfp4::power(exponent).to_le_bytes()).collect())
            }
            ScalesLayout::Nested(nested) => {
                let first = rows.start * groups;
                Ok(nested.scales(&checkpoint.tensor_slice(name, first..rows.end * groups)?.bytes, first))
            }
        }
    }

    /// `[rows, groups]`, where there are any.
    fn zeros(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<Vec<i8>> {
        let (n, groups) = (self.shape[0], self.groups.count);
        let Some(Stored { tensor, layout }) = &self.zeros else { return Ok(Vec::new()) };
        if let ZerosLayout::Bytes(shared) = *layout {
            let bytes = rows_of(checkpoint, tensor, rows, shared, groups)?;
            return Ok(bytes.into_iter().map(|byte| byte as i8).collect());
        }
        let mut zeros = vec![0; rows.len() * groups];
        let mut put = |row: usize, group: usize, zero: i8| {
            if rows.contains(&row) {
                zeros[(row - rows.start) * groups + group] = zero;
            }
        };
        let (bits, added, row_in_word): (_, _, [usize; 8]) = match *layout {
            ZerosLayout::Words(bits, added) => (bits, added, [0, 1, 2, 3, 4, 5, 6, 7]),
            ZerosLayout::Interleaved => (Bits::Four, 0, awq::OUTPUT_OF_NIBBLE),
            ZerosLayout::WordsOfRows(bits) => {
                let per_word = bits.per_word();
                let (first, end) = (rows.start / per_word, rows.end.div_ceil(per_word));
                let bytes = checkpoint.tensor_slice(tensor, first * groups * 4..end * groups * 4)?.bytes;
                for (at, word) in words(&bytes).enumerate() {
                    let (row, group) = ((first + at / groups) * per_word, at % groups);
                    bits.unpacked(word).enumerate().for_each(|(i, zero)| put(row + i, group, zero));
                }
                return Ok(zeros);
            }
            ZerosLayout::Bytes(_) => return Ok(zeros),
        };
        let per_word = bits.per_word();
        let (first, end) = (rows.start / per_word, rows.end.div_ceil(per_word));
        let bytes = checkpoint.tensor(tensor)?.bytes;
        for (group, line) in bytes.chunks_exact(n / per_word * 4).enumerate() {
            for (at, word) in words(line).enumerate().take(end).skip(first) {
                let values = bits.unpacked(word.wrapping_add(added));
                values.zip(row_in_word).for_each(|(zero, row)| put(at * per_word + row, group, zero));
            }
        }
        Ok(zeros)
    }
}

impl Stored<ZerosLayout> {
    /// Whether all are in the middle, which stands for 0.
    fn are_middle(&self, checkpoint: &Checkpoint) -> Result<bool> {
        let bytes = checkpoint.tensor(&self.tensor)?.bytes;
        Ok(match self.layout {
            ZerosLayout::Words(bits, added) => words(&bytes).all(|word| word.wrapping_add(added) == bits.middle()),
            ZerosLayout::Interleaved => words(&bytes).all(|word| word == Bits::Four.middle()),
            ZerosLayout::WordsOfRows(bits) => words(&bytes).all(|word| word == bits.middle()),
            ZerosLayout::Bytes(_) => bytes.iter().all(|&zero| zero == 0),
        })
    }
}

/// For each row, what its group of `groups` has for each packed group.
fn repeated<T: Copy>(values: &[T], groups: usize, packed: &[usize]) -> Vec<T> {
    let mut all = Vec::with_capacity(values.len() / groups * packed.len());
    for row in values.chunks_exact(groups) {
        all.extend(packed.iter().map(|&group| row[group]));
    }
    all
}

/// `[rows, groups]` of a tensor `[groups, n]`.
fn columns<T: Copy>(values: &[T], n: usize, rows: Range<usize>, groups: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(rows.len() * groups);
    for row in rows {
        all.extend(values.chunks_exact(n).map(|group| group[row]));
    }
    all
}

/// `[rows, row_bytes]` of a tensor `[⌈n / shared⌉, row_bytes]`.
fn rows_of(
    checkpoint: &Checkpoint,
    name: &str,
    rows: Range<usize>,
    shared: usize,
    row_bytes: usize,
) -> Result<Vec<u8>> {
    let (first, end) = (rows.start / shared, rows.end.div_ceil(shared));
    let bytes = checkpoint.tensor_slice(name, first * row_bytes..end.max(first) * row_bytes)?.bytes;
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

fn widened(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
    }
}

/// Rounds floats of f32 to a dtype, a line at a time.
struct Rounding {
    dtype: DType,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
}

impl Rounding {
    fn new(dtype: DType, line: usize) -> Self {
        let room = |of: DType| if dtype == of { line } else { 0 };
        Self { dtype, f16: vec![f16::ZERO; room(DType::F16)], bf16: vec![bf16::ZERO; room(DType::BF16)] }
    }

    /// The line's values, little-endian.
    fn round(&mut self, line: &[f32], bytes: &mut [u8]) {
        match self.dtype {
            DType::F16 => {
                self.f16.convert_from_f32_slice(line);
                bytes.as_chunks_mut().0.iter_mut().zip(&self.f16).for_each(|(to, value)| *to = value.to_le_bytes());
            }
            DType::BF16 => {
                self.bf16.convert_from_f32_slice(line);
                bytes.as_chunks_mut().0.iter_mut().zip(&self.bf16).for_each(|(to, value)| *to = value.to_le_bytes());
            }
            _ => bytes.as_chunks_mut().0.iter_mut().zip(line).for_each(|(to, value)| *to = value.to_le_bytes()),
        }
    }
}
