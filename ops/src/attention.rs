//! Attention over dense keys and values, and the append to a paged cache.

use sinew_kernels::attention::{
    Attention as Operator, AttentionDynamic, AttentionStatic, K, KV_LEN, MASK, MaskKind, Q, QUERY_START, SINKS, V,
};
use sinew_kernels::kv_append::{K_NEW, KvAppend, KvAppendDynamic, KvAppendStatic, SLOTS, V_NEW};
use sinew_kernels::{Compute, F32Bits, Placed};
use sinew_tensor::{DType, Layout, Tensor};

use crate::error::{operand, refuse};
use crate::matmul::broadcast;
use crate::shape::{each_folded, expect_output, same_dtype};
use crate::{Context, Result};

/// `softmax(scale · q kᵀ + mask) v`, to be completed and run (Vaswani et al. 2017).
///
/// `q` is `[batch, seq, heads, head_dim]`, `k` and `v` are `[batch, kv_seq, kv_heads, head_dim]`, all in any strides or
/// without the batch; f32, f16 or bf16. `heads` is a multiple of `kv_heads`: query head `h` reads head
/// `h / (heads / kv_heads)` (Ainslie et al. 2023). The batch is broadcast. `scale` is `1 / √head_dim` unless
/// [`Attend::scale`] says otherwise. A token that sees no key gets zeros. For caches in pages and sequences of many
/// lengths there is [`crate::layers::Attention`].
///
/// ```
/// use sinew_ops::{Context, attention};
///
/// let ctx = Context::cpu()?;
/// let q = ctx.tensor(&[1.0f32, 0.0, 0.0, 1.0], &[1, 2, 1, 2])?;
/// let v = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 1, 2])?;
/// let y = attention(&q, &q, &v).causal().run(&ctx)?;
/// assert_eq!(y.shape(), [1, 2, 1, 2]);
/// assert_eq!(y.to_vec::<f32>()?[..2], [1.0, 2.0]); // the first token sees only itself
/// # Ok::<(), sinew_ops::Error>(())
/// ```
pub fn attention<'a>(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor) -> Attend<'a> {
    Attend {
        q,
        k,
        v,
        mask: None,
        sinks: None,
        causal: false,
        window: None,
        scale: None,
        softcap: None,
        output: None,
        compute: None,
    }
}

/// An attention to be completed and run. See [`attention()`].
#[derive(Debug, Clone)]
#[must_use = "nothing is computed before `run` or `run_into`"]
pub struct Attend<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    mask: Option<&'a Tensor>,
    sinks: Option<&'a Tensor>,
    causal: bool,
    window: Option<usize>,
    scale: Option<f32>,
    softcap: Option<f32>,
    output: Option<DType>,
    compute: Option<Compute>,
}

const NAME: &str = "attention";

/// What a run is made of: everything broadcast to one batch, which is the first dimension.
struct Prepared {
    fixed: AttentionStatic,
    /// Of the result.
    shape: Vec<usize>,
    q: Layout,
    k: Layout,
    v: Layout,
    mask: Option<Layout>,
}

impl<'a> Attend<'a> {
    /// A token sees only keys up to its own position; queries are the last of the keys' positions.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// A token sees only this many keys back, its own included; without [`Attend::causal`] as many ahead.
    pub fn window(self, window: usize) -> Self {
        Self { window: Some(window), ..self }
    }

    /// The factor on scores.
    pub fn scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Scores become `softcap · tanh(score / softcap)` (Gemma 2).
    pub fn softcap(self, softcap: f32) -> Self {
        Self { softcap: Some(softcap), ..self }
    }

