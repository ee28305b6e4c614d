//! The parts that a weight is packed from, the matrices that they are rows of, and what the weight becomes.

use std::ops::Range;

use sinew_ops::Context;
use sinew_ops::layers::Encoding;

use super::Part;
use super::becomes::{Becomes, Dequantized, Why};
use super::matrix::StoredMatrix;
use crate::checkpoint::Checkpoint;
use crate::precision::Precision;
use crate::quantized::StoredModule;

/// Parts `[n, k]` of a checkpoint that one weight is made of, those of a group behind those of the group before, and the
/// matrices that they are rows of.
pub(super) struct StoredMatrices {
    /// Each once, though parts that follow each other are rows of one.
    stored: Vec<StoredMatrix>,
    /// Each with the number of its matrix.
    parts: Vec<(Part, usize)>,
    /// Parts of a group.
    each: usize,
    /// Groups: the experts of a mixture, or one.
    groups: usize,
    k: usize,
}

impl StoredMatrices {
    /// Those of the parts of so many groups, in the pieces that these are made of. There may be as many as a file claims to
    /// have: none is made after one that is not there, nor pieces of one that has another shape.
    pub(super) fn of(
        checkpoint: &Checkpoint,
        parts: impl IntoIterator<Item = Part>,
        groups: usize,
        k: usize,
    ) -> crate::Result<Self> {
        let (mut stored, mut all) = (Vec::<StoredMatrix>::new(), Vec::new());
        for part in parts {
            let rows = part.all_rows();
            if stored.last().is_none_or(|last| last.part != rows) {
                stored.push(StoredMatrix::of(checkpoint, rows, k)?);
            }
            let matrix = stored.len() - 1;
            all.extend(part.pieces().into_iter().map(|piece| (piece, matrix)));
        }
        Ok(Self { each: all.len() / groups.max(1), stored, parts: all, groups, k })
    }

    /// The matrices, each once.
    pub(super) fn stored(&self) -> &[StoredMatrix] {
        &self.stored
    }

    /// Names those that are quantized and do not stay so.
    pub(super) fn name_dequantized(&self, becomes: &Becomes, dequantized: &mut Dequantized) {
        let Some(why) = &becomes.dequantized else { return };
        for matrix in &self.stored {
            let Some(module) = matrix.module() else { continue };
            // Of parts in groups of their own alone these are why.
            let of_it = match (module.groups_in_no_blocks(), why) {
                (Some(groups), _) => Why::Groups(groups),
                (None, Why::Groups(_)) => Why::OtherFormat,
                (None, why) => why.clone(),
            };
            dequantized.add(of_it, matrix.part.name());
        }
    }

    /// Those that the parts of each group are of.
    pub(super) fn by_group(&self) -> impl Iterator<Item = Range<usize>> {
        let of = |parts: &[(Part, usize)]| Some(parts.first()?.1..parts.last()?.1 + 1);
        self.parts.chunks(self.each.max(1)).filter_map(of)
    }

    /// The parts of all groups, one after the other, each with the number of its matrix.
    pub(super) fn parts(&self) -> &[(Part, usize)] {
        &self.parts
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Values of a row.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// The rows of each part of a group.
    pub(super) fn rows(&self) -> Vec<usize> {
        self.parts.iter().take(self.each).map(|(part, _)| part.len()).collect()
    }

    /// What the weight becomes on a device, if it may be in an order of columns or not: blocks stay as they are
    /// where all are in the same ones, those of a group in one order, and the device has a format for them.
    pub(super) fn becomes(&self, precision: &Precision, ctx: &Context, may_be_ordered: bool) -> Becomes {
        let common = self.common_blocks(ctx, may_be_ordered);
        let (kept, dequantized) = match &common {
            Some(Ok(blocks)) if precision.keeps_blocks => (Some(*blocks), None),
            Some(Err(why)) if precision.keeps_blocks => (None, Some(why.clone())),
            _ => (None, None),
        };
        let may_be_quantized = self.stored.iter().all(|matrix| matrix.part.may_be_quantized());
        let encoding = kept.unwrap_or_else(|| precision.encoding(may_be_quantized));
        let as_stored = matches!(common, Some(Ok(blocks)) if blocks == encoding);
        Becomes { encoding, as_stored, order: self.order().filter(|_| as_stored), dequantized }
    }

    /// Bytes of what is read whole before any of it is packed: groups in which a matrix lies column after column and
    /// cannot be cut into strips, as [`fill`](super::fill) reads them.
    pub(super) fn read_whole(&self, checkpoint: &Checkpoint) -> usize {
        let is_whole = |matrix: &StoredMatrix| matrix.lies_by_columns() && matrix.strip_granule() >= self.k;
        let groups = self.by_group().map(|group| &self.stored[group]);
        let whole = groups.filter(|group| group.iter().any(is_whole));
        whole.map(|group| bytes(group, checkpoint)).max().unwrap_or(0)
    }

    /// The blocks that all are in, those of each group in one order, of a format that the device has; or why there are
    /// none, of those that are quantized. `None` where all are floats.
    fn common_blocks(&self, ctx: &Context, may_be_ordered: bool) -> Option<Result<Encoding, Why>> {
        let first = self.stored.iter().find_map(StoredMatrix::module)?;
        if let Some(groups) =
            self.stored.iter().filter_map(StoredMatrix::module).find_map(StoredModule::groups_in_no_blocks)
        {
            return Some(Err(Why::Groups(groups)));
        }
        let blocks = first.encoding();
        let one_order = |group: &[StoredMatrix]| group.iter().all(|matrix| matrix.order() == group[0].order());
        Some(match blocks {
            Encoding::Blocks(format) if ctx.format(format).is_none() => Err(Why::NotKept(blocks.to_string())),
            _ if self.stored.iter().any(|matrix| matrix.blocks() != Some(blocks)) => Err(Why::OtherFormat),
            _ if !self.by_group().all(|group| one_order(&self.stored[group])) => Err(Why::OtherOrder),
            _ if !may_be_ordered && self.stored.iter().any(|matrix| matrix.order().is_some()) => Err(Why::Ordered),
            _ => Ok(blocks),
        })
    }

    /// The order of columns of each group in blocks, where one has any.
    fn order(&self) -> Option<Vec<u32>> {
        if self.stored.iter().all(|matrix| matrix.order().is_none()) {
            return None;
        }
        let as_it_is: Vec<u32> = (0..).take(self.k).collect();
        let of_group = |group: Range<usize>| self.stored[group.start].order().unwrap_or(&as_it_is).to_vec();
        Some(self.by_group().flat_map(of_group).collect())
    }
}

/// Bytes of the checkpoint that matrices take.
pub(super) fn bytes(matrices: &[StoredMatrix], checkpoint: &Checkpoint) -> usize {
    let of = |matrix: &StoredMatrix| matrix.part.len().saturating_mul(matrix.row_bytes(checkpoint));
    matrices.iter().map(of).fold(0, usize::saturating_add)
}
