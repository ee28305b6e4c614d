//! What is packed: pieces of a weight, as a checkpoint or a tensor has them.

use std::fmt;

use sinew_tensor::{BlockFormat, DType, View};

use super::{Encoding, Outputs, refuse};
use crate::Result;
use crate::line::Line;

/// Rows of a weight as a checkpoint has them: floats at any address, in any strides, or codes of a block format.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub(super) rows: usize,
    values: Values<'a>,
    /// Whether a row that is rounded to blocks has one scale.
    per_channel: bool,
}

#[derive(Clone, Copy, Debug)]
enum Values<'a> {
    /// With strides in elements: from row to row, and along K.
    Floats {
        bytes: &'a [u8],
        dtype: DType,
        row_stride: usize,
        k_stride: usize,
    },
    Codes(Codes<'a>),
}

/// Rows of a weight that is quantized: row after row, a code in each byte.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// What they are, and how many share a scale.
    pub format: BlockFormat,
    /// `[rows, K]`: integers in two's complement, floats by their bits.
    pub codes: &'a [u8],
    /// `[rows, groups]` of the format's dtype, in little-endian order.
    pub scales: &'a [u8],
    /// `[rows, groups]` where the format has zero points, else none.
    pub zeros: &'a [i8],
}

impl Codes<'_> {
    /// Whether there are so many rows of `k`.
    fn hold(&self, rows: usize, k: usize) -> bool {
        let groups = k.div_ceil(self.format.group());
        let blocks = rows.checked_mul(groups);
        rows.checked_mul(k) == Some(self.codes.len())
            && blocks.and_then(|n| n.checked_mul(self.format.scale_dtype().size())) == Some(self.scales.len())
            && blocks.map(|n| if self.format.zero_points() { n } else { 0 }) == Some(self.zeros.len())
    }

    /// One row of `k`.
    fn row(&self, row: usize, k: usize) -> Self {
        let (groups, size) = (k.div_ceil(self.format.group()), self.format.scale_dtype().size());
        Self {
            codes: &self.codes[row * k..][..k],
            scales: &self.scales[row * groups * size..][..groups * size],
            zeros: if self.format.zero_points() { &self.zeros[row * groups..][..groups] } else { &[] },
            ..*self
        }
    }
}

/// Where [`Format::unpack_codes`](super::Format::unpack_codes) puts a row, as [`Codes`] have one.
#[derive(Debug)]
pub struct RowCodes<'a> {
    /// `[K]`: integers in two's complement, floats by their bits.
    pub codes: &'a mut [u8],
    /// `[groups]` of the format's dtype, in little-endian order.
    pub scales: &'a mut [u8],
    /// `[groups]` where the format has zero points, else none.
    pub zeros: &'a mut [i8],
}

/// A row of a [`Source`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    Floats(Line),
    Codes(Codes<'a>),
}

impl Row<'_> {
    /// That of a row of floats.
    pub fn line(self) -> Option<Line> {
        match self {
            Self::Floats(line) => Some(line),
            Self::Codes(_) => None,
        }
    }
}