    /// A mask on the scores `[batch, heads, seq, kv_seq]`: bool, where false forbids, or f32, f16 or bf16 that is added
    /// to the scores, where `-inf` forbids.
    ///
    /// The number of dimensions alone says what they are, as in PyTorch's `scaled_dot_product_attention`. A size may
    /// be 1, which repeats it.
    ///
    /// | dimensions | mask |
    /// |---|---|
    /// | 4 | `[batch, heads, seq, kv_seq]` |
    /// | 3 | `[heads, seq, kv_seq]` |
    /// | 2 | `[seq, kv_seq]` |
    /// | 1 | `[kv_seq]` |
    ///
    /// A mask for each sequence names its batch: a padding mask `[batch, kv_seq]` is given as
    /// `[batch, 1, 1, kv_seq]`, and `[batch, seq, kv_seq]` as `[batch, 1, seq, kv_seq]`. With two sequences or
    /// more, a mask of 2 or 3 dimensions whose first is as large as the batch is refused, not guessed: without a batch
    /// it is given as `[1, seq, kv_seq]` or `[1, heads, seq, kv_seq]`.
    ///
    /// ```
    /// use sinew_ops::{Context, attention, gt};
    ///
    /// let ctx = Context::cpu()?;
    /// let q = ctx.tensor(&[1.0f32; 2 * 3], &[2, 3, 1, 1])?;
    /// let v = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3, 1, 1])?;
    /// // Two sequences, of two tokens and of three, padded to three.
    /// let real = gt(&ctx, &ctx.tensor(&[1.0f32, 1.0, 0.0, 1.0, 1.0, 1.0], &[2, 3])?, 0.0)?;
    /// assert!(attention(&q, &q, &v).mask(&real).run(&ctx).is_err());
    /// let real = real.unsqueeze(1)?.unsqueeze(1)?; // [batch, 1, 1, kv_seq]
    /// let y = attention(&q, &q, &v).mask(&real).run(&ctx)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.5, 1.5, 1.5, 5.0, 5.0, 5.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    pub fn mask(self, mask: &'a Tensor) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// Attention sinks (Xiao et al. 2023; learned, as gpt-oss has them): f32 `[heads]`, for each query head a logit that
    /// takes part in the softmax as the score of one key more, whose value is nothing: `-inf` is as none.
    ///
    /// ```
    /// use sinew_ops::{Context, attention};
    ///
    /// let ctx = Context::cpu()?;
    /// let (q, v) = (ctx.tensor(&[0.0f32], &[1, 1, 1])?, ctx.tensor(&[8.0f32], &[1, 1, 1])?);
    /// let sinks = ctx.tensor(&[3.0f32.ln()], &[1])?;
    /// let y = attention(&q, &q, &v).sinks(&sinks).run(&ctx)?; // 8 e^0 / (e^0 + e^(ln 3))
    /// assert!((y.to_vec::<f32>()?[0] - 2.0).abs() < 1e-6);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    pub fn sinks(self, sinks: &'a Tensor) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Rounds the result to a dtype other than that of `q`.
    pub fn output(self, dtype: DType) -> Self {
        Self { output: Some(dtype), ..self }
    }

    /// Says what operands of products are rounded to. By default bf16 if all are bf16, else nothing.
    pub fn compute(self, compute: Compute) -> Self {
        Self { compute: Some(compute), ..self }
    }

    /// Runs it and returns the result, of the shape of `q`.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes other than f32, f16 and bf16, tensors of another device, or out of memory.
    pub fn run(&self, ctx: &Context) -> Result<Tensor> {
        let of = self.prepare(self.output.unwrap_or(self.q.dtype()))?;
        let mut o = ctx.uninitialised(of.fixed.out, &of.shape)?;
        self.run_prepared(ctx, &of, &mut o)?;
        Ok(o)
    }

    /// Runs it into a tensor of the result's shape, in any strides. Its dtype is what the result is rounded to.
    ///
    /// # Errors
    /// Those of [`Attend::run`], another shape, or a shared output.
    pub fn run_into(&self, ctx: &Context, o: &mut Tensor) -> Result<()> {
        let of = self.prepare(o.dtype())?;
        expect_output(NAME, "o", o, &of.shape)?;
        self.run_prepared(ctx, &of, o)
    }

