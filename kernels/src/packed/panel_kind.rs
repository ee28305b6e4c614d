//! How panels hold the values of their outputs, and in how many bytes.

use sinew_tensor::{BlockFormat, DType};

use super::panel::PANEL;
use super::{Encoding, blocks};

/// How panels hold values. What reads or writes panels matches all kinds, so that a new one is nowhere taken for
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PanelKind {
    /// f32, `[K][32]`.
    F32,
    /// f16, `[K][32]`.
    F16,
    /// bf16, `[K/2][32][2]`, zero behind an odd K.
    Bf16,
    /// Codes with a scale for each group of an output's values: see [`blocks`].
    Blocks(BlockFormat),
}

impl PanelKind {
    /// The kind that keeps values as `dtype`, if there is one.
    pub fn of(dtype: DType) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|kind| kind.encoding() == Encoding::Float(dtype))
    }

    /// What the values are.
    pub const fn encoding(self) -> Encoding {
        match self {
            Self::F32 => Encoding::Float(DType::F32),
            Self::F16 => Encoding::Float(DType::F16),
            Self::Bf16 => Encoding::Float(DType::BF16),
            Self::Blocks(format) => Encoding::Blocks(format),
        }
    }

    /// The format of its blocks, if it has any.
    #[inline(always)]
    pub const fn blocks(self) -> Option<BlockFormat> {
        match self {
            Self::Blocks(format) => Some(format),
            Self::F32 | Self::F16 | Self::Bf16 => None,
        }
    }

    /// The format of its blocks, for loops over nothing else. Rows admit no other panels; a sum that nobody writes would
    /// be a wrong one, so that their mistake is loud in any build.
    #[inline(always)]
    pub fn admitted_blocks(self) -> BlockFormat {
        match self.blocks() {
            Some(format) => format,
            None => unreachable!("a row of block-quantized weights admitted panels of {}", self.encoding()),
        }
    }

    /// K with the zeros behind it.
    pub fn padded_k(self, k: usize) -> usize {
        match self {
            Self::F32 | Self::F16 => k,
            Self::Bf16 => k.checked_next_multiple_of(2).unwrap_or(usize::MAX),
            Self::Blocks(format) => blocks::padded_k(format.values(), k),
        }
    }

    /// Values along K that are packed together: K is divided at multiples of it only.
    pub const fn granule(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Bf16 => 2,
            Self::Blocks(format) => format.group(),
        }
    }

    /// Bytes of a panel of `k` values along K. What follows a multiple of [`PanelKind::granule`] values starts where a
    /// panel of the values before would end.
    pub fn bytes(self, k: usize) -> usize {
        let size = match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Blocks(format) => return blocks::bytes(format, k),
        };
        self.padded_k(k).saturating_mul(PANEL * size)
    }
}
