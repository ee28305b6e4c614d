//! What is packed: rows of a weight, as a checkpoint or a tensor has them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use sinew_tensor::{BlockFormat, DType, View};

use super::{Encoding, Outputs, refuse};
use crate::Result;
use crate::cpu::line::Line;

/// Rows of a weight as a checkpoint has them: floats at any address, in any strides, or codes of a block format. Their
/// bytes are borrowed, or owned where they were read or made.
#[derive(Clone, Debug)]
pub struct WeightRows<'a> {
    rows: usize,
    k: usize,
    /// From one of them to the next among those that the values are of.
    step: usize,
    values: Values<'a>,
}

#[derive(Clone, Debug)]
enum Values<'a> {
    /// With strides in elements: from row to row, and along K.
    Floats { bytes: Cow<'a, [u8]>, dtype: DType, row_stride: usize, k_stride: usize },
    /// As [`Codes`] have them.
    Codes { format: BlockFormat, codes: Cow<'a, [u8]>, scales: Cow<'a, [u8]>, zeros: Cow<'a, [i8]> },
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
    /// `[rows, groups]` where the format has zero points, else none: of int4 from -8 to 8.
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

/// A row of [`WeightRows`].
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightRow<'a> {
    Floats(Line),
    Codes(Codes<'a>),
}

impl WeightRow<'_> {
    /// That of a row of floats.
    pub fn line(self) -> Option<Line> {
        match self {
            Self::Floats(line) => Some(line),
            Self::Codes(_) => None,
        }
    }
}

impl<'a> WeightRows<'a> {
    /// `[rows, K]` in row-major order, at any alignment: a tensor of a checkpoint.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, or another number of bytes.
    pub fn from_bytes(bytes: impl Into<Cow<'a, [u8]>>, dtype: DType, rows: usize, k: usize) -> Result<Self> {
        let bytes = bytes.into();
        let expected = rows.checked_mul(k).and_then(|n| n.checked_mul(dtype.size()));
        let len = bytes.len();
        Self::of_floats(bytes, dtype, [rows, k], [k, 1]).filter(|_| expected == Some(len)).ok_or_else(|| {
            refuse(format!("a weight of {len} bytes as {dtype} [{rows}, {k}]; f32, f16 and bf16 can be packed"))
        })
    }

    /// `[rows, K]` that are columns of a tensor `[K, columns]` in row-major order, at any alignment; `bytes` begin at
    /// the first of them.
    ///
    /// ```
    /// use sinew_kernels::packed::WeightRows;
    /// use sinew_tensor::DType;
    ///
    /// // The last two of three columns, each of two values.
    /// let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let columns = WeightRows::from_columns(&bytes[4..], DType::F32, 2, 2, 3)?;
    /// assert_eq!((columns.rows(), columns.k()), (2, 2));
    /// # Ok::<(), sinew_kernels::Error>(())
    /// ```
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, or too few bytes.
    pub fn from_columns(
        bytes: impl Into<Cow<'a, [u8]>>,
        dtype: DType,
        rows: usize,
        k: usize,
        columns: usize,
    ) -> Result<Self> {
        let bytes = bytes.into();
        let len = bytes.len();
        Self::of_floats(bytes, dtype, [rows, k], [1, columns]).filter(|_| rows <= columns).ok_or_else(|| {
            refuse(format!(
                "{rows} of {columns} columns of {k} of {dtype} in {len} bytes; f32, f16 and bf16 can be packed"
            ))
        })
    }

    /// `[rows, K]` of a view on the host, in any strides.
    ///
    /// # Errors
    /// A type that is not f32, f16 or bf16, another number of dimensions, or device memory.
    pub fn from_view(view: &View<'a>) -> Result<Self> {
        let (dtype, layout) = (view.dtype(), view.layout());
        let (&[rows, k], &[row_stride, k_stride]) = (layout.shape(), layout.strides()) else {
            return Err(refuse(format!("a weight of {layout:?}, expected [outputs, K]")));
        };
        let bytes = view.buffer().as_slice::<u8>()?;
        let bytes = if layout.elements() == 0 { &[] } else { &bytes[layout.offset() * dtype.size()..] };
        Self::of_floats(bytes.into(), dtype, [rows, k], [row_stride, k_stride])
            .ok_or_else(|| refuse(format!("a weight of {dtype}; f32, f16 and bf16 can be packed")))
    }

    /// Floats of a type that can be packed, if all of them lie in the bytes.
    fn of_floats(bytes: Cow<'a, [u8]>, dtype: DType, [rows, k]: [usize; 2], strides: [usize; 2]) -> Option<Self> {
        let [row_stride, k_stride] = strides;
        if rows > 0 && k > 0 {
            let last = (rows - 1).checked_mul(row_stride)?.checked_add((k - 1).checked_mul(k_stride)?)?;
            last.checked_add(1)?.checked_mul(dtype.size()).filter(|end| *end <= bytes.len())?;
        }
        let values = Values::Floats { bytes, dtype, row_stride, k_stride };
        DType::COMPUTE.contains(&dtype).then_some(Self { rows, k, step: 1, values })
    }

    /// `[rows, K]` that are quantized: they are packed as they are, into the format of the same [`Encoding`].
    ///
    /// ```
    /// use sinew_kernels::packed::{Codes, WeightRows};
    /// use sinew_tensor::{BlockFormat, BlockValues, DType};
    ///
    /// // A row of 64 integers from -8 to 7, with a scale for each 32 of them.
    /// let format = BlockFormat::new(BlockValues::Int4, 32, DType::F32, false)?;
    /// let codes: Vec<u8> = (0..64).map(|i| (i % 16 - 8i8).to_le_bytes()[0]).collect();
    /// let scales: Vec<u8> = [0.5f32, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let rows = WeightRows::from_codes(Codes { format, codes: &codes, scales: &scales, zeros: &[] }, 1, 64)?;
    /// assert_eq!((rows.rows(), rows.k()), (1, 64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Other numbers of codes, scales or zero points; zero points of int4 that are not from -8 to 8.
    pub fn from_codes(codes: Codes<'a>, rows: usize, k: usize) -> Result<Self> {
        let Codes { format, codes, scales, zeros } = codes;
        Self::of_codes(format, codes.into(), scales.into(), zeros.into(), [rows, k])
    }

    /// The same of what was made for it: what [`Codes`] have.
    ///
    /// # Errors
    /// As for [`from_codes`](Self::from_codes).
    pub fn from_owned_codes(
        format: BlockFormat,
        codes: Vec<u8>,
        scales: Vec<u8>,
        zeros: Vec<i8>,
        rows: usize,
        k: usize,
    ) -> Result<Self> {
        Self::of_codes(format, codes.into(), scales.into(), zeros.into(), [rows, k])
    }

    fn of_codes(
        format: BlockFormat,
        codes: Cow<'a, [u8]>,
        scales: Cow<'a, [u8]>,
        zeros: Cow<'a, [i8]>,
        [rows, k]: [usize; 2],
    ) -> Result<Self> {
        if !(Codes { format, codes: &codes, scales: &scales, zeros: &zeros }).hold(rows, k) {
            let [codes, scales, zeros] = [codes.len(), scales.len(), zeros.len()];
            let format = Encoding::Blocks(format);
            return Err(refuse(format!(
                "{codes} codes, {scales} bytes of scales and {zeros} zero points of {rows} rows of {k} in {format}"
            )));
        }
        // So many that a difference of code and zero point has one bit more than a code.
        let most = 1i32 << (format.values().bits() - 1);
        if let Some(zero) = zeros.iter().find(|&&zero| i32::from(zero).abs() > most) {
            let format = Encoding::Blocks(format);
            return Err(refuse(format!("a zero point of {zero} in {format}: it has -{most} to {most}")));
        }
        Ok(Self { rows, k, step: 1, values: Values::Codes { format, codes, scales, zeros } })
    }

    /// The first of every `step` of some of them: the gates or the ups, say, where these take turns. No byte is moved. Of
    /// a step of 0 none is left, and rows that there are not are left out.
    ///
    /// ```
    /// use sinew_kernels::packed::WeightRows;
    /// use sinew_tensor::DType;
    ///
    /// let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let rows = WeightRows::from_bytes(&bytes, DType::F32, 3, 2)?;
    /// assert_eq!([rows.part(0..3, 2).rows(), rows.part(1..3, 2).rows()], [2, 1]);
    /// # Ok::<(), sinew_kernels::Error>(())
    /// ```
    pub fn part(&self, rows: Range<usize>, step: usize) -> WeightRows<'_> {
        let (start, end) = (rows.start.min(self.rows), rows.end.min(self.rows));
        let rows = if step == 0 { 0 } else { end.saturating_sub(start).div_ceil(step) };
        // No row is at a step that is more than is counted, and where none is left, none is looked for.
        let (k, first) = (self.k, if rows == 0 { 0 } else { start * self.step });
        let step = self.step.saturating_mul(step);
        let held = if rows == 0 { 0 } else { (rows - 1) * step + 1 };
        let values = match self.values {
            Values::Floats { ref bytes, dtype, row_stride, k_stride } => {
                let before = first.saturating_mul(row_stride).saturating_mul(dtype.size());
                let bytes = bytes.get(before..).unwrap_or_default().into();
                Values::Floats { bytes, dtype, row_stride, k_stride }
            }
            Values::Codes { format, ref codes, ref scales, ref zeros } => {
                let groups = k.div_ceil(format.group());
                let of = |each: usize| first * each..(first + held) * each;
                Values::Codes {
                    format,
                    codes: codes.get(of(k)).unwrap_or_default().into(),
                    scales: scales.get(of(groups * format.scale_dtype().size())).unwrap_or_default().into(),
                    zeros: zeros.get(of(if format.zero_points() { groups } else { 0 })).unwrap_or_default().into(),
                }
            }
        };
        WeightRows { rows, k, step, values }
    }

    /// How many there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The length of each.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The bytes of floats, in whatever strides, and their type; none of codes.
    pub fn floats(&self) -> Option<(&[u8], DType)> {
        match &self.values {
            Values::Floats { bytes, dtype, .. } => Some((bytes, *dtype)),
            Values::Codes { .. } => None,
        }
    }

    /// The codes of rows that are quantized; none of floats, nor of rows [between](Self::part) which there are others.
    pub fn codes(&self) -> Option<Codes<'_>> {
        match &self.values {
            _ if self.step != 1 => None,
            Values::Floats { .. } => None,
            &Values::Codes { format, ref codes, ref scales, ref zeros } => Some(Codes { format, codes, scales, zeros }),
        }
    }

    /// Whether they can be packed into a format of an encoding.
    pub(super) fn pack_into(&self, encoding: Encoding) -> bool {
        match self.values {
            Values::Floats { .. } => true,
            Values::Codes { format, .. } => encoding == Encoding::Blocks(format),
        }
    }

    fn row(&self, row: usize) -> WeightRow<'_> {
        let row = row * self.step;
        match &self.values {
            Values::Floats { bytes, dtype, row_stride, k_stride } => {
                WeightRow::Floats(Line::new(bytes.as_ptr(), *dtype, *k_stride).moved(row * row_stride))
            }
            &Values::Codes { format, ref codes, ref scales, ref zeros } => {
                WeightRow::Codes(Codes { format, codes, scales, zeros }.row(row, self.k))
            }
        }
    }
}

