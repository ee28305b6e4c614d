//! Attention over a batch of sequences of any lengths, on paged or dense keys and values.
//!
//! For each sequence, query head `h` and query token `i` at position `p = kv_len - query_len + i`:
//!
//! ```text
//! s[j] = scale · (q[i, h] · k[j, h / group])            group = num_heads / num_kv_heads
//! s[j] = softcap · tanh(s[j] / softcap)                 where there is a softcap
//! s[j] = s[j] + mask[i, j]                              where the mask is additive
//! o[i, h] = Σ_j softmax(s)[j] · v[j, h / group]         over the keys j < kv_len that token i sees
//! ```
//!
//! (Vaswani et al. 2017; grouped heads from Ainslie et al. 2023; computed by tiles as in Dao et al. 2022.) A token sees
//! key `j` unless the problem is causal and `j > p`, or there is a window `w` and `j` is not in `(p - w, p]` (in
//! `(p - w, p + w)` where the problem is not causal), or the mask forbids it by `false` or `-inf`. A token that sees no
//! key gets zeros. Cross and bidirectional attention are the same with `causal` false.
//!
//! # Sinks
//!
//! A problem may have attention sinks (Xiao et al. 2023; learned, as gpt-oss has them): of each query head a logit `z[h]`
//! that takes part in the softmax as the score of one key more, whose value is nothing. It is neither scaled, softened nor
//! masked:
//!
//! ```text
//! o[i, h] = Σ_j e^s[j] · v[j, h / group] / (e^z[h] + Σ_j e^s[j])
//! ```
//!
//! `-inf` is as no sink, `+inf` takes all the weight there is, and NaN makes NaN of its head. A token that sees no key
//! gets zeros, whatever the sink.
//!
//! # Arithmetic
//!
//! Keys are taken in tiles of [`TILE`] at absolute positions, by the online softmax, and tiles in groups of [`GROUP`]
//! keys. Each group starts afresh, and groups are merged in order:
//!
//! ```text
//! within a group, per tile:  m' = max(m, max s)   l' = l·e^(m-m') + Σ e^(s-m')   a' = a·e^(m-m') + Σ e^(s-m')·v
//! of groups, in order:       M' = max(M, m)       L' = L·e^(M-M') + l·e^(m-M')   A' = A·e^(M-M') + a·e^(m-M')
//! ```
//!
//! The result is `A / L`. A sink enters once, where a row ends: behind its last group `L` becomes `L + e^(z - M)`, so that
//! it is no matter how the keys before were divided.
//!
//! On CPUs a power of e is one of 2, the scale of the scores and log₂ e one factor of the difference.
//!
//! A dot product is one f32 chain over `head_dim`, and `a` one f32 chain over the keys of a tile. A key that a token
//! does not see has the score `-inf` and the weight 0, and adds exactly nothing; so a tile without a visible key is the
//! identity of both merges and may be left out. Hence one token's result is the same **bit for bit** in prefill and
//! decode, for any chunking of the prompt, any size and order of blocks, paged or dense, alone or among other
//! sequences, on any number of threads. Rows with the same arithmetic agree on all of that.
//!
//! On NVIDIA GPUs the dot product and the weighted sum of a tile are a tensor core's (`attention.cuda.tiles-mma`), or
//! tiles are of 32 keys (`attention.cuda.tiles-fma`); groups are the same. So they are by wgpu, in tiles of 32 keys
//! (`attention.wgpu`).
//!
//! Keys and values of int8 or fp8 (e4m3) with a scale for each token and head ([`PagedLayout`]) are multiplied as codes,
//! which f32 and bf16 hold exactly, and their scales are factors of what lies between the products:
//!
//! ```text
//! s[j] = (q[i] · code_k[j]) · scale_k[j]          a = Σ_j (w[j] · scale_v[j]) · code_v[j]          l = Σ_j w[j]
//! ```
//!
//! so that a tile costs two multiplications for each score, not one for each element. Where products are of bf16 it is
//! `w[j] · scale_v[j]` that is rounded, once. A scale of NaN makes NaN of all who see the key.
//!
//! # Old keys in a second form
//!
//! A problem may have its old keys and values as codes with scales, in caches of their own ([`OldKv`]): the token at
//! position `p` sees those below
//!
//! ```text
//! b(p) = TILE · ⌊max(0, p + 1 - recent) / TILE⌋
//! ```
//!
//! as codes, and those from there on, the latest `recent` up to its own among them, in the full dtype. So every tile
//! has one form for a token, and which one depends on positions alone: what is said of the same bits above holds
//! unchanged. Keys between `b` of the first token of a call and `b` of its last are read from both caches; all below are
//! read as codes only, all behind in full only.
//!
//! Keys that no token sees (free blocks, the tail of the last block, blocks that a window has passed) are never read,
//! and those that only some tokens see never reach the others, even where they are NaN or infinite.

