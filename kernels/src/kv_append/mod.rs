//! New keys and values written into the paged caches.
//!
//! ```text
//! k_cache[slot / block_size, :, slot % block_size, :] = k_new[token]        for slot = slots[token]
//! v_cache likewise, both rounded to the cache's dtype
//! ```
//!
//! Where the problem has a [`KeyRotary`], what is written of the keys is what [`rotary`] makes of them: turned in f32 by
//! their tokens' positions, and rounded once, to the cache's dtype.
//!
//! In a cache of int8 or fp8 (e4m3) each token's head is rounded by a scale of its own, and lies with it where
//! [`PagedLayout`] says:
//!
//! ```text
//! scale = max(max |x| / L, 2^-126)    code[d] = round(x[d] / scale)      L = 127 of int8, 448 of fp8
//! ```
//!
//! in f32, ties to even: the codes are the same at every SIMD level. A head of zeros has zeros for codes, and so has one that
//! holds NaN or infinity, whose scale is NaN: whatever reads it is NaN.
//!
//! (Paged caches from Kwon et al. 2023.) Where two tokens have one slot, the later one stays. Every other place of the
//! caches keeps its bytes.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
pub(crate) mod scaled;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::{DType, PagedLayout, View};

use crate::operator::{count_of, expect, expect_compute, refuse};
use crate::rotary::{self, Rotary, RotaryDynamic, RotaryStatic, Style};
use crate::table::joined;
use crate::{Operands, Operator, Result, Row, Work};

/// Input: new keys `[tokens, num_kv_heads, head_dim]`.
pub const K_NEW: usize = 0;
/// Input: new values, shaped as the keys.
pub const V_NEW: usize = 1;
/// Input: i64 or u32 `[tokens]`; `block · block_size + offset` of each token.
pub const SLOTS: usize = 2;
/// Input, where keys are turned: the position of each token, i32 `[tokens]`.
pub const POSITIONS: usize = 3;
/// Input, where keys are turned: the table of cosines, f32 `[positions, rotary_dim/2]`.
pub const COS: usize = 4;
/// Input, where keys are turned: the table of sines, f32 `[positions, rotary_dim/2]`.
pub const SIN: usize = 5;
/// Output, partly written: cache of keys, `[num_blocks, num_kv_heads, block_size, head_dim]`, or bytes where it has
/// scales: see [`PagedLayout`]. The bytes of a head of a block follow one another.
pub const K_CACHE: usize = 0;
/// Output, partly written: cache of values, shaped as that of keys.
pub const V_CACHE: usize = 1;

/// The static part of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvAppendStatic {
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Dtype of the new rows.
    pub source: DType,
    /// Dtype of the caches: one that rows compute in, or [with scales](PagedLayout::has_scales).
    pub kv: DType,
    /// Tokens of a block.
    pub block_size: usize,
    /// How keys are turned, where they are.
    pub rotary: Option<KeyRotary>,
}

/// The rotary embedding of keys on their way into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRotary {
    /// Values of a head that are turned, its first ones: even, and at most `head_dim`.
    pub rotary_dim: usize,
    /// Which values are pairs.
    pub style: Style,
}

impl KvAppendStatic {
    /// The turn of its keys as a problem by itself.
    fn rotary_alone(&self) -> Option<RotaryStatic> {
        let KeyRotary { rotary_dim, style } = self.rotary?;
        // Scales are those of what was turned in f32.
        let out = if PagedLayout::has_scales(self.kv) { DType::F32 } else { self.kv };
        let (head_dim, x) = (self.head_dim, self.source);
        Some(RotaryStatic { head_dim, rotary_dim, style, x, out, in_place: false })
    }
}

impl fmt::Display for KvAppendStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { num_kv_heads, head_dim, source, kv, block_size, rotary } = self;
        write!(f, "{} of {head_dim}, {source} to {kv}, blocks of {block_size}", count_of(*num_kv_heads, "head"))?;
        match rotary {
            Some(KeyRotary { rotary_dim, style }) => write!(f, ", keys turned ({style}, {rotary_dim})"),
            None => Ok(()),
        }
    }
}

/// The dynamic part of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvAppendDynamic {
    /// New tokens.
    pub tokens: usize,
}

impl fmt::Display for KvAppendDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.tokens, "token"))
    }
}

/// The operator: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct KvAppend;

/// The rows of the operator.
pub fn rows() -> Vec<Row<KvAppend>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

impl Operator for KvAppend {
    const NAME: &'static str = "kv_append";
    type Static = KvAppendStatic;
    type Dynamic = KvAppendDynamic;