impl fmt::Display for WeightRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, k, values, .. } = self;
        write!(f, "{rows} rows of {k} of ")?;
        match values {
            Values::Floats { dtype, .. } => write!(f, "{dtype}"),
            Values::Codes { format, .. } => write!(f, "{}", Encoding::Blocks(*format)),
        }
    }
}

/// A weight to be packed: its rows, given as several pieces one after the other (queries, keys and values in one).
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pieces: &'a [WeightRows<'a>],
    gated: bool,
    per_channel: bool,
}

impl<'a> Weights<'a> {
    /// That of these pieces, whose rows are of one length. Where gated, the first half of all rows gates the second.
    pub fn new(pieces: &'a [WeightRows<'a>], gated: bool) -> Self {
        Self { pieces, gated, per_channel: false }
    }

    /// The same, but where floats are rounded to a block format each row has one scale, and one zero point, which all of
    /// its groups repeat.
    pub fn per_channel(self, per_channel: bool) -> Self {
        Self { per_channel, ..self }
    }

    /// All rows.
    pub fn n(&self) -> usize {
        // Pieces may share their bytes, so the sum may overflow. Then it is more than any packed bytes hold.
        self.pieces.iter().fold(0, |n: usize, piece| n.saturating_add(piece.rows))
    }

    /// The length of each; 0 where there are none.
    pub fn k(&self) -> usize {
        self.pieces.first().map_or(0, |piece| piece.k)
    }

    pub(super) fn pieces(&self) -> &'a [WeightRows<'a>] {
        self.pieces
    }

    /// Whether rows that are rounded have one scale each.
    pub(super) fn is_per_channel(&self) -> bool {
        self.per_channel
    }

    pub(super) fn outputs(&self) -> Outputs {
        Outputs { n: self.n(), gated: self.gated }
    }

    /// A row, if there are so many.
    pub(super) fn row(&self, mut row: usize) -> Option<WeightRow<'a>> {
        for piece in self.pieces {
            if row < piece.rows {
                return Some(piece.row(row));
            }
            row -= piece.rows;
        }
        None
    }
}