    fn prepare(&self, out: DType) -> Result<Prepared> {
        let Self { q, k, v, .. } = *self;
        same_dtype(NAME, ("k", k), ("v", v))?;
        let wrong = |rule: &str| {
            let operands = [operand("q", q), operand("k", k), operand("v", v)].join(", ");
            refuse(NAME, format!("{operands}; {rule}"))
        };
        let batched = |x: &Tensor| match x.layout().rank() {
            3 => Ok(x.layout().unsqueeze(0)?),
            4 => Ok(*x.layout()),
            _ => Err(wrong("each must be [batch, seq, heads, head_dim] or [seq, heads, head_dim]")),
        };
        let [q_at, k_at, v_at] = [batched(q)?, batched(k)?, batched(v)?];
        let [q_batch, seq, num_heads, head_dim] = sizes(&q_at);
        let [k_batch, kv_seq, num_kv_heads, k_dim] = sizes(&k_at);
        if sizes(&v_at)[1..] != sizes(&k_at)[1..] || k_dim != head_dim {
            return Err(wrong("k and v must have one shape, and all one head_dim"));
        }
        if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            return Err(wrong("the heads of q must be a multiple of those of k"));
        }
        if self.causal && seq > kv_seq {
            return Err(wrong("a causal attention needs at least as many keys as queries"));
        }
        let batch = broadcast(&[q_batch], &[k_batch]).and_then(|b| broadcast(&b, &[sizes(&v_at)[0]]));
        let batch = batch.ok_or_else(|| wrong("batches must be equal or 1"))?[0];
        let to = |layout: Layout| {
            let [_, rest @ ..] = sizes(&layout);
            layout.broadcast_to(&[batch, rest[0], rest[1], rest[2]])
        };
        let scores = [batch, num_heads, seq, kv_seq];
        let mask = match self.mask {
            Some(mask) => Some(mask_layout(mask, &scores)?),
            None => None,
        };
        let full = [batch, seq, num_heads, head_dim];
        let unbatched = [q, k, v].iter().all(|x| x.layout().rank() == 3);
        let rounded = q.dtype() == DType::BF16 && k.dtype() == DType::BF16;
        let compute = self.compute.unwrap_or(if rounded { Compute::Bf16 } else { Compute::F32 });
        let plain = AttentionStatic::new(num_heads, num_kv_heads, head_dim, [q.dtype(), k.dtype(), out], compute);
        let fixed = AttentionStatic {
            scale: self.scale.map_or(plain.scale, F32Bits::new),
            causal: self.causal,
            window: self.window,
            softcap: self.softcap.map(F32Bits::new),
            mask: self.mask.map(|mask| match mask.dtype() {
                DType::Bool => MaskKind::Boolean,
                dtype => MaskKind::Additive(dtype),
            }),
            sinks: self.sinks.is_some(),
            ..plain
        };
        let shape = if unbatched { full[1..].to_vec() } else { full.to_vec() };
        Ok(Prepared { fixed, shape, q: to(q_at)?, k: to(k_at)?, v: to(v_at)?, mask })
    }

    fn run_prepared(&self, ctx: &Context, of: &Prepared, o: &mut Tensor) -> Result<()> {
        let o_at = if of.shape.len() == 3 { o.layout().unsqueeze(0)? } else { *o.layout() };
        if o_at.elements() == 0 {
            return Ok(());
        }
        let [_, seq, ..] = sizes(&of.q);
        let [_, kv_seq, ..] = sizes(&of.k);
        // Tokens first, as the others have them; where there is none, something that folds whenever they do.
        let mask_at = match of.mask {
            Some(mask) => mask.permute(&[0, 2, 1, 3])?,
            None => o_at,
        };
        each_folded([of.q, of.k, of.v, o_at, mask_at], 2, |[q_at, k_at, v_at, o_at, mask_at]| {
            let sequences = q_at.shape()[0] / seq;
            let too_many = |_| refuse(NAME, format!("{sequences} x {seq} tokens are too many for i32"));
            let starts = (0..=sequences).map(|s| i32::try_from(s * seq)).collect::<Result<Vec<_>, _>>();
            let starts = ctx.tensor(&starts.map_err(too_many)?, &[sequences + 1])?;
            let length = i32::try_from(kv_seq).map_err(too_many)?;
            let lengths = ctx.tensor(&vec![length; sequences], &[sequences])?;
            let mask = match self.mask {
                Some(mask) => Some(mask.view().with_layout(mask_at.transpose(0, 1)?)?),
                None => None,
            };
            let call = AttentionDynamic { sequences, tokens: sequences * seq, max_query: seq, max_kv: kv_seq };
            let inputs = Placed::of([
                (Q, Some(self.q.view().with_layout(q_at)?)),
                (K, Some(self.k.view().with_layout(k_at)?)),
                (V, Some(self.v.view().with_layout(v_at)?)),
                (QUERY_START, Some(starts.view())),
                (KV_LEN, Some(lengths.view())),
                (MASK, mask),
                (SINKS, self.sinks.map(Tensor::view)),
            ]);
            ctx.run::<Operator>(&of.fixed, &call, &inputs, &[o.view_mut()?.with_layout(o_at)?])
        })
    }
}

