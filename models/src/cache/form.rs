//! In what forms the layers of a decoder keep keys and values.
//!
//! Where old tokens have a form of their own ([`Precision::old_kv`]), a layer keeps every token in it from the start, and
//! beside it the latest in the full dtype: those that the next token sees so, as a window would. So nothing is ever moved
//! from one form to the other, what a token sees depends on positions alone, and of a token that has come to be old the
//! full dtype's blocks are simply free again.

use sinew_tensor::{DType, Tensor};

use crate::DecoderConfig;
use crate::precision::Precision;

/// How far back a layer keeps keys and values, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub window: Option<usize>,
    pub dtype: DType,
}

impl Form {
    /// The form of the tokens that a layer with such a window has, and where it keeps two that of old ones.
    pub fn of(precision: &Precision, window: Option<usize>) -> (Self, Option<Self>) {
        let all = Self { window, dtype: precision.kv };
        match precision.old_kv_of(window) {
            None => (all, None),
            Some(old) => {
                let recent = window.map_or(old.most_recent(), |window| window.min(old.most_recent()));
                (Self { window: Some(recent), ..all }, Some(Self { dtype: old.dtype, ..all }))
            }
        }
    }

    /// How many groups of layers the cache of a decoder has: as many as there are forms.
    pub fn count(config: &DecoderConfig, precision: &Precision) -> usize {
        let forms = config.layers.iter().map(|layer| Self::of(precision, layer.window));
        let mut all: Vec<Self> = Vec::new();
        for form in forms.flat_map(|(form, old)| std::iter::once(form).chain(old)) {
            if !all.contains(&form) {
                all.push(form);
            }
        }
        all.len()
    }
}

/// Keys and values of one layer, with the group of blocks that they lie in.
#[derive(Debug)]
pub struct LayerCache<'a> {
    /// The group.
    pub group: usize,
    /// Keys and values.
    pub cache: &'a mut (Tensor, Tensor),
    /// The same of old tokens, where they have a form of their own.
    pub old: Option<(usize, &'a mut (Tensor, Tensor))>,
}
