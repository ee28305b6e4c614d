//! What a weight becomes, and why one that is quantized does not stay so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sinew_ops::layers::Encoding;
use sinew_tensor::DType;

use crate::error::first_names;

/// What a weight becomes.
#[derive(Debug)]
pub(super) struct Becomes {
    pub encoding: Encoding,
    /// Whether codes are packed as they are stored.
    pub as_stored: bool,
    /// The order of columns of each group, where codes are packed in one.
    pub order: Option<Vec<u32>>,
    /// Why codes become floats that could have stayed.
    pub dequantized: Option<Why>,
}

impl Becomes {
    /// Floats, whatever they are stored as.
    pub(super) fn floats(dtype: DType) -> Self {
        Self { encoding: dtype.into(), as_stored: false, order: None, dequantized: None }
    }
}

/// Why what a checkpoint has quantized does not stay so: what such weights are in, or of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// In groups that no blocks are made of, in words.
    Groups(String),
    /// In blocks that the device does not keep, in words.
    NotKept(String),
    /// Parts of a product whose others are in another format, or floats.
    OtherFormat,
    /// Parts of a product whose others have another order of columns.
    OtherOrder,
    /// Looked up as an embedding as well, whose values have to be in their own order.
    Ordered,
    /// Looked up as an embedding alone.
    Table,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Groups(groups) => write!(f, "in {groups}"),
            Self::NotKept(blocks) => write!(f, "in {blocks} that the device does not keep"),
            Self::OtherFormat => f.write_str("of products with parts in other formats"),
            Self::OtherOrder => f.write_str("of products with parts in other orders of columns"),
            Self::Ordered => f.write_str("of embeddings that are heads, with an order of columns"),
            Self::Table => f.write_str("of embeddings alone"),
        }
    }
}

/// The names of quantized weights that become floats, by why they do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dequantized(BTreeMap<Why, BTreeSet<String>>);

impl Dequantized {
    /// Adds a weight of this name.
    pub(super) fn add(&mut self, why: Why, name: &str) {
        self.0.entry(why).or_default().insert(name.to_owned());
    }

    /// The first reason.
    pub(super) fn why(&self) -> Option<&Why> {
        self.0.keys().next()
    }

    /// A sentence for each reason, of what is held as `dtype`.
    pub(crate) fn sentences(&self, dtype: DType) -> impl Iterator<Item = String> {
        self.0.iter().map(move |(why, names)| {
            let (count, names) = (names.len(), names.iter().collect::<Vec<_>>());
            let [weights, are] = if count == 1 { ["weight", "is"] } else { ["weights", "are"] };
            format!("{count} quantized {weights} {why} {are} held as {dtype}: {}", first_names(&names))
        })
    }
}
