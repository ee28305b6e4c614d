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
    /// What is made of them, and of vectors.
    pub made: Vec<Made>,
    /// Bytes of the checkpoint that are read whole before any of what is made next is packed.
    read_whole: usize,
}

/// What comes of some tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub encoding: Encoding,
    pub bytes: usize,
    /// Where it is the weight of a product.
    pub product: Option<Product>,
    /// Bytes of the checkpoint that are read whole before any of it is packed.
    pub read_whole: usize,
}

/// The weight of a product: one of each expert, where it is of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    pub experts: Option<usize>,
    pub n: usize,
    pub k: usize,
    pub gated: bool,
}

impl Sizes<'_> {
    /// What a weight of these parts becomes, and the bytes of the order of its inputs.
    fn encoding(&self, parts: &[Part], k: usize, may_be_ordered: bool) -> Result<(Encoding, usize)> {
        let (all, each) = (Stored::all(self.checkpoint, parts, k)?, parts.len());
        let encoding = stored::encoding(&self.precision, self.device, parts, (&all, each), may_be_ordered);
        if let Some(asked) = self.asked {
            let mut asked = asked.borrow_mut();
            asked.weights.extend(parts.iter().map(|part| (part.clone(), k, encoding)));
            let whole = stored::read_whole(self.checkpoint, parts, &all, k);
            asked.read_whole = asked.read_whole.max(whole);
        }
        let is_ordered = may_be_ordered
            && all.iter().any(|stored| stored.order().is_some())
            && stored::common_blocks(&all, each, true) == Some(encoding);
        Ok((encoding, if is_ordered { bytes(DType::U32, &[k]) } else { 0 }))
    }

    /// Notes what is made, and gives its bytes.
    fn made(&self, encoding: Encoding, bytes: usize, product: Option<Product>) -> usize {
        if let Some(asked) = self.asked {
            let mut asked = asked.borrow_mut();
            let read_whole = std::mem::take(&mut asked.read_whole);
            asked.made.push(Made { encoding, bytes, product, read_whole });
        }
        bytes
    }

    /// Of [`Loader::weight`](super::Loader::weight).
    pub(crate) fn weight(&self, part: &Part, k: usize) -> Result<usize> {
        self.linear(std::slice::from_ref(part), k, false, false)
    }

    /// Of [`Loader::weight_and_table`](super::Loader::weight_and_table).
    pub(crate) fn weight_and_table(&self, part: &Part, k: usize) -> Result<usize> {
        let (encoding, _) = self.encoding(std::slice::from_ref(part), k, false)?;
        let bytes = WeightPacker::bytes(self.device, encoding, 1, part.len(), k, false);
        Ok(self.made(encoding, bytes, Some(Product { experts: None, n: part.len(), k, gated: false })))
    }

    /// Of [`Loader::linear`](super::Loader::linear).
    pub(crate) fn linear(&self, parts: &[Part], k: usize, bias: bool, gated: bool) -> Result<usize> {
        let n = sum(parts.iter().map(Part::len));
        let (encoding, order) = self.encoding(parts, k, true)?;
        let bytes = WeightPacker::bytes(self.device, encoding, 1, n, k, gated).saturating_add(order);
        let mut bytes = self.made(encoding, bytes, Some(Product { experts: None, n, k, gated }));
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            bytes = bytes.saturating_add(self.made_vector(n));
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
        let n = rows / experts.max(1);
        let bytes = WeightPacker::bytes(self.device, encoding, experts, n, k, gated).saturating_add(order);
        Ok(self.made(encoding, bytes, Some(Product { experts: Some(experts), n, k, gated })))
    }

    /// Of [`Loader::table`](super::Loader::table).
    pub(crate) fn table(&self, part: &Part, width: usize) -> Result<usize> {
        Stored::of(self.checkpoint, part, width)?;
        if let Some(asked) = self.asked {
            asked.borrow_mut().tables.push(part.name().to_owned());
        }
        let dtype = self.precision.weights;
        Ok(self.made(Encoding::Float(dtype), WeightPacker::table_bytes(dtype, part.len(), width), None))
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
        Ok(self.made_vector(n))
    }

    fn made_vector(&self, n: usize) -> usize {
        self.made(Encoding::Float(DType::F32), bytes(DType::F32, &[n]), None)
    }
}

/// What the two vectors of a layer norm are called: checkpoints converted from TensorFlow have gamma and beta.
pub(super) fn layer_norm_names(checkpoint: &Checkpoint, name: &str) -> [String; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(new, old)| {
        let new = format!("{name}.{new}");
        if checkpoint.contains(&new) { new } else { format!("{name}.{old}") }
    })
}
