//! Element types.

use std::fmt;

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// 64-bit IEEE float.
    F64,
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit float with f32's exponent.
    BF16,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinity.
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 32-bit unsigned integer.
    U32,
    /// 8-bit unsigned integer, and opaque bytes.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype.
    pub const ALL: [Self; 13] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U32,
        Self::U8,
        Self::Bool,
    ];
    /// The float types that models are computed in.
    pub const COMPUTE: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// The distance from `|x|` to the next larger value of this type: one unit in the last place.
    ///
    /// ```
    /// use sinew_tensor::DType;
    /// assert_eq!(DType::F32.ulp(1.0), f32::EPSILON as f64);
    /// assert_eq!(DType::BF16.ulp(1.0), 1.0 / 128.0);
    /// ```
    pub fn ulp(self, x: f64) -> f64 {
        let (mantissa, min_exponent) = match self {
            Self::F64 => (52, -1022),
            Self::F32 => (23, -126),
            Self::F16 => (10, -14),
            Self::BF16 => (7, -126),
            Self::F8E4M3 => (3, -6),
            Self::F8E5M2 => (2, -14),
            _ => return 1.0,
        };
        let exponent = if x == 0.0 || !x.is_finite() { min_exponent } else { x.abs().log2().floor() as i32 };
        2f64.powi(exponent.max(min_exponent) - mantissa)
    }

    /// `x` as this type holds it: [`Element::from_f64`], and 0 or 1 for bool.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Self::F32 => f64::from(x as f32),
            Self::F16 => <f16 as Element>::from_f64(x).to_f64(),
            Self::BF16 => <bf16 as Element>::from_f64(x).to_f64(),
            Self::F8E4M3 => <F8E4M3 as Element>::from_f64(x).to_f64(),
            Self::F8E5M2 => <F8E5M2 as Element>::from_f64(x).to_f64(),
            Self::F64 => x,
            Self::I64 => (x as i64) as f64,
            Self::I32 => f64::from(x as i32),
            Self::I16 => f64::from(x as i16),
            Self::I8 => f64::from(x as i8),
            Self::U32 => f64::from(x as u32),
            Self::U8 => f64::from(x as u8),
            Self::Bool => f64::from(u8::from(x != 0.0)),
        }
    }

    /// The name as in safetensors headers and on the command line, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E5M2 => "f8_e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U32 => "u32",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Rust types that are a dtype's elements.
pub trait Element: Pod + Send + Sync + fmt::Debug + PartialEq {
    /// The dtype.
    const DTYPE: DType;
    /// The value as f64 (i64 beyond 2^53 is rounded).
    fn to_f64(self) -> f64;
    /// The nearest value to `x`, ties to even. Values too large for a float become infinite; f8_e4m3 has no infinity,
    /// and past 464 they become NaN. Integers truncate and saturate, and NaN is 0.
    fn from_f64(x: f64) -> Self;
}

macro_rules! element {
    ($($t:ty, $d:ident, $to:expr, $from:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            #[inline]
            fn to_f64(self) -> f64 { #[allow(clippy::redundant_closure_call)] ($to)(self) }
            #[inline]
            fn from_f64(x: f64) -> Self { #[allow(clippy::redundant_closure_call)] ($from)(x) }
        }
    )*};
}
element! {
    f64, F64, |x| x, |x| x;
    f32, F32, f64::from, |x| x as f32;
    f16, F16, f16::to_f64, |x| f16::from_f32(to_odd(x));
    bf16, BF16, bf16::to_f64, |x| bf16::from_f32(to_odd(x));
    F8E4M3, F8E4M3, |x| F8E4M3::to_f64(&x), f8_e4m3;
    F8E5M2, F8E5M2, |x| F8E5M2::to_f64(&x), f8_e5m2;
    i64, I64, |x| x as f64, |x| x as i64;
    i32, I32, f64::from, |x| x as i32;
    i16, I16, f64::from, |x| x as i16;
    i8, I8, f64::from, |x| x as i8;
    u32, U32, f64::from, |x| x as u32;
    u8, U8, f64::from, |x| x as u8;
}

/// `x` as f32, rounded to odd: truncated, with the last bit set where anything was lost. Rounding that to 16 bits gives
/// what rounding once would (Boldo and Melquiond 2008). `half`'s own conversions from f64 drop the lower 32 bits or
/// round twice.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || !near.is_finite() {
        return near;
    }
    let truncated = near.to_bits() - u32::from(back.abs() > x.abs());
    f32::from_bits(truncated | 1)
}

/// NaN past 464, half way between the largest value, 448, and the next step; `float8` saturates instead.
fn f8_e4m3(x: f64) -> F8E4M3 {
    if x.abs() > 464.0 { F8E4M3::from_bits(if x < 0.0 { 0xff } else { 0x7f }) } else { F8E4M3::from_f64(x) }
}

/// Infinity from 61440, half way between the largest value, 57344, and the next step, whose code is even; `float8`
/// saturates instead.
fn f8_e5m2(x: f64) -> F8E5M2 {
    if x.abs() >= 61440.0 { F8E5M2::from_bits(if x < 0.0 { 0xfc } else { 0x7c }) } else { F8E5M2::from_f64(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_from_f64_is_done_once() {
        // Just above a tie: rounding to f32 first would land on the tie and go to even.
        for (dtype, half) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8)), (DType::F32, 2f64.powi(-24))]
        {
            let above = 1.0 + half + 2f64.powi(-50);
            assert_eq!(dtype.round(above), 1.0 + 2.0 * half, "{dtype}");
            assert_eq!(dtype.round(1.0 + half), 1.0, "{dtype}");
            assert_eq!(dtype.round(-above), -1.0 - 2.0 * half, "{dtype}");
            assert_eq!(dtype.round(1.0 + half - 2f64.powi(-50)), 1.0, "{dtype}");
        }
        let tiny = 2f64.powi(-25);
        assert_eq!(DType::F16.round(tiny), 0.0);
        assert_eq!(DType::F16.round(tiny * (1.0 + 2f64.powi(-40))), 2f64.powi(-24));
        assert_eq!(DType::F16.round(65520.0), f64::INFINITY);
        assert_eq!(DType::F16.round(65_519.999_999_999), 65504.0);
        assert_eq!(DType::BF16.round(f64::MIN_POSITIVE), 0.0);
        assert!(DType::BF16.round(f64::NAN).is_nan());
    }

    #[test]
    fn eight_bit_floats_overflow_to_nan_and_infinity() {
        assert_eq!(DType::F8E4M3.round(464.0), 448.0);
        assert!(DType::F8E4M3.round(464.1).is_nan());
        assert!(DType::F8E4M3.round(f64::NEG_INFINITY).is_nan());
        assert_eq!(DType::F8E5M2.round(61439.0), 57344.0);
        assert_eq!(DType::F8E5M2.round(61440.0), f64::INFINITY);
        assert_eq!(DType::F8E5M2.round(f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert_eq!(DType::F8E4M3.round(0.3), 0.3125);
    }
}
