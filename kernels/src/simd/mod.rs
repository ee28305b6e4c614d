//! SIMD for CPU rows: sixteen f32 lanes at three levels, one kernel body.
//!
//! A row's body is written once over [`Simd`] as a [`Kernel`] and instantiated for each level by [`launch`], inside
//! functions that enable the level's instructions. Lanes mean the same at every level (AVX2 takes two registers for
//! sixteen lanes), so AVX2 and AVX-512 rows of one body give the same bits; the portable level multiplies and adds
//! with two roundings where the others fuse, and is an arithmetic of its own.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod math;
mod portable;
mod stored;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;
pub(crate) use stored::SmallFloat;
pub use stored::{Code, Stored};

use sinew_memory::{SimdLevel, Team};

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Sixteen f32 lanes.
///
/// # Safety
/// Every function must run on a machine that has the level's instructions, inside a function that enables them
/// ([`launch`] sees to both); pointers must be valid for the lanes that are named. No alignment is asked.
#[allow(clippy::missing_safety_doc, reason = "the trait's section on safety holds for every function")]
pub unsafe trait Simd: Copy + Send + Sync + 'static {
    /// The vector.
    type F: Copy;
    /// The level.
    const LEVEL: SimdLevel;
    /// Whether `fma` rounds once.
    const FUSED: bool;
    /// Vectors of sixteen lanes that its registers hold.
    const VECTORS: usize;

    /// Runs a part of a kernel that is compiled once for the level, and not wherever it is used.
    unsafe fn part<P: Part>(part: P) -> P::Out;
    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::F;
    /// Sixteen values from `p`.
    unsafe fn load(p: *const f32) -> Self::F;
    /// The first `n` values from `p`, at most 16; zeros behind them. Nothing past `n` is read.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F;
    /// Sixteen values to `p`.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// The first `n` lanes to `p`, at most 16. Nothing past `n` is written.
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize);
    /// Sixteen f16 values, widened.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Sixteen lanes rounded to f16, ties to even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Sixteen bf16 values, widened.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// Sixteen pairs of bf16, as [`Simd::round_bf16_pairs`] makes them, widened: the first of each, and the second.
    unsafe fn widen_bf16_pairs(pairs: Self::F) -> (Self::F, Self::F);
    /// Thirty-two bf16 values, widened: those at even places, and those at odd places.
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self::F, Self::F) {
        // SAFETY: passed on; no alignment is asked.
        unsafe { Self::widen_bf16_pairs(Self::load(p.cast())) }
    }
    /// Sixteen fp8 values (e4m3), widened.
    unsafe fn load_f8e4m3(p: *const u8) -> Self::F;
    /// Sixteen signed bytes as floats.
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// Of sixteen words of 32 bits at `p`, the byte from bit `shift` on as a float.
    unsafe fn load_bytes(p: *const u8, shift: usize) -> Self::F;
    /// Of sixteen words of 32 bits at `p`, the byte from bit `shift` on as a float with so many bits of mantissa, whose largest
    /// exponent is one like others: without infinities and NaN.
    ///
    /// With no subnormals on the way, which cores may be slow at: of the exponent 0, the float of the same bits in f32, `g`, is
    /// less than the least normal value, and the value is `2g - least`; of others it is `g`, which is less than that.
    unsafe fn load_float_bytes(p: *const u8, shift: usize, mantissa_bits: usize) -> Self::F;
    /// `v`, but NaN where a byte of the lane's word of 32 bits, of sixteen at `p`, is a NaN of fp8 (e4m3).
    unsafe fn with_nan_of_f8e4m3(p: *const u8, v: Self::F) -> Self::F;
    /// Of sixteen words of 32 bits at `p`, what a table has for the four bits from bit `shift` on.
    unsafe fn lookup_nibbles(p: *const u8, shift: usize, table: &[f32; 16]) -> Self::F;
    /// Sixteen words of 32 bits: of each lane the integers that vectors hold as floats, each below 2^8 and from a bit of
    /// its own on. What the bits mean as f32 is of no account.
    unsafe fn pack_words(integers: &[Self::F], shift: impl Fn(usize) -> usize) -> Self::F;
    /// The lanes, integers from -128 to 127, as bytes.
    unsafe fn store_i8(p: *mut i8, v: Self::F);
    /// Sixteen lanes rounded to bf16, ties to even; subnormals kept, NaNs kept quiet.
    unsafe fn store_bf16(p: *mut u16, v: Self::F);
    /// Both rounded as [`Simd::store_bf16`] does, in pairs of lanes: undoes [`Simd::load_bf16_pairs`]. What the bits
    /// mean as f32 is of no account.
    unsafe fn round_bf16_pairs(even: Self::F, odd: Self::F) -> Self::F;
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once where [`Simd::FUSED`].
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `|a|`.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// `√a`, correctly rounded.
    unsafe fn sqrt(a: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `x` where `a < b`, else `y` (also where either is NaN).
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// `x` where `a` is NaN, else `y`.
    unsafe fn select_nan(a: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// `2^n` for integral `n` in -126 to 127.
    unsafe fn pow2(n: Self::F) -> Self::F;
    /// The bits of each lane from bit `shift` on, 8 or more, as an integer: from 23 on the exponent of what is not negative,
    /// and 127.
    unsafe fn bits_from(a: Self::F, shift: usize) -> Self::F;
    /// `a · 2^n` for integral `n` in -126 to 127, where that is normal (or NaN).
    #[inline(always)]
    unsafe fn scale_by_pow2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: passed on.
        unsafe { Self::mul(a, Self::pow2(n)) }
    }
    /// Lane `j` of row `i` for lane `i` of row `j`. Bits are moved, whatever they mean.
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES];

    /// Of the 32 lanes `a, b`, those of even index, and those of odd index.
    unsafe fn unzip(a: Self::F, b: Self::F) -> (Self::F, Self::F);
    /// `a` and `b` lane by lane in turn, as 32 lanes: undoes [`Simd::unzip`].
    unsafe fn zip(a: Self::F, b: Self::F) -> (Self::F, Self::F);

    /// The 32 lanes `low, high` in order, each rounded to bf16: pairs as [`Simd::round_bf16_pairs`] makes them.
    #[inline(always)]
    unsafe fn round_pairs(low: Self::F, high: Self::F) -> Self::F {
        // SAFETY: passed on.
        unsafe {
            let (even, odd) = Self::unzip(low, high);
            Self::round_bf16_pairs(even, odd)
        }
    }

    /// The sum of the lanes in a fixed tree: lane `i` with `i+8`, then 4, 2, 1.
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        let mut a = [0.0f32; LANES];
        // SAFETY: the array has sixteen lanes.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }

    /// The largest lane; NaN if any lane is.
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        let mut a = [0.0f32; LANES];
        // SAFETY: the array has sixteen lanes.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        a.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m })
    }
}

