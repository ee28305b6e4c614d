//! Weights of 4 or 8 bits whose scales are shared by blocks of a row: how they are quantized, what codes stand for.
//!
//! A weight `w` of `[n, k]` is held as integers or small floats `q`, and every `group` consecutive values of a row share
//! one scale and, where the format has them, one zero point:
//! `w[i, j] = scale[i, j / group] · (q[i, j] − zero[i, j / group])`.

use crate::DType;
use crate::error::{Result, shape_error};

/// What the values of a block-quantized weight are: each is held as a code of 4 or 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockValues {
    /// Integers from -8 to 7, in two's complement.
    Int4,
    /// Integers from -128 to 127.
    Int8,
    /// Floats of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (OCP's E2M1, as in MXFP4).
    F4E2M1,
    /// The sixteen values of [`BlockValues::NF4`], by their place.
    Nf4,
    /// [`DType::F8E4M3`].
    F8E4M3,
    /// [`DType::F8E5M2`].
    F8E5M2,
}

impl BlockValues {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Int4, Self::Int8, Self::F4E2M1, Self::Nf4, Self::F8E4M3, Self::F8E5M2];

    /// NF4, the quantiles of a normal distribution (QLoRA, <https://arxiv.org/abs/2305.14314>, appendix E, where they
    /// stand in f32).
    pub const NF4: [f32; 16] = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];

    /// What lies in the middle between a value of [`NF4`](Self::NF4) and the next.
    pub const fn nf4_middle(code: usize) -> f32 {
        let (a, b) = (Self::NF4[code], Self::NF4[code + 1]);
        a + (b - a) * 0.5
    }

    /// Bits of a code: 4 or 8.
    pub const fn bits(self) -> usize {
        match self {
            Self::Int4 | Self::F4E2M1 | Self::Nf4 => 4,
            Self::Int8 | Self::F8E4M3 | Self::F8E5M2 => 8,
        }
    }

    /// Whether they are integers: then there may be zero points.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::Int4 | Self::Int8)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::F4E2M1 => "fp4",
            Self::Nf4 => "nf4",
            Self::F8E4M3 => "fp8",
            Self::F8E5M2 => "fp8-e5m2",
        }
    }

    /// What a code stands for; bits above its own are of no account.
    ///
    /// ```
    /// use sinew_tensor::BlockValues;
    /// assert_eq!(BlockValues::Int4.value(0xf), -1.0);
    /// assert_eq!(BlockValues::F4E2M1.value(0b1011), -1.5);
    /// assert_eq!(BlockValues::F8E4M3.value(0x7e), 448.0);
    /// ```
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::Int4 => f32::from((code << 4) as i8 >> 4),
            Self::Int8 => f32::from(code as i8),
            Self::F4E2M1 => {
                let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                if code & 8 == 0 { magnitude } else { -magnitude }
            }
            Self::Nf4 => Self::NF4[usize::from(code & 0xf)],
            Self::F8E4M3 => float8::F8E4M3::from_bits(code).to_f32(),
            Self::F8E5M2 => float8::F8E5M2::from_bits(code).to_f32(),
        }
    }

    /// The value whose magnitude is the largest finite one: of integers the negative one.
    pub const fn extreme(self) -> f32 {
        match self {
            Self::Int4 => -8.0,
            Self::Int8 => -128.0,
            Self::F4E2M1 => 6.0,
            Self::Nf4 => 1.0,
            Self::F8E4M3 => 448.0,
            Self::F8E5M2 => 57344.0,
        }
    }

    /// The code of the value next to `x`, ties to even; of the extreme ones beyond them. Of NaN it is 0, where there is
    /// no code for it.
    ///
    /// ```
    /// use sinew_tensor::BlockValues;
    /// assert_eq!(BlockValues::Int4.code(-9.0), 0x8);
    /// assert_eq!(BlockValues::F4E2M1.value(BlockValues::F4E2M1.code(2.5)), 2.0);
    /// ```
    pub fn code(self, x: f32) -> u8 {
        match self {
            Self::Int4 => x.round_ties_even().clamp(-8.0, 7.0) as i8 as u8 & 0xf,
            Self::Int8 => x.round_ties_even().clamp(-128.0, 127.0) as i8 as u8,
            Self::F4E2M1 => {
                // Half way to the next magnitude; the even one of two that are as near is the one whose code is even.
                const HALFWAY: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
                let above =
                    |(code, half): (usize, &f32)| if code % 2 == 0 { x.abs() > *half } else { x.abs() >= *half };
                let magnitude = HALFWAY.iter().enumerate().filter(|&at| above(at)).count() as u8;
                if x.is_sign_negative() { magnitude | 8 } else { magnitude }
            }
            Self::Nf4 => {
                // The even one of two codes whose values are as near.
                let above = |&code: &usize| {
                    let middle = Self::nf4_middle(code);
                    x > middle || code % 2 == 1 && x == middle
                };
                (0..15).filter(above).count() as u8
            }
            Self::F8E4M3 => float8::F8E4M3::from_f32(x.clamp(-448.0, 448.0)).to_bits(),
            Self::F8E5M2 => float8::F8E5M2::from_f32(x.clamp(-57344.0, 57344.0)).to_bits(),
        }
    }
}

