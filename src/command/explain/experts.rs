//! What surrounds the products of a mixture of experts.

use clap::Args;
use sinew::kernels::combine::{Combine, CombineDynamic, CombineStatic};
use sinew::kernels::route::{Route, RouteDynamic, RouteStatic};
use sinew::ops::Context;
use sinew::tensor::DType;

use super::super::{Outcome, Run};
use super::{Describe, ProblemOf, parse};

/// Which experts each token goes to.
#[derive(Debug, Args)]
pub struct ExplainRoute {
    /// Tokens.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    tokens: usize,
    /// Experts.
    #[arg(long, default_value = "8", value_parser = parse::size)]
    experts: usize,
    /// Experts of a token.
    #[arg(long, default_value = "2", value_parser = parse::size)]
    top_k: usize,
    /// The weights of a token need not add up to 1.
    #[arg(long)]
    no_renormalize: bool,
}

impl Describe for ExplainRoute {
    type Operator = Route;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Route>> {
        if self.top_k > self.experts {
            return Err(format!("{} of {} experts: --top-k is at most --experts", self.top_k, self.experts).into());
        }
        parse::product("rows", self.tokens, self.top_k)?;
        let fixed = RouteStatic { experts: self.experts, top_k: self.top_k, renormalize: !self.no_renormalize };
        Ok((fixed, RouteDynamic { tokens: self.tokens }))
    }
}

/// The weighted sum of what a token's experts gave.
#[derive(Debug, Args)]
pub struct ExplainCombine {
    /// Tokens.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    tokens: usize,
    /// Experts of a token.
    #[arg(long, default_value = "2", value_parser = parse::size)]
    top_k: usize,
    /// Values of a token.
    #[arg(long, default_value = "4096", value_parser = parse::size)]
    width: usize,
    /// Dtype of what the experts gave.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result; that of what the experts gave if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
    /// The sum is added to what the result holds.
    #[arg(long)]
    accumulate: bool,
}

impl Describe for ExplainCombine {
    type Operator = Combine;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Combine>> {
        parse::product("rows", self.tokens, self.top_k)?;
        let Self { top_k, width, dtype: y, out, accumulate, .. } = *self;
        let fixed = CombineStatic { width, top_k, y, out: out.unwrap_or(y), accumulate };
        Ok((fixed, CombineDynamic { tokens: self.tokens }))
    }
}
