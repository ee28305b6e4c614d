//! Attention over paged or dense keys and values, and the append to the cache.

use sinew_kernels::attention::{
    Attention as Operator, AttentionDynamic, AttentionStatic, BLOCK_TABLE, K, KV_LEN, MASK, OLD_BLOCK_TABLE, OLD_K,
    OLD_V, Q, QUERY_START, SINKS, V,
};
use sinew_kernels::kv_append::{
    COS, K_NEW, KvAppend as AppendOperator, KvAppendDynamic, KvAppendStatic, POSITIONS, SIN, SLOTS, V_NEW,
};
use sinew_kernels::{Error as KernelError, Placed};
use sinew_tensor::{DType, View, ViewMut};

use super::rotary::{Rotary, Turn};
use super::{Place, names, row_counts, size};
use crate::error::refuse;
use crate::{Context, Error, Planned, Result};

/// What attention reads.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `[tokens, num_heads, head_dim]`.
    pub q: View<'a>,
    /// Paged as [`PagedLayout`](sinew_tensor::PagedLayout) says, which is `[blocks, num_kv_heads, block_size, head_dim]`
    /// where there are no scales, or dense `[tokens, num_kv_heads, head_dim]`.
    pub k: View<'a>,
    /// As `k`.
    pub v: View<'a>,
    /// `[tokens, max_kv]` or `[num_heads, tokens, max_kv]`.
    pub mask: Option<View<'a>>,
    /// Old keys and values, where they have a form of their own.
    pub old: Option<OldInputs<'a>>,
    /// f32 `[num_heads]`: the sinks' logits, where there are sinks.
    pub sinks: Option<View<'a>>,
}

