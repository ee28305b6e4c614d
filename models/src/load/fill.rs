//! Slices of a checkpoint's tensors into packed weights.

use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};

use super::matrices::{Matrices, bytes};
use super::matrix::{Becomes, Matrix};
use super::{Loader, Part};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::quantized::common_multiple;

/// Bytes of a weight that are at hand together, slices or strips of all threads, counted in f32: those of a bf16 file are
/// half as large. Their pages are dropped before others are read, so that a weight is never in memory twice. Where a model
/// is written quantized, as many of a tensor are.
pub(crate) const AT_HAND_BYTES: usize = 16 << 20;
/// A slice, counted likewise: what a thread reads of it stays in its second cache, and its allocator keeps no more.
const SLICE: usize = 1 << 20;
/// Slices that a thread packs between two reports of progress, in which other work has its turn.
pub(super) const SLICES_A_TURN: usize = 16;
/// Bytes of a strip of weights that lie column after column, as a file has it: the slices that are made of it take
/// about as much.
const STRIP_BYTES: usize = AT_HAND_BYTES / 2;

/// What strips are made of.
struct Filled<'m> {
    matrices: &'m Matrices,
    /// Those of a group, or of all.
    of: Range<usize>,
    becomes: &'m Becomes,
}

/// Rows of what has this number.
type RowsOf = (usize, Range<usize>);

impl Loader<'_> {
    /// Packs matrices slice by slice, their codes as they are stored or as the floats that they mean, and drops the pages
    /// of each.
    ///
    /// A slice of a tensor that lies column after column has values in all of its pages. Of such tensors a strip of
    /// columns is read at a time, of all rows, and the slices that are made of it are packed. Where that cannot be, as
    /// the groups of act-order have columns from everywhere, a strip is all columns: the tensor is read once, and let go
    /// of when it is packed. However many parts are rows of a matrix, there is one strip of it.
    pub(super) fn fill(
        &mut self,
        mut packer: WeightPacker,
        matrices: &Matrices,
        becomes: &Becomes,
    ) -> Result<WeightPacker> {
        let (checkpoint, threads, k) = (self.checkpoint, self.ctx.host_threads(), matrices.k());
        let stored = matrices.stored();
        if stored.iter().any(Matrix::lies_by_columns) {
            for (group, of) in matrices.by_group().enumerate() {
                let filled = Filled { matrices, of, becomes };
                for strip in strips(filled.strip_width(checkpoint, &packer), k) {
                    let mut slices = slices(&packer, threads, [strip.len(), k]);
                    slices.retain(|slice| slice.group == group);
                    self.fill_strip(&mut packer, &slices, &filled, strip)?;
                }
            }
        } else {
            let slices = slices(&packer, threads, [k, k]);
            let filled = Filled { matrices, of: 0..stored.len(), becomes };
            self.fill_strip(&mut packer, &slices, &filled, 0..k)?;
        }
        // A page that is touched maps those around it, of slices that were let go of before.
        stored.iter().for_each(|matrix| matrix.release(checkpoint));
        Ok(packer)
    }

    /// Packs a strip of slices.
    fn fill_strip(
        &mut self,
        packer: &mut WeightPacker,
        slices: &[UnitSlice],
        filled: &Filled<'_>,
        strip: Range<usize>,
    ) -> Result<()> {
        let (checkpoint, threads) = (self.checkpoint, self.ctx.host_threads());
        let Filled { matrices, of, becomes } = filled;
        let (stored, first) = (filled.stored(), of.start);
        let strips = stored.iter().map(|matrix| matrix.strip(checkpoint, strip.clone()));
        let at_hand = strips.collect::<Result<Vec<_>>>()?;
        let row_bytes: Vec<usize> = stored.iter().map(|matrix| matrix.row_bytes(checkpoint)).collect();
        // The parts of a slice, each with the place of its matrix here, and their rows.
        let rows_of = |slice: &UnitSlice| {
            let part = |(part, rows): &(usize, Range<usize>)| {
                let (part, matrix) = &matrices.parts()[*part];
                (part, matrix - first, rows.clone())
            };
            slice.rows.iter().map(part).collect::<Vec<_>>()
        };
        let pack = |slice: SliceToPack<'_>| -> Result<()> {
            let parts = rows_of(slice.slice);
            let (spans, places) = spans(&parts);
            let read = spans.iter().map(|(matrix, rows)| at_hand[*matrix].rows(rows.clone(), becomes));
            let read = read.collect::<Result<Vec<_>>>()?;
            let pieces = places.iter().zip(&parts).map(|((span, rows), (part, ..))| {
                let before = spans[*span].1.start;
                read[*span].part(rows.start - before..rows.end - before, part.step())
            });
            slice.pack_strip(strip.clone(), &pieces.collect::<Vec<_>>())?;
            for (part, matrix, rows) in parts {
                stored[matrix].release_rows(checkpoint, part.in_tensor(rows));
            }
            Ok(())
        };
        for slices in slices.chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, pack)?;
            let of_slices = slices.iter().flat_map(rows_of);
            let bytes: usize = of_slices.map(|(_, matrix, rows)| rows.len() * row_bytes[matrix]).sum();
            self.advance((bytes as u128 * strip.len() as u128 / (matrices.k() as u128).max(1)) as usize);
        }
        at_hand.iter().for_each(|strip| strip.release());
        Ok(())
    }
}

impl Filled<'_> {
    /// The matrices, each once.
    fn stored(&self) -> &[Matrix] {
        &self.matrices.stored()[self.of.clone()]
    }

    /// Columns of a strip.
    fn strip_width(&self, checkpoint: &Checkpoint, packer: &WeightPacker) -> usize {
        let k = self.matrices.k();
        let granules = self.stored().iter().map(Matrix::strip_granule);
        let granule = granules.fold(packer.strip_granule(), common_multiple);
        if granule >= k {
            return k;
        }
        let bytes = bytes(self.stored(), checkpoint) as u128;
        let width = (k as u128 * STRIP_BYTES as u128 / bytes.max(1)).min(k as u128) as usize;
        (width / granule * granule).max(granule)
    }
}

/// The rows of matrices that parts of a slice take, parts which take turns in some being one span of them; and for each part
/// its span and its rows in the matrix.
fn spans(parts: &[(&Part, usize, Range<usize>)]) -> (Vec<RowsOf>, Vec<RowsOf>) {
    let (mut spans, mut places) = (Vec::<RowsOf>::new(), Vec::new());
    for (part, matrix, rows) in parts {
        let rows = part.in_matrix(rows.clone());
        match spans.last_mut() {
            Some((of, span)) if of == matrix && span.start < rows.end && rows.start < span.end => {
                *span = span.start.min(rows.start)..span.end.max(rows.end);
            }
            _ => spans.push((*matrix, rows.clone())),
        }
        places.push((spans.len() - 1, rows));
    }
    (spans, places)
}

/// A weight in slices for so many threads, of which a strip is packed at a time: so many of all columns.
pub(super) fn slices(packer: &WeightPacker, threads: usize, [columns, k]: [usize; 2]) -> Vec<UnitSlice> {
    packer.slices_for(threads, SLICE.saturating_mul(k.max(1)) / columns.max(1))
}

/// All columns in strips of some width.
fn strips(width: usize, k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(width.max(1)).map(move |start| start..k.min(start.saturating_add(width)))
}
