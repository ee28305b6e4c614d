//! What loading makes of a checkpoint, counted before it does.

use sinew_memory::DeviceKind;
use sinew_ops::layers::{Rotary, WeightPacker};
use sinew_tensor::DType;

use super::precision::float_dtype;
use super::{Part, Precision};
use crate::checkpoint::Checkpoint;
use crate::config::{NormKind, RopeConfig};
use crate::scratch::{bytes, sum};
use crate::{Error, Result};

/// What a [`Loader`](super::Loader) would make of a checkpoint, for plans: every tensor is checked as loading checks
/// it, and the bytes of what it becomes are counted; the largest number where they are more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes<'a> {
    pub checkpoint: &'a Checkpoint,
    pub precision: Precision,
    pub device: DeviceKind,
}

impl Sizes<'_> {
    /// Of [`Loader::weight`](super::Loader::weight).
    pub(crate) fn weight(&self, part: &Part, k: usize) -> Result<usize> {
        self.linear(std::slice::from_ref(part), k, false, false)
    }

    /// Of [`Loader::linear`](super::Loader::linear).
    pub(crate) fn linear(&self, parts: &[Part], k: usize, bias: bool, gated: bool) -> Result<usize> {
        let n = sum(parts.iter().map(Part::len));
        let mut bytes = WeightPacker::bytes(self.device, self.precision.encoding(parts), 1, n, k, gated);
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            bytes = bytes.saturating_add(vector_bytes(n));
        }
        parts.iter().try_for_each(|part| check(self.checkpoint, &part.weight(), &part.shape(k)).map(drop))?;
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
        let mut rows = 0usize;
        for part in parts {
            check(self.checkpoint, &part.weight(), &part.shape(k))?;
            rows = rows.saturating_add(part.len());
        }
        Ok(WeightPacker::bytes(self.device, self.precision.main_encoding(), experts, rows / experts.max(1), k, gated))
    }

    /// Of [`Loader::table`](super::Loader::table).
    pub(crate) fn table(&self, part: &Part, width: usize) -> Result<usize> {
        check(self.checkpoint, &part.weight(), &part.shape(width))?;
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

/// The dtype of a tensor, which must have this shape.
pub(super) fn check(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<DType> {
    let info = checkpoint.info(name)?;
    if info.shape != shape {
        let found = info.shape;
        return Err(Error::Config {
            file: checkpoint.name().to_owned(),
            problem: format!("tensor {name} has shape {found:?}, the config asks for {shape:?}"),
        });
    }
    float_dtype(name, info.dtype)
}

/// What the two vectors of a layer norm are called: checkpoints converted from TensorFlow have gamma and beta.
pub(super) fn layer_norm_names(checkpoint: &Checkpoint, name: &str) -> [String; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(new, old)| {
        let new = format!("{name}.{new}");
        if checkpoint.contains(&new) { new } else { format!("{name}.{old}") }
    })
}