/// How a weight is quantized: its values, how many of a row share a scale, the scales' dtype, and whether there are
/// zero points.
///
/// The weight is `w = scale · (q − zero)`, with `zero` 0 where the format has no zero points. Zero points are a signed
/// byte each, whatever the bits of a value. Checkpoints with unsigned values (GPTQ, AWQ) subtract 8 (or 128) from values
/// and zero points alike, which leaves the differences as they are.
///
/// ```
/// use sinew_tensor::{BlockFormat, BlockValues, DType};
/// let format = BlockFormat::new(BlockValues::Int4, 128, DType::F16, true)?;
/// assert_eq!((format.values().bits(), format.group(), format.zero_points()), (4, 128, true));
/// assert!(BlockFormat::new(BlockValues::Nf4, 64, DType::F32, true).is_err());
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    values: BlockValues,
    group: usize,
    scale: DType,
    zero_points: bool,
}

impl BlockFormat {
    /// int8 with an f32 scale for every 128 values: what tensors are rounded to where they are multiplied in int8.
    pub const INT8: Self = Self { values: BlockValues::Int8, group: 128, scale: DType::F32, zero_points: false };

    /// A format with a scale for every `group` consecutive values of a row. A `group` of at least the row's length is
    /// one scale for each row.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for a group of 0, scales that are not floats, or zero points of values that
    /// are not integers.
    pub fn new(values: BlockValues, group: usize, scale: DType, zero_points: bool) -> Result<Self> {
        if zero_points && !values.is_integer() {
            return Err(shape_error("block format", format!("zero points of {}: integers have them", values.name())));
        }
        if group == 0 {
            return Err(shape_error("block format", "groups of 0 values: they start from 1"));
        }
        if !scale.is_float() {
            return Err(shape_error("block format", format!("scales of {scale}: a float is needed")));
        }
        Ok(Self { values, group, scale, zero_points })
    }

    /// The values.
    pub const fn values(&self) -> BlockValues {
        self.values
    }

    /// Values of a row that share a scale. The last group of a row may have fewer.
    pub const fn group(&self) -> usize {
        self.group
    }

    /// The dtype of the scales.
    pub const fn scale_dtype(&self) -> DType {
        self.scale
    }

    /// Whether each group has a zero point.
    pub const fn zero_points(&self) -> bool {
        self.zero_points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn formats_that_make_no_sense_are_refused() {
        let (int4, fp8) = (BlockValues::Int4, BlockValues::F8E4M3);
        let wrong = [(int4, 0, DType::F16, false), (int4, 32, DType::I8, false), (fp8, 32, DType::F16, true)];
        for (values, group, scale, zero_points) in wrong {
            assert!(matches!(BlockFormat::new(values, group, scale, zero_points), Err(Error::Shape { .. })));
        }
    }

    #[test]
    fn codes_of_floats_stand_for_their_values() {
        let fp4: Vec<f32> = (0..16).map(|code| BlockValues::F4E2M1.value(code)).collect();
        let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(fp4[..8], positive);
        assert_eq!(fp4[8..], positive.map(|x| -x));
        // OCP's table of E4M3: the largest, the least normal, the least subnormal, and the one NaN of each sign.
        let of = |code| BlockValues::F8E4M3.value(code);
        assert_eq!([of(0x7e), of(0xfe), of(0x08), of(0x01)], [448.0, -448.0, 0.015625, 0.001953125]);
        assert!(of(0x7f).is_nan() && of(0xff).is_nan());
        assert_eq!(
            [0x7b, 0x01, 0x7c].map(|code| BlockValues::F8E5M2.value(code)),
            [57344.0, 2f32.powi(-16), f32::INFINITY]
        );
    }

    #[test]
    fn every_value_has_its_own_code_and_what_lies_between_that_of_the_nearest() {
        for values in BlockValues::ALL {
            let codes = 0..=if values.bits() == 4 { 0xfu8 } else { 0xff };
            let finite: Vec<u8> = codes.filter(|&code| values.value(code).is_finite()).collect();
            for &code in &finite {
                let x = values.value(code);
                assert_eq!(values.value(values.code(x)).to_bits(), x.to_bits(), "{values:?} {code:#x}");
            }
            let mut ordered: Vec<f32> = finite.iter().map(|&code| values.value(code)).collect();
            ordered.sort_by(f32::total_cmp);
            for pair in ordered.windows(2) {
                let (a, b) = (pair[0], pair[1]);
                let quarter = |part: f32| values.value(values.code(a + (b - a) * part));
                assert_eq!([quarter(0.25), quarter(0.75)], [a, b], "{values:?}");
                // In the middle it is the one whose code is even: neighbours' codes differ by one.
                let even = if values.code(a) % 2 == 0 { a } else { b };
                assert_eq!(quarter(0.5), even, "{values:?} between {a} and {b}");
            }
            let largest = values.extreme().abs();
            assert_eq!(values.value(values.code(-2.0 * largest)), -largest, "{values:?}");
            assert_eq!(Some(&values.value(values.code(2.0 * largest))), ordered.last(), "{values:?}");
        }
    }
}
