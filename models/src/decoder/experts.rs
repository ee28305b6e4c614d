//! A feed-forward sublayer of experts: a router sends each token through some of them.
//!
//! ```text
//! p = softmax(router · n)                            n = norm(h)
//! h += Σ w[e] · down[e] · (act(gate[e]·n) ⊙ up[e]·n)  over the experts e of the largest p, w from p
//! ```
//! Tokens are sorted by expert, and each product is one for all experts (Gale et al. 2022).

use sinew_ops::Context;
use sinew_ops::layers::{
    Combine, CombineOptions, Dispatch, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Route, RouteOptions,
    Routing,
};
use sinew_tensor::DType;

use super::layer::{Activations, Step};
use super::stream::Input;
use crate::config::ExpertsConfig;
use crate::load::{Loader, Part, Precision};
use crate::scratch::Rows;
use crate::{DecoderConfig, Error, Result};

/// The router and the experts of a layer.
#[derive(Debug)]
pub(super) struct Experts {
    input: Input,
    router: Linear,
    route: Route,
    dispatch: Dispatch,
    gate_up: GroupedLinear,
    down: GroupedLinear,
    combine: Combine,
    per_token: usize,
}

/// What the experts of a step work on; every layer uses the same.
#[derive(Debug)]
pub(super) struct ExpertActivations {
    /// Of the router, `[tokens, experts]`.
    scores: Rows,
    routing: Routing,
    /// Tokens sorted by expert, each as often as it has experts.
    sorted: Rows,
    gated: Rows,
    outputs: Rows,
}

impl ExpertActivations {
    pub(super) fn new(
        ctx: &Context,
        config: &DecoderConfig,
        experts: ExpertsConfig,
        precision: Precision,
        rows: usize,
    ) -> Result<Self> {
        let ExpertsConfig { count, per_token, width, .. } = experts;
        let (hidden, activations, sorted) = (config.hidden_size, precision.activations, rows * per_token);
        let input = if config.names.mlp_norm.is_some() { activations } else { DType::F32 };
        Ok(Self {
            scores: Rows::new(ctx, DType::F32, rows, count)?,
            routing: Routing::new(ctx, count, per_token, rows)?,
            sorted: Rows::new(ctx, input, sorted, hidden)?,
            gated: Rows::new(ctx, activations, sorted, width)?,
            outputs: Rows::new(ctx, DType::F32, sorted, hidden)?,
        })
    }
}

impl Experts {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &DecoderConfig,
        experts: ExpertsConfig,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        let Precision { activations, compute, .. } = loader.precision();
        let ExpertsConfig { count, per_token, width, renormalize } = experts;
        let (names, hidden, ctx) = (config.names, config.hidden_size, loader.context().clone());
        let of = &names.experts;
        let part = |expert: usize, name: &str, n: usize| Part::whole(at(&format!("{}{expert}.{name}", of.expert)), n);
        let gate_up: Vec<Part> = (0..count).flat_map(|e| [of.gate, of.up].map(|name| part(e, name, width))).collect();
        let down: Vec<Part> = (0..count).map(|e| part(e, of.down, hidden)).collect();

        let input = Input::load(loader, config, names.mlp_norm.map(at), rows)?;
        let dtype = input.dtype(loader);
        let router = [Part::whole(at(of.router), count)];
        let gated = GroupedLinearOptions {
            gated: Some(config.hidden_act),
            ..GroupedLinearOptions::new(dtype, activations, compute)
        };
        let product = GroupedLinearOptions::new(activations, DType::F32, compute);
        let combine =
            CombineOptions { width: hidden, top_k: per_token, input: DType::F32, output: DType::F32, accumulate: true };
        Ok(Self {
            router: loader.linear(&router, hidden, false, LinearOptions::new(dtype, DType::F32, compute), rows)?,
            route: Route::new(&ctx, RouteOptions { experts: count, top_k: per_token, renormalize }, rows)?,
            dispatch: Dispatch::new(&ctx, dtype, hidden)?,
            gate_up: loader.grouped(&gate_up, count, hidden, gated, rows * per_token)?,
            down: loader.grouped(&down, count, width, product, rows * per_token)?,
            combine: Combine::new(&ctx, combine, rows)?,
            input,
            per_token,
        })
    }

    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        let Some(e) = &mut x.experts else {
            return Err(Error::Input("a layer of experts in a model without room for them".to_owned()));
        };
        let sorted = n * self.per_token;
        let input = self.input.read(ctx, n, &x.stream, &mut x.normed)?;
        self.router.run(ctx, input, e.scores.write(n)?)?;
        self.route.run(ctx, e.scores.read(n)?, &mut e.routing)?;
        self.dispatch.run(ctx, input, &e.routing, e.sorted.write(sorted)?)?;
        self.gate_up.run(ctx, e.sorted.read(sorted)?, e.routing.offsets(), e.gated.write(sorted)?)?;
        self.down.run(ctx, e.gated.read(sorted)?, e.routing.offsets(), e.outputs.write(sorted)?)?;
        Ok(self.combine.run(ctx, e.outputs.read(sorted)?, &e.routing, x.stream.hidden.write(n)?)?)
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        vec![
            ("router", self.router.kernels()),
            ("experts' gate and up", self.gate_up.kernels()),
            ("experts' down", self.down.kernels()),
        ]
    }

    /// Bytes of its packed weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.router.weight_bytes() + self.gate_up.weight_bytes() + self.down.weight_bytes()
    }
}