/// A part of several kernels, or of several places of one, that is compiled once for each level by [`Simd::part`]: what is
/// inlined everywhere is compiled as often as it is used.
///
/// It is worth a call where it takes tens of instructions at least: a block of values, or sixteen that are gathered.
pub trait Part: Sized {
    /// What it gives.
    type Out;

    /// Runs it.
    ///
    /// # Safety
    /// Called by [`Simd::part`], inside a function that enables the level's instructions; for the rest that of whoever
    /// makes the part. Implementations are marked `#[inline(always)]`.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// How near to the core [`prefetch`] brings a line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// Into its first cache.
    Near,
    /// Into the second, as what comes next still uses the first.
    Far,
    /// For one use: past the caches that it would push out of what others still use.
    Once,
}

/// Asks for the line at `p`, which need not be valid. Does nothing where there is no instruction for it.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8, reach: Reach) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of any address is harmless, and every x86-64 has it.
        unsafe {
            match reach {
                Reach::Near => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
                Reach::Far => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
                Reach::Once => _mm_prefetch::<_MM_HINT_NTA>(p.cast()),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, reach);
}

/// The body of a CPU row, written once for all levels and run as independent tasks.
pub trait Kernel: Sync {
    /// Runs one task. `worker` is below the team's threads and may index scratch.
    ///
    /// # Safety
    /// Called by [`launch`] with a level that the machine has. What else it relies on, such as the pointers that
    /// `self` holds, is for whoever builds the kernel to see to. Implementations are marked `#[inline(always)]`, so
    /// that they are compiled inside the function that enables the level's instructions.
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn task_avx2<K: Kernel>(kernel: &K, task: usize, worker: usize) {
    // SAFETY: passed on from the caller.
    unsafe { kernel.task::<Avx2>(task, worker) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn task_avx512<K: Kernel>(kernel: &K, task: usize, worker: usize) {
    // SAFETY: passed on from the caller.
    unsafe { kernel.task::<Avx512>(task, worker) }
}

/// Runs a kernel's tasks on a team at a level. A level above the machine's is lowered to it.
///
/// # Safety
/// What the kernel relies on must hold: see where it is built.
pub unsafe fn launch<K: Kernel>(level: SimdLevel, team: &Team, tasks: usize, kernel: &K) {
    match level.min(SimdLevel::detected()) {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => {
            // SAFETY: the level was detected.
            team.run(tasks, |task, worker| unsafe { task_avx512(kernel, task, worker) });
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => {
            // SAFETY: the level was detected.
            team.run(tasks, |task, worker| unsafe { task_avx2(kernel, task, worker) });
        }
        // SAFETY: every machine has the portable level.
        _ => team.run(tasks, |task, worker| unsafe { kernel.task::<Portable>(task, worker) }),
    }
}

/// Makes unoptimised kernels work: gives their tasks a deep stack, and says once on stderr how to optimise them.
///
/// Cargo's dev profile compiles dependencies with `opt-level = 0`. Each vector of a loop then lives on the stack and each
/// intrinsic is a call, so kernels run 50 to 100 times slower.
pub(crate) fn prepare_unoptimised() {
    #[cfg(unoptimised)]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            sinew_memory::Team::use_deep_stacks();
            eprintln!(
                "warning: Sinew's kernels are compiled without optimisation and run 50 to 100 times slower; to optimise \
                 them, add two lines to Cargo.toml: `[profile.dev.package.\"*\"]` and `opt-level = 3`"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zips;

    impl Kernel for Zips {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            let values: [f32; 2 * LANES] = std::array::from_fn(|i| i as f32);
            let (mut apart, mut back) = ([0f32; 2 * LANES], [0f32; 2 * LANES]);
            // SAFETY: every array holds 32 values, and the machine has the level.
            unsafe {
                let (even, odd) = S::unzip(S::load(values.as_ptr()), S::load(values.as_ptr().add(LANES)));
                S::store(apart.as_mut_ptr(), even);
                S::store(apart.as_mut_ptr().add(LANES), odd);
                let (a, b) = S::zip(even, odd);
                S::store(back.as_mut_ptr(), a);
                S::store(back.as_mut_ptr().add(LANES), b);
            }
            for i in 0..LANES {
                assert_eq!((apart[i], apart[i + LANES]), ((2 * i) as f32, (2 * i + 1) as f32), "{}", S::LEVEL);
            }
            assert_eq!(values, back, "{}", S::LEVEL);
        }
    }

    struct Pairs;

    impl Kernel for Pairs {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            // Ties both ways, what lies beside them, a subnormal, infinities and a NaN whose payload is lost.
            let values: [f32; 2 * LANES] = std::array::from_fn(|i| match i {
                0 => f32::from_bits(0x7f80_0001),
                1 => f32::NEG_INFINITY,
                2 => f32::from_bits(0x0001_8000),
                3 => f32::MAX,
                _ => f32::from_bits(0x3f80_7fff + ((i as u32) << 15)),
            });
            let [mut pairs, mut in_order, mut apart] = [[0u16; 2 * LANES]; 3];
            let mut back = [0f32; 2 * LANES];
            // SAFETY: every array holds 32 values, and the machine has the level.
            unsafe {
                let (a, b) = (S::load(values.as_ptr()), S::load(values.as_ptr().add(LANES)));
                S::store(pairs.as_mut_ptr().cast(), S::round_bf16_pairs(a, b));
                S::store(in_order.as_mut_ptr().cast(), S::round_pairs(a, b));
                S::store_bf16(apart.as_mut_ptr(), a);
                S::store_bf16(apart.as_mut_ptr().add(LANES), b);
                let (a, b) = S::load_bf16_pairs(pairs.as_ptr());
                S::store(back.as_mut_ptr(), a);
                S::store(back.as_mut_ptr().add(LANES), b);
            }
            for i in 0..LANES {
                assert_eq!([pairs[2 * i], pairs[2 * i + 1]], [apart[i], apart[i + LANES]], "{}", S::LEVEL);
            }
            assert_eq!(in_order, apart, "{}", S::LEVEL);
            assert_eq!(back.map(|x| (x.to_bits() >> 16) as u16), apart, "{}", S::LEVEL);
        }
    }

    struct Firsts;

    impl Kernel for Firsts {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            let values: [f32; LANES] = std::array::from_fn(|i| i as f32 + 1.0);
            for n in 0..=LANES {
                let mut stored = [0f32; LANES];
                // SAFETY: both arrays hold sixteen values, and the machine has the level.
                unsafe { S::store_n(stored.as_mut_ptr(), S::load(values.as_ptr()), n) };
                let expected = std::array::from_fn(|i| if i < n { values[i] } else { 0.0 });
                assert_eq!(stored, expected, "{n} at {}", S::LEVEL);
            }
        }
    }

    #[test]
    fn the_first_lanes_are_stored_and_no_others_at_every_level() {
        let team = Team::new(1).unwrap();
        for level in SimdLevel::ALL {
            // SAFETY: the kernel relies on nothing.
            unsafe { launch(level, &team, 1, &Firsts) };
        }
    }

    #[test]
    fn pairs_are_rounded_as_each_is_at_every_level() {
        let team = Team::new(1).unwrap();
        for level in SimdLevel::ALL {
            // SAFETY: the kernel relies on nothing.
            unsafe { launch(level, &team, 1, &Pairs) };
        }
    }

    #[test]
    fn zip_undoes_unzip_at_every_level() {
        let team = Team::new(1).unwrap();
        for level in SimdLevel::ALL {
            // SAFETY: the kernel relies on nothing.
            unsafe { launch(level, &team, 1, &Zips) };
        }
    }
}
