//! Rounding to block formats: `q = round(x / scale) + zero`, ties to even.
//!
//! The scale of a group, or of a row, is that of its largest value, rounded to the dtype in which scales are kept before
//! values are divided by it. Of int4 without zero points the value of the largest magnitude becomes -8, so that all sixteen codes
//! are used, and the scale has its sign; int8 is symmetric, -127 to 127. With zero points the least and the largest
//! value become the least and the largest code, and 0 one between them.

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::blocks;
use crate::simd::{Simd, SmallFloat, Stored};

/// Groups whose values are all below this are zeros: their scale's inverse would not be an f32.
pub(crate) const LEAST: f32 = 1e-30;

/// The least and the largest of the values that share a scale, of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct Extent<S: Simd> {
    least: S::F,
    largest: S::F,
    /// 0, or NaN where a value was not finite.
    finite: S::F,
}

impl<S: Simd> Extent<S> {
    /// That of no values.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn none() -> Self {
        // SAFETY: passed on.
        let none = unsafe { S::splat(0.0) };
        Self { least: none, largest: none, finite: none }
    }

    /// The same with `steps`, which are values of sixteen outputs each.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn with(mut self, steps: &[S::F]) -> Self {
        // SAFETY: passed on.
        unsafe {
            let none = S::splat(0.0);
            for &x in steps {
                self.least = S::min(x, self.least);
                self.largest = S::max(x, self.largest);
                self.finite = S::fma(x, none, self.finite);
            }
        }
        self
    }
}

/// Groups of sixteen outputs with a scale each, by which their values become codes.
pub(super) trait Rounding<S: Simd> {
    /// A step's codes as panels hold them.
    ///
    /// # Safety
    /// Those of [`Simd`].
    unsafe fn codes(&self, x: S::F) -> S::F;
}

/// Groups of sixteen outputs: the scale and the zero point of each.
#[derive(Clone, Copy)]
pub(super) struct Integers<S: Simd> {
    /// Values that the format's scales can have; NaN where a value was not finite.
    pub scales: S::F,
    pub zeros: S::F,
    inverse: S::F,
    /// The zero points, and the least and the largest code, as panels hold them.
    held_zeros: S::F,
    held: [f32; 2],
}

impl<S: Simd> Integers<S> {
    /// The scales of values in an extent.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of(extent: Extent<S>, format: BlockFormat) -> Self {
        let values = format.values();
        let Extent { least, largest, finite } = extent;
        // SAFETY: passed on.
        unsafe {
            let none = S::splat(0.0);
            let depth = S::sub(none, least);
            let magnitude = S::max(largest, depth);
            let held = |scale| hold::<S>(format.scale_dtype(), scale);
            let lowest = values.extreme();
            let (scales, zeros, range) = match values {
                _ if format.zero_points() => {
                    let highest = -lowest - 1.0;
                    let scale = held(S::div(S::sub(largest, least), S::splat(highest - lowest)));
                    let zero = S::round(S::sub(S::splat(lowest), S::div(least, scale)));
                    (scale, S::max(S::splat(lowest), S::min(S::splat(highest), zero)), [lowest, highest])
                }
                BlockValues::Int4 => {
                    let extreme = S::select_lt(depth, largest, largest, least);
                    (held(S::div(extreme, S::splat(lowest))), none, [lowest, -lowest - 1.0])
                }
                _ => (held(S::div(magnitude, S::splat(127.0))), none, [-127.0, 127.0]),
            };
            // int8 with scales in f32 is rounded as tensors are where they are multiplied.
            let inverse = match format.scale_dtype() {
                DType::F32 if range[1] == -range[0] => S::div(S::splat(127.0), magnitude),
                _ => S::div(S::splat(1.0), scales),
            };
            let small = |x| S::select_lt(magnitude, S::splat(LEAST), none, x);
            let scales = S::select_nan(finite, S::splat(f32::NAN), small(scales));
            let zeros = S::select_nan(finite, none, small(zeros));
            let offset = f32::from(blocks::offset(values));
            let held_zeros = S::add(zeros, S::splat(offset));
            Self { scales, zeros, inverse: small(inverse), held_zeros, held: range.map(|code| code + offset) }
        }
    }
}