/// A mask's layout over all scores `[batch, heads, seq, kv_seq]`. See [`Attend::mask`].
fn mask_layout(mask: &Tensor, scores: &[usize; 4]) -> Result<Layout> {
    let refused = |rule: String| Err(refuse(NAME, format!("{}; {rule}", operand("the mask", mask))));
    let &[batch, ..] = scores;
    let of_batch = match mask.shape() {
        [first, _] if *first == batch => Some(["[batch, 1, 1, kv_seq]", "[1, seq, kv_seq]"]),
        [first, _, _] if *first == batch => Some(["[batch, 1, seq, kv_seq]", "[1, heads, seq, kv_seq]"]),
        _ => None,
    };
    let all = format!("[batch, heads, seq, kv_seq], here {scores:?}");
    match (mask.layout().broadcast_to(scores), of_batch) {
        (Ok(_), Some([each, shared])) if batch > 1 => refused(format!(
            "its first dimension may be the batch or not: give {each} or {shared}, which are parts of {all}"
        )),
        (Ok(layout), _) => Ok(layout),
        (Err(_), Some([each, _])) => {
            refused(format!("it must be the last dimensions of {all}; a mask for each sequence is {each}"))
        }
        (Err(_), None) => refused(format!("it must be the last dimensions of {all}")),
    }
}

/// The four sizes of a layout of rank 4.
fn sizes(layout: &Layout) -> [usize; 4] {
    let mut sizes = [1; 4];
    sizes.iter_mut().zip(layout.shape()).for_each(|(to, &from)| *to = from);
    sizes
}

/// Writes new keys and values `[tokens, kv_heads, head_dim]` into the slots (i64 or u32 `[tokens]`, each `block ·
/// block_size + offset`) of paged caches `[blocks, kv_heads, block_size, head_dim]` (Kwon et al. 2023), rounded to
/// their dtype. Of two tokens with one slot the later stays; everything else in the caches keeps its bytes. Caches with
/// scales are for [`crate::layers::KvAppend`].
///
/// ```
/// use sinew_ops::{Context, kv_append};
///
/// let ctx = Context::cpu()?;
/// let (k, v) = (ctx.tensor(&[1.0f32], &[1, 1, 1])?, ctx.tensor(&[2.0f32], &[1, 1, 1])?);
/// let slots = ctx.tensor(&[1i64], &[1])?;
/// let (mut keys, mut values) = (ctx.tensor(&[0.0f32; 2], &[1, 1, 2, 1])?, ctx.tensor(&[0.0f32; 2], &[1, 1, 2, 1])?);
/// kv_append(&ctx, &k, &v, &slots, &mut keys, &mut values)?;
/// assert_eq!(keys.to_vec::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not fit, a slot that is not there, tensors of another device, or shared caches.
pub fn kv_append(
    ctx: &Context,
    k: &Tensor,
    v: &Tensor,
    slots: &Tensor,
    k_cache: &mut Tensor,
    v_cache: &mut Tensor,
) -> Result<()> {
    let (&[tokens, num_kv_heads, head_dim], &[_, _, block_size, _]) = (k.shape(), k_cache.shape()) else {
        let operands = [operand("k", k), operand("k_cache", k_cache)].join(", ");
        let rule = "k must be [tokens, kv_heads, head_dim] and the cache [blocks, kv_heads, block_size, head_dim]";
        return Err(refuse("kv_append", format!("{operands}; {rule}")));
    };
    let (source, kv) = (k.dtype(), k_cache.dtype());
    let fixed = KvAppendStatic { num_kv_heads, head_dim, source, kv, block_size, rotary: None };
    let inputs = Placed::of([(K_NEW, Some(k.view())), (V_NEW, Some(v.view())), (SLOTS, Some(slots.view()))]);
    let outputs = [k_cache.view_mut()?, v_cache.view_mut()?];
    ctx.run::<KvAppend>(&fixed, &KvAppendDynamic { tokens }, &inputs, &outputs)
}
