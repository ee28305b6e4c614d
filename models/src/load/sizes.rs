//! What loading makes of a checkpoint, counted before it does.

use std::fmt::Debug;

use sinew_memory::DeviceKind;
use sinew_ops::Context;
use sinew_ops::layers::{AttentionOptions, Encoding, GroupedLinearOptions, LinearOptions, Rotary, WeightPacker};
use sinew_tensor::DType;

use super::maker::{Counted, Maker, NormSpec};
use super::matrices::Matrices;
use super::matrix::{Matrix, check};
use super::{Part, Precision};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::config::RopeConfig;
use crate::scratch::{bytes, sum};

/// What a [`Loader`](super::Loader) would make of a checkpoint, for plans: every tensor is checked as loading checks
/// it, and the bytes of what it becomes are counted; the largest number where they are more.
#[derive(Debug)]
pub(crate) struct Sizes<'a> {
    checkpoint: &'a Checkpoint,
    precision: Precision,
    device: DeviceKind,
    /// The matrices of products that were asked for, with their inputs and what they would become.
    pub weights: Vec<(Part, usize, Encoding)>,
    /// The names of embedding tables.
    pub tables: Vec<String>,
    /// What is made of them, and of vectors.
    pub made: Vec<Made>,
    /// Bytes of rotary embeddings by position.
    pub ropes: usize,
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

impl<'a> Sizes<'a> {
    /// Of a checkpoint on a kind of device.
    pub(crate) fn new(checkpoint: &'a Checkpoint, precision: Precision, device: DeviceKind) -> Self {
        let (weights, tables, made) = Default::default();
        Self { checkpoint, precision, device, weights, tables, made, ropes: 0 }
    }

    /// The kind of device.
    pub(crate) fn device(&self) -> DeviceKind {
        self.device
    }

    /// Bytes of all that was made.
    pub(crate) fn weight_bytes(&self) -> usize {
        sum(self.made.iter().map(|made| made.bytes))
    }

    /// The weight of a product of these parts, one of each expert where it is of some.
    pub(super) fn product(
        &mut self,
        parts: impl IntoIterator<Item = Part>,
        experts: Option<usize>,
        k: usize,
        gated: bool,
        may_be_ordered: bool,
    ) -> Result<()> {
        let matrices = Matrices::of(self.checkpoint, parts, experts.unwrap_or(1), k)?;
        let becomes = matrices.becomes(&self.precision, self.device, may_be_ordered);
        let (encoding, n) = (becomes.encoding, sum(matrices.rows()));
        let order = becomes.order.map_or(0, |order| bytes(DType::U32, &[order.len()]));
        let bytes = WeightPacker::bytes(self.device, encoding, matrices.groups(), n, k, gated).saturating_add(order);
        self.weights.extend(matrices.all().iter().map(|matrix| (matrix.part.clone(), k, encoding)));
        let product = Some(Product { experts, n, k, gated });
        self.made.push(Made { encoding, bytes, product, read_whole: matrices.read_whole(self.checkpoint) });
        Ok(())
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<()> {
        check(self.checkpoint, name, &[n])?;
        self.made_vector(n);
        Ok(())
    }

    fn made_vector(&mut self, n: usize) {
        self.floats(DType::F32, bytes(DType::F32, &[n]));
    }

    fn floats(&mut self, dtype: DType, bytes: usize) {
        self.made.push(Made { encoding: Encoding::Float(dtype), bytes, product: None, read_whole: 0 });
    }
}

impl Maker<Counted> for Sizes<'_> {
    fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn table(&mut self, part: Part, width: usize) -> Result<()> {
        let dtype = self.precision.weights;
        let bytes = WeightPacker::table_bytes(dtype, part.len(), width);
        self.tables.push(part.name().to_owned());
        Matrix::of(self.checkpoint, part, width)?;
        self.floats(dtype, bytes);
        Ok(())
    }

    fn norm(&mut self, norm: NormSpec, _: usize) -> Result<()> {
        let (weight, bias) = norm.vectors(self.checkpoint);
        self.vector(&weight, norm.n)?;
        bias.map_or(Ok(()), |bias| self.vector(&bias, norm.n))
    }

    fn linear(&mut self, parts: &[Part], k: usize, bias: bool, options: LinearOptions, _: usize) -> Result<()> {
        if bias {
            parts.iter().try_for_each(|part| check(self.checkpoint, &part.bias(), &[part.of]).map(drop))?;
            self.made_vector(sum(parts.iter().map(Part::len)));
        }
        self.product(parts.iter().cloned(), None, k, options.gated.is_some(), true)
    }

    fn normed_linear(
        &mut self,
        norm: Option<NormSpec>,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<()> {
        norm.map_or(Ok(()), |norm| self.norm(norm, max_rows))?;
        self.linear(parts, k, bias, options, max_rows)
    }

    fn tied(
        &mut self,
        norm: Option<NormSpec>,
        part: Part,
        k: usize,
        _: LinearOptions,
        rows: usize,
    ) -> Result<((), ())> {
        norm.map_or(Ok(()), |norm| self.norm(norm, rows))?;
        self.product([part], None, k, false, false)?;
        Ok(((), ()))
    }

    fn grouped(
        &mut self,
        parts: impl Iterator<Item = Part>,
        experts: usize,
        k: usize,
        options: GroupedLinearOptions,
        _: usize,
    ) -> Result<()> {
        self.product(parts, Some(experts), k, options.gated.is_some(), true)
    }

    fn attention(&mut self, _: AttentionOptions, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn ropes(&mut self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>> {
        let of = |rope: &RopeConfig| Rotary::bytes(rope.rotary_dim(head_dim).div_ceil(2), context);
        self.ropes = sum(ropes.iter().map(of)).saturating_add(self.ropes);
        Ok(Vec::new())
    }

    fn planned<T: Debug>(&mut self, _: impl FnOnce(&Context) -> sinew_ops::Result<T>) -> Result<()> {
        Ok(())
    }
}