    fn bucket(call: KvAppendDynamic) -> KvAppendDynamic {
        KvAppendDynamic { tokens: call.tokens.checked_next_power_of_two().unwrap_or(call.tokens) }
    }

    /// A decoding step of one sequence.
    fn anchor(_: &KvAppendStatic) -> KvAppendDynamic {
        KvAppendDynamic { tokens: 1 }
    }

    fn check(fixed: &KvAppendStatic, call: &KvAppendDynamic, operands: Operands<'_>) -> Result<()> {
        if fixed.num_kv_heads == 0 || fixed.head_dim == 0 || fixed.block_size == 0 {
            return Err(refuse(Self::NAME, format!("{fixed}: heads, head and block sizes start from 1")));
        }
        let kv = (!PagedLayout::has_scales(fixed.kv)).then_some(fixed.kv);
        expect_compute(Self::NAME, fixed, [fixed.source].into_iter().chain(kv))?;
        let rows = [call.tokens, fixed.num_kv_heads, fixed.head_dim];
        expect(Self::NAME, "k_new", operands.input(Self::NAME, K_NEW, "k_new")?, fixed.source, &rows)?;
        expect(Self::NAME, "v_new", operands.input(Self::NAME, V_NEW, "v_new")?, fixed.source, &rows)?;
        let slots = operands.input(Self::NAME, SLOTS, "slots")?;
        if ![DType::I64, DType::U32].contains(&slots.dtype()) || slots.shape() != [call.tokens] {
            let (found, layout) = (slots.dtype(), slots.layout());
            return Err(refuse(
                Self::NAME,
                format!("slots is {found} {layout:?}; expected i64 or u32 of shape [{}]", call.tokens),
            ));
        }
        if let Some(KeyRotary { rotary_dim, .. }) = fixed.rotary {
            let angles = [POSITIONS, COS, SIN];
            rotary::expect_angles(Self::NAME, fixed.head_dim, rotary_dim, call.tokens, operands, angles)?;
        }
        let (k, v) =
            (operands.output(Self::NAME, K_CACHE, "k_cache")?, operands.output(Self::NAME, V_CACHE, "v_cache")?);
        let (blocks, of_block) = (k.shape().first().copied().unwrap_or(0), [fixed.num_kv_heads, fixed.block_size]);
        expect_cache(Self::NAME, "k_cache", k, blocks, of_block, fixed.head_dim, fixed.kv)?;
        expect_cache(Self::NAME, "v_cache", v, blocks, of_block, fixed.head_dim, fixed.kv)
    }

    fn work(fixed: &KvAppendStatic, call: &KvAppendDynamic) -> Work {
        let (heads, of_head) = ((call.tokens * fixed.num_kv_heads * 2) as f64, fixed.head_dim * fixed.source.size());
        let bytes = heads * (of_head + PagedLayout::head_bytes(fixed.kv, fixed.head_dim)) as f64;
        let keys = RotaryDynamic { tokens: call.tokens, heads: fixed.num_kv_heads };
        let turned = fixed.rotary_alone().map_or(0.0, |rotary| Rotary::work(&rotary, &keys).flops);
        Work { flops: turned, bytes }
    }
}

/// Checks the cache of keys or of values.
///
/// # Errors
/// Another dtype or shape than [`PagedLayout`] has for it, or bytes of a head that do not follow one another.
pub(crate) fn expect_cache(
    operator: &'static str,
    name: &str,
    view: &View<'_>,
    blocks: usize,
    [num_kv_heads, block_size]: [usize; 2],
    head_dim: usize,
    kv: DType,
) -> Result<()> {
    let cache = PagedLayout::new(blocks, num_kv_heads, block_size, head_dim, kv)?;
    expect(operator, name, view, cache.stored(), cache.layout().shape())?;
    if PagedLayout::has_scales(kv) && view.strides().last() != Some(&1) {
        let reason = format!("{name} is {:?}; the bytes of a head of {kv} must follow one another", view.layout());
        return Err(refuse(operator, reason));
    }
    Ok(())
}

/// Refuses caches with scales: kernels on GPUs have none.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn takes_no_scales(kv: DType) -> Result<(), crate::Refusal> {
    if !PagedLayout::has_scales(kv) {
        return Ok(());
    }
    Err(format!("a KV cache in {kv} with scales is for CPUs; GPUs take f32, f16 and bf16").into())
}

/// Refuses what kernels on GPUs do not: they write what they are given, in caches without scales.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn takes_on_gpu(fixed: &KvAppendStatic) -> Result<(), crate::Refusal> {
    takes_no_scales(fixed.kv)?;
    if fixed.rotary.is_some() { Err("turns no keys".into()) } else { Ok(()) }
}
