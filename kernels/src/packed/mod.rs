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

use std::hash::{Hash, Hasher};
use std::ops::Range;

use sinew_memory::{DeviceKind, SimdLevel, Team};
use sinew_tensor::{DType, View};

use crate::simd::{self, Kernel, LANES, Portable, Simd};
use crate::{Error, Result};

pub(crate) use pack::{Lane, pack_panel};
pub(crate) use panel::{GROUP, Outputs, PanelKind};
pub use panel::{PANEL, UnitRows};
pub(crate) use quantize::{OFFSET, Quantized};

/// How a packed weight is laid out. Formats are compared by name.
///
/// There are [`F32`], [`F16`], [`BF16`] and [`I8`] in panels, and [`F32_ROWS`], [`F16_ROWS`] and [`BF16_ROWS`]. No others can
/// be made: kernels write and read as many bytes as the format says, so it must be one that they know.
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

/// Rows of a weight as a checkpoint has them: at any address, in any strides.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
    dtype: DType,
    rows: usize,
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

    fn lane(&self, row: usize) -> Lane {
        let ptr = self.bytes.as_ptr().wrapping_add(row * self.row_stride * self.dtype.size());
        Lane { ptr, step: self.k_stride, dtype: self.dtype }
    }

    /// Whether all of `[rows, k]` lies in the bytes.
    fn holds(&self, k: usize) -> bool {
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

    fn outputs(&self) -> Outputs {
        Outputs { n: self.n(), gated: self.gated }
    }

    fn lane(&self, mut row: usize) -> Lane {
        for source in self.sources {
            if row < source.rows {
                return source.lane(row);
            }
            row -= source.rows;
        }
        Lane::EMPTY
    }
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
                Order::Panels(kind) => simd::launch(level, team, outputs.panels(), &Packing { kind, weights, packed }),
                Order::Rows(dtype) => {
                    let copy = row_major::Copy { dtype, weights, packed };
                    simd::launch(level, team, copy.tasks(), &copy);
                }
            }
        }
        Ok(())
    }

    /// Row `row` of a packed weight, widened: `row` counts as in [`Weights`].
    ///
    /// # Errors
    /// A row that is not there, or another number of packed bytes or of values.
    pub fn unpack_row(
        &self,
        packed: &[u8],
        n: usize,
        k: usize,
        gated: bool,
        row: usize,
        out: &mut [f32],
    ) -> Result<()> {
        if packed.len() != self.packed_bytes(n, k, gated)
            || row >= n
            || out.len() != k
            || (gated && !n.is_multiple_of(2))
        {
            return Err(refuse(format!(
                "row {row} of {n} outputs of {k} in {}, from {} bytes into {} values",
                self.name,
                packed.len(),
                out.len()
            )));
        }
        let outputs = Outputs { n, gated };
        let kind = match self.order {
            Order::Panels(kind) => kind,
            Order::Rows(dtype) => {
                let row = &packed[outputs.row_major(row) * k * dtype.size()..][..k * dtype.size()];
                let lane = Lane { ptr: row.as_ptr(), step: 1, dtype };
                // SAFETY: the lane and the output have `k` values, and every machine has the portable level.
                unsafe { lane.widen::<Portable>(0, k, out.as_mut_ptr()) };
                return Ok(());
            }
        };
        let (panel, lane) = outputs.place(row);
        let bytes = kind.bytes(k);
        let panel = &packed[panel * bytes..(panel + 1) * bytes];
        match kind {
            PanelKind::Bf16 => {
                for (x, step) in out.chunks_mut(2).zip(panel.chunks_exact(4 * PANEL)) {
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = half::bf16::from_le_bytes([step[4 * lane + 2 * i], step[4 * lane + 2 * i + 1]]).to_f32();
                    }
                }
            }
            PanelKind::F16 => {
                for (x, step) in out.iter_mut().zip(panel.chunks_exact(2 * PANEL)) {
                    *x = half::f16::from_le_bytes([step[2 * lane], step[2 * lane + 1]]).to_f32();
                }
            }
            PanelKind::I8 => {
                for (x, k) in out.chunks_mut(GROUP).zip((0..).step_by(GROUP)) {
                    let group = &panel[kind.bytes(k)..];
                    let (scales, quads) = group.split_at(PANEL * size_of::<f32>());
                    let at = 4 * lane;
                    let scale = f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]]);
                    for (i, x) in x.iter_mut().enumerate() {
                        let value = i16::from(quads[i / 4 * 4 * PANEL + at + i % 4]) - i16::from(OFFSET);
                        *x = scale * f32::from(value);
                    }
                }
            }
            PanelKind::F32 => {
                for (x, step) in out.iter_mut().zip(panel.chunks_exact(4 * PANEL)) {
                    let at = 4 * lane;
                    *x = f32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
                }
            }
        }
        Ok(())
    }
}

/// A task packs a panel.
struct Packing<'a> {
    kind: PanelKind,
    weights: &'a Weights<'a>,
    packed: *mut u8,
}

// SAFETY: tasks write disjoint panels through the pointer and only read the rest.
unsafe impl Sync for Packing<'_> {}

impl Kernel for Packing<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, panel: usize, _worker: usize) {
        let (weights, outputs) = (self.weights, self.weights.outputs());
        let mut lanes = [Lane::EMPTY; PANEL];
        for half in 0..2 {
            for (lane, row) in lanes[half * LANES..].iter_mut().zip(outputs.half_panel(panel, half)) {
                *lane = weights.lane(row);
            }
        }
        // SAFETY: `pack` checked that rows are in their pieces and that the panel is in the packed bytes.
        unsafe {
            let to = self.packed.add(panel * self.kind.bytes(weights.k));
            pack_panel::<S>(&lanes, self.kind, 0, weights.k, to);
        }
    }
}