impl<'a> Source<'a> {
    /// Rows `[rows, K]` in row-major order, at any alignment: a tensor of a checkpoint.
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
        Ok(Self::of_values(rows, Values::Floats { bytes, dtype, row_stride: k, k_stride: 1 }))
    }

    /// Rows `[rows, K]` that are columns of a tensor `[K, columns]` in row-major order, at any alignment; `bytes` begin
    /// at the first of them.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, or too few bytes.
    pub fn from_columns(bytes: &'a [u8], dtype: DType, rows: usize, k: usize, columns: usize) -> Result<Self> {
        let source = Self::of_values(rows, Values::Floats { bytes, dtype, row_stride: 1, k_stride: columns });
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
        let &[row_stride, k_stride] = layout.strides() else {
            return Err(refuse(format!("a weight of {layout:?}, expected [outputs, K]")));
        };
        Ok(Self::of_values(rows, Values::Floats { bytes, dtype, row_stride, k_stride }))
    }

    /// Rows `[rows, K]` that are quantized: they are packed as they are, into the format of the same
    /// [`Encoding`].
    ///
    /// # Errors
    /// Other numbers of codes, scales or zero points.
    pub fn from_codes(codes: Codes<'a>, rows: usize, k: usize) -> Result<Self> {
        if !codes.hold(rows, k) {
            let Codes { format, codes, scales, zeros } = codes;
            let [codes, scales, zeros] = [codes.len(), scales.len(), zeros.len()];
            let format = Encoding::Blocks(format);
            return Err(refuse(format!(
                "{codes} codes, {scales} bytes of scales and {zeros} zero points of {rows} rows of {k} in {format}"
            )));
        }
        Ok(Self::of_values(rows, Values::Codes(codes)))
    }

    fn of_values(rows: usize, values: Values<'a>) -> Self {
        Self { rows, values, per_channel: false }
    }

    /// The same, but where floats are rounded to a block format each row has one scale, and one zero point, which all of
    /// its groups repeat. A weight of which one piece says so is rounded so.
    pub fn per_channel(self, per_channel: bool) -> Self {
        Self { per_channel, ..self }
    }

    /// Whether it can be packed into a format of an encoding.
    pub(super) fn packs_into(&self, encoding: Encoding) -> bool {
        match self.values {
            Values::Floats { .. } => true,
            Values::Codes(codes) => encoding == Encoding::Blocks(codes.format),
        }
    }

    /// Whether it is quantized.
    pub(super) fn is_codes(&self) -> bool {
        matches!(self.values, Values::Codes(_))
    }

    fn row(&self, row: usize, k: usize) -> Row<'a> {
        match self.values {
            Values::Floats { bytes, dtype, row_stride, k_stride } => {
                Row::Floats(Line::new(bytes.as_ptr(), dtype, k_stride).moved(row * row_stride))
            }
            Values::Codes(codes) => Row::Codes(codes.row(row, k)),
        }
    }

    /// Whether all of `[rows, k]` lies in the bytes.
    pub(super) fn holds(&self, k: usize) -> bool {
        match self.values {
            Values::Floats { bytes, dtype, row_stride, k_stride } => {
                let reach = |stride: usize, size: usize| size.saturating_sub(1).checked_mul(stride);
                self.rows == 0
                    || k == 0
                    || reach(row_stride, self.rows)
                        .zip(reach(k_stride, k))
                        .and_then(|(a, b)| a.checked_add(b)?.checked_add(1)?.checked_mul(dtype.size()))
                        .is_some_and(|end| end <= bytes.len())
            }
            Values::Codes(codes) => codes.hold(self.rows, k),
        }
    }
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows;
        match self.values {
            Values::Floats { bytes, dtype, .. } => write!(f, "{rows} rows of {dtype} in {} bytes", bytes.len()),
            Values::Codes(codes) => write!(f, "{rows} rows of {}", Encoding::Blocks(codes.format)),
        }
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

impl<'a> Weights<'a> {
    /// All rows.
    pub fn n(&self) -> usize {
        // Pieces may share their bytes, so the sum may overflow. Then it is more than any packed bytes hold.
        self.sources.iter().fold(0, |n: usize, s| n.saturating_add(s.rows))
    }

    /// Whether rows that are rounded have one scale each.
    pub(super) fn per_channel(&self) -> bool {
        self.sources.iter().any(|source| source.per_channel)
    }

    pub(super) fn outputs(&self) -> Outputs {
        Outputs { n: self.n(), gated: self.gated }
    }

    /// A row, if there are so many.
    pub(super) fn row(&self, mut row: usize) -> Option<Row<'a>> {
        for source in self.sources {
            if row < source.rows {
                return Some(source.row(row, self.k));
            }
            row -= source.rows;
        }
        None
    }
}
