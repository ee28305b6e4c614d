//! A layer of an encoder.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionStatic, Compute, F32Bits, Inputs, Linear, LinearOptions, Norm, NormedLinear, Place, Rotary,
    Sequences,
};
use sinew_tensor::{DType, View};

use super::norm;
use crate::activations::{Heads, Rows};
use crate::config::EncoderLayerConfig;
use crate::load::{LinearSpec, Loaded, Maker, Part, Stage};
use crate::{EncoderConfig, Result};

/// Attention and feed-forward, each added to the residual stream.
#[derive(Debug)]
pub(super) struct Layer<S: Stage = Loaded> {
    qkv: S::Of<NormedLinear>,
    /// Which of the encoder's rotary embeddings turns queries and keys.
    rope: Option<usize>,
    attention: S::Of<Attention>,
    output: S::Of<Linear>,
    up: S::Of<NormedLinear>,
    down: S::Of<Linear>,
    /// After attention and after feed-forward on the residual stream itself, where they do not come before each.
    after: Option<[S::Of<Norm>; 2]>,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
}

/// Activations of one pass; every layer uses the same.
#[derive(Debug)]
pub(super) struct Activations<S: Stage = Loaded> {
    /// The residual stream between layers.
    pub(super) hidden: S::Of<Rows>,
    /// What a norm made of it.
    pub(super) middle: S::Of<Rows>,
    pub(super) scratch: Scratch<S>,
}

/// Activations within attention and feed-forward.
#[derive(Debug)]
pub(super) struct Scratch<S: Stage = Loaded> {
    qkv: S::Of<Rows>,
    attended: S::Of<Rows>,
    up: S::Of<Rows>,
}

/// What all layers of one pass share.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) ctx: &'a Context,
    /// Tokens.
    pub(super) n: usize,
    pub(super) sequences: Sequences<'a>,
    pub(super) ropes: &'a [Rotary],
    /// i32 `[n]`.
    pub(super) positions: View<'a>,
}

impl<S: Stage> Activations<S> {
    pub(super) fn make(maker: &mut impl Maker<S>, config: &EncoderConfig, max_rows: usize) -> Result<Self> {
        let mut rows = |width: usize| maker.rows(DType::F32, max_rows, width);
        let hidden = config.hidden_size;
        let scratch = Scratch { qkv: rows(3 * hidden)?, attended: rows(hidden)?, up: rows(config.intermediate_size)? };
        Ok(Self { hidden: rows(hidden)?, middle: rows(hidden)?, scratch })
    }
}

impl<S: Stage> Layer<S> {
    /// Makes the layer `index` of the weights under `prefix`.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &EncoderConfig,
        prefix: &str,
        index: usize,
        rows: usize,
    ) -> Result<Self> {
        let compute = maker.precision().compute;
        let (names, hidden, width) = (config.names, config.hidden_size, config.intermediate_size);
        let (num_heads, head_dim) = (config.num_attention_heads, config.head_dim);
        let (of_attention, of_mlp) = (config.attention_bias, config.mlp_bias);
        let at = |name: &str| format!("{prefix}{}.{index}.{name}", names.layer);
        let product = LinearOptions::new(DType::F32, DType::F32, compute);
        // The residual stream is the product's own output: x += W·y.
        let into_residual = product.clone().accumulate();
        let activated = match config.gated {
            true => LinearOptions { gated: Some(config.hidden_act), ..product.clone() },
            false => LinearOptions { activation: Some(config.hidden_act), ..product.clone() },
        };
        let [attention_norm, mlp_norm] = [names.attention_norm, names.mlp_norm].map(|name| norm(config, at(name)));
        let (before, after) = match config.norm_first {
            // The first layer's attention reads what the embedding's norm gave.
            true => ([Some(attention_norm).filter(|_| index > 0), Some(mlp_norm)], None),
            false => ([None, None], Some([attention_norm, mlp_norm])),
        };
        let [before_attention, before_mlp] = before;
        let of_each = 3 / names.qkv.len();
        let qkv: Vec<Part> = names.qkv.iter().map(|name| Part::whole(at(name), of_each * hidden)).collect();
        let output = vec![Part::whole(at(names.output), hidden)];
        // Gate first.
        let up = Part::split(&at(names.up), &[width; 2][..if config.gated { 2 } else { 1 }]);
        let down = vec![Part::whole(at(names.down), hidden)];
        let linear = |parts, k, bias, options| LinearSpec { parts, k, bias, options, max_rows: rows };
        Ok(Self {
            qkv: maker.normed_linear(before_attention, linear(qkv, hidden, of_attention, product))?,
            rope: config.layers[index].rope,
            attention: maker.attention(
                attention_problem(config, &config.layers[index], compute),
                rows,
                config.max_position_embeddings,
            )?,
            output: maker.linear(linear(output, hidden, of_attention, into_residual.clone()))?,
            up: maker.normed_linear(before_mlp, linear(up, hidden, of_mlp, activated))?,
            down: maker.linear(linear(down, width, of_mlp, into_residual))?,
            after: match after {
                Some([attention, mlp]) => Some([maker.norm(attention, rows)?, maker.norm(mlp, rows)?]),
                None => None,
            },
            heads: Heads::qkv(num_heads, num_heads, head_dim),
        })
    }
}

