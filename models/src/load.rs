//! Loading: from tensors in files to packed weights, one slice at a time.

mod becomes;
mod fill;
mod maker;
mod matrices;
mod matrix;
mod part;
mod sizes;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use sinew_memory::Arena;
use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionStatic, Embedding, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Norm,
    NormOptions, NormedLinear, PackedWeight, Rotary, Routing, WeightPacker,
};
use sinew_tensor::{DType, Tensor};

use self::becomes::Becomes;
pub(crate) use self::becomes::Dequantized;
pub(crate) use self::fill::AT_HAND_BYTES;
pub(crate) use self::maker::{Counted, GroupedSpec, LinearSpec, Loaded, Maker, NormSpec, Stage};
use self::matrices::StoredMatrices;
use self::matrix::check;
pub(crate) use self::matrix::check_quantizable;
pub use self::part::Part;
pub use self::sizes::DeviceBytes;
pub(crate) use self::sizes::Taken;
pub(crate) use self::sizes::{Made, Sizes};
use crate::Result;
use crate::activations::{ACTIVATIONS, HostInput, Rows};
use crate::checkpoint::Checkpoint;
use crate::config::{NormKind, RopeConfig};
use crate::precision::Precision;
use crate::tensors::floats::widened;

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
    held: WeightBytes,
    /// Bytes of all that steps work on.
    activations: usize,
    /// Where they are, once a part has asked for some.
    arena: Option<Arena>,
    /// What was quantized and is not.
    dequantized: Dequantized,
}

/// Bytes of the weights that were loaded: packed ones, embedding tables, biases and the weights of norms.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WeightBytes {
    /// Of tables of embeddings alone, of which a step reads rows.
    pub tables: usize,
    /// Of experts, of which a step reads some.
    pub experts: usize,
    /// Of all else.
    pub others: usize,
}

