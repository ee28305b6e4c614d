//! Slices of a checkpoint's tensors into packed weights.

use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};

use super::becomes::Becomes;
use super::matrices::{StoredMatrices, bytes};
use super::matrix::StoredMatrix;
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
    matrices: &'m StoredMatrices,
    /// Those of a group, or of all.
    of: Range<usize>,
    becomes: &'m Becomes,
}

/// What a slice is packed from.
struct SliceParts<'m> {
    parts: Vec<SlicePart<'m>>,
    spans: Vec<Span>,
}

/// Rows of a part.
struct SlicePart<'m> {
    part: &'m Part,
    rows: Range<usize>,
    /// The number of the span that they lie in, and their rows in its matrix.
    span: usize,
    in_matrix: Range<usize>,
}

/// Rows that are read together, and the number of the matrix that they are of.
struct Span {
    matrix: usize,
    rows: Range<usize>,
}

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
        matrices: &StoredMatrices,
        becomes: &Becomes,
    ) -> Result<WeightPacker> {
        let (checkpoint, threads, k) = (self.checkpoint, self.ctx.host_threads(), matrices.k());
        let stored = matrices.stored();
        if stored.iter().any(StoredMatrix::lies_by_columns) {
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
        let Filled { matrices, becomes, .. } = filled;
        let stored = filled.stored();
        let at_hand = stored.iter().map(|matrix| matrix.columns(checkpoint, strip.clone()));
        let at_hand = at_hand.collect::<Result<Vec<_>>>()?;
        let row_bytes: Vec<usize> = stored.iter().map(|matrix| matrix.row_bytes(checkpoint)).collect();
        let pack = |slice: SliceToPack<'_>| -> Result<()> {
            let SliceParts { parts, spans } = SliceParts::of(slice.slice, filled);
            let read = spans.iter().map(|span| at_hand[span.matrix].rows(span.rows.clone(), becomes));
            let read = read.collect::<Result<Vec<_>>>()?;
            let pieces = parts.iter().map(|SlicePart { part, span, in_matrix, .. }| {
                let before = spans[*span].rows.start;
                read[*span].part(in_matrix.start - before..in_matrix.end - before, part.step())
            });
            slice.pack_strip(strip.clone(), &pieces.collect::<Vec<_>>())?;
            for SlicePart { part, rows, span, .. } in parts {
                stored[spans[span].matrix].release_rows(checkpoint, part.in_tensor(rows));
            }
            Ok(())
        };
        for slices in slices.chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, pack)?;
            let bytes: usize = slices.iter().map(|slice| SliceParts::of(slice, filled).bytes(&row_bytes)).sum();
            self.advance((bytes as u128 * strip.len() as u128 / (matrices.k() as u128).max(1)) as usize);
        }
        at_hand.iter().for_each(|columns| columns.release());
        Ok(())
    }
}

impl Filled<'_> {
    /// The matrices, each once.
    fn stored(&self) -> &[StoredMatrix] {
        &self.matrices.stored()[self.of.clone()]
    }

    /// Columns of a strip.
    fn strip_width(&self, checkpoint: &Checkpoint, packer: &WeightPacker) -> usize {
        let k = self.matrices.k();
        let granules = self.stored().iter().map(StoredMatrix::strip_granule);
        let granule = granules.fold(packer.strip_granule(), common_multiple);
        if granule >= k {
            return k;
        }
        let bytes = bytes(self.stored(), checkpoint) as u128;
        let width = (k as u128 * STRIP_BYTES as u128 / bytes.max(1)).min(k as u128) as usize;
        (width / granule * granule).max(granule)
    }
}

impl<'m> SliceParts<'m> {
    /// Those of a slice. Parts that follow each other and take turns in a matrix lie in one span.
    fn of(slice: &UnitSlice, filled: &Filled<'m>) -> Self {
        let (mut parts, mut spans) = (Vec::new(), Vec::<Span>::new());
        for (part, rows) in &slice.rows {
            let (part, matrix) = &filled.matrices.parts()[*part];
            let (matrix, in_matrix) = (matrix - filled.of.start, part.in_matrix(rows.clone()));
            match spans.last_mut() {
                Some(Span { matrix: of, rows })
                    if *of == matrix && rows.start < in_matrix.end && in_matrix.start < rows.end =>
                {
                    *rows = rows.start.min(in_matrix.start)..rows.end.max(in_matrix.end);
                }
                _ => spans.push(Span { matrix, rows: in_matrix.clone() }),
            }
            parts.push(SlicePart { part, rows: rows.clone(), span: spans.len() - 1, in_matrix });
        }
        Self { parts, spans }
    }

    /// Bytes of the checkpoint, of so many of a row of each matrix.
    fn bytes(&self, row_bytes: &[usize]) -> usize {
        self.parts.iter().map(|part| part.rows.len() * row_bytes[self.spans[part.span].matrix]).sum()
    }
}

/// A weight in slices for so many threads, of which a strip is packed at a time: so many of all columns.
pub(super) fn slices(packer: &WeightPacker, threads: usize, [columns, k]: [usize; 2]) -> Vec<UnitSlice> {
    packer.slices_for(threads, SLICE.saturating_mul(k.max(1)) / columns.max(1))
}

/// All columns in strips of some width.
fn strips(width: usize, k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(width.max(1)).map(move |start| start..k.min(start.saturating_add(width)))
}
