//! Old keys and values in a second form: which keys those are for a token.

use sinew_tensor::DType;
#[cfg(doc)]
use sinew_tensor::PagedLayout;

use super::TILE;

/// Old keys and values that are kept as codes with scales, while recent ones stay in the full dtype: see the
/// [module](super#old-keys-in-a-second-form).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OldKv {
    /// Dtype of the codes: one that [has scales](PagedLayout::has_scales).
    pub dtype: DType,
    /// Positions up to a token's own that it sees in the full dtype at least, from 1; up to `TILE - 1` more are so too.
    pub recent: usize,
}

impl OldKv {
    /// The first of the keys that the token at a position sees in the full dtype: a multiple of [`TILE`].
    ///
    /// ```
    /// use sinew_kernels::attention::OldKv;
    /// use sinew_tensor::DType;
    /// let old = OldKv { dtype: DType::I8, recent: 100 };
    /// assert_eq!([0, 162, 163, 226, 227].map(|position| old.before(position)), [0, 0, 64, 64, 128]);
    /// ```
    pub fn before(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.recent) / TILE * TILE
    }

    /// How many positions up to its own a token may see in the full dtype.
    ///
    /// ```
    /// # use sinew_kernels::attention::OldKv;
    /// # use sinew_tensor::DType;
    /// let old = OldKv { dtype: DType::I8, recent: 100 };
    /// assert_eq!(old.most_recent(), 163);
    /// ```
    pub fn most_recent(&self) -> usize {
        self.recent.saturating_add(TILE - 1)
    }
}
