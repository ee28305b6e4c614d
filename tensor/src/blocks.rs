//! Weights of 4 or 8 bits whose scales are shared by blocks of a row: where their bytes are.
//!
//! A weight `w` of `[n, k]` is held as integers or small floats `q`, and every `group` consecutive values of a row share
//! one scale and, where the format has them, one zero point:
//! `w[i, j] = scale[i, j / group] · (q[i, j] − zero[i, j / group])`.

use sinew_memory::Error as MemoryError;

use crate::dtype::widen_float;
use crate::error::{Error, Result, shape_error};
use crate::{DType, Layout, Tensor};

/// What the values of a block-quantized weight are: each is held as a code of 4 or 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockValues {
    /// Integers from -8 to 7, in two's complement.
    Int4,
    /// Integers from -128 to 127.
    Int8,
    /// Floats of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (OCP's E2M1, as in MXFP4).
    F4E2M1,
    /// The sixteen values of [`BlockValues::NF4`], by their place.
    Nf4,
    /// [`DType::F8E4M3`].
    F8E4M3,
    /// [`DType::F8E5M2`].
    F8E5M2,
}

impl BlockValues {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Int4, Self::Int8, Self::F4E2M1, Self::Nf4, Self::F8E4M3, Self::F8E5M2];

    /// NF4, the quantiles of a normal distribution (QLoRA, <https://arxiv.org/abs/2305.14314>, appendix E, where they
    /// stand in f32).
    pub const NF4: [f32; 16] = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];

    /// What lies in the middle between a value of [`NF4`](Self::NF4) and the next.
    pub const fn nf4_middle(code: usize) -> f32 {
        let (a, b) = (Self::NF4[code], Self::NF4[code + 1]);
        a + (b - a) * 0.5
    }

    /// Bits of a code: 4 or 8.
    pub const fn bits(self) -> usize {
        match self {
            Self::Int4 | Self::F4E2M1 | Self::Nf4 => 4,
            Self::Int8 | Self::F8E4M3 | Self::F8E5M2 => 8,
        }
    }

    /// Whether they are integers: then there may be zero points.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Int4 | Self::Int8)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::F4E2M1 => "fp4",
            Self::Nf4 => "nf4",
            Self::F8E4M3 => "fp8",
            Self::F8E5M2 => "fp8-e5m2",
        }
    }

    /// What a code stands for; bits above its own are of no account.
    ///
    /// ```
    /// use sinew_tensor::BlockValues;
    /// assert_eq!(BlockValues::Int4.value(0xf), -1.0);
    /// assert_eq!(BlockValues::F4E2M1.value(0b1011), -1.5);
    /// assert_eq!(BlockValues::F8E4M3.value(0x7e), 448.0);
    /// ```
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::Int4 => f32::from(nibble(code, 0)),
            Self::Int8 => f32::from(code as i8),
            Self::F4E2M1 => {
                let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                if code & 8 == 0 { magnitude } else { -magnitude }
            }
            Self::Nf4 => Self::NF4[usize::from(code & 0xf)],
            Self::F8E4M3 => float8::F8E4M3::from_bits(code).to_f32(),
            Self::F8E5M2 => float8::F8E5M2::from_bits(code).to_f32(),
        }
    }

    /// The value whose magnitude is the largest finite one: of integers the negative one.
    pub const fn extreme(self) -> f32 {
        match self {
            Self::Int4 => -8.0,
            Self::Int8 => -128.0,
            Self::F4E2M1 => 6.0,
            Self::Nf4 => 1.0,
            Self::F8E4M3 => 448.0,
            Self::F8E5M2 => 57344.0,
        }
    }

    /// The code of the value next to `x`, ties to even; of the extreme ones beyond them. Of NaN it is 0, where there is
    /// no code for it.
    ///
    /// ```
    /// use sinew_tensor::BlockValues;
    /// assert_eq!(BlockValues::Int4.code(-9.0), 0x8);
    /// assert_eq!(BlockValues::F4E2M1.value(BlockValues::F4E2M1.code(2.5)), 2.0);
    /// ```
    pub fn code(self, x: f32) -> u8 {
        match self {
            Self::Int4 => x.round_ties_even().clamp(-8.0, 7.0) as i8 as u8 & 0xf,
            Self::Int8 => x.round_ties_even().clamp(-128.0, 127.0) as i8 as u8,
            Self::F4E2M1 => {
                // Half way to the next magnitude; the even one of two that are as near is the one whose code is even.
                const HALFWAY: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
                let above =
                    |(code, half): (usize, &f32)| if code % 2 == 0 { x.abs() > *half } else { x.abs() >= *half };
                let magnitude = HALFWAY.iter().enumerate().filter(|&at| above(at)).count() as u8;
                if x.is_sign_negative() { magnitude | 8 } else { magnitude }
            }
            Self::Nf4 => {
                // The even one of two codes whose values are as near.
                let above = |&code: &usize| {
                    let middle = Self::nf4_middle(code);
                    x > middle || code % 2 == 1 && x == middle
                };
                (0..15).filter(above).count() as u8
            }
            Self::F8E4M3 => float8::F8E4M3::from_f32(x.clamp(-448.0, 448.0)).to_bits(),
            Self::F8E5M2 => float8::F8E5M2::from_f32(x.clamp(-57344.0, 57344.0)).to_bits(),
        }
    }
}