impl<'a> Loader<'a> {
    /// A loader of `checkpoint` to a model whose steps work on so many bytes of activations.
    pub fn new(
        ctx: Arc<Context>,
        checkpoint: &'a Checkpoint,
        precision: Precision,
        activations: usize,
        progress: Progress<'a>,
    ) -> Self {
        let total = checkpoint.num_bytes();
        Self {
            ctx,
            checkpoint,
            precision,
            progress,
            done: 0,
            total,
            held: WeightBytes::default(),
            activations,
            arena: None,
            dequantized: Dequantized::default(),
        }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The precision.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The bytes of what was loaded so far.
    pub(crate) fn held(&self) -> WeightBytes {
        self.held
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }

    /// Where activations are. It is taken after the weights, which come first in most models.
    fn arena(&mut self) -> Result<&Arena> {
        let arena = match self.arena.take() {
            Some(arena) => arena,
            None => self
                .ctx
                .pool()
                .uninitialised_apart(self.activations, ACTIVATIONS)
                .and_then(Arena::in_buffer)
                .map_err(sinew_ops::Error::from)?,
        };
        Ok(self.arena.insert(arena))
    }

    fn activations(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let ctx = self.ctx.clone();
        Ok(ctx.uninitialised_in(self.arena()?, dtype, shape)?)
    }

    /// The weight of a linear layer, and its options with its bias.
    fn weight_and_bias(
        &mut self,
        linear: LinearSpec,
        may_be_ordered: bool,
    ) -> Result<(Arc<PackedWeight>, LinearOptions)> {
        let LinearSpec { parts, k, bias, options, .. } = linear;
        let (weight, bias) = self.pack(parts, [1, k], options.gated.is_some(), bias, may_be_ordered)?;
        let compute = self.precision.compute_with(weight.shape().encoding());
        Ok((weight, LinearOptions { bias, compute, ..options }))
    }

    /// One of what may be normed first, and its weight.
    fn after_norm(
        &mut self,
        norm: Option<NormSpec>,
        linear: LinearSpec,
        may_be_ordered: bool,
    ) -> Result<(NormedLinear, Arc<PackedWeight>)> {
        let (norm, max_rows) = (norm.map(|norm| self.norm_options(norm)).transpose()?, linear.max_rows);
        let (weight, options) = self.weight_and_bias(linear, may_be_ordered)?;
        let linear = NormedLinear::new(&self.ctx, norm, weight.clone(), options, max_rows)?;
        self.held.others += linear.weight_bytes();
        Ok((linear, weight))
    }

    /// The biases of matrices' rows, `[n]` or of several groups `[groups, n]`.
    fn biases(&mut self, matrices: &StoredMatrices) -> Result<Tensor> {
        let mut values = Vec::new();
        for (part, _) in matrices.parts() {
            values.extend(self.values(&part.bias(), &part.bias_shape(), part.in_tensor(0..part.len()), part.step())?);
        }
        match matrices.groups() {
            1 => self.vector(&values, &[values.len()]),
            groups => self.vector(&values, &[groups, values.len() / groups.max(1)]),
        }
    }

    /// What a norm is made of.
    fn norm_options(&mut self, norm: NormSpec) -> Result<NormOptions> {
        let (weight, bias) = norm.vectors(self.checkpoint);
        let NormSpec { n, kind, eps, dtypes: [input, output], .. } = norm;
        let mut weight = self.values(&weight, &[n], 0..n, 1)?;
        if kind == NormKind::RmsOffset {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        let weight = self.vector(&weight, &[n])?;
        let bias = bias.map(|bias| self.values(&bias, &[n], 0..n, 1)).transpose()?;
        let bias = bias.map(|bias| self.vector(&bias, &[n])).transpose()?;
        Ok(match kind {
            NormKind::Rms | NormKind::RmsOffset => NormOptions::rms(eps, weight, input, output),
            NormKind::Layer => NormOptions::layer(eps, weight, bias, input, output),
        })
    }

    /// Norm weights and biases, which are f32: they are small and read by every row.
    fn vector(&self, values: &[f32], shape: &[usize]) -> Result<Tensor> {
        Ok(self.ctx.tensor_tagged("weights", values, shape)?)
    }

    /// A packed weight of so many groups from matrices `[n, k]`, those of a group stacked along `n`, and their biases where
    /// they have any. Rows of one that may not be ordered can be looked up as well: their values are in the order of the
    /// matrices' columns.
    fn pack(
        &mut self,
        parts: impl IntoIterator<Item = Part>,
        [groups, k]: [usize; 2],
        gated: bool,
        bias: bool,
        may_be_ordered: bool,
    ) -> Result<(Arc<PackedWeight>, Option<Tensor>)> {
        let matrices = StoredMatrices::of(self.checkpoint, parts, groups, k)?;
        let bias = if bias { Some(self.biases(&matrices)?) } else { None };
        let becomes = matrices.becomes(&self.precision, &self.ctx, may_be_ordered);
        matrices.name_dequantized(&becomes, &mut self.dequantized);
        let packer = self.packer(&matrices, &becomes, gated)?;
        Ok((Arc::new(self.fill(packer, &matrices, &becomes)?.finish()?), bias))
    }

    /// Room for what matrices become.
    fn packer(&self, matrices: &StoredMatrices, becomes: &Becomes, gated: bool) -> Result<WeightPacker> {
        let Becomes { encoding, order, .. } = becomes;
        let (groups, rows) = (matrices.groups(), matrices.rows());
        let packer = WeightPacker::grouped(&self.ctx, *encoding, groups, &rows, matrices.k(), gated)?;
        let packer = packer.per_channel(self.precision.per_channel());
        Ok(match order {
            Some(order) => packer.ordered(&self.ctx, order)?,
            None => packer,
        })
    }

    /// Every so many of some values of a tensor of this shape.
    fn values(&mut self, name: &str, shape: &[usize], some: Range<usize>, step: usize) -> Result<Vec<f32>> {
        let dtype = check(self.checkpoint, name, shape)?;
        let bytes = self.checkpoint.tensor_slice(name, some.start * dtype.size()..some.end * dtype.size())?.bytes;
        let values: Vec<f32> = widened(&bytes, dtype).into_iter().step_by(step).collect();
        self.advance(values.len() * dtype.size());
        Ok(values)
    }

    /// Ends loading: what is not as the checkpoint has it is reported, and so are tensors that nothing asked for, or refused
    /// where they may change what a quantized module gives and no plan has been made before, but those whose names end with
    /// one of `spare`.
    ///
    /// # Errors
    /// Those of [`Checkpoint::refuse_unread`].
    pub fn finish(&mut self, spare: &[&str]) -> Result<()> {
        self.checkpoint.refuse_unread(spare)?;
        self.checkpoint.warn_of_unused(spare);
        for sentence in self.dequantized.sentences(self.precision.weights) {
            tracing::warn!("{sentence}");
        }
        (self.progress)(self.total, self.total);
        Ok(())
    }
}

impl Maker<Loaded> for Loader<'_> {
    fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn table(&mut self, part: Part, width: usize) -> Result<Embedding> {
        let dtype = self.precision.weights;
        let packer = WeightPacker::table(&self.ctx, dtype, part.len(), width)?;
        let matrices = StoredMatrices::of(self.checkpoint, [part], 1, width)?;
        matrices.stored().iter().for_each(|table| table.name_table(&self.precision, &mut self.dequantized));
        let table = self.fill(packer, &matrices, &Becomes::floats(dtype))?.finish_table()?;
        let embedding = Embedding::table(&self.ctx, table, DType::F32)?;
        self.held.tables += embedding.own_bytes();
        Ok(embedding)
    }

    fn norm(&mut self, norm: NormSpec, max_rows: usize) -> Result<Norm> {
        let options = self.norm_options(norm)?;
        let norm = Norm::new(&self.ctx, options, max_rows)?;
        self.held.others += norm.weight_bytes();
        Ok(norm)
    }

    fn linear(&mut self, linear: LinearSpec) -> Result<Linear> {
        let max_rows = linear.max_rows;
        let (weight, options) = self.weight_and_bias(linear, true)?;
        let linear = Linear::new(&self.ctx, weight, options, max_rows)?;
        self.held.others += linear.weight_bytes();
        Ok(linear)
    }

    fn normed_linear(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<NormedLinear> {
        Ok(self.after_norm(norm, linear, true)?.0)
    }

    fn tied(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<(NormedLinear, Embedding)> {
        let (linear, weight) = self.after_norm(norm, linear, false)?;
        Ok((linear, Embedding::packed(&self.ctx, weight, DType::F32)?))
    }

    fn grouped(&mut self, grouped: GroupedSpec<impl Iterator<Item = Part>>) -> Result<GroupedLinear> {
        let GroupedSpec { parts, experts, k, bias, options, max_rows } = grouped;
        let (weight, bias) = self.pack(parts, [experts, k], options.gated.is_some(), bias, true)?;
        let compute = self.precision.compute_with(weight.shape().encoding());
        let options = GroupedLinearOptions { bias, compute, ..options };
        let linear = GroupedLinear::new(&self.ctx, weight, options, max_rows)?;
        self.held.experts += linear.weight_bytes();
        Ok(linear)
    }

    fn attention(&mut self, problem: AttentionStatic, max_rows: usize, max_kv: usize) -> Result<Attention> {
        Ok(Attention::new(&self.ctx, problem, max_rows, max_kv)?)
    }

    fn sinks(&mut self, name: &str, heads: usize) -> Result<Tensor> {
        let sinks = self.values(name, &[heads], 0..heads, 1)?;
        self.held.others += size_of_val(&sinks[..]);
        self.vector(&sinks, &[heads])
    }

    fn ropes(&mut self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>> {
        rotaries(&self.ctx, ropes, head_dim, context, context)
    }

    fn rows(&mut self, dtype: DType, max_rows: usize, width: usize) -> Result<Rows> {
        Ok(Rows::of(self.activations(dtype, &[max_rows, width])?))
    }

    fn host_input(&mut self, dtype: DType, most: usize) -> Result<HostInput> {
        Ok(HostInput::of(self.activations(dtype, &[most])?))
    }

    fn routing(&mut self, experts: usize, top_k: usize, max_tokens: usize) -> Result<Routing> {
        let ctx = self.ctx.clone();
        Ok(Routing::new_in(&ctx, self.arena()?, experts, top_k, max_tokens)?)
    }

    fn planned<T: Debug>(&mut self, plan: impl FnOnce(&Context) -> sinew_ops::Result<T>) -> Result<T> {
        Ok(plan(&self.ctx)?)
    }
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
