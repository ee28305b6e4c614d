//! `sinew explain`: of one problem, of a model's steps, or of all that is supported.

mod attention;
mod elements;
mod experts;
mod json;
mod model;
mod parse;
mod products;
mod rows;
mod support;

use std::io::Write;

use clap::{Args, Subcommand};
use sinew::kernels::Operator;
use sinew::kernels::rates::Description;
use sinew::ops::{Context, Explanation, Limits};

use super::arguments::{CHOOSING, MEMORY, OF_MODELS, TEAM};
use super::{Outcome, Run};

/// Show the kernels that could solve a problem, what each is predicted to cost, and why one is chosen; or with --model
/// where the time of a model's steps goes, or with --support which dtypes every operator takes on which device.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct Explain {
    #[command(subcommand)]
    problem: Option<Problem>,
    #[command(flatten)]
    model: model::OfModel,
    /// Print which dtypes every operator takes on every device of this machine.
    #[arg(long)]
    support: bool,
    /// Measure now what an operator's kernels take, in turns, and the device's limits: some seconds.
    #[arg(long, global = true)]
    measure: bool,
    /// Print one JSON object and nothing else.
    #[arg(long, global = true)]
    json: bool,
}

/// What is said where nothing is named.
pub const MISSING: &str = "explain what? Name an operator, such as gemm, or give --model or --support";

/// A problem of an operator; every operator has a name here, and flags that describe its problem.
#[derive(Debug, Subcommand)]
enum Problem {
    Gemm(products::ExplainGemm),
    #[command(name = "grouped_gemm")]
    GroupedGemm(products::ExplainGroupedGemm),
    Attention(attention::ExplainAttention),
    #[command(name = "kv_append")]
    KvAppend(attention::ExplainKvAppend),
    Rotary(attention::ExplainRotary),
    Norm(rows::ExplainNorm),
    Softmax(rows::ExplainSoftmax),
    Activation(rows::ExplainActivation),
    Reduce(rows::ExplainReduce),
    #[command(name = "topk")]
    TopK(rows::ExplainTopK),
    Sample(rows::ExplainSample),
    Unary(elements::ExplainUnary),
    Binary(elements::ExplainBinary),
    Where(elements::ExplainWhere),
    Cast(elements::ExplainCast),
    Gather(elements::ExplainGather),
    Embedding(elements::ExplainEmbedding),
    Route(experts::ExplainRoute),
    Combine(experts::ExplainCombine),
}

/// Flags that describe a problem of an operator.
trait Describe {
    type Operator: Operator;

    /// The problem's static and dynamic part.
    fn problem(&self, run: &Run, ctx: &Context) -> Outcome<ProblemOf<Self::Operator>>;

    fn explain(&self, run: &Run, ctx: &Context, measure: bool) -> Outcome<Explanation> {
        check_kernels::<Self::Operator>(run, ctx)?;
        let (fixed, call) = self.problem(run, ctx)?;
        if measure {
            return Ok(ctx.explain_measured::<Self::Operator>(&fixed, &call)?);
        }
        let explanation = ctx.explain::<Self::Operator>(&fixed, &call)?;
        // Against what `sinew devices --measure` kept, where it did.
        Ok(match Description::kept(ctx.device(), &run.settings().device_cache()) {
            Some(kept) => {
                let limits = Limits::described(ctx.device().hardware(), &kept);
                explanation.against(limits, Self::Operator::factors(&fixed))
            }
            None => explanation,
        })
    }
}

/// Refuses to prefer what serves other operators or devices.
fn check_kernels<O: Operator>(run: &Run, ctx: &Context) -> Outcome {
    let (kind, rows) = (ctx.device().id().kind, ctx.registry().table::<O>()?.rows());
    let serves = |name: &str| rows.iter().any(|row| row.device == kind && row.name == name);
    match run.settings().kernels.iter().find(|name| !serves(name)) {
        Some(name) => {
            run.refuse(&[&["kernels"]], &format!("names {name}, which is no kernel of {} on {kind}", O::NAME))
        }
        None => Ok(()),
    }
}

type ProblemOf<O> = (<O as Operator>::Static, <O as Operator>::Dynamic);

impl Problem {
    fn explain(&self, run: &Run, ctx: &Context, measure: bool) -> Outcome<Explanation> {
        match self {
            Self::Gemm(problem) => problem.explain(run, ctx, measure),
            Self::GroupedGemm(problem) => problem.explain(run, ctx, measure),
            Self::Attention(problem) => problem.explain(run, ctx, measure),
            Self::KvAppend(problem) => problem.explain(run, ctx, measure),
            Self::Rotary(problem) => problem.explain(run, ctx, measure),
            Self::Norm(problem) => problem.explain(run, ctx, measure),
            Self::Softmax(problem) => problem.explain(run, ctx, measure),
            Self::Activation(problem) => problem.explain(run, ctx, measure),
            Self::Reduce(problem) => problem.explain(run, ctx, measure),
            Self::TopK(problem) => problem.explain(run, ctx, measure),
            Self::Sample(problem) => problem.explain(run, ctx, measure),
            Self::Unary(problem) => problem.explain(run, ctx, measure),
            Self::Binary(problem) => problem.explain(run, ctx, measure),
            Self::Where(problem) => problem.explain(run, ctx, measure),
            Self::Cast(problem) => problem.explain(run, ctx, measure),
            Self::Gather(problem) => problem.explain(run, ctx, measure),
            Self::Embedding(problem) => problem.explain(run, ctx, measure),
            Self::Route(problem) => problem.explain(run, ctx, measure),
            Self::Combine(problem) => problem.explain(run, ctx, measure),
        }
    }
}

impl Explain {
    pub fn run(&self, run: &Run) -> Outcome {
        if self.measure && self.problem.is_none() {
            return Err("--measure is for an operator; --model measures in any case, and --support nothing".into());
        }
        match (&self.problem, &self.model.0, self.support) {
            (Some(problem), None, false) => {
                run.refuse(&[MEMORY], "is for models: no operator is held to it alone")?;
                let explanation = problem.explain(run, &*run.context()?, self.measure)?;
                let mut out = std::io::stdout().lock();
                if self.json {
                    writeln!(out, "{}", json::explanation(&explanation))?;
                } else {
                    write!(out, "{explanation}")?;
                }
                Ok(())
            }
            (None, Some(steps), false) => steps.run(run, self.json),
            (None, None, true) => {
                let why = "is for --model or an operator; --support is of all that there is";
                run.refuse(&[OF_MODELS, &[MEMORY, CHOOSING]].concat(), why)?;
                run.refuse(&[TEAM], "is for what runs; --support is the same on any number of threads")?;
                support::run(run, self.json)
            }
            (None, None, false) => Err(MISSING.into()),
            _ => Err("an operator, --model or --support: one of them".into()),
        }
    }
}