/// The values that an int4 can have.
const INT4: std::ops::RangeInclusive<i8> = -8..=7;

/// How a weight is quantized: its values, how many of a row share a scale, the scales' dtype, and whether there are
/// zero points.
///
/// The weight is `w = scale · (q − zero)`, with `zero` 0 where the format has no zero points. Zero points are a signed
/// byte each, whatever the bits of a value. Checkpoints with unsigned values (GPTQ, AWQ) subtract 8 (or 128) from values
/// and zero points alike, which leaves the differences as they are.
///
/// ```
/// use sinew_tensor::{BlockFormat, BlockValues, DType};
/// let format = BlockFormat::new(BlockValues::Int4, 128, DType::F16, true)?;
/// let weight = format.layout(4864, 896)?;
/// assert_eq!(weight.values_shape(), [4864, 448]);
/// assert_eq!(weight.scales_shape(), [4864, 7]);
/// assert_eq!(weight.bytes(), 4864 * (448 + 7 * 2 + 7));
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    values: BlockValues,
    group: usize,
    scale: DType,
    zero_points: bool,
}

impl BlockFormat {
    /// int8 with an f32 scale for every 128 values: what tensors are rounded to where they are multiplied in int8.
    pub const INT8: Self = Self { values: BlockValues::Int8, group: 128, scale: DType::F32, zero_points: false };

    /// A format with a scale for every `group` consecutive values of a row. A `group` of at least the row's length is
    /// one scale for each row.
    ///
    /// # Errors
    /// [`Error::Shape`] for a group of 0, scales that are not floats, or zero points of values that are not integers.
    pub fn new(values: BlockValues, group: usize, scale: DType, zero_points: bool) -> Result<Self> {
        if zero_points && !values.is_integer() {
            return Err(shape_error("block format", format!("zero points of {}: integers have them", values.name())));
        }
        if group == 0 {
            return Err(shape_error("block format", "groups of 0 values: they start from 1"));
        }
        if !scale.is_float() {
            return Err(shape_error("block format", format!("scales of {scale}: a float is needed")));
        }
        Ok(Self { values, group, scale, zero_points })
    }

    /// The values.
    pub const fn values(&self) -> BlockValues {
        self.values
    }

    /// Values of a row that share a scale. The last group of a row may have fewer.
    pub const fn group(&self) -> usize {
        self.group
    }

    /// The dtype of the scales.
    pub const fn scale_dtype(&self) -> DType {
        self.scale
    }

    /// Whether each group has a zero point.
    pub const fn zero_points(&self) -> bool {
        self.zero_points
    }

