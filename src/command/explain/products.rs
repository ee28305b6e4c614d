//! Matrix products.

use clap::Args;
use sinew::kernels::activation::Activation;
use sinew::kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew::kernels::grouped_gemm::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use sinew::kernels::packed::Format;
use sinew::models::Load;
use sinew::models::load::Precision;
use sinew::ops::Context;
use sinew::tensor::DType;

use super::super::{Outcome, WeightForm};
use super::{Describe, ProblemOf, parse};

/// A product of activations and a packed weight: `[m, k] x [n, k]ᵀ`.
#[derive(Debug, Args)]
pub struct ExplainGemm {
    /// Rows of activations.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    m: usize,
    /// Outputs.
    #[arg(long, value_parser = parse::size)]
    n: usize,
    /// Inputs.
    #[arg(long, value_parser = parse::size)]
    k: usize,
    #[command(flatten)]
    form: WeightForm,
    /// The right-hand side is an ordinary tensor instead of a packed weight.
    #[arg(long)]
    unpacked: bool,
}

/// Products of the rows of each group, such as an expert's, with a weight of its own.
#[derive(Debug, Args)]
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
    #[command(flatten)]
    form: WeightForm,
    /// The activation by which the first half of the outputs gates the second.
    #[arg(long, value_name = "silu|gelu|…")]
    gated: Option<Activation>,
}

/// What a loaded model of such weights computes with, bf16 where none are named.
pub(super) fn precision(form: &WeightForm, ctx: &Context) -> Outcome<Precision> {
    let weights = form.options(Load::default())?;
    let of = Precision::of(weights.dtype.unwrap_or(DType::BF16), ctx.device().hardware())?;
    Ok(Precision { quantize: weights.quantize, activations_of_quantized: weights.activations, ..of })
}

/// The format in which the device keeps such weights, where it has one.
pub(super) fn format(precision: &Precision, ctx: &Context) -> Outcome<Option<&'static Format>> {
    let (encoding, device) = (precision.main_encoding(), ctx.device().id());
    match Format::of(encoding, device.kind) {
        None if precision.quantize.is_some() => Err(format!("{device} keeps no weights as {encoding}").into()),
        format => Ok(format),
    }
}

impl Describe for ExplainGemm {
    type Operator = Gemm;

    fn problem(&self, ctx: &Context) -> Outcome<ProblemOf<Gemm>> {
        let precision = precision(&self.form, ctx)?;
        let b = match format(&precision, ctx)? {
            Some(format) if !self.unpacked => Rhs::Packed(format),
            _ => Rhs::Strided(precision.weights),
        };
        let fixed = GemmStatic {
            n: self.n,
            k: self.k,
            a: precision.activations,
            norm: None,
            gathered: false,
            b,
            out: DType::F32,
            compute: precision.compute_with(precision.main_encoding()),
            epilogue: Epilogue::default(),
        };
        Ok((fixed, GemmDynamic { batch: 1, m: self.m }))
    }
}

impl Describe for ExplainGroupedGemm {
    type Operator = GroupedGemm;

    fn problem(&self, ctx: &Context) -> Outcome<ProblemOf<GroupedGemm>> {
        let precision = precision(&self.form, ctx)?;
        let encoding = precision.main_encoding();
        let format = format(&precision, ctx)?;
        let format = format.ok_or_else(|| format!("{} keeps no weights as {encoding}", ctx.device().id()))?;
        if self.gated.is_some() && !self.n.is_multiple_of(2) {
            return Err(format!("{} outputs cannot be halved into gate and up", self.n).into());
        }
        let fixed = GroupedGemmStatic {
            groups: self.groups,
            n: self.n,
            k: self.k,
            a: precision.activations,
            format,
            gathered: false,
            out: if self.gated.is_some() { precision.activations } else { DType::F32 },
            compute: precision.compute_with(encoding),
            gated: self.gated,
        };
        Ok((fixed, GroupedGemmDynamic { rows: self.rows }))
    }
}
