//! `sinew explain`.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;
use sinew::kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew::kernels::packed::Format;
use sinew::models::Load;
use sinew::models::load::Precision;
use sinew::tensor::DType;

use super::{Machine, Outcome, WeightForm};

/// Show the kernels that could solve a problem.
#[derive(Debug, Subcommand)]
pub enum Explain {
    /// A product of activations and a packed weight: `[m, k] x [n, k]ᵀ`.
    Gemm(ExplainGemm),
}

/// The problem.
#[derive(Debug, Args)]
pub struct ExplainGemm {
    /// Rows of activations.
    #[arg(long, default_value_t = 1)]
    m: usize,
    /// Outputs.
    #[arg(long)]
    n: usize,
    /// Inputs.
    #[arg(long)]
    k: usize,
    #[command(flatten)]
    form: WeightForm,
    /// The right-hand side is an ordinary tensor instead of a packed weight.
    #[arg(long)]
    unpacked: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Explain {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let Self::Gemm(problem) = self;
        let ctx = machine.context()?;
        let weights = problem.form.options(Load::default())?;
        let of = Precision::of(weights.dtype.unwrap_or(DType::BF16), ctx.device().hardware())?;
        let precision = Precision { quantize: weights.quantize, activations_of_quantized: weights.activations, ..of };
        let encoding = precision.main_encoding();
        let b = match Format::of(encoding, ctx.device().id().kind) {
            Some(format) if !problem.unpacked => Rhs::Packed(format),
            None if precision.quantize.is_some() => {
                return Err(format!("{} keeps no weights as {encoding}", ctx.device().id()).into());
            }
            _ => Rhs::Strided(precision.weights),
        };
        let fixed = GemmStatic {
            n: problem.n,
            k: problem.k,
            a: precision.activations,
            norm: None,
            gathered: false,
            b,
            out: DType::F32,
            compute: precision.compute_with(encoding),
            epilogue: Epilogue::default(),
        };
        let explanation = ctx.explain::<Gemm>(&fixed, &GemmDynamic { batch: 1, m: problem.m })?;
        let mut out = std::io::stdout().lock();
        if !problem.json {
            write!(out, "{explanation}")?;
            return Ok(());
        }
        let candidates: Vec<_> = explanation
            .candidates
            .iter()
            .map(|c| {
                json!({
                    "kernel": c.row,
                    "arithmetic": c.arithmetic,
                    "predicted_s": c.predicted_s,
                    "workspace_bytes": c.workspace,
                    "chosen": c.chosen,
                    "why": c.verdict,
                })
            })
            .collect();
        writeln!(
            out,
            "{}",
            json!({
                "operator": explanation.operator,
                "problem": explanation.problem,
                "hardware": explanation.hardware,
                "flops": explanation.work.0,
                "bytes": explanation.work.1,
                "candidates": candidates,
            })
        )?;
        Ok(())
    }
}
