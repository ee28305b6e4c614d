//! Values of packed weights, one row at a time.

use super::blocks::{self, Element};
use super::{Format, Order, Outputs, PANEL, PanelKind, refuse};
use crate::Result;
use crate::line::Line;
use crate::simd::Portable;

impl Format {
    /// Row `row` of a packed weight, widened: `row` counts as in [`Weights`](super::Weights).
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
                let line = Line::new(row.as_ptr(), dtype, 1);
                // SAFETY: the line and the output have `k` values, and every machine has the portable level.
                unsafe { line.widen::<Portable>(k, out.as_mut_ptr()) };
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
            PanelKind::Blocks(format) => {
                for (k, x) in out.iter_mut().enumerate() {
                    let Element { q, scale, zero } = blocks::element(format, panel, lane, k);
                    *x = scale * (q - zero);
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

    /// `|scale| · (|q| + |zero|)` of every value of an output of a weight in blocks, for references.
    pub(crate) fn magnitudes(&self, packed: &[u8], k: usize, outputs: Outputs, output: usize) -> Vec<f64> {
        let Order::Panels(PanelKind::Blocks(format)) = self.order else { return Vec::new() };
        let (panel, lane) = outputs.place(output);
        let bytes = blocks::bytes(format, k);
        let of = |Element { q, scale, zero }: Element| f64::from(scale.abs()) * f64::from(q.abs() + zero.abs());
        (0..k).map(|k| of(blocks::element(format, &packed[panel * bytes..][..bytes], lane, k))).collect()
    }
}
