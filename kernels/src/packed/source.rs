//! What is packed: pieces of a weight, as a checkpoint or a tensor has them.

use sinew_tensor::{DType, View};

use super::{Outputs, refuse};
use crate::Result;
use crate::line::Line;

/// Rows of a weight as a checkpoint has them: at any address, in any strides.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub(super) bytes: &'a [u8],
    dtype: DType,
    pub(super) rows: usize,
    /// Strides in elements: from row to row, and along K.
    row_stride: usize,
    k_stride: usize,
}

impl<'a> Source<'a> {
    /// Rows `[rows, K]` in row-major order, at any alignment: a tensor of a mapped checkpoint.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, or another number of bytes.
    pub fn from_bytes(bytes: &'a [u8], dtype: DType, rows: usize, k: usize) -> Result<Self> {
        let expected = rows.checked_mul(k).and_then(|n| n.checked_mul(dtype.size()));
        if !DType::COMPUTE.contains(&dtype) || expected != Some(bytes.len()) {
            return Err(refuse(format!(
                "a weight of {} bytes as {dtype} [{rows}, {k}]; f32, f16 and bf16 can be packed",
                bytes.len()
            )));
        }
        Ok(Self { bytes, dtype, rows, row_stride: k, k_stride: 1 })
    }

    /// Rows `[rows, K]` that are columns of a tensor `[K, columns]` in row-major order, at any alignment; `bytes` begin
    /// at the first of them.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, or too few bytes.
    pub fn from_columns(bytes: &'a [u8], dtype: DType, rows: usize, k: usize, columns: usize) -> Result<Self> {
        let source = Self { bytes, dtype, rows, row_stride: 1, k_stride: columns };
        if !DType::COMPUTE.contains(&dtype) || rows > columns || !source.holds(k) {
            return Err(refuse(format!(
                "{rows} of {columns} columns of {k} of {dtype} in {} bytes; f32, f16 and bf16 can be packed",
                bytes.len()
            )));
        }
        Ok(source)
    }

    /// Rows `[rows, K]` of a view on the host, in any strides.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, another number of dimensions, or device memory.
    pub fn from_view(view: &View<'a>) -> Result<Self> {
        let (dtype, layout) = (view.dtype(), view.layout());
        let &[rows, _] = layout.shape() else {
            return Err(refuse(format!("a weight of {layout:?}, expected [outputs, K]")));
        };
        if !DType::COMPUTE.contains(&dtype) {
            return Err(refuse(format!("a weight of {dtype}; f32, f16 and bf16 can be packed")));
        }
        let bytes = view.buffer().as_slice::<u8>()?;
        let bytes = if layout.elements() == 0 { &[] } else { &bytes[layout.offset() * dtype.size()..] };
        Ok(Self { bytes, dtype, rows, row_stride: layout.strides()[0], k_stride: layout.strides()[1] })
    }

    fn line(&self, row: usize) -> Line {
        Line::new(self.bytes.as_ptr(), self.dtype, self.k_stride).moved(row * self.row_stride)
    }

    /// Whether all of `[rows, k]` lies in the bytes.
    pub(super) fn holds(&self, k: usize) -> bool {
        let reach = |stride: usize, size: usize| size.saturating_sub(1).checked_mul(stride);
        self.rows == 0
            || k == 0
            || reach(self.row_stride, self.rows)
                .zip(reach(self.k_stride, k))
                .and_then(|(a, b)| a.checked_add(b)?.checked_add(1)?.checked_mul(self.dtype.size()))
                .is_some_and(|end| end <= self.bytes.len())
    }
}

/// A weight to be packed: its rows, given as several pieces one after the other (queries, keys and values in one).
///
/// Where gated, the first half of all rows gates the second.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// The pieces.
    pub sources: &'a [Source<'a>],
    /// Length of each row.
    pub k: usize,
    /// Whether gate and up are interleaved.
    pub gated: bool,
}

impl Weights<'_> {
    /// All rows.
    pub fn n(&self) -> usize {
        // Pieces may share their bytes, so the sum may overflow. Then it is more than any packed bytes hold.
        self.sources.iter().fold(0, |n: usize, s| n.saturating_add(s.rows))
    }

    pub(super) fn outputs(&self) -> Outputs {
        Outputs { n: self.n(), gated: self.gated }
    }

    /// A row, if there are so many.
    pub(super) fn line(&self, mut row: usize) -> Option<Line> {
        for source in self.sources {
            if row < source.rows {
                return Some(source.line(row));
            }
            row -= source.rows;
        }
        None
    }
}
