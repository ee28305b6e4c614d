//! Sixteen lanes in plain Rust.

use half::{bf16, f16};
use sinew_memory::SimdLevel;

use super::stored::f8_in_f32;
use super::{LANES, Part, Simd};

/// Plain Rust, which the compiler vectorises for the target's baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

/// An array that compilers keep in registers.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct F16Lanes([f32; LANES]);

/// An array of what an expression gives for each lane. No closure: what compilers may leave as a call is one at every lane.
macro_rules! lanes {
    ($i:ident => $value:expr) => {{
        let mut lanes = [Default::default(); LANES];
        let mut $i = 0;
        while $i < LANES {
            lanes[$i] = $value;
            $i += 1;
        }
        lanes
    }};
}

/// Sixteen words of 32 bits.
#[inline(always)]
unsafe fn words(p: *const u8) -> [u32; LANES] {
    // SAFETY: the caller names them.
    let words = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
    lanes!(i => u32::from_le(words[i]))
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
        F16Lanes(lanes!(i => if i < n { unsafe { p.add(i).read_unaligned() } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        for i in 0..n.min(LANES) {
            // SAFETY: the caller names `n` values.
            unsafe { p.add(i).write_unaligned(v.0[i]) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: the caller names sixteen values.
        let values = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        F16Lanes(lanes!(i => f16::from_bits(values[i]).to_f32()))
    }
    #[inline(never)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(lanes!(i => f16::from_f32(v.0[i]).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: the caller names sixteen values.
        let values = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        F16Lanes(lanes!(i => f32::from_bits(u32::from(values[i]) << 16)))
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
        let values = unsafe { p.cast::<[u8; LANES]>().read() };
        F16Lanes(lanes!(i => widen(values[i])))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: the caller names sixteen values.
        let values = unsafe { p.cast::<[i8; LANES]>().read() };
        F16Lanes(lanes!(i => f32::from(values[i])))
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8, shift: usize) -> Self::F {
        // SAFETY: the caller names sixteen words.
        let words = unsafe { words(p) };
        F16Lanes(lanes!(i => f32::from((words[i] >> shift) as u8)))
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
        let words = unsafe { words(p) };
        F16Lanes(lanes!(i => float(words[i])))
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
        let words = unsafe { words(p) };
        F16Lanes(lanes!(i => table[(words[i] >> shift) as usize & 0xf]))
    }
    #[inline(always)]
    unsafe fn pack_words(integers: &[Self::F], shift: impl Fn(usize) -> usize) -> Self::F {
        let mut words = [0u32; LANES];
        for (i, integer) in integers.iter().enumerate() {
            for (word, x) in words.iter_mut().zip(integer.0) {
                *word |= (x as u32) << shift(i);
            }
        }
        F16Lanes(lanes!(i => f32::from_bits(words[i])))
    }
    #[inline(never)]
    unsafe fn store_i8(p: *mut i8, v: Self::F) {
        // SAFETY: the caller names sixteen bytes.
        unsafe { p.cast::<[i8; LANES]>().write(lanes!(i => v.0[i] as i8)) }
    }
    #[inline(always)]
    unsafe fn widen_bf16_pairs(pairs: Self::F) -> (Self::F, Self::F) {
        let even = lanes!(i => f32::from_bits(pairs.0[i].to_bits() << 16));
        (F16Lanes(even), F16Lanes(lanes!(i => f32::from_bits(pairs.0[i].to_bits() & 0xffff_0000))))
    }
    #[inline(never)]
    unsafe fn store_bf16(p: *mut u16, v: Self::F) {
        // SAFETY: the caller names sixteen values.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(lanes!(i => bf16::from_f32(v.0[i]).to_bits())) }
    }
    #[inline(never)]
    unsafe fn round_bf16_pairs(even: Self::F, odd: Self::F) -> Self::F {
        let bits = |x| u32::from(bf16::from_f32(x).to_bits());
        F16Lanes(lanes!(i => f32::from_bits(bits(even.0[i]) | bits(odd.0[i]) << 16)))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i] - b.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i] * b.0[i]))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i] / b.0[i]))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i] * b.0[i] + c.0[i]))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        F16Lanes(lanes!(i => if a.0[i] < b.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i].abs()))
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i].sqrt()))
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        F16Lanes(lanes!(i => a.0[i].round_ties_even()))
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        F16Lanes(lanes!(i => if a.0[i] < b.0[i] { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    unsafe fn select_nan(a: Self::F, x: Self::F, y: Self::F) -> Self::F {
        F16Lanes(lanes!(i => if a.0[i].is_nan() { x.0[i] } else { y.0[i] }))
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        F16Lanes(lanes!(i => f32::from_bits(((n.0[i] as i32 + 127) as u32) << 23)))
    }
    #[inline(always)]
    unsafe fn bits_from(a: Self::F, shift: usize) -> Self::F {
        F16Lanes(lanes!(i => (a.0[i].to_bits() >> shift) as f32))
    }
    #[inline(always)]
    unsafe fn unzip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        let of = |i: usize| if i < LANES { a.0[i] } else { b.0[i - LANES] };
        (F16Lanes(lanes!(i => of(2 * i))), F16Lanes(std::array::from_fn(|i| of(2 * i + 1))))
    }
    #[inline(always)]
    unsafe fn zip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        let of = |i: usize| if i.is_multiple_of(2) { a.0[i / 2] } else { b.0[i / 2] };
        (F16Lanes(std::array::from_fn(of)), F16Lanes(lanes!(i => of(i + LANES))))
    }
    #[inline(never)]
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES] {
        std::array::from_fn(|i| F16Lanes(std::array::from_fn(|j| rows[j].0[i])))
    }
}
