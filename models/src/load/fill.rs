//! Slices of a checkpoint's tensors into packed weights.

use std::ops::Range;

use sinew_ops::layers::{SliceToPack, UnitSlice, WeightPacker};

use super::Loader;
use super::matrices::{Matrices, bytes};
use super::matrix::{Becomes, Matrix};
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

/// What a strip is made of.
#[derive(Clone, Copy)]
struct Filled<'m> {
    matrices: &'m [Matrix],
    /// Those of the groups before.
    before: usize,
    k: usize,
    becomes: &'m Becomes,
}

impl Loader<'_> {
    /// Packs matrices slice by slice, their codes as they are stored or as the floats that they mean, and drops the pages
    /// of each.
    ///
    /// A slice of a tensor that lies column after column has values in all of its pages. Of such tensors a strip of
    /// columns is read at a time, of all rows, and the slices that are made of it are packed. Where that cannot be, as
    /// the groups of act-order have columns from everywhere, a strip is all columns: the tensor is read once, and let go
    /// of when it is packed.
    pub(super) fn fill(
        &mut self,
        mut packer: WeightPacker,
        matrices: &Matrices,
        becomes: &Becomes,
    ) -> Result<WeightPacker> {
        let (checkpoint, threads, k) = (self.checkpoint, self.ctx.host_threads(), matrices.k());
        let mut all = Filled { matrices: matrices.all(), before: 0, k, becomes };
        if all.matrices.iter().any(Matrix::lies_by_columns) {
            for (group, of_group) in matrices.by_group().enumerate() {
                let of_group = Filled { matrices: of_group, ..all };
                for strip in strips(of_group.strip_width(checkpoint, &packer), k) {
                    let mut slices = slices(&packer, threads, [strip.len(), k]);
                    slices.retain(|slice| slice.group == group);
                    self.fill_strip(&mut packer, &slices, of_group, strip)?;
                }
                all.before += of_group.matrices.len();
            }
        } else {
            let slices = slices(&packer, threads, [k, k]);
            self.fill_strip(&mut packer, &slices, all, 0..k)?;
        }
        // A page that is touched maps those around it, of slices that were let go of before.
        all.matrices.iter().for_each(|matrix| matrix.release(checkpoint));
        Ok(packer)
    }

    /// Packs a strip of slices.
    fn fill_strip(
        &mut self,
        packer: &mut WeightPacker,
        slices: &[UnitSlice],
        filled: Filled<'_>,
        strip: Range<usize>,
    ) -> Result<()> {
        let (checkpoint, threads) = (self.checkpoint, self.ctx.host_threads());
        let Filled { matrices, before, k, becomes } = filled;
        let all = matrices.iter();
        let at_hand = all.map(|matrix| matrix.strip(checkpoint, strip.clone())).collect::<Result<Vec<_>>>()?;
        let row_bytes: Vec<usize> = matrices.iter().map(|matrix| matrix.row_bytes(checkpoint)).collect();
        let pack = |slice: SliceToPack<'_>| -> Result<()> {
            let of_slice = &slice.slice.rows;
            let rows = || of_slice.iter().map(|(matrix, rows)| (matrix - before, rows.clone()));
            let pieces =
                rows().map(|(matrix, rows)| at_hand[matrix].rows(rows, becomes)).collect::<Result<Vec<_>>>()?;
            slice.pack_strip(strip.clone(), &pieces)?;
            for (matrix, rows) in rows() {
                matrices[matrix].release_rows(checkpoint, rows);
            }
            Ok(())
        };
        for slices in slices.chunks(SLICES_A_TURN * threads) {
            packer.pack_each(&self.ctx, slices, pack)?;
            let of_slices = slices.iter().flat_map(|slice| &slice.rows);
            let bytes: usize = of_slices.map(|(matrix, rows)| rows.len() * row_bytes[matrix - before]).sum();
            self.advance((bytes as u128 * strip.len() as u128 / (k as u128).max(1)) as usize);
        }
        at_hand.iter().for_each(|strip| strip.release());
        Ok(())
    }
}

impl Filled<'_> {
    /// Columns of a strip.
    fn strip_width(&self, checkpoint: &Checkpoint, packer: &WeightPacker) -> usize {
        let k = self.k;
        let granules = self.matrices.iter().map(Matrix::strip_granule);
        let granule = granules.fold(packer.strip_granule(), common_multiple);
        if granule >= k {
            return k;
        }
        let bytes = bytes(self.matrices, checkpoint) as u128;
        let width = (k as u128 * STRIP_BYTES as u128 / bytes.max(1)).min(k as u128) as usize;
        (width / granule * granule).max(granule)
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
