//! Groups of activations in int8: `q = round(x / scale)`, ties to even, with the largest of a group as 127.

use crate::packed::LEAST;
use crate::simd::{LANES, Simd};

/// Sixteen groups of activations in int8, each of at most `G` values: so many, since what is asked of the lanes of one
/// vector is asked of all groups at once after a transposition.
pub(super) struct Quantized<const G: usize> {
    /// What the values of each group are multiplied with; NaN where one of them was not finite.
    pub scales: [f32; LANES],
    /// The values' sums.
    pub sums: [f32; LANES],
    /// -127 to 127.
    pub values: [[i8; G]; LANES],
}

impl<const G: usize> Quantized<G> {
    /// Rounds the first `count` groups of `x`, at most sixteen. Behind a group's values are zeros.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of<S: Simd>(x: &[[f32; G]; LANES], count: usize) -> Self {
        let mut quantized = Self { scales: [0.0; LANES], sums: [0.0; LANES], values: [[0; G]; LANES] };
        let mut inverses = [0.0; LANES];
        // SAFETY: passed on; vectors are inside their groups.
        unsafe {
            let zero = S::splat(0.0);
            // The largest of each lane; NaN where one is not finite.
            let mut all = [zero; LANES];
            for (lanes, x) in all.iter_mut().zip(x).take(count) {
                let (mut largest, mut finite) = (zero, zero);
                for x in x.as_chunks::<LANES>().0 {
                    let x = S::load(x.as_ptr());
                    largest = S::max(S::abs(x), largest);
                    finite = S::fma(x, zero, finite);
                }
                *lanes = S::add(largest, finite);
            }
            let (mut largest, mut finite) = (zero, zero);
            for lanes in S::transpose(all) {
                largest = S::max(lanes, largest);
                finite = S::fma(lanes, zero, finite);
            }
            let (least, most) = (S::splat(LEAST), S::splat(127.0));
            let scales = S::select_lt(largest, least, zero, S::div(largest, most));
            S::store(quantized.scales.as_mut_ptr(), S::add(scales, finite));
            S::store(inverses.as_mut_ptr(), S::select_lt(largest, least, zero, S::div(most, largest)));

            let mut sums = [zero; LANES];
            for (group, sum) in sums.iter_mut().enumerate().take(count) {
                if quantized.scales[group].is_nan() {
                    continue;
                }
                let inverse = S::splat(inverses[group]);
                let values = quantized.values[group].as_chunks_mut::<LANES>().0;
                for (x, values) in x[group].as_chunks::<LANES>().0.iter().zip(values) {
                    let rounded = S::round(S::mul(S::load(x.as_ptr()), inverse));
                    S::store_i8(values.as_mut_ptr(), rounded);
                    *sum = S::add(*sum, rounded);
                }
            }
            let sums = S::transpose(sums).into_iter().fold(zero, |sum, lanes| S::add(sum, lanes));
            S::store(quantized.sums.as_mut_ptr(), sums);
        }
        quantized
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{Kernel, launch};

    /// Groups of activations, compared with what the formula says of each.
    struct Activations<const G: usize>;

    impl<const G: usize> Activations<G> {
        /// A group of a kind; of those beyond the last it is NaN.
        fn group(kind: usize) -> [f32; G] {
            let of = |scale: f32| std::array::from_fn(|i| ((i * 37 + kind * 11) % 101) as f32 * scale - 20.0 * scale);
            let with = |at: usize, value: f32| {
                let mut group: [f32; G] = of(0.1);
                group[at] = value;
                group
            };
            match kind {
                0 => of(1.0),
                1 => [0.0; G],
                2 => of(1e-33),
                3 => [LEAST; G],
                4 => [f32::MAX; G],
                5 => with(G - 1, -f32::MAX),
                6 => with(0, f32::NAN),
                7 => with(G - 1, f32::NAN),
                8 => with(1, f32::INFINITY),
                9 => with(G / 2, f32::NEG_INFINITY),
                10 => std::array::from_fn(|i| if i == 0 { f32::INFINITY } else { f32::NAN }),
                // Halves go to even integers.
                11 => std::array::from_fn(|i| if i == 0 { 127.0 } else { (i % 8) as f32 - 3.5 }),
                12 => std::array::from_fn(|i| if i < G / 2 { -7.25 } else { 0.0 }),
                13 => of(1e30),
                14 => of(1e-29),
                15 => [-1.0; G],
                _ => [f32::NAN; G],
            }
        }
    }

    impl<const G: usize> Kernel for Activations<G> {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
            let count = [16, 15, 7, 1][task % 4];
            let first = task / 4;
            let kind = |i: usize| if i < count { (first + i) % LANES } else { LANES };
            let x: [[f32; G]; LANES] = std::array::from_fn(|i| Self::group(kind(i)));
            // SAFETY: the machine has the level.
            let quantized = unsafe { Quantized::<G>::of::<S>(&x, count) };
            for (i, x) in x.iter().enumerate().take(count) {
                let of = format!("group {} of {G}, one of {count}, at {}", kind(i), S::LEVEL);
                let largest = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                if !x.iter().all(|x| x.is_finite()) {
                    assert!(quantized.scales[i].is_nan(), "{of}");
                    assert_eq!((quantized.values[i], quantized.sums[i]), ([0; G], 0.0), "{of}");
                    continue;
                }
                let (scale, inverse) = if largest < LEAST { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
                let values = x.map(|x| (x * inverse).round_ties_even() as i8);
                assert_eq!(quantized.scales[i].to_bits(), scale.to_bits(), "{of}");
                assert_eq!(quantized.values[i], values, "{of}");
                assert_eq!(quantized.sums[i] as i32, values.iter().map(|&x| i32::from(x)).sum::<i32>(), "{of}");
            }
        }
    }

    #[test]
    fn activations_are_rounded_group_by_group_whatever_their_neighbours_are() {
        let team = Team::new(1).expect("a thread");
        for level in SimdLevel::ALL {
            // SAFETY: none are asked for.
            unsafe {
                launch(level, &team, 64, &Activations::<32>);
                launch(level, &team, 64, &Activations::<64>);
                launch(level, &team, 64, &Activations::<128>);
            }
        }
    }
}
