//! Elementary functions on lanes.

#![allow(clippy::excessive_precision, reason = "coefficients stand as they were computed")]

use super::Simd;

/// `e^x`, within 1.5 ulp where the result is normal; 0 below about -87.3, infinity above about 88.7, NaN for NaN.
///
/// Range reduction by ln 2 in two parts (Cody and Waite 1980), then the Taylor polynomial of degree 7 in Horner's form
/// on
/// |r| ≤ ln 2 / 2.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    const HIGH: f32 = 88.72283;
    // SAFETY: passed on.
    unsafe {
        let (p, n) = exp_parts::<S>(S::min(S::max(x, S::splat(EXP_LOW)), S::splat(HIGH)));
        // n reaches 128 at the top of the range, where 2^n alone would overflow: two halves of it do not.
        let half = S::round(S::mul(n, S::splat(0.5)));
        let y = S::mul(S::mul(p, S::pow2(half)), S::pow2(S::sub(n, half)));
        let y = S::select_lt(x, S::splat(EXP_LOW), S::splat(0.0), y);
        let y = S::select_lt(S::splat(HIGH), x, S::splat(f32::INFINITY), y);
        S::select_nan(x, x, y)
    }
}

/// `2^x` for arguments of at most 0 (or NaN), as softmax has them: within 1.5 ulp; 0 below -125.5, NaN for NaN.
///
/// `2^x = 2^n · 2^r` with integral `n` and |r| ≤ 1/2, where `2^r = 1 + r·P(r)`: `P` is the minimax polynomial of degree
/// 5 (Remez exchange, relative error 2.6e-9).
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn exp2_nonpositive<S: Simd>(x: S::F) -> S::F {
    /// Powers below have an exponent of f32's least or less.
    const LOW: f32 = -125.5;
    const P: [f32; 7] =
        [0.000_155_946_78, 0.001_340_664_4, 0.009_617_693, 0.055_503_107, 0.240_226_53, std::f32::consts::LN_2, 1.0];
    // SAFETY: passed on. `max` gives its second argument where either is NaN, so that a NaN goes through.
    unsafe {
        let bounded = S::max(S::splat(LOW), x);
        let n = S::round(bounded);
        let power = S::scale_by_pow2(horner::<S>(S::sub(bounded, n), &P), n);
        S::select_lt(x, S::splat(LOW), S::splat(0.0), power)
    }
}

/// Below this e^x underflows to 0: smaller powers of two would be subnormal.
const EXP_LOW: f32 = -87.33654;

/// `p` and integral `n` with `e^x = p · 2^n`.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn exp_parts<S: Simd>(x: S::F) -> (S::F, S::F) {
    // ln 2 = LN2_HIGH + LN2_LOW, the high part with few enough bits that n·LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: passed on.
    unsafe {
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(c));
        }
        (p, n)
    }
}

/// `1 / (1 + e^-x)`, within 3 ulp where the result is normal; 0 below about -88.7, NaN for NaN.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// `tanh x`, within 3 ulp; NaN for NaN.
///
/// `x + x³·P(x²)` up to 0.625, with `P` the minimax polynomial of degree 4 (Remez exchange, relative error 4.4e-9);
/// beyond, `1 - 2 / (e^2|x| + 1)` with the sign of `x`, where nothing cancels any more.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    const SWITCH: f32 = 0.625;
    const P: [f32; 5] = [-0.005_704_987, 0.020_639_088, -0.053_739_715, 0.133_314_42, -0.333_332_82];
    // SAFETY: passed on.
    unsafe {
        let (one, two, a) = (S::splat(1.0), S::splat(2.0), S::abs(x));
        let e = exp::<S>(S::add(a, a));
        let far = S::sub(one, S::div(two, S::add(e, one)));
        let far = S::select_lt(x, S::splat(0.0), S::sub(S::splat(0.0), far), far);
        let z = S::mul(x, x);
        let near = S::fma(S::mul(x, z), horner::<S>(z, &P), x);
        S::select_lt(a, S::splat(SWITCH), near, far)
    }
}