impl<S: Simd> Rounding<S> for Integers<S> {
    #[inline(always)]
    unsafe fn codes(&self, x: S::F) -> S::F {
        let [least, largest] = self.held;
        // SAFETY: passed on.
        unsafe {
            let q = S::add(S::round(S::mul(x, self.inverse)), self.held_zeros);
            // What is no number becomes one.
            S::max(S::min(q, S::splat(largest)), S::splat(least))
        }
    }
}

/// Values as a dtype of scales holds them.
#[inline(always)]
unsafe fn hold<S: Simd>(dtype: DType, scales: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F16 => f16::rounded::<S>(scales),
            DType::BF16 => bf16::rounded::<S>(scales),
            _ => scales,
        }
    }
}

/// Groups of sixteen outputs in a format of floats.
pub(super) struct Floats<S: Simd> {
    /// Values that the format's scales can have; NaN where a value was not finite.
    pub scales: S::F,
    values: BlockValues,
}

impl<S: Simd> Floats<S> {
    /// The scales of values in an extent.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of(extent: Extent<S>, format: BlockFormat) -> Self {
        let values = format.values();
        let Extent { least, largest, finite } = extent;
        // SAFETY: passed on.
        unsafe {
            let none = S::splat(0.0);
            let magnitude = S::max(largest, S::sub(none, least));
            let scales = hold::<S>(format.scale_dtype(), S::div(magnitude, S::splat(values.extreme())));
            let scales = S::select_lt(magnitude, S::splat(LEAST), none, scales);
            Self { scales: S::select_nan(finite, S::splat(f32::NAN), scales), values }
        }
    }

    /// Codes of NF4: the number of middles between two values that are below.
    #[inline(always)]
    unsafe fn quantiles(&self, x: S::F) -> S::F {
        // SAFETY: passed on.
        unsafe {
            let x = S::div(x, self.scales);
            let mut code = S::splat(0.0);
            for below in 0..15 {
                let (middle, next) = (S::splat(BlockValues::nf4_middle(below)), S::splat((below + 1) as f32));
                code = match below % 2 {
                    // The middle itself is nearer to the even one.
                    0 => S::select_lt(middle, x, next, code),
                    _ => S::select_lt(x, middle, code, next),
                };
            }
            S::select_lt(S::splat(0.0), self.scales, code, S::splat(0.0))
        }
    }
}

