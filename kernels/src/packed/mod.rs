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

mod pack;
mod panel;
mod quantize;
mod row_major;
mod source;
mod unpack;

use std::hash::{Hash, Hasher};
use std::ops::Range;

use sinew_memory::{DeviceKind, SimdLevel, Team};
use sinew_tensor::DType;

use crate::simd;
use crate::{Error, Result};

pub(crate) use pack::pack_panel;
pub(crate) use panel::{GROUP, Outputs, PanelKind};
pub use panel::{PANEL, UnitRows};
pub(crate) use quantize::{LEAST, OFFSET, Quantized};
pub use source::{Source, Weights};

/// How a packed weight is laid out. Formats are compared by name.
///
/// There are [`F32`], [`F16`], [`BF16`] and [`I8`] in panels, and [`F32_ROWS`], [`F16_ROWS`] and [`BF16_ROWS`]. No
/// others can be made: kernels write and read as many bytes as the format says, so it must be one that they know.
///
/// ```compile_fail,E0451
/// use sinew_kernels::packed::{BF16, Format};
/// let format = Format { name: "i4x32", ..BF16 };
/// ```
#[derive(Debug)]
pub struct Format {
    name: &'static str,
    order: Order,
}

/// How a format orders values.
#[derive(Clone, Copy, Debug)]
enum Order {
    Panels(PanelKind),
    Rows(DType),
}

/// Weights in f32: panels `[N/32][K][32]`.
pub static F32: Format = Format { name: "f32x32", order: Order::Panels(PanelKind::F32) };
/// Weights in f16: panels `[N/32][K][32]`.
pub static F16: Format = Format { name: "f16x32", order: Order::Panels(PanelKind::F16) };
/// Weights in bf16: panels `[N/32][K/2][32][2]`, zero behind an odd K. A vector register holds two steps of 16 sums,
/// which is what `vdpbf16ps` multiplies.
pub static BF16: Format = Format { name: "bf16x32x2", order: Order::Panels(PanelKind::Bf16) };
/// Weights in int8 with a scale for each 128 values of a row, to which they are rounded when packed: panels
/// `[N/32][K/128]` of `[32]` f32 scales and `[32][32][4]` values plus 128, zeros behind K.
pub static I8: Format = Format { name: "i8x32x4", order: Order::Panels(PanelKind::I8) };
/// Weights in f32: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static F32_ROWS: Format = Format { name: "f32-rows", order: Order::Rows(DType::F32) };
/// Weights in f16: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static F16_ROWS: Format = Format { name: "f16-rows", order: Order::Rows(DType::F16) };
/// Weights in bf16: rows `[N][K]`, or gated `[N/2][2][K]`.
pub static BF16_ROWS: Format = Format { name: "bf16-rows", order: Order::Rows(DType::BF16) };

/// Every format.
pub static FORMATS: [&Format; 7] = [&F32, &F16, &BF16, &I8, &F32_ROWS, &F16_ROWS, &BF16_ROWS];

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
    /// The format in which a kind of device keeps weights as `dtype`, if there is one: panels for CPUs, rows for
    /// others.
    pub fn of(dtype: DType, device: DeviceKind) -> Option<&'static Self> {
        FORMATS.into_iter().find(|f| f.dtype() == dtype && f.is_row_major() == (device != DeviceKind::CPU))
    }

    /// The format that keeps weights as `dtype` row after row, if there is one.
    pub fn row_major(dtype: DType) -> Option<&'static Self> {
        FORMATS.into_iter().find(|f| f.dtype() == dtype && f.is_row_major())
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The type of the values.
    pub fn dtype(&self) -> DType {
        match self.order {
            Order::Panels(kind) => kind.dtype(),
            Order::Rows(dtype) => dtype,
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

    /// The rows of a weight that a run of units holds: what a loader must have at hand to pack it. Units do not know
    /// where they stand, so a run of them is packed as a smaller weight of these rows alone.
    pub fn unit_rows(&self, units: Range<usize>, n: usize, gated: bool) -> UnitRows {
        let outputs = Outputs { n, gated };
        match self.order {
            Order::Panels(_) => outputs.rows(units),
            Order::Rows(_) if gated => UnitRows::Gated(units),
            Order::Rows(_) => UnitRows::Plain(units),
        }
    }

    /// Packs a weight, rounding, quantizing or widening in registers.
    ///
    /// # Errors
    /// Pieces that are shorter than said, a gated weight of an odd number of rows, or another number of packed bytes.
    pub fn pack(&self, team: &Team, level: SimdLevel, weights: &Weights<'_>, packed: &mut [u8]) -> Result<()> {
        let (n, k) = (weights.n(), weights.k);
        if let Some(source) = weights.sources.iter().find(|s| !s.holds(k)) {
            return Err(refuse(format!(
                "a weight's {} rows of {k} are not in its {} bytes",
                source.rows,
                source.bytes.len()
            )));
        }
        if weights.gated && !n.is_multiple_of(2) {
            return Err(refuse(format!("{n} outputs cannot be halved into gate and up")));
        }
        let bytes = self.packed_bytes(n, k, weights.gated);
        if packed.len() != bytes {
            let given = packed.len();
            return Err(refuse(format!("{n} outputs of {k} in {} are {bytes} bytes, not {given}", self.name)));
        }
        if bytes == 0 {
            // Rows without values may be any number.
            return Ok(());
        }
        let packed = packed.as_mut_ptr();
        let outputs = weights.outputs();
        // SAFETY: pieces hold their rows, the packed bytes hold the units, and tasks write units of their own.
        unsafe {
            match self.order {
                Order::Panels(kind) => {
                    let packing = pack::Packing { kind, weights, packed };
                    simd::launch(level, team, outputs.panels(), &packing);
                }
                Order::Rows(dtype) => {
                    let copy = row_major::Copy { dtype, weights, packed };
                    simd::launch(level, team, copy.tasks(), &copy);
                }
            }
        }
        Ok(())
    }
}
