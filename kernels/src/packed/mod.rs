//! Packed weights: their formats, and how checkpoints get into them.
//!
//! A weight `[N, K]`, one row per output, is held as panels of 32 outputs, so that a kernel takes one step of the sums
//! of 32 outputs with two vector loads and reads memory in order. A last panel is filled with zeros. Panels of a gated
//! weight hold 16 gates and the 16 ups that belong to them.

mod pack;
mod panel;

use std::hash::{Hash, Hasher};
use std::ops::Range;

use sinew_memory::{SimdLevel, Team};
use sinew_tensor::{DType, View};

use crate::simd::{self, Kernel, LANES, Simd};
use crate::{Error, Result};

pub(crate) use pack::{Block, Lane, pack_panel};
pub(crate) use panel::{Outputs, PanelKind};
pub use panel::{PANEL, PanelRows};

/// How a packed weight is laid out. Formats are compared by name.
///
/// There are [`F32`], [`F16`] and [`BF16`], and no others can be made: kernels write and read as many bytes as the format
/// says, so it must be one that they know.
///
/// ```compile_fail,E0451
/// use sinew_kernels::packed::{BF16, Format};
/// let format = Format { name: "i8x32", ..BF16 };
/// ```
#[derive(Debug)]
pub struct Format {
    name: &'static str,
    kind: PanelKind,
}

/// Weights in f32: panels `[N/32][K][32]`.
pub static F32: Format = Format { name: "f32x32", kind: PanelKind::F32 };
/// Weights in f16: panels `[N/32][K][32]`.
pub static F16: Format = Format { name: "f16x32", kind: PanelKind::F16 };
/// Weights in bf16: panels `[N/32][K/2][32][2]`, zero behind an odd K. A vector register holds two steps of 16 sums,
/// which is what `vdpbf16ps` multiplies.
pub static BF16: Format = Format { name: "bf16x32x2", kind: PanelKind::Bf16 };

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
    /// The format that keeps weights as `dtype`, if there is one.
    pub fn of(dtype: DType) -> Option<&'static Self> {
        [&F32, &F16, &BF16].into_iter().find(|format| format.dtype() == dtype)
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The type of the values.
    pub fn dtype(&self) -> DType {
        self.kind.dtype()
    }

    pub(crate) fn kind(&self) -> PanelKind {
        self.kind
    }

    /// Panels of a weight of `n` outputs.
    pub fn panels(&self, n: usize, gated: bool) -> usize {
        Outputs { n, gated }.panels()
    }

    /// Bytes of one panel.
    pub fn panel_bytes(&self, k: usize) -> usize {
        self.kind.bytes(k)
    }

    /// Bytes of a packed weight.
    pub fn packed_bytes(&self, n: usize, k: usize, gated: bool) -> usize {
        self.panels(n, gated).saturating_mul(self.panel_bytes(k))
    }

    /// The rows of a weight that a run of panels holds: what a loader must have at hand to pack it. Panels do not know
    /// where they stand, so a run of them is packed as a smaller weight of these rows alone.
    pub fn panel_rows(&self, panels: Range<usize>, n: usize, gated: bool) -> PanelRows {
        Outputs { n, gated }.rows(panels)
    }

    /// Packs a weight, rounding or widening in registers.
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
        let job = Packing { kind: self.kind, weights, packed: packed.as_mut_ptr() };
        // SAFETY: pieces hold their rows, the packed bytes hold the panels, and tasks write panels of their own.
        unsafe { simd::launch(level, team, weights.outputs().panels(), &job) };
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
        let (panel, lane) = Outputs { n, gated }.place(row);
        let bytes = self.panel_bytes(k);
        let panel = &packed[panel * bytes..(panel + 1) * bytes];
        match self.kind {
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
