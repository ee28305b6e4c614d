//! Columns of a quantized weight, of whose rows codes and values are made.

use std::borrow::Cow;
use std::ops::Range;

use sinew_ops::layers::Piece;
use sinew_tensor::DType;

use super::bits::{Bits, words};
use super::module::{CodesLayout, Groups, ScalesLayout, Stored, StoredModule, ZerosLayout};
use super::{awq, bitsandbytes, compressed, gptq, mxfp4};
use crate::error::Result;
use crate::floats::{Rounding, are_finite, widened};
use crate::tensors::Tensors;

/// Some columns of a [`StoredModule`]. What has all outputs of an input side by side is read when it is made, once; what
/// lies row after row when rows are asked for.
pub(crate) struct Strip<'a> {
    module: &'a StoredModule,
    tensors: &'a Tensors,
    columns: Range<usize>,
    /// The stored groups that they are in.
    groups: Range<usize>,
    /// What was read; nothing of what lies row after row.
    codes: Span<'a>,
    scales: Span<'a>,
    zeros: Span<'a>,
}

/// Bytes of a tensor that lie side by side.
#[derive(Default)]
struct Span<'a> {
    range: Range<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Span<'a> {
    fn read(tensors: &'a Tensors, tensor: &str, range: Range<usize>) -> Result<Self> {
        Ok(Self { bytes: tensors.tensor_slice(tensor, range.clone())?.bytes, range })
    }
}

impl StoredModule {
    /// Some columns of all its rows: all of them, or such as begin and end between strips.
    ///
    /// # Errors
    /// Other columns, or a file that can no longer be read.
    pub(crate) fn strip<'a>(&'a self, tensors: &'a Tensors, columns: Range<usize>) -> Result<Strip<'a>> {
        let [n, k] = self.shape;
        let granule = self.strip_granule();
        let divided = |at: usize| at == k || at.is_multiple_of(granule);
        if columns.start > columns.end || columns.end > k || !divided(columns.start) || !divided(columns.end) {
            let name = self.name.escape_debug();
            let Range { start, end } = columns;
            return Err(tensors.problem(format!("columns {start}..{end} of module `{name}`, which has {k}")));
        }
        let Groups { size, count, index, .. } = &self.groups;
        let groups = match index {
            None if *count > 1 => columns.start / size..columns.end.div_ceil(*size),
            _ => 0..*count,
        };
        let lines = |tensor: &str, lines: Range<usize>, line: usize| {
            Span::read(tensors, tensor, lines.start * line..lines.end * line)
        };
        let codes = &self.codes.tensor;
        let codes = match self.codes.layout {
            CodesLayout::WordsOfK(bits) => {
                let words = columns.start / bits.per_word()..columns.end / bits.per_word();
                lines(codes, words, n * 4)?
            }
            CodesLayout::WordsOfN => lines(codes, columns.clone(), n / 8 * 4)?,
            CodesLayout::RowsOfWords(_) | CodesLayout::Bytes | CodesLayout::Nibbles | CodesLayout::HighNibbles => {
                Span::default()
            }
        };
        let scales = match &self.scales.layout {
            ScalesLayout::Columns => lines(&self.scales.tensor, groups.clone(), n * self.scale_dtype.size())?,
            ScalesLayout::Rows(_) | ScalesLayout::Exponents(_) | ScalesLayout::Nested(_) => Span::default(),
        };
        let zeros = match &self.zeros {
            Some(Stored { tensor, layout: ZerosLayout::Words(bits, _) }) => {
                lines(tensor, groups.clone(), n / bits.per_word() * 4)?
            }
            Some(Stored { tensor, layout: ZerosLayout::Interleaved }) => lines(tensor, groups.clone(), n / 8 * 4)?,
            Some(Stored { layout: ZerosLayout::WordsOfRows(_) | ZerosLayout::Bytes(_), .. }) | None => Span::default(),
        };
        Ok(Strip { module: self, tensors, columns, groups, codes, scales, zeros })
    }

    /// Rows of it, as they are packed in [`encoding`](Self::encoding): as they are stored, with a scale for each packed
    /// group, or as floats.
    ///
    /// # Errors
    /// Rows that it does not have, or a file that can no longer be read.
    pub fn rows(&self, tensors: &Tensors, rows: Range<usize>) -> Result<Piece<'static>> {
        self.strip(tensors, 0..self.shape[1])?.rows(rows)
    }

    /// Rows `[rows, k]` of floats in [`dtype`](Self::dtype), little-endian, as the format's own code dequantizes them.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn dequantized(&self, tensors: &Tensors, rows: Range<usize>) -> Result<Vec<u8>> {
        self.strip(tensors, 0..self.shape[1])?.dequantized(rows)
    }
}

