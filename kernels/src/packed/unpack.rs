//! Values of packed weights, one row at a time.

use super::blocks::{self, Element};
use super::{Format, Order, Outputs, PANEL, PanelKind, RowCodes, refuse};
use crate::Result;
use crate::cpu::line::Line;
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

    /// Row `row` of a packed weight in blocks, as [`WeightRows::from_codes`](super::WeightRows::from_codes) would have it: its
    /// codes, scales and zero points. `row` counts as in [`Weights`](super::Weights).
    ///
    /// # Errors
    /// A format that is not one of blocks, a row that is not there, or another number of packed bytes, of codes, of
    /// scales or of zero points.
    pub fn unpack_codes(
        &self,
        packed: &[u8],
        n: usize,
        k: usize,
        gated: bool,
        row: usize,
        into: RowCodes<'_>,
    ) -> Result<()> {
        let RowCodes { codes, scales, zeros } = into;
        let Some(format) = self.panel_kind().and_then(PanelKind::blocks) else {
            return Err(refuse(format!("codes of a weight in {}: it is not in blocks", self.name)));
        };
        let (values, size) = (format.values(), format.scale_dtype().size());
        let groups = k.div_ceil(format.group());
        if packed.len() != self.packed_bytes(n, k, gated)
            || row >= n
            || codes.len() != k
            || Some(scales.len()) != groups.checked_mul(size)
            || zeros.len() != if format.zero_points() { groups } else { 0 }
            || (gated && !n.is_multiple_of(2))
        {
            return Err(refuse(format!(
                "row {row} of {n} outputs of {k} in {}, from {} bytes into {} codes, {} bytes of scales and {} zero \
                 points",
                self.name,
                packed.len(),
                codes.len(),
                scales.len(),
                zeros.len()
            )));
        }
        let (panel, lane) = Outputs { n, gated }.place(row);
        let bytes = blocks::bytes(format, k);
        let panel = &packed[panel * bytes..][..bytes];
        for (group, codes) in codes.chunks_mut(format.group()).enumerate() {
            let held = &panel[blocks::bytes(format, group * format.group())..];
            scales[group * size..][..size].copy_from_slice(&held[lane * size..][..size]);
            if format.zero_points() {
                zeros[group] = held[blocks::scales_bytes(format) + lane] as i8;
            }
            let words = held[blocks::header_bytes(format)..].chunks_exact(4 * PANEL);
            for (codes, words) in codes.chunks_mut(blocks::per_word(values)).zip(words) {
                let at = 4 * lane;
                let word = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
                for (k, code) in codes.iter_mut().enumerate() {
                    let held = (word >> blocks::shift(values, k)) & blocks::mask(values);
                    *code = (held as u8).wrapping_sub(blocks::offset(values));
                }
            }
        }
        Ok(())
    }
}
