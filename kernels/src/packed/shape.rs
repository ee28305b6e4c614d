//! Which weight is packed, and into which format.

use super::{Encoding, Format};

/// A weight `[n, k]` in a packed format, or several of one shape, one behind another: the experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedShape {
    /// The packed format.
    pub format: &'static Format,
    /// Weights of this shape; 1 but for those of experts.
    pub groups: usize,
    /// Outputs of each, stacked matrices together.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Whether gate and up are interleaved, so that one pass gives `act(gate) · up`.
    pub gated: bool,
}

impl PackedShape {
    /// How values are held.
    pub fn encoding(&self) -> Encoding {
        self.format.encoding()
    }

    /// Bytes of all; the largest number where they are more.
    ///
    /// ```
    /// use sinew_kernels::packed::{BF16_ROWS, PackedShape};
    ///
    /// let shape = PackedShape { format: &BF16_ROWS, groups: 8, n: 6, k: 5, gated: true };
    /// assert_eq!(shape.bytes(), 8 * 6 * 5 * 2);
    /// ```
    pub fn bytes(&self) -> usize {
        self.format.packed_bytes(self.n, self.k, self.gated).saturating_mul(self.groups)
    }
}
