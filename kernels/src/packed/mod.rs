//! Packed weights: their formats, and how checkpoints get into them.
//!
//! A weight is `[N, K]`, one row per output.
//!
//! For CPUs it is held as panels of 32 outputs, so that a kernel takes one step of the sums of 32 outputs with two
//! vector loads and reads memory in order. A last panel is filled with zeros. Panels of a gated weight hold 16 gates
//! and the 16 ups that belong to them.
//!
//! For GPUs it is held row after row, as a checkpoint has it: tiles are rearranged in shared memory anyway. Of a gated
//! weight each gate is followed by the up that belongs to it, so that one thread has both in neighbouring columns.

pub(crate) mod blocks;
mod pack;
mod pack_blocks;
mod pack_floats;
mod panel;
mod panel_kind;
mod quantize;
mod row_major;
mod rows;
mod sixteen;
mod unpack;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::LazyLock;

use sinew_memory::{SimdLevel, Team};
use sinew_tensor::{BlockFormat, DType};

use crate::simd;
use crate::{Error, Result};

pub use blocks::{GROUP_SIZES, MAX_GROUP};
pub(crate) use pack::pack_panel;
pub(crate) use panel::Outputs;
pub use panel::PANEL;
pub(crate) use panel_kind::PanelKind;
pub(crate) use quantize::LEAST;
pub use rows::{Codes, RowCodes, WeightRows, Weights};

/// How the values of a weight are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Each by itself, as a float.
    Float(DType),
    /// As codes, whose scales are shared by blocks of a row.
    Blocks(BlockFormat),
}

impl From<DType> for Encoding {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}

impl From<BlockFormat> for Encoding {
    fn from(format: BlockFormat) -> Self {
        Self::Blocks(format)
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(dtype) => write!(f, "{dtype}"),
            Self::Blocks(format) => {
                write!(f, "{}-g{}-{}", format.values().name(), format.group(), format.scale_dtype())?;
                if format.zero_points() { f.write_str("-zp") } else { Ok(()) }
            }
        }
    }
}

/// How a packed weight is laid out. Formats are compared by name.
///
/// There are [`F32`], [`F16`] and [`BF16`] in panels, block-quantized ones in panels with groups of [`GROUP_SIZES`], and
/// [`F32_ROWS`], [`F16_ROWS`] and [`BF16_ROWS`]. No others can be made: kernels write and read as many bytes as the
/// format says, so it must be one that they know.
///
/// ```compile_fail,E0451
/// use sinew_kernels::packed::{BF16, Format};
/// let format = Format { name: "i4x32".into(), ..BF16 };
/// ```
#[derive(Debug)]
pub struct Format {
    name: Cow<'static, str>,
    order: Order,
}

/// How a format orders values.
#[derive(Clone, Copy, Debug)]
enum Order {
    Panels(PanelKind),
    Rows(DType),
}

/// A format of floats.
const fn floats(name: &'static str, order: Order) -> Format {
    Format { name: Cow::Borrowed(name), order }
}

/// Weights in f32: panels `[N/32][K][32]`.
pub static F32: Format = floats("f32x32", Order::Panels(PanelKind::F32));
/// Weights in f16: panels `[N/32][K][32]`.
pub static F16: Format = floats("f16x32", Order::Panels(PanelKind::F16));
/// Weights in bf16: panels `[N/32][K/2][32][2]`, zero behind an odd K. A vector register holds two steps of 16 sums,
/// which is what `vdpbf16ps` multiplies.
pub static BF16: Format = floats("bf16x32x2", Order::Panels(PanelKind::Bf16));
/// Weights in f32: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static F32_ROWS: Format = floats("f32-rows", Order::Rows(DType::F32));
/// Weights in f16: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static F16_ROWS: Format = floats("f16-rows", Order::Rows(DType::F16));
/// Weights in bf16: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static BF16_ROWS: Format = floats("bf16-rows", Order::Rows(DType::BF16));

/// Block-quantized weights: panels `[N/32]` of groups along K, each `[32]` scales, `[32]` zero points of a byte where
/// there are any, and words of 32 bits `[words][32]` with 4 or 8 codes of an output.
static BLOCKS: LazyLock<Vec<Format>> = LazyLock::new(|| {
    let named = |format| Format {
        name: format!("{}-x32", Encoding::Blocks(format)).into(),
        order: Order::Panels(PanelKind::Blocks(format)),
    };
    blocks::held().map(named).collect()
});

/// Every format.
pub fn formats() -> impl Iterator<Item = &'static Format> {
    [&F32, &F16, &BF16, &F32_ROWS, &F16_ROWS, &BF16_ROWS].into_iter().chain(&*BLOCKS)
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Format {}