mod cases;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_params;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;

use sinew_tensor::{DType, PagedLayout};

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use crate::kv_append::expect_cache;
use crate::operator::{count_of, expect, expect_compute, refuse};
use crate::table::joined;
use crate::{Compute, F32Bits, Factors};
use crate::{Operands, Operator, Result, Row, Work};

/// Keys of a tile: four vectors of sixteen lanes, and a power of two, so that tiles start at the same positions
/// whatever the block size.
pub const TILE: usize = 64;
/// Keys of a group, the unit in which a long sequence is divided among threads when there are few query rows. Smaller
/// groups cost more merging, larger ones leave threads idle in decoding.
pub const GROUP: usize = 512;
/// Keys of the call that rows are ranked by.
const TYPICAL_KEYS: usize = 1024;

/// Input: queries `[tokens, num_heads, head_dim]`, the tokens of all sequences one after another.
pub const Q: usize = 0;
/// Input: keys. Paged: `[num_blocks, num_kv_heads, block_size, head_dim]`, or bytes where they have scales: see
/// [`PagedLayout`]. Dense: `[kv_tokens, num_kv_heads, head_dim]`, the keys of all sequences one after another.
pub const K: usize = 1;
/// Input: values, shaped as the keys.
pub const V: usize = 2;
/// Input: i32 `[sequences + 1]`; the queries of sequence `s` are `query_start[s]..query_start[s + 1]`. From 0 to
/// `tokens`.
pub const QUERY_START: usize = 3;
/// Input: i32 `[sequences]`; the keys of each sequence, those of its new tokens included.
pub const KV_LEN: usize = 4;
/// Input, paged only: u32 `[sequences, max_blocks]`; block `b` of a sequence holds its keys from `b · block_size` on.
/// Entries that no visible key lies in may hold anything.
pub const BLOCK_TABLE: usize = 5;
/// Input, with a mask only: `[tokens, max_kv]` or `[num_heads, tokens, max_kv]`, or longer in the last dimension;
/// column `j` is the sequence's key `j`.
pub const MASK: usize = 6;
/// Input, with old keys only: the old keys as bytes, see [`PagedLayout`]; blocks are as large as those of `K`.
pub const OLD_K: usize = 7;
/// Input, with old keys only: the old values, shaped as the old keys.
pub const OLD_V: usize = 8;
/// Input, with old keys only: u32 `[sequences, max_blocks]`; as [`BLOCK_TABLE`], in the caches of old keys.
pub const OLD_BLOCK_TABLE: usize = 9;
/// Input, with sinks only: f32 `[num_heads]`; the sink's logit of each head of queries.
pub const SINKS: usize = 10;
/// Output: `[tokens, num_heads, head_dim]`.
pub const O: usize = 0;

/// What a mask holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// Numbers of this dtype that are added to the scores; `-inf` forbids.
    Additive(DType),
    /// [`DType::Bool`]: `false` forbids.
    Boolean,
}

/// Where keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvSource {
    /// In blocks of this many tokens, by a block table.
    Paged {
        /// Tokens of a block.
        block_size: usize,
    },
    /// One after another; each sequence's keys start where those of the one before it end.
    Dense,
}

/// Old keys and values that are kept as codes with scales, while recent ones stay in the full dtype: see the
/// [module](self#old-keys-in-a-second-form).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OldKv {
    /// Dtype of the codes: one that [has scales](PagedLayout::has_scales).
    pub dtype: DType,
    /// Positions up to a token's own that it sees in the full dtype at least, from 1; up to `TILE - 1` more are so too.
    pub recent: usize,
}

