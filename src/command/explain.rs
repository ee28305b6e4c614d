//! `sinew explain`.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;
use sinew::kernels::gemm::{Compute, Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew::kernels::packed::Format;
use sinew::tensor::DType;

use super::{Machine, Outcome, WeightDType, parse_dtype};

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
    /// Dtype of the weight: f32, f16 or bf16.
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    dtype: WeightDType,
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
        let dtype = problem.dtype.0.unwrap_or(DType::BF16);
        let b = match Format::of(dtype, ctx.device().id().kind) {
            Some(format) if !problem.unpacked => Rhs::Packed(format),
            _ => Rhs::Strided(dtype),
        };
        let compute = if dtype == DType::BF16 { Compute::Bf16 } else { Compute::F32 };
        let fixed = GemmStatic {
            n: problem.n,
            k: problem.k,
            a: if dtype == DType::F16 { DType::F32 } else { dtype },
            norm: None,
            b,
            out: DType::F32,
            compute,
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
