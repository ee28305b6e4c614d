//! Attention, and what comes before it.

use clap::Args;
use sinew::kernels::attention::{Attention, AttentionDynamic, AttentionStatic, KvSource, MaskKind, OldKv};
use sinew::kernels::kv_append::{KeyRotary, KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew::kernels::rotary::{Rotary, RotaryDynamic, RotaryStatic, Style};
use sinew::kernels::{Compute, F32Bits};
use sinew::models::settings::{OldKvDType, Value as _};
use sinew::ops::Context;
use sinew::tensor::{DType, PagedLayout};

use super::super::{Outcome, Run};
use super::{Describe, ProblemOf, parse};

/// Attention of new tokens over the keys of their sequences.
#[derive(Debug, Args)]
pub struct ExplainAttention {
    /// New tokens of each sequence: 1 in a decode step, the tokens of a chunk in a prefill.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    rows: usize,
    /// Keys of each sequence, those of its new tokens included.
    #[arg(long, default_value = "1024", value_parser = parse::size)]
    context: usize,
    /// Sequences.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    sequences: usize,
    /// Heads of queries.
    #[arg(long, default_value = "32", value_parser = parse::size)]
    heads: usize,
    /// Heads of keys and values; as many as of queries if it is not given.
    #[arg(long, value_parser = parse::size)]
    kv_heads: Option<usize>,
    /// Values of a head.
    #[arg(long, default_value = "128", value_parser = parse::size)]
    head_dim: usize,
    /// Dtype of the queries.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result; that of keys and values, or bf16 where those have scales, if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
    /// Dtype of keys and values: f32, f16, bf16, int8 or fp8.
    #[arg(long, default_value = "bf16", value_parser = parse::dtype)]
    kv_dtype: DType,
    /// Old keys and values are int8 or fp8.
    #[arg(long, value_name = "int8|fp8", value_parser = parse_old_kv)]
    kv_old: Option<DType>,
    /// How many tokens up to its own each token sees in full.
    #[arg(long, default_value = "256", value_parser = parse::size, requires = "kv_old")]
    kv_recent: usize,
    /// What products are computed in: bf16, or f32; as models do, if it is not given.
    #[arg(long, value_name = "f32|bf16", value_parser = parse_compute)]
    compute: Option<Compute>,
    /// Tokens of a block of the cache.
    #[arg(long, default_value = "16", value_parser = parse::size)]
    block_size: usize,
    /// Keys lie one after another instead of in blocks.
    #[arg(long, conflicts_with = "block_size")]
    dense: bool,
    /// Tokens see the keys behind them too.
    #[arg(long)]
    bidirectional: bool,
    /// How many positions back a token sees.
    #[arg(long, value_parser = parse::size)]
    window: Option<usize>,
    /// Bound on the scores' magnitude.
    #[arg(long, value_parser = parse::positive)]
    softcap: Option<f32>,
    /// A mask: additive, in f32, or boolean.
    #[arg(long, value_name = "additive|boolean", value_parser = parse_mask)]
    mask: Option<MaskKind>,
    /// Each head has a sink, which takes weight from the keys.
    #[arg(long)]
    sinks: bool,
}

fn parse_compute(text: &str) -> Result<Compute, String> {
    parse::one_of(text, [Compute::F32, Compute::Bf16], |compute| if compute == Compute::F32 { "f32" } else { "bf16" })
}

fn parse_mask(text: &str) -> Result<MaskKind, String> {
    let name = |kind| if kind == MaskKind::Boolean { "boolean" } else { "additive" };
    parse::one_of(text, [MaskKind::Additive(DType::F32), MaskKind::Boolean], name)
}

/// A dtype of old keys and values.
fn parse_old_kv(text: &str) -> Result<DType, String> {
    OldKvDType::parse(text)?.0.ok_or_else(|| "supported are int8 and fp8".to_owned())
}

impl Describe for ExplainAttention {
    type Operator = Attention;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Attention>> {
        let kv_heads = self.kv_heads.unwrap_or(self.heads);
        if !self.heads.is_multiple_of(kv_heads) {
            return Err(format!("{} heads are no multiple of {kv_heads} heads of keys", self.heads).into());
        }
        if self.rows > self.context {
            return Err(format!("{} new tokens are more than the {} keys", self.rows, self.context).into());
        }
        let scales = PagedLayout::has_scales(self.kv_dtype);
        if self.dense && (scales || self.kv_old.is_some()) {
            return Err("keys with scales lie in blocks: without --dense".into());
        }
        if scales && self.kv_old.is_some() {
            return Err("--kv-old is for a --kv-dtype of f32, f16 or bf16".into());
        }
        let tokens = parse::product("tokens", self.sequences, self.rows)?;
        parse::product("values of a token", self.heads, self.head_dim)?;
        let out = self.out.unwrap_or(if scales { DType::BF16 } else { self.kv_dtype });
        let bf16 = if out == DType::BF16 { Compute::Bf16 } else { Compute::F32 };
        let dtypes = [self.dtype, self.kv_dtype, out];
        let compute = self.compute.unwrap_or(bf16);
        let fixed = AttentionStatic {
            causal: !self.bidirectional,
            window: self.window,
            softcap: self.softcap.map(F32Bits::new),
            mask: self.mask,
            kv_source: if self.dense { KvSource::Dense } else { KvSource::Paged { block_size: self.block_size } },
            old: self.kv_old.map(|dtype| OldKv { dtype, recent: self.kv_recent }),
            sinks: self.sinks,
            ..AttentionStatic::new(self.heads, kv_heads, self.head_dim, dtypes, compute)
        };
        let (sequences, max_query, max_kv) = (self.sequences, self.rows, self.context);
        Ok((fixed, AttentionDynamic { sequences, tokens, max_query, max_kv }))
    }
}

/// Rotary position embedding of new queries or keys.
#[derive(Debug, Args)]
pub struct ExplainRotary {
    /// Tokens.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    tokens: usize,
    /// Heads of each token.
    #[arg(long, default_value = "32", value_parser = parse::size)]
    heads: usize,
    /// Values of a head.
    #[arg(long, default_value = "128", value_parser = parse::size)]
    head_dim: usize,
    /// Values of a head that are turned; all if it is not given.
    #[arg(long, value_parser = parse::size)]
    rotary_dim: Option<usize>,
    /// Pairs are neighbours instead of halves.
    #[arg(long)]
    interleaved: bool,
    /// Dtype of what is turned.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the result: turned where it lies, if it is not given.
    #[arg(long, value_parser = parse::float)]
    out: Option<DType>,
}

fn style(interleaved: bool) -> Style {
    if interleaved { Style::Interleaved } else { Style::Half }
}

/// Checks how many values of a head are turned.
fn rotary_dim(rotary_dim: usize, head_dim: usize) -> Outcome<usize> {
    if rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim {
        return Ok(rotary_dim);
    }
    Err(format!("{rotary_dim} of {head_dim} values cannot be turned: an even number up to all can").into())
}

impl Describe for ExplainRotary {
    type Operator = Rotary;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<Rotary>> {
        let (head_dim, x) = (self.head_dim, self.dtype);
        let fixed = RotaryStatic {
            head_dim,
            rotary_dim: rotary_dim(self.rotary_dim.unwrap_or(head_dim), head_dim)?,
            style: style(self.interleaved),
            x,
            out: self.out.unwrap_or(x),
            in_place: self.out.is_none(),
        };
        Ok((fixed, RotaryDynamic { tokens: self.tokens, heads: self.heads }))
    }
}

/// Writing new keys and values into the cache.
#[derive(Debug, Args)]
pub struct ExplainKvAppend {
    /// New tokens.
    #[arg(long, default_value = "1", value_parser = parse::size)]
    tokens: usize,
    /// Heads of keys and values.
    #[arg(long, default_value = "8", value_parser = parse::size)]
    kv_heads: usize,
    /// Values of a head.
    #[arg(long, default_value = "128", value_parser = parse::size)]
    head_dim: usize,
    /// Dtype of the new keys and values.
    #[arg(long, default_value = "f32", value_parser = parse::float)]
    dtype: DType,
    /// Dtype of the cache: f32, f16, bf16, int8 or fp8.
    #[arg(long, default_value = "bf16", value_parser = parse::dtype)]
    kv_dtype: DType,
    /// Tokens of a block of the cache.
    #[arg(long, default_value = "16", value_parser = parse::size)]
    block_size: usize,
    /// Values of a key that are turned on their way; none if it is not given.
    #[arg(long, value_parser = parse::size)]
    rotary_dim: Option<usize>,
    /// Pairs are neighbours instead of halves.
    #[arg(long, requires = "rotary_dim")]
    interleaved: bool,
}

impl Describe for ExplainKvAppend {
    type Operator = KvAppend;

    fn problem(&self, _: &Run, _: &Context) -> Outcome<ProblemOf<KvAppend>> {
        let turned = self.rotary_dim.map(|turned| rotary_dim(turned, self.head_dim)).transpose()?;
        let fixed = KvAppendStatic {
            num_kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            source: self.dtype,
            kv: self.kv_dtype,
            block_size: self.block_size,
            rotary: turned.map(|rotary_dim| KeyRotary { rotary_dim, style: style(self.interleaved) }),
        };
        Ok((fixed, KvAppendDynamic { tokens: self.tokens }))
    }
}