impl OldKv {
    /// The first of the keys that the token at a position sees in the full dtype: a multiple of [`TILE`].
    ///
    /// ```
    /// use sinew_kernels::attention::OldKv;
    /// use sinew_tensor::DType;
    /// let old = OldKv { dtype: DType::I8, recent: 100 };
    /// assert_eq!([0, 162, 163, 226, 227].map(|position| old.before(position)), [0, 0, 64, 64, 128]);
    /// ```
    pub fn before(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.recent) / TILE * TILE
    }

    /// How many positions up to its own a token may see in the full dtype.
    ///
    /// ```
    /// # use sinew_kernels::attention::OldKv;
    /// # use sinew_tensor::DType;
    /// let old = OldKv { dtype: DType::I8, recent: 100 };
    /// assert_eq!(old.most_recent(), 163);
    /// ```
    pub fn most_recent(&self) -> usize {
        self.recent.saturating_add(TILE - 1)
    }
}

/// The static part of an attention problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionStatic {
    /// Heads of queries: a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Dtype of the queries.
    pub q: DType,
    /// Dtype of keys and values: one that rows compute in, or, where they are paged, [with
    /// scales](PagedLayout::has_scales).
    pub kv: DType,
    /// Dtype of the result.
    pub out: DType,
    /// What the products are computed from.
    pub compute: Compute,
    /// What scores are multiplied by; `1 / sqrt(head_dim)` in most models.
    pub scale: F32Bits,
    /// Whether a token sees no key behind its own position.
    pub causal: bool,
    /// How many positions back a token sees, its own included.
    pub window: Option<usize>,
    /// Bound on the scores' magnitude.
    pub softcap: Option<F32Bits>,
    /// The mask, if there is one.
    pub mask: Option<MaskKind>,
    /// Where keys and values lie.
    pub kv_source: KvSource,
    /// The form of the old keys and values, where it is another than that of recent ones: of paged ones without scales.
    pub old: Option<OldKv>,
    /// Whether each head has a [sink](self#sinks).
    pub sinks: bool,
}

impl AttentionStatic {
    /// Attention of all tokens to all keys, which lie one after another, with scores multiplied by `1 / sqrt(head_dim)`: what
    /// others differ from. Its dtypes are those of queries, of keys and values, and of the result.
    ///
    /// ```
    /// use sinew_kernels::Compute;
    /// use sinew_kernels::attention::{AttentionStatic, KvSource};
    /// use sinew_tensor::DType;
    ///
    /// let encoder = AttentionStatic::new(12, 12, 64, [DType::F32; 3], Compute::F32);
    /// assert_eq!(encoder.scale.get(), 0.125);
    /// let kv_source = KvSource::Paged { block_size: 16 };
    /// let dtypes = [DType::F32, DType::BF16, DType::BF16];
    /// let decoder = AttentionStatic { causal: true, kv_source, ..AttentionStatic::new(14, 2, 64, dtypes, Compute::Bf16) };
    /// assert!(decoder.window.is_none() && !decoder.sinks);
    /// ```
    pub fn new(
        num_heads: usize,
        num_kv_heads: usize,
        head_dim: usize,
        [q, kv, out]: [DType; 3],
        compute: Compute,
    ) -> Self {
        Self {
            num_heads,
            num_kv_heads,
            head_dim,
            q,
            kv,
            out,
            compute,
            scale: F32Bits::new(1.0 / (head_dim as f32).sqrt()),
            causal: false,
            window: None,
            softcap: None,
            mask: None,
            kv_source: KvSource::Dense,
            old: None,
            sinks: false,
        }
    }
}

impl fmt::Display for AttentionStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} heads of {}", self.num_heads, self.num_kv_heads, self.head_dim)?;
        write!(f, ", q {} kv {} out {} in {}", self.q, self.kv, self.out, self.compute)?;
        f.write_str(if self.causal { ", causal" } else { "" })?;
        match self.kv_source {
            KvSource::Paged { block_size } => write!(f, ", blocks of {block_size}")?,
            KvSource::Dense => f.write_str(", dense")?,
        }
        if let Some(OldKv { dtype, recent }) = self.old {
            write!(f, ", {dtype} before the latest {recent}")?;
        }
        if let Some(window) = self.window {
            write!(f, ", window {window}")?;
        }
        if let Some(cap) = self.softcap {
            write!(f, ", softcap {}", cap.get())?;
        }
        match self.mask {
            Some(MaskKind::Additive(dtype)) => write!(f, ", {dtype} mask")?,
            Some(MaskKind::Boolean) => f.write_str(", boolean mask")?,
            None => {}
        }
        f.write_str(if self.sinks { ", sinks" } else { "" })
    }
}

