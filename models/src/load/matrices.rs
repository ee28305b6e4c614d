//! The matrices that a weight is packed from, and what it becomes.

use sinew_ops::Context;
use sinew_ops::layers::Encoding;

use super::Part;
use super::matrix::{Becomes, Matrix};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::precision::Precision;

/// Matrices `[n, k]` of a checkpoint that one weight is made of, those of a group behind those of the group before.
pub(super) struct Matrices {
    all: Vec<Matrix>,
    /// Matrices of a group.
    each: usize,
    /// Groups: the experts of a mixture, or one.
    groups: usize,
    k: usize,
}

impl Matrices {
    /// Those of the parts of so many groups. There may be as many as a file claims to have: none is made after one that
    /// is not there.
    pub(super) fn of(
        checkpoint: &Checkpoint,
        parts: impl IntoIterator<Item = Part>,
        groups: usize,
        k: usize,
    ) -> Result<Self> {
        let all = parts.into_iter().map(|part| Matrix::of(checkpoint, part, k)).collect::<Result<Vec<_>>>()?;
        Ok(Self { each: all.len() / groups.max(1), all, groups, k })
    }

    pub(super) fn all(&self) -> &[Matrix] {
        &self.all
    }

    /// Those of each group.
    pub(super) fn by_group(&self) -> impl Iterator<Item = &[Matrix]> {
        self.all.chunks(self.each.max(1))
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Values of a row.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// The rows of each matrix of a group.
    pub(super) fn rows(&self) -> Vec<usize> {
        self.all.iter().take(self.each).map(|matrix| matrix.part.len()).collect()
    }

    /// What the weight becomes on a device, if it may be in an order of columns or not: blocks stay as they are
    /// where all are in the same ones, those of a group in one order, and the device has a format for them.
    pub(super) fn becomes(&self, precision: &Precision, ctx: &Context, may_be_ordered: bool) -> Becomes {
        let common = self.common_blocks(may_be_ordered);
        let kept = precision.kept.and(common).filter(|&blocks| ctx.format(blocks).is_some());
        let encoding =
            kept.unwrap_or_else(|| precision.encoding(self.all.iter().all(|matrix| matrix.part.may_be_quantized())));
        let as_stored = common == Some(encoding);
        Becomes { encoding, as_stored, order: self.order().filter(|_| as_stored) }
    }

    /// Bytes of what is read whole before any of it is packed: groups in which a matrix lies column after column and
    /// cannot be cut into strips, as [`fill`](super::fill) reads them.
    pub(super) fn read_whole(&self, checkpoint: &Checkpoint) -> usize {
        let is_whole = |matrix: &Matrix| matrix.lies_by_columns() && matrix.strip_granule() >= self.k;
        let whole = self.by_group().filter(|group| group.iter().any(is_whole));
        whole.map(|group| bytes(group, checkpoint)).max().unwrap_or(0)
    }

    /// The blocks that all are in, those of each group in one order.
    fn common_blocks(&self, may_be_ordered: bool) -> Option<Encoding> {
        let first = self.all.first()?.blocks()?;
        let is_one = self.all.iter().all(|matrix| matrix.blocks() == Some(first))
            && self.by_group().all(|group| group.iter().all(|matrix| matrix.order() == group[0].order()))
            && (may_be_ordered || self.all.iter().all(|matrix| matrix.order().is_none()));
        is_one.then_some(first)
    }

    /// The order of columns of each group in blocks, where one has any.
    fn order(&self) -> Option<Vec<u32>> {
        if self.all.iter().all(|matrix| matrix.order().is_none()) {
            return None;
        }
        let as_it_is: Vec<u32> = (0..).take(self.k).collect();
        let of_group = |group: &[Matrix]| group[0].order().unwrap_or(&as_it_is).to_vec();
        Some(self.by_group().flat_map(of_group).collect())
    }
}

/// Bytes of the checkpoint that matrices take, all rows of their tensors.
pub(super) fn bytes(matrices: &[Matrix], checkpoint: &Checkpoint) -> usize {
    let of = |matrix: &Matrix| matrix.part.of.saturating_mul(matrix.row_bytes(checkpoint));
    matrices.iter().map(of).fold(0, usize::saturating_add)
}
