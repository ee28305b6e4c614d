//! The residual stream, what sublayers read of it, and what they add to it.

use sinew_ops::Context;
use sinew_ops::layers::{Add, Linear, LinearOptions, Norm, NormOptions, Place};
use sinew_tensor::{DType, View};

use crate::load::{Loader, Part};
use crate::scratch::{Rows, sum};
use crate::{DecoderConfig, Result};

/// The residual stream, in f32.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) hidden: Rows,
    /// What is normed before it is added, or added at the start; without rows in architectures that have neither.
    pub(super) added: Rows,
}

/// A norm of what is then added to the stream.
#[derive(Debug)]
pub(super) struct AddedNorm {
    norm: Norm,
    add: Add,
}

/// The product that ends a sublayer, added to the stream as it is or normed.
#[derive(Debug)]
pub(super) struct Output {
    product: Linear,
    norm: Option<AddedNorm>,
}

impl Stream {
    pub(super) fn new(ctx: &Context, config: &DecoderConfig, rows: usize) -> Result<Self> {
        Ok(Self {
            hidden: Rows::new(ctx, DType::F32, rows, config.hidden_size)?,
            added: Rows::new(ctx, DType::F32, Self::added_rows(config, rows), config.hidden_size)?,
        })
    }

    /// Bytes of its rows.
    pub(super) fn bytes(config: &DecoderConfig, rows: usize) -> usize {
        sum([rows, Self::added_rows(config, rows)].map(|rows| Rows::bytes(DType::F32, rows, config.hidden_size)))
    }

    fn added_rows(config: &DecoderConfig, rows: usize) -> usize {
        let names = config.names;
        let norms = names.attention_output_norm.is_some() || names.mlp_output_norm.is_some();
        if norms || config.learned_positions { rows } else { 0 }
    }
}

/// The norm called `name` of what a sublayer reads, and the dtype of that; of the stream itself without a name.
pub(super) fn input_norm(
    loader: &mut Loader<'_>,
    config: &DecoderConfig,
    name: Option<String>,
) -> Result<(Option<NormOptions>, DType)> {
    let Some(name) = name else { return Ok((None, DType::F32)) };
    let activations = loader.precision().activations;
    let dtypes = [DType::F32, activations];
    let norm = loader.norm_options(&name, config.hidden_size, config.norm, config.norm_eps, dtypes)?;
    Ok((Some(norm), activations))
}

impl AddedNorm {
    pub(super) fn load(loader: &mut Loader<'_>, config: &DecoderConfig, name: &str, rows: usize) -> Result<Self> {
        let norm = loader.norm(name, config.hidden_size, config.norm, config.norm_eps, [DType::F32; 2], rows)?;
        Ok(Self { norm, add: Add::new(loader.context(), DType::F32)? })
    }

    /// `h += norm(b)`, where `b` is [`Stream::added`].
    pub(super) fn run(&self, ctx: &Context, n: usize, stream: &mut Stream) -> Result<()> {
        self.norm.run_in_place(ctx, stream.added.write(n)?)?;
        Ok(self.add.run(ctx, stream.hidden.write(n)?, stream.added.read(n)?)?)
    }
}

impl Output {
    /// The product of the matrix `part` with `k` inputs, and the norm called `norm`, if there is one.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &DecoderConfig,
        part: Part,
        (k, bias): (usize, bool),
        norm: Option<String>,
        rows: usize,
    ) -> Result<Self> {
        let precision = loader.precision();
        let product = LinearOptions::new(precision.activations, DType::F32, precision.compute);
        // Without a norm the stream is the product's own output.
        let product = if norm.is_some() { product } else { product.accumulate() };
        Ok(Self {
            product: loader.linear(&[part], k, bias, product, rows)?,
            norm: norm.map(|name| AddedNorm::load(loader, config, &name, rows)).transpose()?,
        })
    }

    /// Adds what comes of `n` rows of `x` to the stream.
    pub(super) fn run(&self, ctx: &Context, n: usize, x: View<'_>, stream: &mut Stream) -> Result<()> {
        let Some(norm) = &self.norm else { return Ok(self.product.run(ctx, x, stream.hidden.write(n)?)?) };
        self.product.run(ctx, x, stream.added.write(n)?)?;
        norm.run(ctx, n, stream)
    }

    /// The rows chosen for its product and norm, by the names that are given for their places.
    pub(super) fn kernels(&self, [product, norm]: [&'static str; 2]) -> Vec<Place> {
        let mut all = vec![(product, self.product.kernels())];
        all.extend(self.norm.as_ref().map(|added| (norm, added.norm.kernels())));
        all
    }

    /// Bytes of its weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.product.weight_bytes() + self.norm.as_ref().map_or(0, |added| added.norm.weight_bytes())
    }
}
