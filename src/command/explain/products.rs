//! Matrix products.

use clap::Args;
use sinew::kernels::activation::Activation;
use sinew::kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, InputNorm, Residual, Rhs};
use sinew::kernels::grouped_gemm::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use sinew::kernels::norm::{NormFormula, NormKind};
use sinew::kernels::packed::Format;
use sinew::models::precision::Precision;
use sinew::ops::Context;
use sinew::tensor::DType;

use super::super::arguments::{WEIGHT, of_settings};
use super::super::{Outcome, Run};
use super::{Describe, ProblemOf, parse, rows};

/// A product of activations and a packed weight: `[m, k] x [n, k]ᵀ`.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHT), args = of_settings(&["activations"]))]
pub struct ExplainGemm {
    /// Products of as many matrices each, which share a packed weight.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    batch: usize,
    /// Rows of activations.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    m: usize,
    /// Outputs; where gated, gate and up together.
    #[arg(long, value_parser = parse::size)]
    n: usize,
    /// Inputs.
    #[arg(long, value_parser = parse::size)]
    k: usize,
    /// The right-hand side is an ordinary tensor instead of a packed weight.
    #[arg(long)]
    unpacked: bool,
    /// Dtype of the activations; if it is not given, what products of such weights read in a model, or f32 where they are
    /// normed first.
    #[arg(long, value_parser = parse::float)]
    input: Option<DType>,
    /// The activations are normed first: rms or layer.
    #[arg(long, value_parser = rows::parse_norm)]
    norm: Option<NormKind>,
    /// The packed weight has its inputs in another order, as by act-order.
    #[arg(long, conflicts_with = "unpacked")]
    gathered: bool,
    #[command(flatten)]
    after: After,
    /// Dtype of the result; f32 if it is not given, or where gated that of what is read.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
}

/// What follows the sum.
#[derive(Debug, Args)]
struct After {
    /// Factor of the sum.
    #[arg(long, default_value = "1", value_parser = parse::finite)]
    alpha: f32,
    /// Dtype of a bias.
    #[arg(long, value_parser = parse::float)]
    bias: Option<DType>,
    /// The activation of every output.
    #[arg(long, value_name = "silu|gelu|…")]
    activation: Option<Activation>,
    /// The activation by which the first half of the outputs gates the second.
    #[arg(long, value_name = "silu|gelu|…", conflicts_with = "activation")]
    gated: Option<Activation>,
    /// What is added: a tensor of this dtype, or output, what the result holds.
    #[arg(long, value_name = "output|DTYPE", value_parser = parse_residual)]
    residual: Option<Residual>,
    /// Factor of what is added.
    #[arg(long, default_value = "1", value_parser = parse::finite, requires = "residual")]
    beta: f32,
}

fn parse_residual(text: &str) -> Result<Residual, String> {
    let all = [Residual::Output].into_iter().chain(DType::COMPUTE.map(Residual::Input));
    parse::one_of(text, all, |residual| match residual {
        Residual::Output => "output",
        Residual::Input(dtype) => dtype.name(),
    })
}

impl After {
    fn epilogue(&self) -> Epilogue {
        let &Self { alpha, bias, activation, gated, residual, beta } = self;
        Epilogue { alpha, bias, activation: activation.or(gated), gated: gated.is_some(), residual, beta }
    }
}

/// Outputs that are gated come in two halves.
fn check_halves(n: usize, gated: Option<Activation>) -> Outcome {
    match gated {
        Some(_) if !n.is_multiple_of(2) => Err(format!("{n} outputs cannot be halved into gate and up").into()),
        _ => Ok(()),
    }
}

/// Products of the rows of each group, such as an expert's, with a weight of its own.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHT), args = of_settings(&["activations"]))]
pub struct ExplainGroupedGemm {
    /// Rows of all groups.
    #[arg(long, default_value = "8", value_parser = parse::size)]
    rows: usize,
    /// Groups.
    #[arg(long, default_value = "8", value_parser = parse::size)]
    groups: usize,
    /// Outputs of each weight; where gated, gate and up together.
    #[arg(long, value_parser = parse::size)]
    n: usize,
    /// Inputs.
    #[arg(long, value_parser = parse::size)]
    k: usize,
    /// Dtype of a bias of each group.
    #[arg(long, value_parser = parse::float)]
    bias: Option<DType>,
    /// The activation by which the first half of the outputs gates the second.
    #[arg(long, value_name = "silu|gelu|…")]
    gated: Option<Activation>,
    /// The weights have their inputs in an order of their own, as by act-order.
    #[arg(long)]
    gathered: bool,
}