impl<S: Simd> Rounding<S> for Floats<S> {
    /// A step's codes, as [`BlockValues::code`] has them of values divided by their scales; zeros where the scale is 0
    /// or no number.
    #[inline(always)]
    unsafe fn codes(&self, x: S::F) -> S::F {
        if self.values == BlockValues::Nf4 {
            // SAFETY: passed on.
            return unsafe { self.quantiles(x) };
        }
        let format = match self.values {
            BlockValues::F4E2M1 => SmallFloat::E2M1,
            BlockValues::F8E5M2 => SmallFloat::E5M2,
            _ => SmallFloat::E4M3,
        };
        // SAFETY: passed on.
        unsafe {
            let code = format.codes::<S>(S::div(x, self.scales));
            S::select_lt(S::splat(0.0), self.scales, code, S::splat(0.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{Kernel, LANES, launch};

    const FLOATS: [BlockValues; 4] = [BlockValues::F4E2M1, BlockValues::Nf4, BlockValues::F8E4M3, BlockValues::F8E5M2];

    /// The codes of values that are divided by 1.
    struct Codes {
        values: BlockValues,
        x: Vec<f32>,
    }

    impl Kernel for Codes {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
            let x = &self.x[task * LANES..][..LANES];
            let mut codes = [0.0; LANES];
            // SAFETY: there are sixteen values, and the machine has the level.
            unsafe {
                let floats = Floats::<S> { scales: S::splat(1.0), values: self.values };
                S::store(codes.as_mut_ptr(), floats.codes(S::load(x.as_ptr())));
            }
            for (code, &x) in codes.into_iter().zip(x) {
                let expected = f32::from(self.values.code(x));
                assert_eq!(code.to_bits(), expected.to_bits(), "{} of {x:e} at {}", self.values.name(), S::LEVEL);
            }
        }
    }

    /// What is rounded in all ways: values, what is half way between two and beside it, zeros, what f32 has beyond both
    /// ends, and numbers of any bits.
    fn samples(values: BlockValues) -> Vec<f32> {
        let mut all: Vec<f32> = (0..1u16 << values.bits()).map(|code| values.value(code as u8)).collect();
        all.retain(|x| x.is_finite());
        all.sort_by(f32::total_cmp);
        let between: Vec<f32> = all.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        all.extend(between);
        // As if the extreme value had a next one.
        all.extend([1.0, 1.0625, 1.25, 2.0].map(|times| values.extreme() * times));
        all.extend([f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::from_bits(1)]);
        let near = |x: f32| (-40..=40).map(move |ulps| f32::from_bits(x.to_bits().wrapping_add_signed(ulps)));
        let mut samples: Vec<f32> = all.into_iter().flat_map(near).flat_map(|x| [x, -x]).collect();
        let mut bits = 1u32;
        samples.extend((0..1 << 20).map(|_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(bits)
        }));
        // No value of a group with a scale is NaN.
        samples.retain(|x| !x.is_nan());
        samples.resize(samples.len().next_multiple_of(LANES), 0.0);
        samples
    }

    #[test]
    fn floats_have_the_codes_of_each_value_by_itself_at_every_level() {
        let team = Team::new(1).expect("a team");
        for values in FLOATS {
            let x = samples(values);
            let tasks = x.len() / LANES;
            let codes = Codes { values, x };
            for level in SimdLevel::ALL {
                // SAFETY: the kernel relies on nothing.
                unsafe { launch(level, &team, tasks, &codes) };
            }
        }
    }

    /// Groups of two steps, an output in each lane.
    struct Groups(BlockFormat);

    impl Kernel for Groups {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            let extreme = self.0.values().extreme();
            // Scales of 1; too small for f16; zeros; no numbers; a scale too large for f16.
            let first = [extreme, 1e-8, 0.0, f32::NAN, f32::INFINITY, 2f32.powi(100)];
            let second = [-0.0, 0.0, -0.0, 1.0, 1.0, 1.0];
            let [mut steps, mut codes] = [[[0.0; LANES]; 2]; 2];
            steps[0][..first.len()].copy_from_slice(&first);
            steps[1][..second.len()].copy_from_slice(&second);
            let mut scales = [0.0; LANES];
            // SAFETY: every array holds sixteen values, and the machine has the level.
            unsafe {
                let steps = [S::load(steps[0].as_ptr()), S::load(steps[1].as_ptr())];
                let floats = Floats::<S>::of(Extent::none().with(&steps), self.0);
                S::store(scales.as_mut_ptr(), floats.scales);
                S::store(codes[0].as_mut_ptr(), floats.codes(steps[0]));
                S::store(codes[1].as_mut_ptr(), floats.codes(steps[1]));
            }
            let code = |x| f32::from(self.0.values().code(x));
            assert_eq!((scales[0], codes[0][0], codes[1][0]), (1.0, code(extreme), code(-0.0)), "{}", S::LEVEL);
            for lane in [1, 2, 6] {
                assert_eq!((scales[lane], codes[0][lane], codes[1][lane]), (0.0, 0.0, 0.0), "{lane} at {}", S::LEVEL);
            }
            for lane in [3, 4] {
                assert!(scales[lane].is_nan() && codes[0][lane] == 0.0 && codes[1][lane] == 0.0, "{}", S::LEVEL);
            }
            assert_eq!((scales[5], codes[0][5]), (f32::INFINITY, code(0.0)), "{}", S::LEVEL);
        }
    }

    #[test]
    fn groups_of_floats_without_a_scale_are_zeros_at_every_level() {
        let team = Team::new(1).expect("a team");
        for values in FLOATS {
            let format = BlockFormat::new(values, 32, DType::F16, false).expect("a format");
            for level in SimdLevel::ALL {
                // SAFETY: the kernel relies on nothing.
                unsafe { launch(level, &team, 1, &Groups(format)) };
            }
        }
    }
}
