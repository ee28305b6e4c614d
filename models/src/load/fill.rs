//! Slices of a checkpoint's tensors into packed weights.

use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};

use super::stored::{Stored, StripRows, common_blocks};
use super::{Loader, Part};
use crate::Result;
use crate::checkpoint::Checkpoint;

/// Bytes of the slices of a weight that are at hand together, a thread packing each, counted in f32: those of a bf16
/// file are half as large. Their pages are dropped before others are read, so that a weight is never in memory twice.
pub(crate) const AT_HAND_BYTES: usize = 16 << 20;
/// The largest slice.
const LARGEST_SLICE: usize = 4 << 20;
/// The least, where there are more threads than leave room for it: dropping the pages of smaller ones would take as long
/// as packing them.
const LEAST_SLICE: usize = 1 << 20;
/// Slices that a thread packs between two reports of progress, in which other work has its turn.
pub(super) const SLICES_A_TURN: usize = 4;
/// Bytes of a strip of weights that lie column after column, as a file has it: the slices that are made of it take
/// about as much.
const STRIP_BYTES: usize = AT_HAND_BYTES / 2;

/// Matrices `[n, k]` that a weight is packed from, or those of a group of several.
#[derive(Clone, Copy)]
struct Matrices<'s> {
    parts: &'s [Part],
    stored: &'s [Stored],
    /// Those of the groups before.
    before: usize,
    k: usize,
    /// Whether their codes are packed as they are.
    in_blocks: bool,
}

impl Loader<'_> {
    /// Packs matrices `[n, k]`, `each` to a group of a weight that has several, slice by slice, and drops the pages of
    /// each.
    ///
    /// A slice of a tensor that lies column after column has values in all of its pages. Of such tensors a strip of
    /// columns is read at a time, of all rows, and the slices that are made of it are packed. Where that cannot be, as
    /// the groups of act-order have columns from everywhere, a strip is all columns: the tensor is read once, and let go
    /// of when it is packed.
    pub(super) fn fill(
        &mut self,
        mut packer: WeightPacker,
        parts: &[Part],
        (stored, each): (&[Stored], usize),
        k: usize,
    ) -> Result<WeightPacker> {
        let (checkpoint, threads) = (self.checkpoint, self.ctx.host_threads());
        let in_blocks = common_blocks(stored, each, packer.is_ordered()) == Some(packer.encoding());
        let all = Matrices { parts, stored, before: 0, k, in_blocks };
        if parts.iter().zip(stored).any(|(part, stored)| stored.lies_by_columns(part)) {
            let groups = parts.chunks(each.max(1)).zip(stored.chunks(each.max(1))).enumerate();
            for (group, (parts, stored)) in groups {
                let matrices = Matrices { parts, stored, before: group * each, ..all };
                for strip in strips(matrices.strip_width(checkpoint, &packer), k) {
                    let mut slices = slices(&packer, threads, [strip.len(), k]);
                    slices.retain(|slice| slice.group == group);
                    self.fill_strip(&mut packer, &slices, matrices, strip)?;
                }
            }
        } else {
            let slices = slices(&packer, threads, [k, k]);
            self.fill_strip(&mut packer, &slices, all, 0..k)?;
        }
        // A page that is touched maps those around it, of slices that were let go of before.
        for (part, stored) in parts.iter().zip(stored) {
            stored.release(checkpoint, part, k);
        }
        Ok(packer)
    }

    /// Packs a strip of slices.
    fn fill_strip(
        &mut self,
        packer: &mut WeightPacker,
        slices: &[UnitSlice],
        matrices: Matrices<'_>,
        strip: Range<usize>,
    ) -> Result<()> {
        let (checkpoint, threads) = (self.checkpoint, self.ctx.host_threads());
        let Matrices { parts, stored, before, k, in_blocks } = matrices;
        let all = parts.iter().zip(stored);
        let at_hand =
            all.map(|(part, stored)| stored.strip(checkpoint, part, strip.clone(), k)).collect::<Result<Vec<_>>>()?;
        let row_bytes: Vec<usize> = stored.iter().map(|stored| stored.row_bytes(checkpoint, k)).collect();
        let pack = |slice: SliceToPack<'_>| -> Result<()> {
            let rows = slice.slice.rows.iter().map(|(part, rows)| {
                let (part, start) = (part - before, parts[part - before].rows.start);
                (part, start + rows.start..start + rows.end)
            });
            let rows: Vec<(usize, Range<usize>)> = rows.collect();
            let pieces = rows
                .iter()
                .map(|(part, rows)| at_hand[*part].rows(checkpoint, &parts[*part], rows.clone(), in_blocks))
                .collect::<Result<Vec<_>>>()?;
            slice.pack_strip(strip.clone(), &pieces.iter().map(StripRows::piece).collect::<Vec<_>>())?;
            for (part, rows) in rows {
                stored[part].release_rows(checkpoint, &parts[part], rows, k);
            }
            Ok(())
        };
        for slices in slices.chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, pack)?;
            let of_slices = slices.iter().flat_map(|slice| &slice.rows);
            let bytes: usize = of_slices.map(|(part, rows)| rows.len() * row_bytes[part - before]).sum();
            self.advance((bytes as u128 * strip.len() as u128 / (k as u128).max(1)) as usize);
        }
        for (strip, part) in at_hand.iter().zip(parts) {
            strip.release(checkpoint, part);
        }
        Ok(())
    }
}

impl Matrices<'_> {
    /// Columns of a strip.
    fn strip_width(&self, checkpoint: &Checkpoint, packer: &WeightPacker) -> usize {
        let k = self.k;
        let all = || self.parts.iter().zip(self.stored);
        let granules = all().map(|(part, stored)| stored.strip_granule(part));
        let granule = granules.fold(packer.strip_granule(), common_multiple);
        if granule >= k {
            return k;
        }
        let bytes = all().map(|(part, stored)| part.of.saturating_mul(stored.row_bytes(checkpoint, k)));
        let bytes = bytes.fold(0, usize::saturating_add) as u128;
        let width = (k as u128 * STRIP_BYTES as u128 / bytes.max(1)).min(k as u128) as usize;
        (width / granule * granule).max(granule)
    }
}

/// A weight in slices for so many threads, of which a strip is packed at a time: so many of all columns.
pub(super) fn slices(packer: &WeightPacker, threads: usize, [columns, k]: [usize; 2]) -> Vec<UnitSlice> {
    let bytes = (AT_HAND_BYTES / threads).clamp(LEAST_SLICE, LARGEST_SLICE);
    packer.slices_for(threads, bytes.saturating_mul(k.max(1)) / columns.max(1))
}

/// All columns in strips of some width.
fn strips(width: usize, k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(width.max(1)).map(move |start| start..k.min(start.saturating_add(width)))
}

/// The least number that both divide; the largest where that is more.
fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
}