/// Old keys and values, in a cache of their own.
#[derive(Debug, Clone, Copy)]
pub struct OldInputs<'a> {
    /// As [`PagedLayout`](sinew_tensor::PagedLayout) says, in blocks as large as those of recent ones.
    pub k: View<'a>,
    /// As `k`.
    pub v: View<'a>,
    /// u32 `[sequences, blocks]`: blocks of each sequence.
    pub block_table: View<'a>,
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
    pub fn new(ctx: &Context, fixed: AttentionStatic, max_rows: usize, max_kv: usize) -> Result<Self> {
        Ok(Self { plan: ctx.plan(fixed, &calls(max_rows, max_kv))? })
    }

    /// Bytes of workspace that [`Attention::new`] would make room for.
    ///
    /// # Errors
    /// Those of [`Attention::new`].
    pub fn workspace(ctx: &Context, fixed: &AttentionStatic, max_rows: usize, max_kv: usize) -> Result<usize> {
        ctx.workspace_bytes::<Operator>(fixed, &calls(max_rows, max_kv))
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
        let Inputs { q, k, v, mask, old, sinks } = inputs;
        let inputs = Placed::of([
            (Q, Some(q)),
            (K, Some(k)),
            (V, Some(v)),
            (QUERY_START, Some(of.query_start)),
            (KV_LEN, Some(of.kv_len)),
            (BLOCK_TABLE, of.block_table),
            (MASK, mask),
            (OLD_K, old.map(|old| old.k)),
            (OLD_V, old.map(|old| old.v)),
            (OLD_BLOCK_TABLE, old.map(|old| old.block_table)),
            (SINKS, sinks),
        ]);
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// What is planned for up to `max_rows` rows over up to `max_kv` keys: prompts of any length, and a step of every sequence.
fn calls(max_rows: usize, max_kv: usize) -> Vec<AttentionDynamic> {
    row_counts(max_rows)
        .flat_map(|n| {
            let call = |sequences, max_query| AttentionDynamic { sequences, tokens: n, max_query, max_kv };
            // No sequence has more tokens than keys.
            [call(n.div_ceil(max_kv.max(1)), n.min(max_kv)), call(n, 1)]
        })
        .collect()
}

/// Writes new keys and values into the cache, or into two, planned. Keys may be turned on their way: in one kernel where the device
/// has one that does, else by one before it.
#[derive(Debug)]
pub struct KvAppend {
    fixed: KvAppendStatic,
    keys: Keys,
    plan: Planned<AppendOperator>,
    /// The same into a cache of another dtype.
    old: Option<Planned<AppendOperator>>,
}

/// What becomes of keys before they are written.
#[derive(Debug)]
enum Keys {
    /// Nothing.
    Plain,
    /// The append's own kernel turns them.
    Folded,
    /// These kernels turn them before.
    Apart(Vec<&'static str>),
}

impl KvAppend {
    /// Plans the append of `source` keys and values to a cache of `kv` in blocks of `block_size`, laid out as
    /// [`PagedLayout`](sinew_tensor::PagedLayout) says.
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
        let fixed = KvAppendStatic { num_kv_heads, head_dim, source, kv, block_size, rotary: None };
        Ok(Self { plan: Self::plan(ctx, &fixed)?, keys: Keys::Plain, fixed, old: None })
    }

    /// The same of keys that `rotary` turns.
    ///
    /// # Errors
    /// A rotary embedding of another dtype than that of the keys.
    pub fn turning(self, ctx: &Context, rotary: &Rotary) -> Result<Self> {
        let (found, source) = (rotary.dtype(), self.fixed.source);
        if found != source {
            return Err(refuse("kv_append", format!("keys are {source}, the rotary embedding turns {found}")));
        }
        let fixed = KvAppendStatic { rotary: Some(rotary.of_keys()), ..self.fixed.clone() };
        // Keys of another dtype than f32 would be rounded once, not twice; and who prefers a kernel for them has it.
        let preferred = rotary.kernels().iter().any(|&row| ctx.policy().prefers(row));
        let folded = match Self::plan(ctx, &fixed) {
            Ok(plan) if source == DType::F32 && !preferred => Some(plan),
            Ok(_) | Err(Error::Kernel(KernelError::NoKernel { .. })) => None,
            Err(error) => return Err(error),
        };
        Ok(match folded {
            Some(plan) => Self { fixed, keys: Keys::Folded, plan, ..self },
            None => Self { keys: Keys::Apart(rotary.kernels()), ..self },
        })
    }

    /// The same that also appends to a second cache, of `kv`, in which old keys and values are read: from what it is given
    /// as the first is, each rounded once. Keys that are turned are to be planned so [before](Self::turning).
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn with_old(self, ctx: &Context, kv: DType) -> Result<Self> {
        let fixed = KvAppendStatic { kv, ..self.fixed.clone() };
        Ok(Self { old: Some(Self::plan(ctx, &fixed)?), ..self })
    }

    fn plan(ctx: &Context, fixed: &KvAppendStatic) -> Result<Planned<AppendOperator>> {
        // Its calls are planned by powers of two; longer ones than these are chosen when they come.
        let calls: Vec<KvAppendDynamic> = row_counts(4096).map(|tokens| KvAppendDynamic { tokens }).collect();
        ctx.plan(fixed.clone(), &calls)
    }

    /// Turns keys `[tokens, num_kv_heads, head_dim]` where they lie, unless [`KvAppend::run`] does.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or a position past the tables.
    pub fn turn(&self, ctx: &Context, k: ViewMut<'_>, turn: Turn<'_>) -> Result<()> {
        match self.keys {
            Keys::Apart(_) => turn.rotary.run_in_place(ctx, k, turn.positions),
            Keys::Plain | Keys::Folded => Ok(()),
        }
    }

    /// Enqueues the append of keys and values, `[tokens, num_kv_heads, head_dim]`, to the slots i64 `[tokens]` of their
    /// caches. Keys that are turned have been given to [`KvAppend::turn`] with the same `turn`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, a slot that is not there, or a position past the tables.
    pub fn run(
        &self,
        ctx: &Context,
        [k, v]: [View<'_>; 2],
        turn: Option<Turn<'_>>,
        slots: View<'_>,
        caches: [ViewMut<'_>; 2],
    ) -> Result<()> {
        self.run_planned(&self.plan, ctx, [k, v], turn, slots, caches)
    }

    /// [`KvAppend::run`] to the slots of the [second](Self::with_old) caches.
    ///
    /// # Errors
    /// Those of [`KvAppend::run`], and an append that was planned without them.
    pub fn run_old(
        &self,
        ctx: &Context,
        new: [View<'_>; 2],
        turn: Option<Turn<'_>>,
        slots: View<'_>,
        caches: [ViewMut<'_>; 2],
    ) -> Result<()> {
        let plan = self.old.as_ref().ok_or_else(|| refuse("kv_append", "planned for one cache"))?;
        self.run_planned(plan, ctx, new, turn, slots, caches)
    }

    fn run_planned(
        &self,
        plan: &Planned<AppendOperator>,
        ctx: &Context,
        [k, v]: [View<'_>; 2],
        turn: Option<Turn<'_>>,
        slots: View<'_>,
        caches: [ViewMut<'_>; 2],
    ) -> Result<()> {
        let call = KvAppendDynamic { tokens: size(&slots, 0) };
        let new = [(K_NEW, Some(k)), (V_NEW, Some(v)), (SLOTS, Some(slots))];
        match (&self.keys, turn) {
            (Keys::Folded, Some(Turn { rotary, positions })) => {
                let [k, v, slots] = new;
                let (cos, sin) = (rotary.cos.view(), rotary.sin.view());
                let inputs = [k, v, slots, (POSITIONS, Some(positions)), (COS, Some(cos)), (SIN, Some(sin))];
                plan.run(ctx, &call, &Placed::of(inputs), &caches)
            }
            (Keys::Folded | Keys::Apart(_), None) => Err(refuse("kv_append", "planned for keys that are turned")),
            (Keys::Plain, Some(_)) => Err(refuse("kv_append", "planned for keys as they are")),
            (Keys::Plain, None) | (Keys::Apart(_), Some(_)) => plan.run(ctx, &call, &Placed::of(new), &caches),
        }
    }

    /// Kernels chosen, each with the name that is given for its place: those that turn keys by themselves, if any do,
    /// and those of the append.
    pub fn kernels(&self, [turn, append]: [&'static str; 2]) -> Vec<Place> {
        let mut all = Vec::new();
        if let Keys::Apart(kernels) = &self.keys {
            all.push((turn, kernels.clone()));
        }
        let mut appends = names(&self.plan);
        for name in self.old.iter().flat_map(names) {
            if !appends.contains(&name) {
                appends.push(name);
            }
        }
        all.push((append, appends));
        all
    }
}
