//! What loading makes of a checkpoint, counted before it does.

use std::fmt::Debug;

use sinew_memory::{ArenaPlan, DeviceKind};
use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionStatic, Encoding, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, PackedShape,
    Rotary, Routing,
};
use sinew_tensor::DType;

use super::Part;
use super::becomes::Dequantized;
use super::maker::{Counted, GroupedSpec, LinearSpec, Maker, NormSpec};
use super::matrices::StoredMatrices;
use super::matrix::{StoredMatrix, check};
use crate::Result;
use crate::activations::{bytes, sum};
use crate::checkpoint::Checkpoint;
use crate::config::RopeConfig;
use crate::precision::{Activations, Precision};

/// What a [`Loader`](super::Loader) would make of a checkpoint, for plans: every tensor is checked as loading checks
/// it, and the bytes of what it becomes are counted; the largest number where they are more.
#[derive(Debug)]
pub(crate) struct Sizes<'a> {
    checkpoint: &'a Checkpoint,
    precision: Precision,
    ctx: &'a Context,
    /// The matrices of products that were asked for, with their inputs and what they would become.
    pub weights: Vec<(Part, usize, Encoding)>,
    /// The names of embedding tables.
    pub tables: Vec<String>,
    /// What of them is quantized and would not stay so.
    pub dequantized: Dequantized,
    /// What is made of them, and of vectors.
    pub made: Vec<Made>,
    /// What a step works on and is given; none where that is more than can be counted.
    activations: Option<ArenaPlan>,
    /// Bytes of rotary embeddings by position.
    ropes: usize,
    /// Whether what products and attention work in is counted too.
    counts_workspace: bool,
    /// Bytes of that: they work in one room, one after the other.
    pub workspace: usize,
}

/// What comes of some tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub encoding: Encoding,
    pub bytes: usize,
    /// Bytes of the checkpoint that are read whole before any of it is packed.
    pub read_whole: usize,
}

impl<'a> Sizes<'a> {
    /// Of a checkpoint on a context's device.
    pub(crate) fn new(ctx: &'a Context, checkpoint: &'a Checkpoint, precision: Precision) -> Self {
        let (weights, tables, dequantized, made) = Default::default();
        let (ropes, counts_workspace, workspace) = Default::default();
        let activations = Some(ArenaPlan::new(ctx.device().alignment()));
        Self {
            checkpoint,
            precision,
            ctx,
            weights,
            tables,
            dequantized,
            made,
            activations,
            ropes,
            counts_workspace,
            workspace,
        }
    }

    /// The same, and what the kernels that are chosen work in.
    pub(crate) fn with_workspace(self) -> Self {
        Self { counts_workspace: true, ..self }
    }

    /// The kind of device.
    pub(crate) fn device(&self) -> DeviceKind {
        self.ctx.device().id().kind
    }

