//! What a model's parts are declared to.

use std::fmt::Debug;

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionStatic, Embedding, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Norm,
    NormedLinear, Rotary, Routing,
};
use sinew_tensor::{DType, Tensor};

use super::Part;
use crate::Result;
use crate::activations::{HostInput, Rows};
use crate::checkpoint::Checkpoint;
use crate::config::{NormKind, RopeConfig};
use crate::precision::Precision;

/// Whether the parts of a model are there.
pub(crate) trait Stage: Debug {
    /// What a part is then.
    type Of<T: Debug>: Debug;
}

/// They are loaded.
#[derive(Debug)]
pub(crate) struct Loaded;

/// They are counted, and nothing is left of them.
#[derive(Debug)]
pub(crate) struct Counted;

impl Stage for Loaded {
    type Of<T: Debug> = T;
}

impl Stage for Counted {
    type Of<T: Debug> = ();
}

/// Makes a model of its parts, which the model names one after the other: a [`Loader`](super::Loader) loads them, and
/// [`Sizes`](super::Sizes) count them. What a model consists of is said once, to whichever it is given.
pub(crate) trait Maker<S: Stage> {
    /// Where the tensors are.
    fn checkpoint(&self) -> &Checkpoint;

    /// The precision.
    fn precision(&self) -> Precision;

    /// An embedding whose table `[rows, width]` is in the dtype of the weights.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or dtype, or out of memory; so of all that have tensors.
    fn table(&mut self, part: Part, width: usize) -> Result<S::Of<Embedding>>;

    /// A norm for up to `max_rows` rows.
    fn norm(&mut self, norm: NormSpec, max_rows: usize) -> Result<S::Of<Norm>>;

    /// A linear layer.
    fn linear(&mut self, linear: LinearSpec) -> Result<S::Of<Linear>>;

    /// One of what may be normed first.
    fn normed_linear(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<S::Of<NormedLinear>>;

    /// One whose matrix is an embedding as well, which is held once.
    fn tied(&mut self, norm: Option<NormSpec>, linear: LinearSpec) -> Result<(S::Of<NormedLinear>, S::Of<Embedding>)>;

    /// A linear layer of experts. There may be as many as a file claims to have: none is made after one that is not there.
    fn grouped(&mut self, grouped: GroupedSpec<impl Iterator<Item = Part>>) -> Result<S::Of<GroupedLinear>>;

    /// Attention of up to `max_rows` rows over up to `max_kv` keys.
    ///
    /// # Errors
    /// No kernel for it.
    fn attention(&mut self, problem: AttentionStatic, max_rows: usize, max_kv: usize) -> Result<S::Of<Attention>>;

    /// The logits of the attention sinks of so many heads, f32.
    fn sinks(&mut self, name: &str, heads: usize) -> Result<S::Of<Tensor>>;

    /// The rotations of f32 heads in sequences of up to `context` tokens; none where they are counted.
    ///
    /// # Errors
    /// Out of memory for their tables, or no kernel.
    fn ropes(&mut self, ropes: &[RopeConfig], head_dim: usize, context: usize) -> Result<Vec<Rotary>>;

    /// Activations `[max_rows, width]`.
    ///
    /// # Errors
    /// Out of memory.
    fn rows(&mut self, dtype: DType, max_rows: usize, width: usize) -> Result<S::Of<Rows>>;

    /// At most so many numbers that the host gives to a step.
    ///
    /// # Errors
    /// Out of memory.
    fn host_input(&mut self, dtype: DType, most: usize) -> Result<S::Of<HostInput>>;

    /// Where up to `max_tokens` tokens go, each to `top_k` experts.
    ///
    /// # Errors
    /// Out of memory.
    fn routing(&mut self, experts: usize, top_k: usize, max_tokens: usize) -> Result<S::Of<Routing>>;

    /// What holds nothing on the device.
    ///
    /// # Errors
    /// Those of `plan`.
    fn planned<T: Debug>(&mut self, plan: impl FnOnce(&Context) -> sinew_ops::Result<T>) -> Result<S::Of<T>>;
}

/// A linear layer for up to `max_rows` rows.
#[derive(Debug)]
pub(crate) struct LinearSpec {
    /// Matrices `[n, k]` that are stacked. Where the options are gated they are gate and up, interleaved so that the gated
    /// activation needs one pass.
    pub parts: Vec<Part>,
    pub k: usize,
    /// Whether each has a bias.
    pub bias: bool,
    pub options: LinearOptions,
    pub max_rows: usize,
}

/// A linear layer of experts for up to `max_rows` rows.
pub(crate) struct GroupedSpec<P> {
    /// Those of the first expert as a [`LinearSpec`] has them, then those of the next.
    pub parts: P,
    pub experts: usize,
    pub k: usize,
    /// Whether each has a bias.
    pub bias: bool,
    pub options: GroupedLinearOptions,
    pub max_rows: usize,
}

/// A norm, and what its vectors `[n]` are called.
#[derive(Debug, Clone)]
pub(crate) struct NormSpec {
    /// Less `.weight` and `.bias`.
    pub name: String,
    pub n: usize,
    pub kind: NormKind,
    /// Whether it has a bias, which only a layer norm may have.
    pub bias: bool,
    pub eps: f64,
    /// Of what it reads, and of what it gives.
    pub dtypes: [DType; 2],
}

impl NormSpec {
    /// The names of its weight and its bias. Where a layer norm has both, checkpoints converted from TensorFlow have
    /// gamma and beta.
    pub(super) fn vectors(&self, checkpoint: &Checkpoint) -> (String, Option<String>) {
        let name = |new: &str, old: &str| {
            let new = format!("{}.{new}", self.name);
            if !self.bias || checkpoint.contains(&new) { new } else { format!("{}.{old}", self.name) }
        };
        (name("weight", "gamma"), self.bias.then(|| name("bias", "beta")))
    }
}