impl Hash for Format {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

fn refuse(reason: String) -> Error {
    Error::Operands { operator: "packed weight", reason }
}

impl Format {
    /// The formats of an encoding: in panels, and in rows.
    /// [`Registry::format`](crate::Registry::format) says which of them a device reads.
    pub fn of(encoding: impl Into<Encoding>) -> impl Iterator<Item = &'static Self> {
        let encoding = encoding.into();
        formats().filter(move |f| f.encoding() == encoding)
    }

    /// The format that keeps weights in an encoding in panels, if there is one.
    pub fn in_panels(encoding: impl Into<Encoding>) -> Option<&'static Self> {
        Self::of(encoding).find(|f| !f.is_row_major())
    }

    /// The format that keeps weights as `dtype` row after row, if there is one.
    pub fn row_major(dtype: DType) -> Option<&'static Self> {
        formats().find(|f| f.dtype() == Some(dtype) && f.is_row_major())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the values are.
    pub fn encoding(&self) -> Encoding {
        match self.order {
            Order::Panels(kind) => kind.encoding(),
            Order::Rows(dtype) => Encoding::Float(dtype),
        }
    }

    /// The type of the values, where each is a float by itself.
    pub fn dtype(&self) -> Option<DType> {
        match self.encoding() {
            Encoding::Float(dtype) => Some(dtype),
            Encoding::Blocks(_) => None,
        }
    }

    /// The type of values that lie row after row: what kernels on GPUs read.
    ///
    /// # Errors
    /// Panels.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn row_dtype(&self) -> Result<DType> {
        match self.order {
            Order::Rows(dtype) => Ok(dtype),
            Order::Panels(_) => Err(refuse(format!("{} is not in rows", self.name))),
        }
    }

    /// Whether values lie row after row.
    pub fn is_row_major(&self) -> bool {
        matches!(self.order, Order::Rows(_))
    }

    /// How its panels hold values, if it has panels.
    pub(crate) fn panel_kind(&self) -> Option<PanelKind> {
        match self.order {
            Order::Panels(kind) => Some(kind),
            Order::Rows(_) => None,
        }
    }

    /// Outputs that cannot be packed apart: those of a panel; a row, or a gate and its up.
    pub fn outputs_per_unit(&self, gated: bool) -> usize {
        match self.order {
            Order::Panels(_) => PANEL,
            Order::Rows(_) => 1 + usize::from(gated),
        }
    }

    /// Units of a weight of `n` outputs: panels, rows, or pairs of gate and up.
    pub fn units(&self, n: usize, gated: bool) -> usize {
        let outputs = Outputs { n, gated };
        match self.order {
            Order::Panels(_) => outputs.panels(),
            Order::Rows(_) => outputs.columns(),
        }
    }

    /// Bytes of one unit.
    pub fn unit_bytes(&self, k: usize, gated: bool) -> usize {
        match self.order {
            Order::Panels(kind) => kind.bytes(k),
            Order::Rows(dtype) => k.saturating_mul(self.outputs_per_unit(gated) * dtype.size()),
        }
    }

    /// Bytes of a packed weight.
    pub fn packed_bytes(&self, n: usize, k: usize, gated: bool) -> usize {
        self.units(n, gated).saturating_mul(self.unit_bytes(k, gated))
    }

    /// The rows of a weight that a run of units holds, those of the gate before those of the up: what a loader must have
    /// at hand to pack it. Units do not know where they stand, so a run of them is packed as a smaller weight of these
    /// rows alone.
    pub fn unit_rows(&self, units: Range<usize>, n: usize, gated: bool) -> impl Iterator<Item = Range<usize>> {
        let outputs = Outputs { n, gated };
        let columns = match self.order {
            Order::Panels(_) => outputs.panel_columns(units),
            Order::Rows(_) => units.start.min(outputs.columns())..units.end.min(outputs.columns()),
        };
        let ups = gated.then(|| outputs.columns() + columns.start..outputs.columns() + columns.end);
        std::iter::once(columns).chain(ups)
    }

    /// Packs a weight, rounding, quantizing or widening in registers.
    ///
    /// ```
    /// use sinew_kernels::packed::{Format, WeightRows, Weights};
    /// use sinew_memory::{SimdLevel, Team};
    /// use sinew_tensor::DType;
    ///
    /// // Two outputs of three inputs, as a file has them, rounded to bf16 in panels.
    /// let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// let rows = [WeightRows::from_bytes(&bytes, DType::F32, 2, 3)?];
    /// let format = Format::in_panels(DType::BF16).expect("bf16 is kept in panels");
    /// let mut packed = vec![0; format.packed_bytes(2, 3, false)];
    /// format.pack(&Team::new(1)?, SimdLevel::detected(), &Weights::new(&rows, false), &mut packed)?;
    ///
    /// let mut row = [0.0; 3];
    /// format.unpack_row(&packed, 2, 3, false, 1, &mut row)?;
    /// assert_eq!(row, [4.0, 5.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Pieces with rows of other lengths, pieces of floats with pieces of codes, a gated weight of an odd number of rows,
    /// or another number of packed bytes.
    pub fn pack(&self, team: &Team, level: SimdLevel, weights: &Weights<'_>, packed: &mut [u8]) -> Result<()> {
        self.pack_strip(team, level, weights, 0..weights.k(), weights.k(), packed)
    }

    /// Values along K at whose multiples a weight can be cut into strips.
    pub fn strip_granule(&self) -> usize {
        match self.order {
            Order::Panels(kind) => kind.granule(),
            Order::Rows(_) => 1,
        }
    }

    /// Packs values `strip` of rows of `k`, which is all that `weights` hold of them; the packed bytes are the whole
    /// weight's. Strips that together are all of `k` give the bytes of [`pack`](Self::pack).
    ///
    /// # Errors
    /// Those of [`pack`](Self::pack), a strip that is not the weights' or not of the row, one that begins or, before the
    /// row's end, ends between multiples of [`strip_granule`](Self::strip_granule), and a part of rows that are to be
    /// rounded with one scale each.
    pub fn pack_strip(
        &self,
        team: &Team,
        level: SimdLevel,
        weights: &Weights<'_>,
        strip: Range<usize>,
        k: usize,
        packed: &mut [u8],
    ) -> Result<()> {
        simd::prepare_unoptimised();
        let (n, width, pieces) = (weights.n(), weights.k(), weights.pieces());
        let divided = |at: usize| at == k || at.is_multiple_of(self.strip_granule());
        if strip.len() != width || strip.end > k || !divided(strip.start) || !divided(strip.end) {
            let granule = self.strip_granule();
            return Err(refuse(format!(
                "values {strip:?} of rows of {k} from rows of {width} in {}, which is cut at multiples of {granule}",
                self.name
            )));
        }
        if weights.is_per_channel() && strip.len() != k {
            return Err(refuse(format!(
                "values {strip:?} of rows of {k} with one scale each, which is that of them all"
            )));
        }
        if let Some(piece) = pieces.iter().find(|piece| piece.k() != width) {
            return Err(refuse(format!("{piece} with rows of {width}")));
        }
        if let Some(piece) = pieces.iter().find(|piece| !piece.pack_into(self.encoding())) {
            return Err(refuse(format!("{piece} cannot be packed as {}", self.name)));
        }
        if pieces.iter().any(|piece| piece.floats().is_none() != pieces[0].floats().is_none()) {
            return Err(refuse("pieces of floats with pieces of codes; all or none can be codes".into()));
        }
        let outputs = weights.outputs();
        if outputs.gated && !n.is_multiple_of(2) {
            return Err(refuse(format!("{n} outputs cannot be halved into gate and up")));
        }
        let bytes = self.packed_bytes(n, k, outputs.gated);
        if packed.len() != bytes {
            let given = packed.len();
            return Err(refuse(format!("{n} outputs of {k} in {} are {bytes} bytes, not {given}", self.name)));
        }
        if bytes == 0 || strip.is_empty() {
            // Rows without values may be any number.
            return Ok(());
        }
        let (packed, start) = (packed.as_mut_ptr(), strip.start);
        // SAFETY: pieces hold their rows, the packed bytes hold the units with the strip in each, and tasks write units of
        // their own.
        unsafe {
            match self.order {
                Order::Panels(kind) => {
                    let packing = pack::Packing { kind, weights, start, k, packed };
                    simd::launch(level, team, outputs.panels(), &packing);
                }
                Order::Rows(dtype) => {
                    let copy = row_major::Copy { dtype, weights, start, k, packed };
                    simd::launch(level, team, copy.tasks(), &copy);
                }
            }
        }
        Ok(())
    }
}

/// A weight `[n, k]` in a packed format, or several of one shape, one behind another: the experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedShape {
    /// The packed format.
    pub format: &'static Format,
    /// Weights of this shape; 1 but for those of experts.
    pub groups: usize,
    /// Outputs of each, stacked matrices together.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Whether gate and up are interleaved, so that one pass gives `act(gate) · up`.
    pub gated: bool,
}

impl PackedShape {
    /// How values are held.
    pub fn encoding(&self) -> Encoding {
        self.format.encoding()
    }

    /// Bytes of all; the largest number where they are more.
    ///
    /// ```
    /// use sinew_kernels::packed::{BF16_ROWS, PackedShape};
    ///
    /// let shape = PackedShape { format: &BF16_ROWS, groups: 8, n: 6, k: 5, gated: true };
    /// assert_eq!(shape.bytes(), 8 * 6 * 5 * 2);
    /// ```
    pub fn bytes(&self) -> usize {
        self.format.packed_bytes(self.n, self.k, self.gated).saturating_mul(self.groups)
    }
}