    /// Refuses activations that none of the weights that were counted takes.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    pub(crate) fn check_activations(&self) -> Result<()> {
        let Some(activations) = self.precision.activations_of_quantized else { return Ok(()) };
        self.why_untaken(activations).map_or(Ok(()), |weights| Err(activations.refused(&weights)))
    }

    /// What the weights that were counted are, in words, if none takes such activations.
    pub(crate) fn why_untaken(&self, activations: Activations) -> Option<String> {
        let encodings = || self.weights.iter().map(|(.., encoding)| *encoding);
        let in_blocks = encodings().find(|encoding| matches!(encoding, Encoding::Blocks(_)));
        (!encodings().any(|encoding| activations.are_taken(encoding))).then(|| {
            match (in_blocks, self.dequantized.why()) {
                (Some(blocks), _) => format!("weights in {blocks}"),
                (None, Some(why)) => format!("weights {why}, which are multiplied as floats"),
                (None, None) => "floats".to_owned(),
            }
        })
    }

    /// What most bytes of the weights are in that would stay as the checkpoint has them quantized.
    pub(crate) fn kept(&self) -> Option<Encoding> {
        let of = |encoding| sum(self.made.iter().filter(|made| made.encoding == encoding).map(|made| made.bytes));
        let blocks = self.made.iter().map(|made| made.encoding).filter(|it| matches!(it, Encoding::Blocks(_)));
        blocks.filter(|_| self.precision.keeps_blocks).max_by_key(|&encoding| of(encoding))
    }

    /// Bytes of all that was counted.
    pub(crate) fn device_bytes(&self) -> DeviceBytes {
        let weights = sum(self.made.iter().map(|made| made.bytes));
        DeviceBytes {
            weights,
            activations: self.activations.as_ref().map_or(usize::MAX, ArenaPlan::bytes),
            tables: self.ropes,
            ..DeviceBytes::default()
        }
    }

    /// The weight of a product of these parts, in so many groups, and their biases.
    pub(super) fn product(
        &mut self,
        parts: impl IntoIterator<Item = Part>,
        [groups, k]: [usize; 2],
        gated: bool,
        bias: bool,
        may_be_ordered: bool,
    ) -> Result<PackedShape> {
        let matrices = StoredMatrices::of(self.checkpoint, parts, groups, k)?;
        if bias {
            let mut tensors = matrices.stored().iter().map(|matrix| &matrix.part);
            tensors.try_for_each(|part| check(self.checkpoint, &part.bias(), &part.bias_shape()).map(drop))?;
            self.made_vector(sum(matrices.parts().iter().map(|(part, _)| part.len())));
        }
        let becomes = matrices.becomes(&self.precision, self.ctx, may_be_ordered);
        matrices.name_dequantized(&becomes, &mut self.dequantized);
        let encoding = becomes.encoding;
        let shape = self.ctx.packed_shape(encoding, groups, [sum(matrices.rows()), k], gated)?;
        let order = becomes.order.map_or(0, |order| bytes(DType::U32, &[order.len()]));
        let bytes = shape.bytes().saturating_add(order);
        self.weights.extend(matrices.stored().iter().map(|matrix| (matrix.part.clone(), k, encoding)));
        self.made.push(Made { encoding, bytes, read_whole: matrices.read_whole(self.checkpoint) });
        Ok(shape)
    }

    /// What steps take of the activations.
    fn steps_take(&mut self, take: impl FnOnce(&mut ArenaPlan) -> sinew_memory::Result<()>) {
        self.activations = self.activations.take().and_then(|mut arena| take(&mut arena).ok().map(|()| arena));
    }

    /// What a kernel works in.
    fn works_in(&mut self, bytes: impl FnOnce(&Context) -> sinew_ops::Result<usize>) -> Result<()> {
        if self.counts_workspace {
            self.workspace = self.workspace.max(bytes(self.ctx)?);
        }
        Ok(())
    }

    /// A linear layer of what may be normed first.
    fn after_norm(&mut self, norm: Option<NormSpec>, linear: LinearSpec, may_be_ordered: bool) -> Result<()> {
        let LinearSpec { parts, k, bias, options, max_rows } = linear;
        norm.map_or(Ok(()), |norm| self.norm(norm, max_rows))?;
        let weight = self.product(parts, [1, k], options.gated.is_some(), bias, may_be_ordered)?;
        let options = LinearOptions { compute: self.precision.compute_with(weight.encoding()), ..options };
        self.works_in(|ctx| Linear::workspace(ctx, &weight, &options, max_rows))
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
        self.made.push(Made { encoding: Encoding::Float(dtype), bytes, read_whole: 0 });
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
        let bytes = bytes(dtype, &[part.len(), width]);
        self.tables.push(part.name().to_owned());
        let table = StoredMatrix::of(self.checkpoint, part, width)?;
        table.name_table(&self.precision, &mut self.dequantized);
        self.floats(dtype, bytes);
        Ok(())
    }

    fn norm(&mut self, norm: NormSpec, _: usize) -> Result<()> {
        let (weight, bias) = norm.vectors(self.checkpoint);
        self.vector(&weight, norm.n)?;
        bias.map_or(Ok(()), |bias| self.vector(&bias, norm.n))
    }

    fn linear(&mut self, linear: LinearSpec) -> Result<()> {
        self.after_norm(None, linear, true)
    }

    fn normed_linear(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<()> {
        self.after_norm(norm, linear, true)
    }

    fn tied(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<((), ())> {
        Ok((self.after_norm(norm, linear, false)?, ()))
    }

    fn grouped(&mut self, grouped: GroupedSpec<impl Iterator<Item = Part>>) -> Result<()> {
        let GroupedSpec { parts, experts, k, bias, options, max_rows } = grouped;
        let weight = self.product(parts, [experts, k], options.gated.is_some(), bias, true)?;
        let options = GroupedLinearOptions { compute: self.precision.compute_with(weight.encoding()), ..options };
        self.works_in(|ctx| GroupedLinear::workspace(ctx, &weight, &options, max_rows))
    }

    fn attention(&mut self, problem: AttentionStatic, max_rows: usize, max_kv: usize) -> Result<()> {
        self.works_in(|ctx| Attention::workspace(ctx, &problem, max_rows, max_kv))
    }

    fn sinks(&mut self, name: &str, heads: usize) -> Result<()> {
        self.vector(name, heads)
    }

    fn ropes(&mut self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>> {
        let of = |rope: &RopeConfig| Rotary::bytes(rope.rotary_dim(head_dim).div_ceil(2), context);
        self.ropes = sum(ropes.iter().map(of)).saturating_add(self.ropes);
        Ok(Vec::new())
    }

    fn rows(&mut self, dtype: DType, max_rows: usize, width: usize) -> Result<()> {
        self.steps_take(|arena| arena.allocate(bytes(dtype, &[max_rows, width])).map(drop));
        Ok(())
    }

    fn host_input(&mut self, dtype: DType, most: usize) -> Result<()> {
        self.steps_take(|arena| arena.allocate(bytes(dtype, &[most])).map(drop));
        Ok(())
    }

    fn routing(&mut self, experts: usize, top_k: usize, max_tokens: usize) -> Result<()> {
        self.steps_take(|arena| Routing::plan(arena, experts, top_k, max_tokens));
        Ok(())
    }

    fn planned<T: Debug>(&mut self, _: impl FnOnce(&Context) -> sinew_ops::Result<T>) -> Result<()> {
        Ok(())
    }
}

/// Bytes that a loaded model takes on its device, by purpose. A number too large to count is [`usize::MAX`].
///
/// This leaves out the workspace of kernels, which is known once they are chosen, and what a pool rounds up. A
/// [`Footprint`](crate::Footprint) has both.
///
/// ```no_run
/// use sinew_models::{Folder, LanguageModel, Load, LoadOptions};
/// use sinew_ops::Context;
///
/// let folder = Folder::new("path/to/model");
/// let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(Load::default())?);
/// let plan = LanguageModel::plan(config, &checkpoint, &LoadOptions::default(), &Context::cpu()?)?;
/// println!("{} bytes, {} of them weights", plan.total(), plan.weights);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Packed weights, embedding tables, biases and the weights of norms.
    pub weights: usize,
    /// Keys and values.
    pub cache: usize,
    /// Activations and inputs of a step.
    pub activations: usize,
    /// Rotary embeddings by position.
    pub tables: usize,
    /// Rows of logits.
    pub logits: usize,
}

impl DeviceBytes {
    /// The sum of all fields.
    pub fn total(&self) -> usize {
        sum(self.parts().map(|(_, bytes)| bytes))
    }

    /// Each field with its name in messages.
    pub(crate) fn parts(&self) -> [Taken; 5] {
        let &Self { weights, cache, activations, tables, logits } = self;
        [
            ("weights", weights),
            ("KV cache", cache),
            ("activations", activations),
            ("rotary tables", tables),
            ("logits", logits),
        ]
    }
}

/// The name of a use of memory, and its bytes.
pub(crate) type Taken = (&'static str, usize);