    /// Where the bytes of a weight `[n, k]` are.
    ///
    /// # Errors
    /// [`Error::Shape`] where its elements or bytes cannot be counted.
    pub fn layout(self, n: usize, k: usize) -> Result<BlockLayout> {
        let layout = BlockLayout { format: self, n, k };
        // The shapes' own limit leaves room for any element size, so no byte or element index overflows.
        let count = |shape: [usize; 2], size: usize| Layout::contiguous(&shape).map(|all| all.elements() * size);
        count([n, k], 1)?;
        let values = count(layout.values_shape(), 1)?;
        let scales = count(layout.scales_shape(), self.scale.size())?;
        let zeros = layout.zeros_shape().map_or(Ok(0), |shape| count(shape, 1))?;
        let total = values.checked_add(scales).and_then(|bytes| bytes.checked_add(zeros));
        if total.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(shape_error("block layout", format!("[{n}, {k}] in {self:?} has too many bytes")));
        }
        Ok(layout)
    }
}

/// The bytes of a weight `[n, k]` in a [`BlockFormat`]: packed values, scales and zero points, each row-major.
///
/// Two int4 share a byte, the earlier of the row in its low four bits. Rows start on a byte: where `k` is odd the high
/// bits of a row's last byte belong to no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockLayout {
    format: BlockFormat,
    n: usize,
    k: usize,
}

/// Where an element of a [`BlockLayout`] is, in contiguous tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockIndex {
    /// The byte of the packed values that holds it.
    pub byte: usize,
    /// Its lowest bit in that byte: 0, or 4 for an int4 in an odd column.
    pub shift: u8,
    /// The element of scales, and of zero points, that it is quantized with.
    pub group: usize,
}

impl BlockLayout {
    /// The format.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// `[n, k]`, the shape of the weight.
    pub fn shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// Bytes of the packed values of a row.
    pub fn row_bytes(&self) -> usize {
        if self.format.values.bits() == 4 { self.k.div_ceil(2) } else { self.k }
    }

    /// Groups of a row: `⌈k / group⌉`.
    pub fn groups(&self) -> usize {
        self.k.div_ceil(self.format.group)
    }

    /// `[n, row_bytes]`, the shape of the packed values, which are u8.
    pub fn values_shape(&self) -> [usize; 2] {
        [self.n, self.row_bytes()]
    }

    /// `[n, groups]`, the shape of the scales.
    pub fn scales_shape(&self) -> [usize; 2] {
        [self.n, self.groups()]
    }

    /// `[n, groups]`, the shape of the zero points, which are i8, where the format has any.
    pub fn zeros_shape(&self) -> Option<[usize; 2]> {
        self.format.zero_points.then(|| self.scales_shape())
    }

    /// Bytes of the packed values.
    pub fn values_bytes(&self) -> usize {
        self.n * self.row_bytes()
    }

    /// Bytes of the scales.
    pub fn scales_bytes(&self) -> usize {
        self.n * self.groups() * self.format.scale.size()
    }

    /// Bytes of the zero points.
    pub fn zeros_bytes(&self) -> usize {
        self.zeros_shape().map_or(0, |[n, groups]| n * groups)
    }

    /// Bytes of all three.
    pub fn bytes(&self) -> usize {
        self.values_bytes() + self.scales_bytes() + self.zeros_bytes()
    }

    /// Where the element at a row and column is, if it is inside the shape.
    ///
    /// ```
    /// use sinew_tensor::{BlockFormat, BlockIndex, BlockValues, DType};
    /// let weight = BlockFormat::new(BlockValues::Int4, 2, DType::F32, false)?.layout(2, 5)?;
    /// assert_eq!(weight.index(1, 3), Some(BlockIndex { byte: 3 + 1, shift: 4, group: 3 + 1 }));
    /// assert_eq!(weight.index(1, 5), None);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    pub fn index(&self, row: usize, column: usize) -> Option<BlockIndex> {
        if row >= self.n || column >= self.k {
            return None;
        }
        let (byte, shift, group) = self.place(column);
        Some(BlockIndex { byte: row * self.row_bytes() + byte, shift, group: row * self.groups() + group })
    }

    /// Byte and bit within the row's packed values, and group within the row's.
    fn place(&self, column: usize) -> (usize, u8, usize) {
        let (byte, shift) =
            if self.format.values.bits() == 4 { (column / 2, (column % 2) as u8 * 4) } else { (column, 0) };
        (byte, shift, column / self.format.group)
    }

    /// The packed bytes of `n · k` integers in row-major order, each row on whole bytes.
    ///
    /// # Errors
    /// [`Error::Shape`] for a format of floats, another number of values, or those of [`pack_int4`].
    pub fn pack(&self, values: &[i8]) -> Result<Vec<u8>> {
        if !self.format.values.is_integer() {
            return Err(shape_error("block pack", format!("integers into {}", self.format.values.name())));
        }
        if values.len() != self.n * self.k {
            return Err(shape_error("block pack", format!("{} values for [{}, {}]", values.len(), self.n, self.k)));
        }
        if self.format.values.bits() == 8 {
            return Ok(bytemuck::cast_slice(values).to_vec());
        }
        let mut packed = Vec::with_capacity(self.values_bytes());
        for row in values.chunks(self.k.max(1)) {
            packed.extend(pack_int4(row)?);
        }
        Ok(packed)
    }
}

