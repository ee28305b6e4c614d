//! How an operand is stored.

use std::fmt;

use sinew_tensor::{BlockFormat, BlockValues, DType};

use crate::packed::{Encoding, Format};

/// How the operand that a table of support names a problem by is stored: a weight, a cache, what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredAs {
    /// Value by value. A cache in int8 or fp8 has scales beside its values.
    Plain(DType),
    /// As codes, whose scales are shared by blocks of a row: packed weights only.
    Blocks(BlockFormat),
}

impl StoredAs {
    /// Every way: each dtype, and of block-quantized weights each kind of values, in groups of 32 with scales in bf16.
    pub fn all() -> impl Iterator<Item = Self> {
        let blocks = |values| BlockFormat::new(values, 32, DType::BF16, false).ok().map(Self::Blocks);
        DType::ALL.into_iter().map(Self::Plain).chain(BlockValues::ALL.into_iter().filter_map(blocks))
    }

    /// The dtype, where values are stored one by one.
    pub fn plain(self) -> Option<DType> {
        match self {
            Self::Plain(dtype) => Some(dtype),
            Self::Blocks(_) => None,
        }
    }

    /// The formats in which weights that are stored so can be packed.
    pub fn formats(self) -> Vec<&'static Format> {
        let encoding = match self {
            Self::Plain(dtype) => Encoding::Float(dtype),
            Self::Blocks(format) => Encoding::Blocks(format),
        };
        Format::of(encoding).collect()
    }
}

impl fmt::Display for StoredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => f.pad(dtype.name()),
            Self::Blocks(format) => f.pad(&format!("{} blocks", format.values().name())),
        }
    }
}
