//! Formats of packed weights, and how checkpoints get into them.
//!
//! A weight `[N, K]`, one row per output, is held as panels of 32 outputs, so that a kernel takes one step of the sums
//! of 32 outputs with two vector loads and reads memory in order. A last panel is filled with zeros. Panels of a gated
//! weight hold 16 gates and the 16 ups that belong to them.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use sinew_memory::{SimdLevel, Team};
use sinew_tensor::{DType, View};

use super::epilogue::half_panel;
use super::pack::{Lane, pack_panel};
use super::refuse;
use crate::Result;
use crate::simd::{self, Kernel, LANES, Simd};

/// Outputs of a panel.
pub const PANEL: usize = 32;

/// How a packed weight is laid out. Formats are compared by name.
#[derive(Debug)]
pub struct Format {
    /// The name.
    pub name: &'static str,
    /// The type of the values.
    pub dtype: DType,
}

/// Weights in f32: panels `[N/32][K][32]`.
pub static F32: Format = Format { name: "f32x32", dtype: DType::F32 };
/// Weights in f16: panels `[N/32][K][32]`.
pub static F16: Format = Format { name: "f16x32", dtype: DType::F16 };
/// Weights in bf16: panels `[N/32][K/2][32][2]`, zero behind an odd K. A vector register holds two steps of 16 sums,
/// which is what `vdpbf16ps` multiplies.
pub static BF16: Format = Format { name: "bf16x32x2", dtype: DType::BF16 };

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
        if !super::supported(dtype) || expected != Some(bytes.len()) {
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
        if !super::supported(dtype) {
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
        self.sources.iter().map(|s| s.rows).sum()
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
        [&F32, &F16, &BF16].into_iter().find(|format| format.dtype == dtype)
    }

    /// Panels of a weight of `n` outputs.
    pub fn panels(&self, n: usize, gated: bool) -> usize {
        if gated { (n / 2).div_ceil(LANES) } else { n.div_ceil(PANEL) }
    }

    /// Bytes of one panel.
    pub fn panel_bytes(&self, k: usize) -> usize {
        padded_k(self.dtype, k).saturating_mul(PANEL * self.dtype.size())
    }

    /// Bytes of a packed weight.
    pub fn packed_bytes(&self, n: usize, k: usize, gated: bool) -> usize {
        self.panels(n, gated).saturating_mul(self.panel_bytes(k))
    }

    /// The rows of a weight that panel `panel` holds, as two ranges (the gates and the ups, or one range and an empty
    /// one): what a loader that packs a few panels at a time must have at hand.
    pub fn panel_rows(&self, panel: usize, n: usize, gated: bool) -> [Range<usize>; 2] {
        let range = |half| {
            let (first, count) = half_panel(panel, half, n, gated);
            first..first + count
        };
        let (low, high) = (range(0), range(1));
        if gated { [low, high] } else { [low.start..high.end.max(low.end), 0..0] }
    }

    /// Packs some panels of a weight, rounding or widening in registers. `packed` is the whole packed weight.
    ///
    /// # Errors
    /// Pieces that are shorter than said, panels that are not there, or another number of packed bytes.
    pub fn pack(
        &self,
        team: &Team,
        level: SimdLevel,
        weights: &Weights<'_>,
        panels: Range<usize>,
        packed: &mut [u8],
    ) -> Result<()> {
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
        let (all, bytes) = (self.panels(n, weights.gated), self.packed_bytes(n, k, weights.gated));
        if packed.len() != bytes || panels.end > all || panels.start > panels.end {
            return Err(refuse(format!(
                "panels {panels:?} of {all}, in {} bytes for {bytes}, of {n} outputs of {k} in {}",
                packed.len(),
                self.name
            )));
        }
        let (first, count) = (panels.start, panels.len());
        let job = Packing { format: self, weights, first, packed: packed.as_mut_ptr() };
        // SAFETY: pieces hold their rows, the packed bytes hold the panels, and tasks write panels of their own.
        unsafe { simd::launch(level, team, count, &job) };
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
        let (panel, lane) = match (gated, row < n / 2) {
            (false, _) => (row / PANEL, row % PANEL),
            (true, true) => (row / LANES, row % LANES),
            (true, false) => ((row - n / 2) / LANES, (row - n / 2) % LANES + LANES),
        };
        let bytes = self.panel_bytes(k);
        let panel = &packed[panel * bytes..(panel + 1) * bytes];
        match self.dtype {
            DType::BF16 => {
                for (x, step) in out.chunks_mut(2).zip(panel.chunks_exact(4 * PANEL)) {
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = half::bf16::from_le_bytes([step[4 * lane + 2 * i], step[4 * lane + 2 * i + 1]]).to_f32();
                    }
                }
            }
            DType::F16 => {
                for (x, step) in out.iter_mut().zip(panel.chunks_exact(2 * PANEL)) {
                    *x = half::f16::from_le_bytes([step[2 * lane], step[2 * lane + 1]]).to_f32();
                }
            }
            _ => {
                for (x, step) in out.iter_mut().zip(panel.chunks_exact(4 * PANEL)) {
                    let at = 4 * lane;
                    *x = f32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
                }
            }
        }
        Ok(())
    }
}

/// K as panels of a type hold it.
pub(super) fn padded_k(dtype: DType, k: usize) -> usize {
    if dtype == DType::BF16 { k.next_multiple_of(2) } else { k }
}

struct Packing<'a> {
    format: &'a Format,
    weights: &'a Weights<'a>,
    first: usize,
    packed: *mut u8,
}

// SAFETY: tasks write disjoint panels through the pointer and only read the rest.
unsafe impl Sync for Packing<'_> {}

impl Kernel for Packing<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        let (panel, weights) = (self.first + task, self.weights);
        let n = weights.n();
        let mut lanes = [Lane::EMPTY; PANEL];
        for (i, lane) in lanes.iter_mut().enumerate() {
            let (first, count) = half_panel(panel, i / LANES, n, weights.gated);
            if i % LANES < count {
                *lane = weights.lane(first + i % LANES);
            }
        }
        // SAFETY: `pack` checked that rows are in their pieces and that the panel is in the packed bytes.
        unsafe {
            let to = self.packed.add(panel * self.format.panel_bytes(weights.k));
            pack_panel::<S>(&lanes, self.format.dtype, 0, weights.k, to);
        }
    }
}
