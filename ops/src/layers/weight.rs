//! What layers hold: a weight in the packed form that their kernels read.

use sinew_kernels::packed::PackedShape;
use sinew_tensor::Tensor;

/// A weight `[n, k]` packed for the kernels of its family; several matrices may be stacked along `n`. Or several
/// weights of one shape, one behind another: the experts of a mixture. A [`WeightPacker`](super::WeightPacker) makes it.
#[derive(Debug)]
pub struct PackedWeight {
    pub(super) packed: Tensor,
    pub(super) shape: PackedShape,
    pub(super) order: Option<Tensor>,
}

impl PackedWeight {
    /// What was packed.
    pub fn shape(&self) -> &PackedShape {
        &self.shape
    }

    /// The packed bytes.
    pub fn tensor(&self) -> &Tensor {
        &self.packed
    }

    /// The order in which it has its inputs, where that is another than that of the values which it is multiplied with:
    /// u32 `[groups, k]`, or `[k]` of one weight. See [`WeightPacker::ordered`](super::WeightPacker::ordered).
    pub fn order(&self) -> Option<&Tensor> {
        self.order.as_ref()
    }

    /// Number of packed bytes, and of those of the order.
    pub fn bytes(&self) -> usize {
        super::bytes(&self.packed) + self.order.as_ref().map_or(0, super::bytes)
    }
}
