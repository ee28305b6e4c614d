//! What loading makes of a checkpoint, counted before it does.

use std::cell::RefCell;

use sinew_memory::DeviceKind;
use sinew_ops::layers::{Encoding, Rotary, WeightPacker};
use sinew_tensor::DType;

use super::matrices::Matrices;
use super::matrix::{Matrix, check};
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
    /// The bytes of what a weight of these parts becomes, of each expert where it is of some.
    fn product(
        &self,
        parts: impl IntoIterator<Item = Part>,
        experts: Option<usize>,
        k: usize,
        gated: bool,
        may_be_ordered: bool,
    ) -> Result<usize> {
        let matrices = Matrices::of(self.checkpoint, parts, experts.unwrap_or(1), k)?;
        let becomes = matrices.becomes(&self.precision, self.device, may_be_ordered);
        let (encoding, n) = (becomes.encoding, sum(matrices.rows()));
        let order = becomes.order.map_or(0, |order| bytes(DType::U32, &[order.len()]));
        let bytes = WeightPacker::bytes(self.device, encoding, matrices.groups(), n, k, gated).saturating_add(order);
        if let Some(asked) = self.asked {
            let weights = matrices.all().iter().map(|matrix| (matrix.part.clone(), k, encoding));
            asked.borrow_mut().weights.extend(weights);
        }
        let product = Some(Product { experts, n, k, gated });
        Ok(self.made(Made { encoding, bytes, product, read_whole: matrices.read_whole(self.checkpoint) }))
    }

    /// Notes what is made, and gives its bytes.
    fn made(&self, made: Made) -> usize {
        if let Some(asked) = self.asked {
            asked.borrow_mut().made.push(made);
        }
        made.bytes
    }

    /// Of [`Loader::weight`](super::Loader::weight).
    pub(crate) fn weight(&self, part: &Part, k: usize) -> Result<usize> {
        self.linear(std::slice::from_ref(part), k, false, false)
    }

    /// Of [`Loader::weight_and_table`](super::Loader::weight_and_table).
    pub(crate) fn weight_and_table(&self, part: &Part, k: usize) -> Result<usize> {
        self.product([part.clone()], None, k, false, false)
    }

    /// Of [`Loader::linear`](super::Loader::linear).
    pub(crate) fn linear(&self, parts: &[Part], k: usize, bias: bool, gated: bool) -> Result<usize> {
        let mut bytes = self.product(parts.iter().cloned(), None, k, gated, true)?;
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            bytes = bytes.saturating_add(self.made_vector(sum(parts.iter().map(Part::len))));
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
        self.product(parts, Some(experts), k, gated, true)
    }

    /// Of [`Loader::table`](super::Loader::table).
    pub(crate) fn table(&self, part: &Part, width: usize) -> Result<usize> {
        Matrix::of(self.checkpoint, part.clone(), width)?;
        if let Some(asked) = self.asked {
            asked.borrow_mut().tables.push(part.name().to_owned());
        }
        let dtype = self.precision.weights;
        Ok(self.floats(dtype, WeightPacker::table_bytes(dtype, part.len(), width)))
    }

    /// Of [`Loader::norm`](super::Loader::norm).
    pub(crate) fn norm(&self, kind: NormKind, name: &str, n: usize) -> Result<usize> {
        match kind {
            NormKind::Rms | NormKind::RmsOffset => self.vector(&format!("{name}.weight"), n),
            NormKind::Layer => self.layer_norm(name, n),
        }
    }

    /// Of the two vectors of a layer norm.
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
        self.floats(DType::F32, bytes(DType::F32, &[n]))
    }

    fn floats(&self, dtype: DType, bytes: usize) -> usize {
        self.made(Made { encoding: Encoding::Float(dtype), bytes, product: None, read_whole: 0 })
    }
}

/// What the two vectors of a layer norm are called: checkpoints converted from TensorFlow have gamma and beta.
pub(super) fn layer_norm_names(checkpoint: &Checkpoint, name: &str) -> [String; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(new, old)| {
        let new = format!("{name}.{new}");
        if checkpoint.contains(&new) { new } else { format!("{name}.{old}") }
    })
}