/// Two int4 in each byte, the first in its low four bits. The high bits of the last byte of an odd number are 0.
///
/// ```
/// use sinew_tensor::{pack_int4, unpack_int4};
/// let packed = pack_int4(&[1, -1, 7])?;
/// assert_eq!(packed, [0xf1, 0x07]);
/// assert_eq!(unpack_int4(&packed, 3)?, [1, -1, 7]);
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] for a value outside -8 to 7, with its place.
pub fn pack_int4(values: &[i8]) -> Result<Vec<u8>> {
    if let Some(at) = values.iter().position(|value| !INT4.contains(value)) {
        return Err(shape_error("pack_int4", format!("{} at {at} is outside -8..=7", values[at])));
    }
    let low = |value: i8| value as u8 & 0xf;
    Ok(values.chunks(2).map(|pair| low(pair[0]) | pair.get(1).map_or(0, |&second| low(second) << 4)).collect())
}

/// The first `len` int4 of packed bytes: what [`pack_int4`] was given. Bits past the last value are ignored.
///
/// # Errors
/// [`Error::Shape`] for another number of bytes than `⌈len / 2⌉`.
pub fn unpack_int4(packed: &[u8], len: usize) -> Result<Vec<i8>> {
    if packed.len() != len.div_ceil(2) {
        let reason = format!("{} bytes for {len} values, which are {}", packed.len(), len.div_ceil(2));
        return Err(shape_error("unpack_int4", reason));
    }
    Ok(packed.iter().flat_map(|&byte| [nibble(byte, 0), nibble(byte, 4)]).take(len).collect())
}

/// The four bits from `shift` on, with their sign.
fn nibble(byte: u8, shift: u8) -> i8 {
    ((byte >> shift) << 4) as i8 >> 4
}

/// An element of a [`BlockWeight`]: it stands for `scale · (q − zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockElement {
    /// The quantized value.
    pub q: f32,
    /// The scale of its group.
    pub scale: f64,
    /// The zero point of its group; 0 where the format has none.
    pub zero: i8,
}

/// A block-quantized weight `[n, k]`: packed values, scales and zero points whose shapes and dtypes fit the format.
///
/// The tensors share their buffers, as clones of tensors do: a weight over tensors of a mapped file copies nothing.
/// They may be views of any strides.
///
/// ```
/// use sinew_memory::Cpu;
/// use sinew_tensor::{BlockFormat, BlockValues, BlockWeight, DType, Tensor};
/// let layout = BlockFormat::new(BlockValues::Int4, 2, DType::F32, true)?.layout(1, 3)?;
/// let cpu = Cpu::get();
/// let values = Tensor::from_vec(&cpu, layout.pack(&[-8, 7, 3])?, &layout.values_shape())?;
/// let scales = Tensor::from_slice(&cpu, &[0.5f32, 2.0], &layout.scales_shape())?;
/// let zeros = Tensor::from_slice(&cpu, &[0i8, 1], &layout.scales_shape())?;
/// let weight = BlockWeight::new(layout, values, scales, Some(zeros))?;
/// let last = weight.element(0, 2)?;
/// assert_eq!((last.q, last.scale, last.zero), (3.0, 2.0, 1)); // w = 2 · (3 − 1)
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct BlockWeight {
    layout: BlockLayout,
    values: Tensor,
    scales: Tensor,
    zeros: Option<Tensor>,
}

