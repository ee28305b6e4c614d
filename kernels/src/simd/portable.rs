//! Sixteen lanes in plain Rust.

use half::{bf16, f16};
use sinew_memory::SimdLevel;

use super::small_float::f8_in_f32;
use super::{LANES, Part, Simd};

/// Plain Rust, which the compiler vectorises for the target's baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

/// An array that compilers keep in registers.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct F16Lanes([f32; LANES]);

#[inline(always)]
fn map(a: F16Lanes, f: impl Fn(f32) -> f32) -> F16Lanes {
    F16Lanes(a.0.map(f))
}

#[inline(always)]
fn zip(a: F16Lanes, b: F16Lanes, f: impl Fn(f32, f32) -> f32) -> F16Lanes {
    F16Lanes(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

/// Sixteen words of 32 bits.
#[inline(always)]
unsafe fn words(p: *const u8) -> [u32; LANES] {
    // SAFETY: the caller names them.
    unsafe { p.cast::<[u32; LANES]>().read_unaligned() }.map(u32::from_le)
}

// SAFETY: every machine has this level; pointers are read and written for the lanes named only.
unsafe impl Simd for Portable {
    type F = F16Lanes;
    const LEVEL: SimdLevel = SimdLevel::Portable;
    const FUSED: bool = false;
    const VECTORS: usize = 4;

    #[inline(always)]
    unsafe fn part<P: Part>(part: P) -> P::Out {
        #[inline(never)]
        unsafe fn run<P: Part>(part: P) -> P::Out {
            // SAFETY: passed on.
            unsafe { part.run::<Portable>() }
        }
        // SAFETY: passed on.
        unsafe { run(part) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        F16Lanes([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller names sixteen values.
        F16Lanes(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F {
        // SAFETY: the caller names `n` values.
        F16Lanes(std::array::from_fn(|i| if i < n { unsafe { p.add(i).read_unaligned() } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        for (i, x) in v.0.into_iter().enumerate().take(n) {
            // SAFETY: the caller names `n` values.
            unsafe { p.add(i).write_unaligned(x) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: the caller names sixteen values.
        F16Lanes(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|x| f16::from_bits(x).to_f32()))
    }
    #[inline(never)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.0.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: the caller names sixteen values.
        F16Lanes(unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|x| f32::from_bits(u32::from(x) << 16)))
    }
    #[inline(never)]
    unsafe fn load_f8e4m3(p: *const u8) -> Self::F {
        // As bits of an f32 with four bits of exponent, whose bias is 120 less.
        let widen = |x: u8| {
            let magnitude = f32::from_bits(u32::from(x & 0x7f) << 20) * f32::from_bits((120 + 127) << 23);
            let magnitude = if x & 0x7f == 0x7f { f32::NAN } else { magnitude };
            f32::from_bits(magnitude.to_bits() | u32::from(x & 0x80) << 24)
        };
        // SAFETY: the caller names sixteen values.
        F16Lanes(unsafe { p.cast::<[u8; LANES]>().read() }.map(widen))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: the caller names sixteen values.
        F16Lanes(unsafe { p.cast::<[i8; LANES]>().read() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8, shift: usize) -> Self::F {
        // SAFETY: the caller names sixteen words.
        F16Lanes(unsafe { words(p) }.map(|word| f32::from((word >> shift) as u8)))
    }
    #[inline(always)]
    unsafe fn load_float_bytes(p: *const u8, shift: usize, mantissa_bits: usize) -> Self::F {
        let (bias, least) = f8_in_f32(mantissa_bits);
        let float = |word: u32| {
            let highest = word << (24 - shift);
            let float = f32::from_bits((highest >> (1 + mantissa_bits) & 0x7f << (23 - mantissa_bits)) + bias);
            f32::from_bits(float.min(2.0 * float - least).to_bits() | highest & 1 << 31)
        };
        // SAFETY: the caller names sixteen words.
        F16Lanes(unsafe { words(p) }.map(float))
    }
    #[inline(always)]
    unsafe fn with_nan_of_f8e4m3(p: *const u8, v: Self::F) -> Self::F {
        // SAFETY: the caller names sixteen words.
        let words = unsafe { words(p) };
        F16Lanes(std::array::from_fn(|i| {
            let next = (words[i] & 0x7f7f_7f7f) + 0x0101_0101;
            if next & 0x8080_8080 == 0 { v.0[i] } else { f32::NAN }
        }))
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(p: *const u8, shift: usize, table: &[f32; 16]) -> Self::F {
        // SAFETY: the caller names sixteen words.
        F16Lanes(unsafe { words(p) }.map(|word| table[(word >> shift) as usize & 0xf]))
    }
    #[inline(always)]
    unsafe fn pack_words(integers: &[Self::F], shift: impl Fn(usize) -> usize) -> Self::F {
        let mut words = [0u32; LANES];
        for (i, integer) in integers.iter().enumerate() {
            for (word, x) in words.iter_mut().zip(integer.0) {
                *word |= (x as u32) << shift(i);
            }
        }
        F16Lanes(words.map(f32::from_bits))
    }
    #[inline(never)]
    unsafe fn store_i8(p: *mut i8, v: Self::F) {
        // SAFETY: the caller names sixteen bytes.
        unsafe { p.cast::<[i8; LANES]>().write(v.0.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn widen_bf16_pairs(pairs: Self::F) -> (Self::F, Self::F) {
        let bits = pairs.0.map(f32::to_bits);
        let widen = |bits: [u32; LANES]| F16Lanes(bits.map(f32::from_bits));
        (widen(bits.map(|pair| pair << 16)), widen(bits.map(|pair| pair & 0xffff_0000)))
    }
    #[inline(never)]
    unsafe fn store_bf16(p: *mut u16, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.0.map(|x| bf16::from_f32(x).to_bits())) }
    }
    #[inline(never)]
    unsafe fn round_bf16_pairs(even: Self::F, odd: Self::F) -> Self::F {
        let bits = |x| u32::from(bf16::from_f32(x).to_bits());
        zip(even, odd, |even, odd| f32::from_bits(bits(even) | bits(odd) << 16))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        F16Lanes(std::array::from_fn(|i| a.0[i] * b.0[i] + c.0[i]))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::F) -> Self::F {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        F16Lanes(std::array::from_fn(|i| if a.0[i] < b.0[i] { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    unsafe fn select_nan(a: Self::F, x: Self::F, y: Self::F) -> Self::F {
        F16Lanes(std::array::from_fn(|i| if a.0[i].is_nan() { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        map(n, |n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn bits_from(a: Self::F, shift: usize) -> Self::F {
        map(a, |a| (a.to_bits() >> shift) as f32)
    }
    #[inline(always)]
    unsafe fn unzip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        let of = |i: usize| if i < LANES { a.0[i] } else { b.0[i - LANES] };
        (F16Lanes(std::array::from_fn(|i| of(2 * i))), F16Lanes(std::array::from_fn(|i| of(2 * i + 1))))
    }
    #[inline(always)]
    unsafe fn zip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        let of = |i: usize| if i.is_multiple_of(2) { a.0[i / 2] } else { b.0[i / 2] };
        (F16Lanes(std::array::from_fn(of)), F16Lanes(std::array::from_fn(|i| of(i + LANES))))
    }
    #[inline(never)]
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES] {
        std::array::from_fn(|i| F16Lanes(std::array::from_fn(|j| rows[j].0[i])))
    }
}
