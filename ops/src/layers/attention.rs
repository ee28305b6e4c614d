//! Attention over paged or dense keys and values, and the append to the cache.

use sinew_kernels::Compute;
use sinew_kernels::attention::{Attention as Operator, AttentionDynamic, AttentionStatic, F32Bits, KvSource, MaskKind};
use sinew_kernels::kv_append::{KvAppend as AppendOperator, KvAppendDynamic, KvAppendStatic};
use sinew_tensor::{DType, View, ViewMut};

use super::{names, row_counts, size};
use crate::{Context, Planned, Result};

/// Shapes, dtypes and masking of an attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionOptions {
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Dtype of queries.
    pub q: DType,
    /// Dtype of keys and values.
    pub kv: DType,
    /// Dtype of the result.
    pub output: DType,
    /// Dtype of the products' operands.
    pub compute: Compute,
    /// Factor on scores.
    pub scale: f32,
    /// Whether a token sees only keys up to its own.
    pub causal: bool,
    /// How many keys a token sees, its own included.
    pub window: Option<usize>,
    /// Bound on the magnitude of scores.
    pub softcap: Option<f32>,
    /// Tokens in a block of the cache; `None` for dense keys and values.
    pub block_size: Option<usize>,
    /// The mask, where one is given at each run.
    pub mask: Option<MaskKind>,
}

/// What attention reads.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `[tokens, num_heads, head_dim]`.
    pub q: View<'a>,
    /// `[blocks, num_kv_heads, block_size, head_dim]`, or dense `[tokens, num_kv_heads, head_dim]`.
    pub k: View<'a>,
    /// As `k`.
    pub v: View<'a>,
    /// `[tokens, max_kv]` or `[num_heads, tokens, max_kv]`.
    pub mask: Option<View<'a>>,
}

/// Which rows and keys belong to which sequence.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    /// i32 `[sequences + 1]`: first row of each sequence, and the number of rows.
    pub query_start: View<'a>,
    /// i32 `[sequences]`: keys of each sequence, those of this call included.
    pub kv_len: View<'a>,
    /// u32 `[sequences, blocks]`: blocks of each sequence, where the cache is paged.
    pub block_table: Option<View<'a>>,
    /// The most rows of one sequence.
    pub max_query: usize,
    /// The most keys of one sequence.
    pub max_kv: usize,
}

/// `softmax(scale · Q Kᵀ + mask) V`, planned.
#[derive(Debug)]
pub struct Attention {
    plan: Planned<Operator>,
}

impl Attention {
    /// Plans attention for up to `max_rows` rows over up to `max_kv` keys.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, options: AttentionOptions, max_rows: usize, max_kv: usize) -> Result<Self> {
        let fixed = AttentionStatic {
            num_heads: options.num_heads,
            num_kv_heads: options.num_kv_heads,
            head_dim: options.head_dim,
            q: options.q,
            kv: options.kv,
            out: options.output,
            compute: options.compute,
            scale: F32Bits::new(options.scale),
            causal: options.causal,
            window: options.window,
            softcap: options.softcap.map(F32Bits::new),
            mask: options.mask,
            kv_source: options.block_size.map_or(KvSource::Dense, |block_size| KvSource::Paged { block_size }),
        };
        // Prompts of any length, and a step of every sequence.
        let calls: Vec<AttentionDynamic> = row_counts(max_rows)
            .flat_map(|n| {
                let call = |sequences, max_query| AttentionDynamic { sequences, tokens: n, max_query, max_kv };
                // No sequence has more tokens than keys.
                [call(n.div_ceil(max_kv.max(1)), n.min(max_kv)), call(n, 1)]
            })
            .collect();
        Ok(Self { plan: ctx.plan(fixed, &calls)? })
    }

    /// Enqueues attention to `out [tokens, num_heads, head_dim]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, lengths that do not fit them, or blocks that are not there.
    pub fn run(&self, ctx: &Context, inputs: Inputs<'_>, of: Sequences<'_>, out: ViewMut<'_>) -> Result<()> {
        let call = AttentionDynamic {
            sequences: size(&of.kv_len, 0),
            tokens: size(&inputs.q, 0),
            max_query: of.max_query,
            max_kv: of.max_kv,
        };
        let Inputs { q, k, v, mask } = inputs;
        let inputs = [Some(q), Some(k), Some(v), Some(of.query_start), Some(of.kv_len), of.block_table, mask];
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// Writes new keys and values into the cache, planned.
#[derive(Debug)]
pub struct KvAppend {
    plan: Planned<AppendOperator>,
}

impl KvAppend {
    /// Plans the append of `source` keys and values to a cache of `kv` in blocks of `block_size`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(
        ctx: &Context,
        num_kv_heads: usize,
        head_dim: usize,
        source: DType,
        kv: DType,
        block_size: usize,
    ) -> Result<Self> {
        let fixed = KvAppendStatic { num_kv_heads, head_dim, source, kv, block_size };
        // Its calls are planned by powers of two; longer ones than these are chosen when they come.
        let calls: Vec<KvAppendDynamic> = row_counts(4096).map(|tokens| KvAppendDynamic { tokens }).collect();
        Ok(Self { plan: ctx.plan(fixed, &calls)? })
    }

    /// Enqueues the append of `k` and `v`, `[tokens, num_kv_heads, head_dim]`, to the slots i64 `[tokens]` of both
    /// caches.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or a slot that is not there.
    pub fn run(
        &self,
        ctx: &Context,
        k: View<'_>,
        v: View<'_>,
        slots: View<'_>,
        k_cache: ViewMut<'_>,
        v_cache: ViewMut<'_>,
    ) -> Result<()> {
        let call = KvAppendDynamic { tokens: size(&slots, 0) };
        self.plan.run(ctx, &call, &[Some(k), Some(v), Some(slots)], &[k_cache, v_cache])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
