//! How the codes of block-quantized weights become floats.

use std::sync::LazyLock;

use sinew_tensor::BlockValues;

use crate::packed::blocks::{self, held_code};
use crate::simd::Simd;

/// What the codes of a format stand for, by the code as panels hold it.
pub(super) fn table(values: BlockValues) -> &'static [f32; 256] {
    static TABLES: LazyLock<[[f32; 256]; BlockValues::ALL.len()]> = LazyLock::new(|| {
        BlockValues::ALL.map(|values| std::array::from_fn(|held| values.value(held_code(values, held as u8))))
    });
    &TABLES[values as usize]
}

/// How codes become floats.
pub(super) trait Codes: Copy {
    /// Those of a word.
    const PER_WORD: usize;
    /// The codes of sixteen words from bit `shift` on.
    ///
    /// # Safety
    /// Those of [`Simd`]; the words can be read.
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F;
}

/// Codes of four bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;
/// Integers of a byte.
#[derive(Clone, Copy)]
pub(super) struct Bytes;
/// Floats of a byte.
#[derive(Clone, Copy)]
pub(super) struct FloatBytes;

impl Codes for Nibbles {
    const PER_WORD: usize = 8;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F {
        // SAFETY: passed on; sixteen of the table's values are there.
        unsafe { S::lookup_nibbles(p, shift, &*table.as_ptr().cast()) }
    }
}

impl Codes for Bytes {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::sub(S::load_bytes(p, shift), S::splat(f32::from(blocks::offset(BlockValues::Int8)))) }
    }
}

impl Codes for FloatBytes {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::lookup_bytes(p, shift, table) }
    }
}

/// What codes stand for, in their place.
#[derive(Clone, Copy)]
pub(super) struct Expanded;

impl Codes for Expanded {
    const PER_WORD: usize = 1;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}
