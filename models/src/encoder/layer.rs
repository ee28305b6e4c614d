//! A layer of an encoder.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Compute, Inputs, Linear, LinearOptions, Norm, NormedLinear, Place, Rotary, Sequences,
};
use sinew_tensor::{DType, View};

use super::{norm, norm_bytes, norm_options};
use crate::config::EncoderLayerConfig;
use crate::load::{Loader, Part, Precision, Sizes};
use crate::scratch::{Heads, Rows, sum};
use crate::{EncoderConfig, Result};

/// Attention and feed-forward, each added to the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    qkv: NormedLinear,
    /// Which of the encoder's rotary embeddings turns queries and keys.
    rope: Option<usize>,
    attention: Attention,
    output: Linear,
    up: NormedLinear,
    down: Linear,
    /// After attention and after feed-forward on the residual stream itself, where they do not come before each.
    after: Option<[Norm; 2]>,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
}

/// Activations of one pass; every layer uses the same.
#[derive(Debug)]
pub(super) struct Activations {
    /// The residual stream between layers.
    pub(super) hidden: Rows,
    /// What a norm made of it.
    pub(super) middle: Rows,
    pub(super) scratch: Scratch,
}

/// Activations within attention and feed-forward.
#[derive(Debug)]
pub(super) struct Scratch {
    qkv: Rows,
    attended: Rows,
    up: Rows,
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

/// The matrices of a layer.
struct Parts {
    qkv: Vec<Part>,
    output: [Part; 1],
    up: Vec<Part>,
    down: [Part; 1],
}

impl Parts {
    /// Those whose names in the layer are made whole by `at`.
    fn new(config: &EncoderConfig, at: &dyn Fn(&str) -> String) -> Self {
        let (names, hidden, width) = (config.names, config.hidden_size, config.intermediate_size);
        let of_each = 3 / names.qkv.len();
        Self {
            qkv: names.qkv.iter().map(|name| Part::whole(at(name), of_each * hidden)).collect(),
            output: [Part::whole(at(names.output), hidden)],
            // Gate first.
            up: Part::split(&at(names.up), &[width; 2][..if config.gated { 2 } else { 1 }]),
            down: [Part::whole(at(names.down), hidden)],
        }
    }
}

impl Activations {
    pub(super) fn new(ctx: &Context, config: &EncoderConfig, max_rows: usize) -> Result<Self> {
        let rows = |width: usize| Rows::new(ctx, DType::F32, max_rows, width);
        let [hidden, middle, qkv, attended, up] = Self::widths(config);
        let scratch = Scratch { qkv: rows(qkv)?, attended: rows(attended)?, up: rows(up)? };
        Ok(Self { hidden: rows(hidden)?, middle: rows(middle)?, scratch })
    }

    /// Bytes of its rows.
    pub(super) fn bytes(config: &EncoderConfig, max_rows: usize) -> usize {
        sum(Self::widths(config).map(|width| Rows::bytes(DType::F32, max_rows, width)))
    }

    /// Of `hidden`, `middle`, `qkv`, `attended` and `up`.
    fn widths(config: &EncoderConfig) -> [usize; 5] {
        let hidden = config.hidden_size;
        [hidden, hidden, 3 * hidden, hidden, config.intermediate_size]
    }
}

impl Layer {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &EncoderConfig,
        prefix: &str,
        index: usize,
        rows: usize,
    ) -> Result<Self> {
        let compute = loader.precision().compute;
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let (num_heads, head_dim) = (config.num_attention_heads, config.head_dim);
        let names = config.names;
        let at = |name: &str| format!("{prefix}{}.{index}.{name}", names.layer);
        let product = LinearOptions::new(DType::F32, DType::F32, compute);
        // The residual stream is the product's own output: x += W·y.
        let into_residual = product.clone().accumulate();
        let activated = match config.gated {
            true => LinearOptions { gated: Some(config.hidden_act), ..product.clone() },
            false => LinearOptions { activation: Some(config.hidden_act), ..product.clone() },
        };
        let attention = attention_options(config, &config.layers[index], compute);
        let Parts { qkv, output, up, down } = Parts::new(config, &at);
        let mut before = |name| config.norm_first.then(|| norm_options(loader, config, &at(name))).transpose();
        // The first layer's attention reads what the embedding's norm gave.
        let attention_norm = if index == 0 { None } else { before(names.attention_norm)? };
        let mlp_norm = before(names.mlp_norm)?;
        let mut after = |name| norm(loader, config, &at(name), rows);
        let after = match config.norm_first {
            true => None,
            false => Some([after(names.attention_norm)?, after(names.mlp_norm)?]),
        };
        let ctx = loader.context().clone();
        Ok(Self {
            qkv: loader.normed_linear(attention_norm, &qkv, hidden, config.attention_bias, product, rows)?,
            rope: config.layers[index].rope,
            attention: Attention::new(&ctx, attention, rows, config.max_position_embeddings)?,
            output: loader.linear(&output, hidden, config.attention_bias, into_residual.clone(), rows)?,
            up: loader.normed_linear(mlp_norm, &up, hidden, config.mlp_bias, activated, rows)?,
            down: loader.linear(&down, width, config.mlp_bias, into_residual, rows)?,
            after,
            heads: Heads::qkv(num_heads, num_heads, head_dim),
        })
    }

    /// Bytes of workspace that attention of such a layer would make room for.
    pub(super) fn attention_workspace(
        ctx: &Context,
        config: &EncoderConfig,
        layer: &EncoderLayerConfig,
        precision: Precision,
        rows: usize,
    ) -> Result<usize> {
        let options = attention_options(config, layer, precision.compute);
        Ok(Attention::workspace(ctx, options, rows, config.max_position_embeddings)?)
    }

    /// Bytes of the weights that the layer `index` loads.
    pub(super) fn bytes(sizes: &Sizes<'_>, config: &EncoderConfig, prefix: &str, index: usize) -> Result<usize> {
        let (names, hidden, width) = (config.names, config.hidden_size, config.intermediate_size);
        let at = |name: &str| format!("{prefix}{}.{index}.{name}", names.layer);
        let attention_norm = match config.norm_first && index == 0 {
            true => 0,
            false => norm_bytes(sizes, config, &at(names.attention_norm))?,
        };
        let Parts { qkv, output, up, down } = Parts::new(config, &at);
        Ok(sum([
            attention_norm,
            norm_bytes(sizes, config, &at(names.mlp_norm))?,
            sizes.linear(&qkv, hidden, config.attention_bias, false)?,
            sizes.linear(&output, hidden, config.attention_bias, false)?,
            sizes.linear(&up, hidden, config.mlp_bias, config.gated)?,
            sizes.linear(&down, width, config.mlp_bias, false)?,
        ]))
    }

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
        };
        Ok(self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?)
    }
}

fn attention_options(config: &EncoderConfig, layer: &EncoderLayerConfig, compute: Compute) -> AttentionOptions {
    let (num_heads, head_dim) = (config.num_attention_heads, config.head_dim);
    AttentionOptions {
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        q: DType::F32,
        kv: DType::F32,
        output: DType::F32,
        compute,
        scale: (head_dim as f64).powf(-0.5) as f32,
        causal: false,
        window: layer.window,
        softcap: None,
        block_size: None,
        mask: None,
        old: None,
    }
}