/// The dynamic part of an attention problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDynamic {
    /// Sequences.
    pub sequences: usize,
    /// Query tokens of all sequences.
    pub tokens: usize,
    /// At least the query tokens of any sequence.
    pub max_query: usize,
    /// At least the keys of any sequence.
    pub max_kv: usize,
}

impl fmt::Display for AttentionDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequences, tokens) = (count_of(self.sequences, "sequence"), count_of(self.tokens, "token"));
        let queries = match self.max_query {
            1 => "1 query".to_owned(),
            most => format!("{most} queries"),
        };
        write!(f, "{sequences}, {tokens}, up to {queries} over {}", count_of(self.max_kv, "key"))
    }
}

/// The operator: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Attention;

/// The rows of attention.
pub fn rows() -> Vec<Row<Attention>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        wgpu::rows().to_vec(),
    ])
}

impl AttentionStatic {
    /// Query heads that share a head of keys and values.
    pub(crate) fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Whether keys and values are codes with scales.
    pub(crate) fn has_scales(&self) -> bool {
        PagedLayout::has_scales(self.kv)
    }

    fn check(&self) -> Result<()> {
        if self.num_heads == 0 || self.num_kv_heads == 0 || !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(refuse(
                Attention::NAME,
                format!("{self}: query heads must be a multiple of the heads of keys"),
            ));
        }
        let block = matches!(self.kv_source, KvSource::Paged { block_size: 0 });
        if self.head_dim == 0 || block || self.window == Some(0) {
            return Err(refuse(Attention::NAME, format!("{self}: head, block and window sizes start from 1")));
        }
        if self.compute == Compute::Int8 {
            return Err(refuse(Attention::NAME, format!("{self}: int8 is for matrix products")));
        }
        let mask = match self.mask {
            Some(MaskKind::Additive(dtype)) => dtype,
            _ => DType::F32,
        };
        if self.has_scales() && self.kv_source == KvSource::Dense {
            return Err(refuse(
                Attention::NAME,
                format!("{self}: {} has its scales in the blocks of a cache", self.kv),
            ));
        }
        if let Some(OldKv { dtype, recent }) = self.old {
            let paged = self.kv_source != KvSource::Dense;
            if !paged || self.has_scales() || !PagedLayout::has_scales(dtype) || recent == 0 {
                return Err(refuse(
                    Attention::NAME,
                    format!("{self}: old keys are int8 or fp8 behind at least one in f32, f16 or bf16, in blocks"),
                ));
            }
        }
        let kv = (!self.has_scales()).then_some(self.kv);
        expect_compute(Attention::NAME, self, [self.q, self.out, mask].into_iter().chain(kv))
    }
}

impl Operator for Attention {
    const NAME: &'static str = "attention";
    type Static = AttentionStatic;
    type Dynamic = AttentionDynamic;

    fn bucket(call: AttentionDynamic) -> AttentionDynamic {
        let up = |n: usize| n.checked_next_power_of_two().unwrap_or(n);
        AttentionDynamic {
            sequences: up(call.sequences),
            tokens: up(call.tokens),
            max_query: up(call.max_query),
            // Keys grow with every step of decoding, and rows differ in speed by a factor whatever their number.
            max_kv: TYPICAL_KEYS,
        }
    }

    /// A decoding step of one sequence.
    fn anchor(_: &AttentionStatic) -> AttentionDynamic {
        AttentionDynamic { sequences: 1, tokens: 1, max_query: 1, max_kv: TYPICAL_KEYS }
    }

