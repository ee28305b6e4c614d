//! Loading: from tensors in files to packed weights, one slice at a time.

mod fill;
mod matrices;
mod matrix;
mod part;
mod precision;
mod sizes;

use std::sync::Arc;

use half::{bf16, f16};
use sinew_ops::Context;
use sinew_ops::layers::{
    GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Norm, NormOptions, NormedLinear, PackedWeight, Rotary,
    WeightPacker,
};
use sinew_tensor::{DType, Tensor};

pub(crate) use self::fill::AT_HAND_BYTES;
use self::matrices::{Becomes, Matrices};
use self::matrix::check;
pub use self::part::Part;
pub use self::precision::{Activations, Precision, Quantize, WeightOptions, main_dtype};
use self::sizes::layer_norm_names;
pub(crate) use self::sizes::{Asked, Made, Product, Sizes};
pub(crate) use self::{matrix::packable, precision::float_dtype};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::config::{NormKind, RopeConfig};

/// How far loading has come, in bytes of the checkpoint: `(done, total)`.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Packs the tensors of a checkpoint for a context.
pub struct Loader<'a> {
    ctx: Arc<Context>,
    checkpoint: &'a Checkpoint,
    precision: Precision,
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Loader<'a> {
    /// A loader of `checkpoint`.
    pub fn new(ctx: Arc<Context>, checkpoint: &'a Checkpoint, precision: Precision, progress: Progress<'a>) -> Self {
        let total = checkpoint.num_bytes();
        Self { ctx, checkpoint, precision, progress, done: 0, total }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The precision.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The first of `prefixes` under which the checkpoint has `name`; checkpoints saved from a bare model lack the
    /// wrapper's prefix.
    ///
    /// # Errors
    /// The tensor is there under none of them.
    pub fn prefix(&self, name: &str, prefixes: &[&'static str]) -> Result<&'static str> {
        self.checkpoint.prefix_of(name, prefixes)
    }

    /// Whether the checkpoint has a tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }

    /// A linear layer for up to `max_rows` rows, whose parts are stacked: tensors `{name}.weight` and, with `bias`,
    /// `{name}.bias`. Where `options` are gated the parts are gate and up, interleaved so that the gated activation
    /// needs one pass.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn linear(
        &mut self,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<Linear> {
        let (weight, options) = self.weight_and_bias(parts, k, bias, options)?;
        Ok(Linear::new(&self.ctx, weight, options, max_rows)?)
    }

    /// The same of what may be normed first.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn normed_linear(
        &mut self,
        norm: Option<NormOptions>,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<NormedLinear> {
        let (weight, options) = self.weight_and_bias(parts, k, bias, options)?;
        Ok(NormedLinear::new(&self.ctx, norm, weight, options, max_rows)?)
    }

    /// The weight of a linear layer, and `options` with its bias.
    fn weight_and_bias(
        &mut self,
        parts: &[Part],
        k: usize,
        bias: bool,
        options: LinearOptions,
    ) -> Result<(Arc<PackedWeight>, LinearOptions)> {
        let bias = if bias { Some(self.biases(parts)?) } else { None };
        let weight = self.pack(parts, 1, k, options.gated.is_some(), true)?;
        let compute = self.precision.compute_with(weight.encoding());
        Ok((weight, LinearOptions { bias, compute, ..options }))
    }

    fn biases(&mut self, parts: &[Part]) -> Result<Tensor> {
        let mut values = Vec::new();
        for part in parts {
            values.extend_from_slice(&self.values(&part.bias(), part.of)?[part.rows.clone()]);
        }
        Ok(self.ctx.tensor_tagged("weights", &values, &[values.len()])?)
    }

    /// A linear layer of `experts` experts for up to `max_rows` rows: `parts` are those of the first expert, then those
    /// of the next, as [`linear`](Self::linear) has them.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn grouped(
        &mut self,
        parts: &[Part],
        experts: usize,
        k: usize,
        options: GroupedLinearOptions,
        max_rows: usize,
    ) -> Result<GroupedLinear> {
        let weight = self.pack(parts, experts, k, options.gated.is_some(), true)?;
        let compute = self.precision.compute_with(weight.encoding());
        Ok(GroupedLinear::new(&self.ctx, weight, GroupedLinearOptions { compute, ..options }, max_rows)?)
    }

    /// A norm of `kind` with the vectors `[n]` called `{name}.weight` and, for a layer norm, `{name}.bias`, from the
    /// first dtype to the second.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn norm(
        &mut self,
        name: &str,
        n: usize,
        kind: NormKind,
        eps: f64,
        dtypes: [DType; 2],
        max_rows: usize,
    ) -> Result<Norm> {
        let options = self.norm_options(name, n, kind, eps, dtypes)?;
        Ok(Norm::new(&self.ctx, options, max_rows)?)
    }

    /// What such a norm is made of.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn norm_options(
        &mut self,
        name: &str,
        n: usize,
        kind: NormKind,
        eps: f64,
        [input, output]: [DType; 2],
    ) -> Result<NormOptions> {
        let offset = match kind {
            NormKind::Rms => 0.0,
            NormKind::RmsOffset => 1.0,
            NormKind::Layer => {
                let [weight, bias] = layer_norm_names(self.checkpoint, name);
                let (weight, bias) = (self.vector(&weight, n)?, self.vector(&bias, n)?);
                return Ok(NormOptions::layer(eps, weight, bias, input, output));
            }
        };
        let weight: Vec<f32> = self.values(&format!("{name}.weight"), n)?.iter().map(|w| w + offset).collect();
        let weight = self.ctx.tensor_tagged("weights", &weight, &[n])?;
        Ok(NormOptions::rms(eps, weight, input, output))
    }

    /// The rotations of f32 heads in sequences of up to `context` tokens.
    ///
    /// # Errors
    /// Out of memory for their tables, or no kernel.
    pub fn ropes(&self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>> {
        rotaries(&self.ctx, ropes, head_dim, context, context)
    }

    /// A packed weight from matrices `[n, k]` that are stacked along `n`, for products.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or dtype, or out of memory.
    pub fn weight(&mut self, parts: &[Part], k: usize) -> Result<Arc<PackedWeight>> {
        self.pack(parts, 1, k, false, true)
    }

    /// The same whose rows may be looked up as well: their values are in the order of the matrices' columns.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn weight_and_table(&mut self, parts: &[Part], k: usize) -> Result<Arc<PackedWeight>> {
        self.pack(parts, 1, k, false, false)
    }

    fn pack(
        &mut self,
        parts: &[Part],
        groups: usize,
        k: usize,
        gated: bool,
        may_be_ordered: bool,
    ) -> Result<Arc<PackedWeight>> {
        let matrices = Matrices::of(self.checkpoint, parts.iter().cloned(), groups, k)?;
        let becomes = matrices.becomes(&self.precision, self.ctx.device().id().kind, may_be_ordered);
        let packer = self.packer(&matrices, &becomes, gated)?;
        Ok(Arc::new(self.fill(packer, &matrices, becomes.as_stored)?.finish()?))
    }

    /// Room for what matrices become.
    fn packer(&self, matrices: &Matrices, becomes: &Becomes, gated: bool) -> Result<WeightPacker> {
        let Becomes { encoding, order, .. } = becomes;
        let (groups, rows) = (matrices.groups(), matrices.rows());
        let packer = WeightPacker::grouped(&self.ctx, *encoding, groups, &rows, matrices.k(), gated)?;
        let packer = packer.per_channel(self.precision.per_channel());
        Ok(match order {
            Some(order) => packer.ordered(&self.ctx, order)?,
            None => packer,
        })
    }

    /// An embedding table `[rows, width]` in the dtype of the weights.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn table(&mut self, part: Part, width: usize) -> Result<Tensor> {
        let packer = WeightPacker::table(&self.ctx, self.precision.weights, part.len(), width)?;
        let matrices = Matrices::of(self.checkpoint, [part], 1, width)?;
        Ok(self.fill(packer, &matrices, false)?.finish_table()?)
    }

    /// A vector `[n]` as f32: norm weights and biases, which are small and read by every row.
    ///
    /// # Errors
    /// Those of [`Loader::weight`].
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Tensor> {
        let values = self.values(name, n)?;
        Ok(self.ctx.tensor_tagged("weights", &values, &[n])?)
    }

    fn values(&mut self, name: &str, n: usize) -> Result<Vec<f32>> {
        let dtype = check(self.checkpoint, name, &[n])?;
        let tensor = self.checkpoint.tensor(name)?;
        let bytes: &[u8] = &tensor.bytes;
        let values = match dtype {
            DType::F64 => widen::<8>(bytes, |b| f64::from_le_bytes(b) as f32),
            DType::F32 => widen::<4>(bytes, f32::from_le_bytes),
            DType::F16 => widen::<2>(bytes, |b| f16::from_le_bytes(b).to_f32()),
            _ => widen::<2>(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        };
        self.advance(values.len() * dtype.size());
        Ok(values)
    }

    /// Ends loading: tensors that nothing asked for are reported, but those whose names end with one of `spare`.
    pub fn finish(&mut self, spare: &[&str]) {
        self.checkpoint.report_unused(spare);
        (self.progress)(self.total, self.total);
    }
}

fn widen<const SIZE: usize>(bytes: &[u8], value: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<SIZE>().0.iter().map(|&chunk| value(chunk)).collect()
}

/// The rotations of f32 heads at so many positions, with the frequencies of sequences of up to `context` tokens.
///
/// # Errors
/// Out of memory for their tables, or no kernel.
pub(crate) fn rotaries(
    ctx: &Context,
    ropes: &[RopeConfig],
    head_dim: usize,
    context: usize,
    positions: usize,
) -> Result<Vec<Rotary>> {
    let rotary = |rope: &RopeConfig| {
        let (inv_freq, scale) = rope.frequencies(head_dim, context);
        Ok(Rotary::new(ctx, &inv_freq, scale, positions, head_dim, DType::F32)?)
    };
    ropes.iter().map(rotary).collect()
}

#[cfg(test)]
mod tests;