/// `erf x`, within 3 ulp; NaN for NaN.
///
/// `x·P(x²)` up to 0.75, with `P` the minimax polynomial of degree 5 (Remez exchange, relative error 1.4e-9); beyond,
/// `1 - erfc |x|` with the sign of `x`.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn erf<S: Simd>(x: S::F) -> S::F {
    const SWITCH: f32 = 0.75;
    const P: [f32; 6] =
        [-0.000_674_951_4, 0.005_114_346, -0.026_834_624, 0.112_833_77, -0.376_126_2, std::f32::consts::FRAC_2_SQRT_PI];
    // SAFETY: passed on.
    unsafe {
        let a = S::abs(x);
        // From 4 on erfc is below half an ulp of 1.
        let t = S::min(a, S::splat(4.0));
        let square = S::mul(t, t);
        let e = exp::<S>(S::sub(S::splat(0.0), square));
        let far = S::sub(S::splat(1.0), S::mul(e, erfcx::<S>(t)));
        let far = S::select_lt(x, S::splat(0.0), S::sub(S::splat(0.0), far), far);
        let near = S::mul(x, horner::<S>(S::mul(x, x), &P));
        S::select_nan(x, x, S::select_lt(a, S::splat(SWITCH), near, far))
    }
}

/// `1 - erf x` without cancellation, within 6 ulp where the result is normal; 0 above about 9.3. Where multiply-adds
/// are not fused, the rounding of `x²` adds up to `x²/2` ulp.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn erfc<S: Simd>(x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let t = S::min(S::abs(x), S::splat(ERFC_END));
        let y = S::mul(exp_minus_square::<S>(t, 1.0), erfcx::<S>(t));
        let y = S::select_lt(x, S::splat(0.0), S::sub(S::splat(2.0), y), y);
        S::select_nan(x, x, y)
    }
}

/// The normal distribution's `Φ(x) = erfc(-x/√2) / 2`, without cancellation on either side. NaN is not propagated.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
pub unsafe fn normal_cdf<S: Simd>(x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let a = S::min(S::abs(x), S::splat(ERFC_END * std::f32::consts::SQRT_2));
        let t = S::mul(a, S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let tail = S::mul(S::mul(exp_minus_square::<S>(a, 0.5), S::splat(0.5)), erfcx::<S>(t));
        S::select_lt(x, S::splat(0.0), tail, S::sub(S::splat(1.0), tail))
    }
}

/// Where `e^-x²` has long gone to 0 in f32.
const ERFC_END: f32 = 10.0;

/// `e^(-c·x²)`. Where multiply-adds are fused, the rounding of `x²` is made good.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn exp_minus_square<S: Simd>(x: S::F, c: f32) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let square = S::mul(x, x);
        let e = exp::<S>(S::mul(square, S::splat(-c)));
        if !S::FUSED {
            return e;
        }
        let rest = S::fma(x, x, S::sub(S::splat(0.0), square));
        S::fma(e, S::mul(rest, S::splat(-c)), e)
    }
}

/// `e^t² · erfc t` for `t` in 0 to [`ERFC_END`].
///
/// After Shepherd and Laframboise 1981: `(t + 3)·e^t²·erfc t` is smooth in `(t - 3) / (t + 3)`, here the minimax
/// polynomial of degree 9 (Remez exchange, relative error 1.9e-9).
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn erfcx<S: Simd>(t: S::F) -> S::F {
    const P: [f32; 10] = [
        -0.000_326_577_28,
        -0.000_485_580_57,
        0.003_079_790_9,
        -0.001_225_212_4,
        -0.026_839_348,
        0.119_528_87,
        -0.310_466_08,
        0.590_228_3,
        -0.883_394_5,
        1.074_006_9,
    ];
    // SAFETY: passed on.
    unsafe {
        let s = S::div(S::splat(1.0), S::add(t, S::splat(3.0)));
        let q = S::mul(S::sub(t, S::splat(3.0)), s);
        S::mul(s, horner::<S>(q, &P))
    }
}

/// The polynomial with these coefficients, the highest first.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn horner<S: Simd>(x: S::F, coefficients: &[f32]) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let mut p = S::splat(coefficients[0]);
        for &c in &coefficients[1..] {
            p = S::fma(p, x, S::splat(c));
        }
        p
    }
}
