//! What loading makes of a checkpoint, counted before it does.

use std::cell::RefCell;

use sinew_memory::DeviceKind;
use sinew_ops::layers::{Encoding, Rotary, WeightPacker};
use sinew_tensor::DType;

use super::stored::{self, Stored, check};
use super::{Part, Precision};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::config::{NormKind, RopeConfig};
use crate::scratch::{bytes, sum};

/// What a [`Loader`](super::Loader) would make of a checkpoint, for plans: every tensor is checked as loading checks
/// it, and the bytes of what it becomes are counted; the largest number where they are more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes<'a> {
    pub checkpoint: &'a Checkpoint,
    pub precision: Precision,
    pub device: DeviceKind,
    /// Where what is asked for is noted, if it is wanted.
    pub asked: Option<&'a RefCell<Asked>>,
}

/// The matrices that a model asks a checkpoint for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Those of products, with their inputs and what they would become.
    pub weights: Vec<(Part, usize, Encoding)>,
    /// The names of embedding tables.
    pub tables: Vec<String>,
}

impl Sizes<'_> {
    /// What a weight of these parts becomes, and the bytes of the order of its inputs.
    fn encoding(&self, parts: &[Part], k: usize, may_be_ordered: bool) -> Result<(Encoding, usize)> {
        let (all, each) = (Stored::all(self.checkpoint, parts, k)?, parts.len());
        let encoding = stored::encoding(&self.precision, self.device, parts, (&all, each), may_be_ordered);
        if let Some(asked) = self.asked {
            asked.borrow_mut().weights.extend(parts.iter().map(|part| (part.clone(), k, encoding)));
        }
        let is_ordered = may_be_ordered
            && all.iter().any(|stored| stored.order().is_some())
            && stored::common_blocks(&all, each, true) == Some(encoding);
        Ok((encoding, if is_ordered { bytes(DType::U32, &[k]) } else { 0 }))
    }

    /// Of [`Loader::weight`](super::Loader::weight).
    pub(crate) fn weight(&self, part: &Part, k: usize) -> Result<usize> {
        self.linear(std::slice::from_ref(part), k, false, false)
    }

    /// Of [`Loader::weight_and_table`](super::Loader::weight_and_table).
    pub(crate) fn weight_and_table(&self, part: &Part, k: usize) -> Result<usize> {
        let (encoding, _) = self.encoding(std::slice::from_ref(part), k, false)?;
        Ok(WeightPacker::bytes(self.device, encoding, 1, part.len(), k, false))
    }

    /// Of [`Loader::linear`](super::Loader::linear).
    pub(crate) fn linear(&self, parts: &[Part], k: usize, bias: bool, gated: bool) -> Result<usize> {
        let n = sum(parts.iter().map(Part::len));
        let (encoding, order) = self.encoding(parts, k, true)?;
        let mut bytes = WeightPacker::bytes(self.device, encoding, 1, n, k, gated).saturating_add(order);
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            bytes = bytes.saturating_add(vector_bytes(n));
        }
        Ok(bytes)
    }

    /// Of [`Loader::grouped`](super::Loader::grouped). There may be as many parts as a file claims to have: none is made
    /// after one that is not there.
    pub(crate) fn grouped(
        &self,
        parts: impl Iterator<Item = Part>,
        experts: usize,
        k: usize,
        gated: bool,
    ) -> Result<usize> {
        let (mut rows, mut encoding, mut is_ordered) = (0usize, None, false);
        let (each, mut gate) = (1 + usize::from(gated), None);
        for (at, part) in parts.enumerate() {
            let (one, order) = self.encoding(std::slice::from_ref(&part), k, true)?;
            // Where experts differ, or a gate and its up in their orders, they are kept as floats.
            let floats = self.precision.encoding(std::slice::from_ref(&part));
            let stored = Stored::of(self.checkpoint, &part, k)?;
            let fits = at % each == 0 || stored.order() == gate.as_deref();
            gate = stored.order().map(<[u32]>::to_vec);
            encoding = Some(encoding.map_or(one, |all| if all == one && fits { all } else { floats }));
            is_ordered |= order > 0;
            rows = rows.saturating_add(part.len());
        }
        let encoding = encoding.unwrap_or(self.precision.main_encoding());
        let is_ordered = is_ordered && matches!(encoding, Encoding::Blocks(_));
        let order = if is_ordered { bytes(DType::U32, &[experts, k]) } else { 0 };
        Ok(WeightPacker::bytes(self.device, encoding, experts, rows / experts.max(1), k, gated).saturating_add(order))
    }

    /// Of [`Loader::table`](super::Loader::table).
    pub(crate) fn table(&self, part: &Part, width: usize) -> Result<usize> {
        Stored::of(self.checkpoint, part, width)?;
        if let Some(asked) = self.asked {
            asked.borrow_mut().tables.push(part.name().to_owned());
        }
        Ok(WeightPacker::table_bytes(self.precision.weights, part.len(), width))
    }

    /// Of [`Loader::norm`](super::Loader::norm).
    pub(crate) fn norm(&self, kind: NormKind, name: &str, n: usize) -> Result<usize> {
        match kind {
            NormKind::Rms | NormKind::RmsOffset => self.vector(&format!("{name}.weight"), n),
            NormKind::Layer => self.layer_norm(name, n),
        }
    }

    /// Of [`Loader::norm`](super::Loader::norm).
    pub(crate) fn layer_norm(&self, name: &str, n: usize) -> Result<usize> {
        let [weight, bias] = layer_norm_names(self.checkpoint, name);
        Ok(self.vector(&weight, n)?.saturating_add(self.vector(&bias, n)?))
    }

    /// Of the tables of [`Loader::ropes`](super::Loader::ropes).
    pub(crate) fn ropes(&self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> usize {
        sum(ropes.iter().map(|rope| Rotary::bytes(rope.rotary_dim(head_dim).div_ceil(2), context)))
    }

    /// Of [`Loader::vector`](super::Loader::vector).
    pub(crate) fn vector(&self, name: &str, n: usize) -> Result<usize> {
        check(self.checkpoint, name, &[n])?;
        Ok(vector_bytes(n))
    }
}

fn vector_bytes(n: usize) -> usize {
    bytes(DType::F32, &[n])
}

/// What the two vectors of a layer norm are called: checkpoints converted from TensorFlow have gamma and beta.
pub(super) fn layer_norm_names(checkpoint: &Checkpoint, name: &str) -> [String; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(new, old)| {
        let new = format!("{name}.{new}");
        if checkpoint.contains(&new) { new } else { format!("{name}.{old}") }
    })
}
