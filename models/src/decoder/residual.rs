//! The residual stream, what sublayers read of it, and what they add to it.

use sinew_ops::Context;
use sinew_ops::layers::{Add, Linear, LinearOptions, Norm, Place};
use sinew_tensor::{DType, View};

use crate::activations::Rows;
use crate::config::NormKind;
use crate::load::{LinearSpec, Loaded, Maker, NormSpec, Part, Stage};
use crate::precision::Precision;
use crate::{DecoderConfig, Result};

/// The residual stream, in f32.
#[derive(Debug)]
pub(super) struct Residual<S: Stage = Loaded> {
    pub(super) hidden: S::Of<Rows>,
    /// What is normed before it is added, or added at the start; without rows in architectures that have neither.
    pub(super) added: S::Of<Rows>,
}

/// The product that ends a sublayer, added to the stream as it is or normed.
#[derive(Debug)]
pub(super) struct Output<S: Stage = Loaded> {
    product: S::Of<Linear>,
    /// The norm of what is added, and the addition.
    norm: Option<(S::Of<Norm>, S::Of<Add>)>,
}

impl<S: Stage> Residual<S> {
    pub(super) fn make(maker: &mut impl Maker<S>, config: &DecoderConfig, max_rows: usize) -> Result<Self> {
        let (names, hidden) = (config.names, config.hidden_size);
        let norms = names.attention_output_norm.is_some() || names.mlp_output_norm.is_some();
        let added = if norms || config.learned_positions { max_rows } else { 0 };
        Ok(Self { hidden: maker.rows(DType::F32, max_rows, hidden)?, added: maker.rows(DType::F32, added, hidden)? })
    }
}

/// The norm called `name` over `n` values in f32, and the dtype of what it gives.
pub(super) fn norm_over(config: &DecoderConfig, name: String, n: usize, output: DType) -> NormSpec {
    let kind = config.norm;
    NormSpec { name, n, kind, bias: kind == NormKind::Layer, eps: config.norm_eps, dtypes: [DType::F32, output] }
}

/// The norm called `name` of what a sublayer reads, and the dtype of that; of the stream itself without a name.
pub(super) fn input_norm(
    config: &DecoderConfig,
    precision: Precision,
    name: Option<String>,
) -> (Option<NormSpec>, DType) {
    let norm = name.map(|name| norm_over(config, name, config.hidden_size, precision.activations));
    let dtype = norm.as_ref().map_or(DType::F32, |norm| norm.dtypes[1]);
    (norm, dtype)
}

impl<S: Stage> Output<S> {
    /// The product of the matrix `part` with `k` inputs, and the norm called `norm`, if there is one.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        part: Part,
        (k, bias): (usize, bool),
        norm: Option<String>,
        rows: usize,
    ) -> Result<Self> {
        let precision = maker.precision();
        let options = LinearOptions::new(precision.activations, DType::F32, precision.compute);
        // Without a norm the stream is the product's own output.
        let options = if norm.is_some() { options } else { options.accumulate() };
        let product = maker.linear(LinearSpec { parts: vec![part], k, bias, options, max_rows: rows })?;
        let norm = match norm {
            Some(name) => {
                let norm = maker.norm(norm_over(config, name, config.hidden_size, DType::F32), rows)?;
                Some((norm, maker.planned(|ctx| Add::new(ctx, DType::F32))?))
            }
            None => None,
        };
        Ok(Self { product, norm })
    }
}

impl Output {
    /// Adds what comes of `n` rows of `x` to the stream.
    pub(super) fn run(&self, ctx: &Context, n: usize, x: View<'_>, residual: &mut Residual) -> Result<()> {
        let Some((norm, add)) = &self.norm else { return Ok(self.product.run(ctx, x, residual.hidden.write(n)?)?) };
        self.product.run(ctx, x, residual.added.write(n)?)?;
        norm.run_in_place(ctx, residual.added.write(n)?)?;
        Ok(add.run(ctx, residual.hidden.write(n)?, residual.added.read(n)?)?)
    }

    /// The rows chosen for its product and norm, by the names that are given for their places.
    pub(super) fn kernels(&self, [product, norm]: [&'static str; 2]) -> Vec<Place> {
        let mut all = vec![(product, self.product.kernels())];
        all.extend(self.norm.as_ref().map(|(added, _)| (norm, added.kernels())));
        all
    }
}
