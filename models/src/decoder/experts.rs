//! A feed-forward sublayer of experts: a router sends each token through some of them.
//!
//! ```text
//! p = softmax(router · n)                            n = norm(h)
//! h += Σ w[e] · down[e] · (act(gate[e]·n) ⊙ up[e]·n)  over the experts e of the largest p, w from p
//! ```
//! Tokens are sorted by expert, and each product is one for all experts (Gale et al. 2022).

use sinew_ops::Context;
use sinew_ops::layers::{
    Combine, CombineOptions, Dispatch, GroupedLinear, GroupedLinearOptions, Linear, LinearOptions, Norm, Place, Route,
    RouteOptions,
};
use sinew_tensor::{DType, View};

use super::residual::{Residual, input_norm};
use super::step::{Activations, Step};
use crate::activations::Rows;
use crate::config::{ExpertMatrices, ExpertsConfig};
use crate::load::{GroupedSpec, LinearSpec, Loaded, Maker, Part, Stage};
use crate::precision::Precision;
use crate::{DecoderConfig, Error, Result};

/// The router and the experts of a layer.
#[derive(Debug)]
pub(super) struct Experts<S: Stage = Loaded> {
    /// Of what router and experts read; the stream itself without one.
    norm: Option<S::Of<Norm>>,
    router: S::Of<Linear>,
    route: S::Of<Route>,
    dispatch: S::Of<Dispatch>,
    gate_up: S::Of<GroupedLinear>,
    down: S::Of<GroupedLinear>,
    combine: S::Of<Combine>,
    per_token: usize,
}

impl<S: Stage> Experts<S> {
    /// Makes those of a layer whose tensors are called `at(..)`.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        experts: ExpertsConfig,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        let precision = maker.precision();
        let Precision { activations, compute, .. } = precision;
        let ExpertsConfig { count, per_token, width, renormalize, bias } = experts;
        let (names, hidden, sorted) = (config.names, config.hidden_size, rows.saturating_mul(per_token));
        let of = names.experts.in_layer(maker.checkpoint(), at);

        let (norm, dtype) = input_norm(config, precision, names.mlp_norm.map(at));
        // Small, and choices turn by its rounding.
        let router = LinearSpec {
            parts: vec![Part::whole(at(of.router), count).exact(true)],
            k: hidden,
            bias,
            options: LinearOptions::new(dtype, DType::F32, compute),
            max_rows: rows,
        };
        let gated = GroupedLinearOptions {
            gated: Some(config.hidden_act),
            ..GroupedLinearOptions::new(dtype, activations, compute)
        };
        let product = GroupedLinearOptions::new(activations, DType::F32, compute);
        let combine =
            CombineOptions { width: hidden, top_k: per_token, input: DType::F32, output: DType::F32, accumulate: true };
        let options = RouteOptions { experts: count, top_k: per_token, renormalize };
        let [parts_up, parts_down] = parts(&of.matrices, config.hidden_size, experts, at);
        let gate_up =
            GroupedSpec { parts: parts_up, experts: count, k: hidden, bias, options: gated, max_rows: sorted };
        let down =
            GroupedSpec { parts: parts_down, experts: count, k: width, bias, options: product, max_rows: sorted };
        Ok(Self {
            norm: norm.map(|norm| maker.norm(norm, rows)).transpose()?,
            router: maker.linear(router)?,
            route: maker.planned(|ctx| Route::new(ctx, options, rows))?,
            dispatch: maker.planned(|ctx| Dispatch::new(ctx, dtype, hidden))?,
            gate_up: maker.grouped(gate_up)?,
            down: maker.grouped(down)?,
            combine: maker.planned(|ctx| Combine::new(ctx, combine, rows))?,
            per_token,
        })
    }
}

impl Experts {
    /// Adds what it makes of the stream to it.
    pub(super) fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        let Some(e) = &mut x.experts else {
            return Err(Error::Input("a layer of experts in a model without room for them".to_owned()));
        };
        let sorted = n * self.per_token;
        let input = self.input(ctx, n, &x.residual, &mut x.normed)?;
        self.router.run(ctx, input, e.scores.write(n)?)?;
        self.route.run(ctx, e.scores.read(n)?, &mut e.routing)?;
        self.dispatch.run(ctx, input, &e.routing, e.sorted.write(sorted)?)?;
        self.gate_up.run(ctx, e.sorted.read(sorted)?, e.routing.offsets(), e.gated.write(sorted)?)?;
        self.down.run(ctx, e.gated.read(sorted)?, e.routing.offsets(), e.outputs.write(sorted)?)?;
        Ok(self.combine.run(ctx, e.outputs.read(sorted)?, &e.routing, x.residual.hidden.write(n)?)?)
    }

    /// What router and experts read of the first `n` rows of the stream: them, or what they are normed to in `normed`.
    fn input<'a>(&self, ctx: &Context, n: usize, residual: &'a Residual, normed: &'a mut Rows) -> Result<View<'a>> {
        let Some(norm) = &self.norm else { return residual.hidden.read(n) };
        norm.run(ctx, residual.hidden.read(n)?, normed.write(n)?)?;
        normed.read(n)
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        // Router and experts read one input, which is therefore normed by itself.
        let mut all: Vec<_> = self.norm.iter().map(|norm| ("experts' norm", norm.kernels())).collect();
        all.extend([
            ("router", self.router.kernels()),
            ("experts' gate and up", self.gate_up.kernels()),
            ("experts' down", self.down.kernels()),
        ]);
        all
    }
}

/// The matrices of gate and up, expert after expert, and those of down.
fn parts<'a>(
    matrices: &'static ExpertMatrices,
    hidden: usize,
    experts: ExpertsConfig,
    at: &'a dyn Fn(&str) -> String,
) -> [Box<dyn Iterator<Item = Part> + 'a>; 2] {
    let ExpertsConfig { count, width, .. } = experts;
    match matrices {
        ExpertMatrices::Each { expert, gate, up, down } => {
            let part = move |e: usize, name: &str, n| Part::whole(at(&format!("{expert}{e}.{name}")), n);
            [
                Box::new((0..count).flat_map(move |e| [part(e, gate, width), part(e, up, width)])),
                Box::new((0..count).map(move |e| part(e, down, hidden))),
            ]
        }
        ExpertMatrices::StackedInterleaved { gate_up, down } => {
            let part = move |e: usize, name: &str, n| Part::whole(at(name), n).transposed(true).stacked(e, count);
            let half = move |e, index| part(e, gate_up, 2 * width).every(2, index);
            [
                Box::new((0..count).flat_map(move |e| [half(e, 0), half(e, 1)])),
                Box::new((0..count).map(move |e| part(e, down, hidden))),
            ]
        }
        ExpertMatrices::StackedHalves { gate_up, down } => {
            let halves =
                move |e| Part::split(&at(gate_up), &[width, width]).into_iter().map(move |half| half.stacked(e, count));
            [
                Box::new((0..count).flat_map(halves)),
                Box::new((0..count).map(move |e| Part::whole(at(down), hidden).stacked(e, count))),
            ]
        }
    }
}
