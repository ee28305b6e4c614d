//! Caches with scales as references see them: what a head is rounded to, and the values that bytes stand for.

use sinew_tensor::{DType, PagedLayout};

use crate::Result;
use crate::harness::case::{Generator, HostOperand, Lay, Values, decode, encode, host_operand};

/// What the largest magnitude of a head becomes.
pub(super) fn largest_code(kv: DType) -> f64 {
    if kv == DType::I8 { 127.0 } else { 448.0 }
}

/// A head of a token, rounded.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The values that its codes stand for, without the scale.
    codes: Vec<f64>,
    scale: f64,
}

impl Head {
    /// That of `x`, in f32 step by step.
    pub fn of(kv: DType, x: &[f64]) -> Self {
        if x.iter().any(|x| !x.is_finite()) {
            return Self { codes: vec![0.0; x.len()], scale: f64::NAN };
        }
        let largest = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let scale = DType::F32.round(largest / largest_code(kv)).max(f64::from(f32::MIN_POSITIVE));
        let code = |x: &f64| {
            let quotient = DType::F32.round(x / scale);
            if kv == DType::I8 { quotient.round_ties_even() } else { kv.round(quotient) }
        };
        Self { codes: x.iter().map(code).collect(), scale }
    }

    /// One that nothing may read: its scale is NaN, and so are its codes where the dtype has NaN.
    pub fn poisoned(kv: DType, head_dim: usize) -> Self {
        Self { codes: vec![if kv == DType::I8 { 127.0 } else { f64::NAN }; head_dim], scale: f64::NAN }
    }

    /// One of random values; among special ones some heads are not finite.
    pub fn random(kv: DType, head_dim: usize, values: Values, pick: &mut Generator) -> Self {
        let usual = if values == Values::Special { Values::Normal } else { values };
        let mut x: Vec<f64> = (0..head_dim).map(|_| pick.value(usual, DType::F32)).collect();
        if values == Values::Special && pick.below(23) == 0 {
            x[pick.below(head_dim)] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][pick.below(3)];
        }
        Self::of(kv, &x)
    }

    /// What its elements are, and behind them the scale.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.codes.iter().map(|code| code * self.scale).chain([self.scale])
    }
}

/// A cache of heads, `[num_blocks, num_kv_heads, block_size]` of them. Logically it is `[num_blocks, num_kv_heads,
/// block_size, head_dim + 1]`, the last of a head being its scale.
///
/// # Errors
/// Out of memory.
pub(crate) fn operand(cache: PagedLayout, heads: &[Head], lay: Lay, writable: bool) -> Result<HostOperand> {
    let (size, kv, head_dim) = (cache.block_size(), cache.dtype(), cache.head_dim());
    let mut bytes = vec![0u8; cache.bytes()];
    let mut values = Vec::with_capacity(heads.len() * (head_dim + 1));
    for (i, head) in heads.iter().enumerate() {
        let [block, of_block, slot] = [i / size / cache.num_kv_heads(), i / size % cache.num_kv_heads(), i % size];
        let (Some(at), Some(scale)) = (cache.index(block, of_block, slot, 0), cache.scale_index(block, of_block, slot))
        else {
            unreachable!("a head for each place of the cache");
        };
        bytes[at..at + head_dim].copy_from_slice(&encode(kv, &head.codes));
        bytes[scale..scale + 4].copy_from_slice(&(head.scale as f32).to_le_bytes());
        values.extend(head.values());
    }
    // Bytes of a head follow one another.
    let lay = match lay {
        Lay::Contiguous | Lay::Transposed => Lay::Contiguous,
        Lay::Stepped | Lay::Padded | Lay::Broadcast => Lay::Padded,
    };
    let bytes = bytes.into_iter().map(f64::from).collect();
    let stored = host_operand(cache.stored(), cache.layout().shape(), lay, bytes, writable)?;
    let shape = vec![cache.num_blocks(), cache.num_kv_heads(), size, head_dim + 1];
    Ok(HostOperand { shape, values, ..stored })
}

/// The values of a cache's bytes, in the order of [`operand`].
pub(super) fn values(cache: PagedLayout, bytes: &[u8]) -> Vec<f64> {
    let mut all = Vec::new();
    for of_head in bytes.chunks(cache.bytes_per_block() / cache.num_kv_heads()) {
        let (codes, scales) = of_head.split_at(cache.block_size() * cache.head_dim());
        for (codes, scale) in codes.chunks(cache.head_dim()).zip(decode(DType::F32, scales)) {
            all.extend(Head { codes: decode(cache.dtype(), codes), scale }.values());
        }
    }
    all
}