impl BlockWeight {
    /// A weight of these tensors: `values` u8 `[n, row_bytes]`, `scales` `[n, groups]` of the format's dtype, and
    /// `zeros` i8 `[n, groups]` if and only if the format has zero points.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] for a tensor that does not fit the layout, [`Error::Shape`] for zero points
    /// that are missing or that the format does not have, and [`MemoryError::Invalid`] for tensors of several devices.
    pub fn new(layout: BlockLayout, values: Tensor, scales: Tensor, zeros: Option<Tensor>) -> Result<Self> {
        check("block values", &values, DType::U8, layout.values_shape())?;
        check("block scales", &scales, layout.format.scale, layout.scales_shape())?;
        match (&zeros, layout.zeros_shape()) {
            (Some(zeros), Some(shape)) => check("block zero points", zeros, DType::I8, shape)?,
            (None, None) => {}
            (Some(_), None) => return Err(shape_error("block zero points", "given, but the format has none")),
            (None, Some(shape)) => return Err(shape_error("block zero points", format!("missing: {shape:?} of i8"))),
        }
        let device = values.device().id();
        if let Some(other) = [Some(&scales), zeros.as_ref()].into_iter().flatten().find(|t| t.device().id() != device) {
            let reason = format!("block weight: values on {device}, but scales or zeros on {}", other.device().id());
            return Err(MemoryError::Invalid(reason).into());
        }
        Ok(Self { layout, values, scales, zeros })
    }

    /// Format and shapes.
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// The packed values: u8 `[n, row_bytes]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The scales: `[n, groups]`.
    pub fn scales(&self) -> &Tensor {
        &self.scales
    }

    /// The zero points, where the format has them: i8 `[n, groups]`.
    pub fn zeros(&self) -> Option<&Tensor> {
        self.zeros.as_ref()
    }

    /// The quantized value at a row and column with the scale and zero point of its group, read on the host: for
    /// references and tools, one element at a time. Kernels read the tensors at [`BlockLayout::index`].
    ///
    /// # Errors
    /// [`Error::Shape`] outside the weight, and [`MemoryError::NotHostVisible`] for device memory
    /// ([`Tensor::to_device`] brings it to the host).
    pub fn element(&self, row: usize, column: usize) -> Result<BlockElement> {
        let [n, k] = self.layout.shape();
        if row >= n || column >= k {
            return Err(shape_error("block element", format!("[{row}, {column}] of a weight [{n}, {k}]")));
        }
        let (byte, shift, group) = self.layout.place(column);
        let q = self.layout.format.values.value(element_bytes(&self.values, [row, byte])?[0] >> shift);
        let scale = widen_float(self.scales.dtype(), element_bytes(&self.scales, [row, group])?);
        let zero = match &self.zeros {
            Some(zeros) => element_bytes(zeros, [row, group])?[0] as i8,
            None => 0,
        };
        Ok(BlockElement { q, scale, zero })
    }
}

impl std::fmt::Debug for BlockWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockWeight({:?} on {})", self.layout, self.values.device().id())
    }
}

fn check(operation: &'static str, tensor: &Tensor, dtype: DType, shape: [usize; 2]) -> Result<()> {
    if tensor.dtype() != dtype {
        return Err(Error::DType { operation, found: tensor.dtype(), asked: dtype });
    }
    if tensor.shape() != shape {
        return Err(shape_error(operation, format!("{:?} where {shape:?} is needed", tensor.layout())));
    }
    Ok(())
}

/// The bytes of one element. They need not be aligned.
fn element_bytes(tensor: &Tensor, index: [usize; 2]) -> Result<&[u8]> {
    let (size, layout) = (tensor.dtype().size(), tensor.layout());
    let outside = || shape_error("block element", format!("{index:?} of {layout:?}"));
    let at = layout.index(&index).ok_or_else(outside)? - layout.offset();
    Ok(&tensor.view().host_bytes()?[at * size..][..size])
}