    fn check(fixed: &AttentionStatic, call: &AttentionDynamic, operands: Operands<'_>) -> Result<()> {
        fixed.check()?;
        const MOST: usize = i32::MAX as usize;
        if [call.sequences, call.tokens, call.max_query, call.max_kv].into_iter().any(|n| n > MOST) {
            return Err(refuse(Self::NAME, format!("{call}: more than {MOST} of something")));
        }
        let input = |at, name| operands.input(Self::NAME, at, name);
        let rows = [call.tokens, fixed.num_heads, fixed.head_dim];
        expect(Self::NAME, "q", input(Q, "q")?, fixed.q, &rows)?;
        expect(Self::NAME, "o", operands.output(Self::NAME, O, "o")?, fixed.out, &rows)?;
        // The caches at these inputs and their block table.
        let expect_blocks = |block_size, kv, places: [(usize, &'static str); 3]| {
            let [(k, k_name), (v, v_name), (table, table_name)] = places;
            let (k, v, table) = (input(k, k_name)?, input(v, v_name)?, input(table, table_name)?);
            let (first, of_block) = (k.shape().first().copied().unwrap_or(0), [fixed.num_kv_heads, block_size]);
            expect_cache(Self::NAME, k_name, k, first, of_block, fixed.head_dim, kv)?;
            expect_cache(Self::NAME, v_name, v, first, of_block, fixed.head_dim, kv)?;
            let blocks = table.shape().last().copied().unwrap_or(0);
            expect(Self::NAME, table_name, table, DType::U32, &[call.sequences, blocks])
        };
        match fixed.kv_source {
            KvSource::Paged { block_size } => {
                expect_blocks(block_size, fixed.kv, [(K, "k"), (V, "v"), (BLOCK_TABLE, "block_table")])?;
                if let Some(old) = fixed.old {
                    let places = [(OLD_K, "old_k"), (OLD_V, "old_v"), (OLD_BLOCK_TABLE, "old_block_table")];
                    expect_blocks(block_size, old.dtype, places)?;
                }
            }
            KvSource::Dense => {
                let (k, v) = (input(K, "k")?, input(V, "v")?);
                let first = k.shape().first().copied().unwrap_or(0);
                let dense = [first, fixed.num_kv_heads, fixed.head_dim];
                expect(Self::NAME, "k", k, fixed.kv, &dense)?;
                expect(Self::NAME, "v", v, fixed.kv, &dense)?;
                if operands.optional(BLOCK_TABLE).is_some() {
                    return Err(refuse(Self::NAME, "block_table is given, but keys are dense"));
                }
            }
        }
        if fixed.old.is_none() && [OLD_K, OLD_V, OLD_BLOCK_TABLE].iter().any(|&at| operands.optional(at).is_some()) {
            return Err(refuse(Self::NAME, "old keys are given, but the problem has none"));
        }
        expect(Self::NAME, "query_start", input(QUERY_START, "query_start")?, DType::I32, &[call.sequences + 1])?;
        expect(Self::NAME, "kv_len", input(KV_LEN, "kv_len")?, DType::I32, &[call.sequences])?;
        match fixed.sinks {
            true => expect(Self::NAME, "sinks", input(SINKS, "sinks")?, DType::F32, &[fixed.num_heads])?,
            false if operands.optional(SINKS).is_some() => {
                return Err(refuse(Self::NAME, "sinks are given, but the problem has none"));
            }
            false => {}
        }
        let Some(kind) = fixed.mask else {
            return match operands.optional(MASK) {
                Some(_) => Err(refuse(Self::NAME, "mask is given, but the problem has none")),
                None => Ok(()),
            };
        };
        let mask = input(MASK, "mask")?;
        let dtype = match kind {
            MaskKind::Additive(dtype) => dtype,
            MaskKind::Boolean => DType::Bool,
        };
        let keys = mask.shape().last().copied().unwrap_or(0).max(call.max_kv);
        match mask.shape().len() {
            3 => expect(Self::NAME, "mask", mask, dtype, &[fixed.num_heads, call.tokens, keys]),
            _ => expect(Self::NAME, "mask", mask, dtype, &[call.tokens, keys]),
        }
    }

    fn work(fixed: &AttentionStatic, call: &AttentionDynamic) -> Work {
        let (tokens, queries) = (call.tokens as f64, call.max_query as f64);
        let mut seen = call.max_kv as f64;
        if fixed.causal {
            seen -= ((queries - 1.0) / 2.0).clamp(0.0, seen);
        }
        if let Some(window) = fixed.window {
            seen = seen.min(if fixed.causal { window as f64 } else { 2.0 * window as f64 });
        }
        let row = (fixed.num_heads * fixed.head_dim) as f64;
        let keys = (seen + queries).min(call.max_kv as f64) * call.sequences as f64;
        let of =
            |keys: f64, dtype| keys * (fixed.num_kv_heads * 2 * PagedLayout::head_bytes(dtype, fixed.head_dim)) as f64;
        let kv = match fixed.old {
            Some(OldKv { dtype, recent }) => {
                let full = keys.min((recent as f64 + queries) * call.sequences as f64);
                of(full, fixed.kv) + of(keys - full, dtype)
            }
            None => of(keys, fixed.kv),
        };
        Work { flops: 4.0 * tokens * row * seen, bytes: tokens * row * (fixed.q.size() + fixed.out.size()) as f64 + kv }
    }

    fn factors(fixed: &AttentionStatic) -> Factors {
        fixed.compute.into()
    }
}