impl Layer {
    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        let mut all = self.qkv.kernels(["attention norm", "qkv"]);
        all.extend([("attention", self.attention.kernels()), ("output", self.output.kernels())]);
        all.extend(self.up.kernels(["mlp norm", "up"]));
        all.push(("down", self.down.kernels()));
        if let Some([attention, mlp]) = &self.after {
            all.extend([("attention norm", attention.kernels()), ("mlp norm", mlp.kernels())]);
        }
        all
    }

    /// Takes the residual stream `hidden` through attention and feed-forward.
    pub(super) fn run(&self, step: &Step<'_>, hidden: &mut Rows, middle: &mut Rows, x: &mut Scratch) -> Result<()> {
        let &Step { ctx, n, .. } = step;
        self.attend(step, hidden, middle, x)?;
        self.output.run(ctx, x.attended.read(n)?, hidden.write(n)?)?;
        let Some([attention, mlp]) = &self.after else {
            self.up.run(ctx, hidden.read(n)?, Some(middle.write(n)?), x.up.write(n)?)?;
            return Ok(self.down.run(ctx, x.up.read(n)?, hidden.write(n)?)?);
        };
        attention.run(ctx, hidden.read(n)?, middle.write(n)?)?;
        self.up.run(ctx, middle.read(n)?, None, x.up.write(n)?)?;
        self.down.run(ctx, x.up.read(n)?, middle.write(n)?)?;
        Ok(mlp.run(ctx, middle.read(n)?, hidden.write(n)?)?)
    }

    fn attend(&self, step: &Step<'_>, input: &Rows, normed: &mut Rows, x: &mut Scratch) -> Result<()> {
        let &Step { ctx, n, ropes, positions, sequences } = step;
        let [q, k, v] = self.heads;
        self.qkv.run(ctx, input.read(n)?, Some(normed.write(n)?), x.qkv.write(n)?)?;
        if let Some(rope) = self.rope {
            ropes[rope].run_in_place(ctx, x.qkv.write_heads(n, q)?, positions)?;
            ropes[rope].run_in_place(ctx, x.qkv.write_heads(n, k)?, positions)?;
        }
        let inputs = Inputs {
            q: x.qkv.read_heads(n, q)?,
            k: x.qkv.read_heads(n, k)?,
            v: x.qkv.read_heads(n, v)?,
            mask: None,
            old: None,
            sinks: None,
        };
        Ok(self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?)
    }
}

fn attention_problem(config: &EncoderConfig, layer: &EncoderLayerConfig, compute: Compute) -> AttentionStatic {
    let (heads, head_dim) = (config.num_attention_heads, config.head_dim);
    AttentionStatic {
        scale: F32Bits::new((head_dim as f64).powf(-0.5) as f32),
        window: layer.window,
        ..AttentionStatic::new(heads, heads, head_dim, [DType::F32; 3], compute)
    }
}
