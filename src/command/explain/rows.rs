//! Operators on rows.

use clap::Args;
use sinew::kernels::F32Bits;
use sinew::kernels::activation::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate};
use sinew::kernels::norm::{Norm, NormDynamic, NormFormula, NormKind, NormStatic};
use sinew::kernels::reduce::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic};
use sinew::kernels::sample::{Sample, SampleDynamic, SampleStatic};
use sinew::kernels::softmax::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use sinew::kernels::topk::{TopK, TopKDynamic, TopKStatic};
use sinew::ops::Context;
use sinew::tensor::DType;

use super::super::{Outcome, Run};
use super::{Describe, ProblemOf, parse};

/// Rows of a width.
#[derive(Debug, Args)]
struct Shape {
    /// Rows.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    rows: usize,
    /// Elements of a row.
    #[arg(long, default_value = "4096", value_parser = parse::size)]
    width: usize,
}

/// RMS and layer norm.
#[derive(Debug, Args)]
pub struct ExplainNorm {
    #[command(flatten)]
    shape: Shape,
    /// rms or layer.
    #[arg(long, default_value = "rms", value_parser = parse_norm)]
    kind: NormKind,
    /// Dtype of the rows.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result; that of the rows if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
    /// Dtype of the weight, and of a layer norm's bias.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    weight: DType,
    /// Dtype of a residual that the rows are added to first.
    #[arg(long, value_parser = parse::float, conflicts_with = "in_place")]
    residual: Option<DType>,
    /// The rows are overwritten.
    #[arg(long, conflicts_with = "out")]
    in_place: bool,
}

pub(super) fn parse_norm(text: &str) -> Result<NormKind, String> {
    let name = |kind| if kind == NormKind::Rms { "rms" } else { "layer" };
    parse::one_of(text, [NormKind::Rms, NormKind::Layer], name)
}

impl Describe for ExplainNorm {
    type Operator = Norm;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Norm>> {
        let bias = (self.kind == NormKind::Layer).then_some(self.weight);
        let fixed = NormStatic {
            width: self.shape.width,
            formula: NormFormula { kind: self.kind, weight: Some(self.weight), bias, ..NormFormula::default() },
            x: self.dtype,
            out: self.out.unwrap_or(self.dtype),
            residual: self.residual,
            in_place: self.in_place,
        };
        Ok((fixed, NormDynamic { rows: self.shape.rows }))
    }
}

/// Softmax of rows.
#[derive(Debug, Args)]
pub struct ExplainSoftmax {
    #[command(flatten)]
    shape: Shape,
    /// Dtype of the rows.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result; that of the rows if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
    /// Dtype of a mask that is added first.
    #[arg(long, value_parser = parse::float)]
    mask: Option<DType>,
    /// The logarithm of the result instead.
    #[arg(long)]
    log: bool,
    /// What rows are multiplied with first.
    #[arg(long, default_value = "1", value_parser = parse::finite)]
    scale: f32,
}

impl Describe for ExplainSoftmax {
    type Operator = Softmax;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Softmax>> {
        let (x, out) = (self.dtype, self.out.unwrap_or(self.dtype));
        let fixed = SoftmaxStatic { x, out, mask: self.mask, scale: F32Bits::new(self.scale), log: self.log };
        Ok((fixed, SoftmaxDynamic { rows: self.shape.rows, width: self.shape.width }))
    }
}

/// An activation of every element, alone or gating another.
#[derive(Debug, Args)]
pub struct ExplainActivation {
    #[command(flatten)]
    shape: Shape,
    /// The function: silu, gelu, gelu_tanh, quick_gelu, relu or relu2.
    #[arg(long, default_value = "silu")]
    function: Activation,
    /// What it is multiplied with: none, tensor, or halves, the second half of each row.
    #[arg(long, default_value = "none", value_parser = parse_gate)]
    gate: Gate,
    /// Dtype of the rows.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result; that of the rows if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
}

fn parse_gate(text: &str) -> Result<Gate, String> {
    let all = [(Gate::None, "none"), (Gate::Tensor, "tensor"), (Gate::Halves, "halves")];
    parse::one_of(text, all, |(_, name)| name).map(|(gate, _)| gate)
}

impl Describe for ExplainActivation {
    type Operator = Activate;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Activate>> {
        let (x, out) = (self.dtype, self.out.unwrap_or(self.dtype));
        let fixed = ActivationStatic { activation: self.function, gate: self.gate, x, out };
        Ok((fixed, ActivationDynamic { rows: self.shape.rows, width: self.shape.width }))
    }
}

/// Sums, means, extremes and where they are.
#[derive(Debug, Args)]
pub struct ExplainReduce {
    #[command(flatten)]
    shape: Shape,
    /// sum, mean, amax, amin, argmax or argmin.
    #[arg(long, default_value = "sum", value_parser = parse_reduce)]
    function: ReduceFunction,
    /// Dtype of the rows.
    #[arg(long, default_value = "f32", value_parser = parse::dtype)]
    dtype: DType,
    /// Dtype of the result; i64 for indices and sums of integers, else that of the rows, if it is not given.
    #[arg(long, value_parser = parse::dtype)]
    out: Option<DType>,
}

fn parse_reduce(text: &str) -> Result<ReduceFunction, String> {
    parse::one_of(text, ReduceFunction::ALL, ReduceFunction::name)
}

impl Describe for ExplainReduce {
    type Operator = Reduce;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Reduce>> {
        let (function, input) = (self.function, self.dtype);
        let float = DType::COMPUTE.contains(&input) || input == DType::F64;
        let counts = function.finds() || (function == ReduceFunction::Sum && !float);
        let output = self.out.unwrap_or(if counts { DType::I64 } else { input });
        let fixed = ReduceStatic { function, input, output, dims: 1 };
        Ok((fixed, ReduceDynamic { rows: self.shape.rows, width: self.shape.width }))
    }
}

/// The largest elements of rows.
#[derive(Debug, Args)]
pub struct ExplainTopK {
    #[command(flatten)]
    shape: Shape,
    /// How many.
    #[arg(long, default_value = "50", value_parser = parse::size)]
    k: usize,
    /// Dtype of the rows.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the indices.
    #[arg(long, default_value = "u32", value_parser = parse::dtype)]
    indices: DType,
}

impl Describe for ExplainTopK {
    type Operator = TopK;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<TopK>> {
        let Shape { rows, width } = self.shape;
        if self.k > width {
            return Err(format!("the top {} of {width} elements: --k is at most --width", self.k).into());
        }
        let fixed = TopKStatic { k: self.k, dtype: self.dtype, indices: self.indices };
        Ok((fixed, TopKDynamic { rows, width }))
    }
}

/// Drawing a token from rows of logits.
#[derive(Debug, Args)]
pub struct ExplainSample {
    /// Rows.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    rows: usize,
    /// Logits of a row.
    #[arg(long, default_value = "32000", value_parser = parse::size)]
    vocab: usize,
}

impl Describe for ExplainSample {
    type Operator = Sample;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Sample>> {
        Ok((SampleStatic { vocab: self.vocab }, SampleDynamic { rows: self.rows }))
    }
}