/// What a loaded model of such weights computes with, bf16 where none are named.
pub(super) fn precision(run: &Run, ctx: &Context) -> Outcome<Precision> {
    let weights = run.weight_options(None, ctx)?;
    let of = Precision::of(weights.dtype.unwrap_or(DType::BF16), ctx.device().hardware())?;
    Ok(Precision { quantize: weights.quantize, activations_of_quantized: weights.activations, ..of })
}

/// Ordinary tensors hold no quantized values.
pub(super) fn refuse_unpacked(unpacked: bool, run: &Run, precision: &Precision) -> Outcome {
    match precision.quantize {
        Some(_) if unpacked => {
            let said = run.said("dtype");
            Err(format!("--unpacked is for f32, f16 and bf16: quantized weights are packed, and {said}").into())
        }
        _ => Ok(()),
    }
}

/// The format in which the device keeps such weights, where it has one.
pub(super) fn format(run: &Run, precision: &Precision, ctx: &Context) -> Outcome<Option<&'static Format>> {
    let (encoding, device) = (precision.main_encoding(), ctx.device().id());
    match ctx.format(encoding) {
        None if precision.quantize.is_some() => {
            Err(run.by("dtype", &format!("{device} keeps no weights as {encoding}")).into())
        }
        format => Ok(format),
    }
}

impl Describe for ExplainGemm {
    type Operator = Gemm;

    fn problem(&self, run: &Run, ctx: &Context) -> Outcome<ProblemOf<Gemm>> {
        let precision = precision(run, ctx)?;
        refuse_unpacked(self.unpacked, run, &precision)?;
        let b = match format(run, &precision, ctx)? {
            Some(format) if !self.unpacked => Rhs::Packed(format),
            _ => Rhs::Strided(precision.weights),
        };
        check_halves(self.n, self.after.gated)?;
        parse::product("rows", self.batch, self.m)?;
        let read = precision.activations;
        let norm = self.norm.map(|kind| InputNorm { formula: formula(kind), to: read });
        let fixed = GemmStatic {
            n: self.n,
            k: self.k,
            a: self.input.unwrap_or(if norm.is_some() { DType::F32 } else { read }),
            norm,
            gathered: self.gathered,
            b,
            out: self.out.unwrap_or(if self.after.gated.is_some() { read } else { DType::F32 }),
            compute: precision.compute_with(precision.main_encoding()),
            epilogue: self.after.epilogue(),
        };
        Ok((fixed, GemmDynamic { batch: self.batch, m: self.m }))
    }
}

/// A norm of such a kind with weights in f32, as models have them.
fn formula(kind: NormKind) -> NormFormula {
    let bias = (kind == NormKind::Layer).then_some(DType::F32);
    NormFormula { kind, weight: Some(DType::F32), bias, ..NormFormula::default() }
}

impl Describe for ExplainGroupedGemm {
    type Operator = GroupedGemm;

    fn problem(&self, run: &Run, ctx: &Context) -> Outcome<ProblemOf<GroupedGemm>> {
        let precision = precision(run, ctx)?;
        let encoding = precision.main_encoding();
        let format = format(run, &precision, ctx)?;
        let format = format.ok_or_else(|| format!("{} keeps no weights as {encoding}", ctx.device().id()))?;
        check_halves(self.n, self.gated)?;
        let fixed = GroupedGemmStatic {
            groups: self.groups,
            n: self.n,
            k: self.k,
            a: precision.activations,
            format,
            gathered: self.gathered,
            bias: self.bias,
            out: if self.gated.is_some() { precision.activations } else { DType::F32 },
            compute: precision.compute_with(encoding),
            gated: self.gated,
        };
        Ok((fixed, GroupedGemmDynamic { rows: self.rows }))
    }
}
