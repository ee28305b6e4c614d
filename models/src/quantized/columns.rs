//! Columns of a quantized weight, of whose rows codes and values are made.

use std::ops::Range;

use sinew_ops::layers::WeightRows;
use sinew_tensor::DType;

use super::layout::{Span, Stored, ZerosLayout};
use super::module::{Groups, StoredModule};
use crate::error::Result;
use crate::tensors::Tensors;
use crate::tensors::floats::{Rounding, are_finite, widened};

/// Some columns of a [`StoredModule`].
pub(crate) struct ModuleColumns<'a> {
    module: &'a StoredModule,
    tensors: &'a Tensors,
    columns: Range<usize>,
    /// The stored groups that they are in.
    groups: Range<usize>,
    codes: Span<'a>,
    scales: Span<'a>,
    zeros: Option<Span<'a>>,
}

impl StoredModule {
    /// Some columns of all its rows: all of them, or such as begin and end between strips.
    ///
    /// # Errors
    /// Other columns, or a file that can no longer be read.
    pub(crate) fn columns<'a>(&'a self, tensors: &'a Tensors, columns: Range<usize>) -> Result<ModuleColumns<'a>> {
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
        let codes = self.codes.layout.lines(n, columns.clone());
        let scales = self.scales.layout.lines(n, groups.clone(), self.scale_dtype.size());
        let zeros =
            |zeros: &'a Stored<ZerosLayout>| Span::read(tensors, &zeros.tensor, zeros.layout.lines(n, groups.clone()));
        Ok(ModuleColumns {
            codes: Span::read(tensors, &self.codes.tensor, codes)?,
            scales: Span::read(tensors, &self.scales.tensor, scales)?,
            zeros: self.zeros.as_ref().map(zeros).transpose()?,
            module: self,
            tensors,
            columns,
            groups,
        })
    }

    /// Rows of it, as they are packed in [`encoding`](Self::encoding): as they are stored, with a scale for each packed
    /// group, or as floats.
    ///
    /// # Errors
    /// Rows that it does not have, or a file that can no longer be read.
    pub fn rows(&self, tensors: &Tensors, rows: Range<usize>) -> Result<WeightRows<'static>> {
        self.columns(tensors, 0..self.shape[1])?.rows(rows)
    }

    /// Rows `[rows, k]` of floats in [`dtype`](Self::dtype), little-endian, as the format's own code dequantizes them.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn dequantized(&self, tensors: &Tensors, rows: Range<usize>) -> Result<Vec<u8>> {
        self.columns(tensors, 0..self.shape[1])?.dequantized(rows)
    }
}

impl ModuleColumns<'_> {
    /// What [`dequantized`](Self::dequantized) gives.
    pub fn dtype(&self) -> DType {
        self.module.dtype
    }

    /// Lets go of the pages of what was read.
    pub fn release(&self) {
        [&self.codes, &self.scales].into_iter().chain(&self.zeros).for_each(Span::release);
    }

    /// Rows `[rows, columns]`, as [`StoredModule::rows`] has them; those in blocks in the module's order.
    pub fn rows(&self, rows: Range<usize>) -> Result<WeightRows<'static>> {
        let (count, width) = (rows.len(), self.columns.len());
        let Some(format) = self.module.blocks else {
            let floats = WeightRows::from_bytes(self.dequantized(rows)?, self.module.dtype, count, width);
            return Ok(floats.map_err(sinew_ops::Error::from)?);
        };
        self.module.check(self.tensors, &rows)?;
        let scales = self.scales(rows.clone())?;
        let zeros = self.zeros(rows.clone())?;
        // The stored group of each packed one.
        let packed: Vec<usize> = match self.module.groups.count {
            1 => vec![0; width.div_ceil(format.group())],
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
        Ok(WeightRows::from_owned_codes(format, codes, scales, zeros, count, width).map_err(sinew_ops::Error::from)?)
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
        self.module.codes.layout.read(&self.codes, [self.module.shape[0], self.columns.len()], rows)
    }

    /// `[rows, groups]` in the dtype that they have in memory, all of them finite.
    fn scales(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        let StoredModule { shape, scales: Stored { tensor, layout }, scale_dtype, name, .. } = self.module;
        let scales = layout.read(&self.scales, [shape[0], self.groups.len()], scale_dtype.size(), rows)?;
        if are_finite(&scales, *scale_dtype) {
            return Ok(scales);
        }
        let (module, name) = (name.escape_debug(), tensor.escape_debug());
        Err(self.tensors.problem(format!("module `{module}`: `{name}` has scales that are infinite or no numbers")))
    }

    /// `[rows, groups]`, where there are any.
    fn zeros(&self, rows: Range<usize>) -> Result<Vec<i8>> {
        match (&self.module.zeros, &self.zeros) {
            (Some(zeros), Some(span)) => zeros.layout.read(span, [self.module.shape[0], self.groups.len()], rows),
            _ => Ok(Vec::new()),
        }
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