impl Strip<'_> {
    /// What [`dequantized`](Self::dequantized) gives.
    pub fn dtype(&self) -> DType {
        self.module.dtype
    }

    /// Lets go of the pages of what was read.
    pub fn release(&self) {
        let zeros = self.module.zeros.as_ref().map(|zeros| (&zeros.tensor, &self.zeros));
        let read = [(&self.module.codes.tensor, &self.codes), (&self.module.scales.tensor, &self.scales)];
        for (tensor, span) in read.into_iter().chain(zeros) {
            self.tensors.release_slice(tensor, span.range.clone());
        }
    }

    /// Rows `[rows, columns]`, as [`StoredModule::rows`] has them; those in blocks in the module's order.
    pub fn rows(&self, rows: Range<usize>) -> Result<Piece<'static>> {
        let Some(format) = self.module.blocks else {
            return Ok(Piece::Rows(self.dequantized(rows)?.into(), self.module.dtype));
        };
        self.module.check(self.tensors, &rows)?;
        let scales = self.scales(rows.clone())?;
        let zeros = self.zeros(rows.clone())?;
        // The stored group of each packed one.
        let packed: Vec<usize> = match self.module.groups.count {
            1 => vec![0; self.columns.len().div_ceil(format.group())],
            _ => {
                let columns = self.columns.clone().step_by(format.group());
                columns.map(|column| column / self.module.groups.size - self.groups.start).collect()
            }
        };
        let groups = self.groups.len();
        let scales = match self.module.scale_dtype.size() {
            2 => repeated(scales.as_chunks::<2>().0, groups, &packed).as_flattened().to_vec(),
            _ => repeated(scales.as_chunks::<4>().0, groups, &packed).as_flattened().to_vec(),
        };
        let zeros = repeated(&zeros, groups, &packed);
        let codes = self.codes(rows)?;
        let codes = match self.module.order() {
            Some(order) => in_order(&codes, order),
            None => codes,
        };
        Ok(Piece::Codes { format, codes: codes.into(), scales: scales.into(), zeros: zeros.into() })
    }

    /// Rows `[rows, columns]` of floats, as [`StoredModule::dequantized`] has them.
    pub fn dequantized(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        let module = self.module;
        module.check(self.tensors, &rows)?;
        let Groups { size, index, .. } = &module.groups;
        let (width, count) = (self.columns.len(), self.groups.len());
        let values: [f32; 256] = std::array::from_fn(|code| module.values.value(code as u8));
        let scales = widened(&self.scales(rows.clone())?, module.scale_dtype);
        let zeros = self.zeros(rows.clone())?;
        let codes = self.codes(rows.clone())?;
        let row_bytes = width * module.dtype.size();
        let (mut rounding, mut rounded) = (Rounding::new(module.dtype, width), vec![0; rows.len() * row_bytes]);
        if rounded.is_empty() {
            return Ok(rounded);
        }
        let (mut line, mut shifts) = (vec![0.0f32; width], vec![0.0f32; count]);
        let lines = codes.chunks_exact(width).zip(scales.chunks_exact(count)).zip(rounded.chunks_exact_mut(row_bytes));
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
                    for ((value, &code), &group) in line.iter_mut().zip(codes).zip(index.iter()) {
                        let group = group as usize;
                        *value = scales[group] * (values[usize::from(code)] - shifts[group]);
                    }
                }
            }
            rounding.round(&line, bytes);
        }
        Ok(rounded)
    }

    /// `[rows, columns]`.
    fn codes(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        let (module, width) = (self.module, self.columns.len());
        let slice = || -> Result<Cow<'_, [u8]>> {
            let row_bytes = module.row_bytes().unwrap_or(0);
            let range = rows.start * row_bytes..rows.end * row_bytes;
            Ok(self.tensors.tensor_slice(&module.codes.tensor, range)?.bytes)
        };
        Ok(match module.codes.layout {
            CodesLayout::WordsOfK(bits) => gptq::codes(&self.codes.bytes, bits, module.shape[0], rows),
            CodesLayout::WordsOfN => awq::codes(&self.codes.bytes, [module.shape[0], width], rows),
            CodesLayout::RowsOfWords(bits) => compressed::codes(&slice()?, bits, width),
            CodesLayout::Bytes => slice()?.into_owned(),
            CodesLayout::Nibbles => mxfp4::codes(&slice()?),
            CodesLayout::HighNibbles => bitsandbytes::codes(&slice()?),
        })
    }

    /// `[rows, groups]` in the dtype that they have in memory, all of them finite.
    fn scales(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        let (module, groups) = (self.module, self.groups.len());
        let (size, name) = (module.scale_dtype.size(), &module.scales.tensor);
        let scales = match &module.scales.layout {
            ScalesLayout::Columns => {
                let (bytes, n) = (&self.scales.bytes, module.shape[0]);
                match size {
                    2 => columns(bytes.as_chunks::<2>().0, n, rows, groups).as_flattened().to_vec(),
                    _ => columns(bytes.as_chunks::<4>().0, n, rows, groups).as_flattened().to_vec(),
                }
            }
            ScalesLayout::Rows(shared) => rows_of(self.tensors, name, rows, *shared, groups * size)?,
            ScalesLayout::Exponents(shared) => {
                let exponents = rows_of(self.tensors, name, rows, *shared, groups)?;
                exponents.iter().flat_map(|&exponent| mxfp4::power(exponent).to_le_bytes()).collect()
            }
            ScalesLayout::Nested(nested) => {
                let first = rows.start * groups;
                nested.scales(&self.tensors.tensor_slice(name, first..rows.end * groups)?.bytes, first)
            }
        };
        if are_finite(&scales, module.scale_dtype) {
            return Ok(scales);
        }
        let (module, name) = (module.name.escape_debug(), name.escape_debug());
        Err(self.tensors.problem(format!("module `{module}`: `{name}` has scales that are infinite or no numbers")))
    }

    /// `[rows, groups]`, where there are any.
    fn zeros(&self, rows: Range<usize>) -> Result<Vec<i8>> {
        let (n, groups) = (self.module.shape[0], self.groups.len());
        let Some(Stored { tensor, layout }) = &self.module.zeros else { return Ok(Vec::new()) };
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
            for (group, line) in self.zeros.bytes.chunks_exact(n / bits.per_word() * 4).enumerate() {
                for (at, word) in words(line).enumerate().take(end).skip(start) {
                    let values = bits.unpacked(word.wrapping_add(added));
                    values.zip(row_in_word).for_each(|(zero, row)| put(at * bits.per_word() + row, group, zero));
                }
            }
        };
        match *layout {
            ZerosLayout::Words(bits, added) => of_lines(bits, added, [0, 1, 2, 3, 4, 5, 6, 7]),
            ZerosLayout::Interleaved => of_lines(Bits::Four, 0, awq::OUTPUT_OF_NIBBLE),
            ZerosLayout::WordsOfRows(bits) => {
                let Range { start, end } = words_of(bits);
                let bytes = self.tensors.tensor_slice(tensor, start * groups * 4..end * groups * 4)?.bytes;
                for (at, word) in words(&bytes).enumerate() {
                    let (row, group) = ((start + at / groups) * bits.per_word(), at % groups);
                    bits.unpacked(word).enumerate().for_each(|(i, zero)| put(row + i, group, zero));
                }
            }
            ZerosLayout::Bytes(shared) => {
                let bytes = rows_of(self.tensors, tensor, rows, shared, groups)?;
                return Ok(bytes.into_iter().map(|byte| byte as i8).collect());
            }
        }
        Ok(zeros)
    }
}

/// Rows whose columns are taken in an order.
fn in_order(codes: &[u8], order: &[u32]) -> Vec<u8> {
    let mut ordered = Vec::with_capacity(codes.len());
    for row in codes.chunks_exact(order.len().max(1)) {
        ordered.extend(order.iter().map(|&column| row[column as usize]));
    }
    ordered
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
fn rows_of(tensors: &Tensors, name: &str, rows: Range<usize>, shared: usize, row_bytes: usize) -> Result<Vec<u8>> {
    let (first, end) = (rows.start / shared, rows.end.div_ceil(shared));
    let bytes = tensors.tensor_slice(name, first * row_bytes..end.max(first) * row_bytes)?.bytes;
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
