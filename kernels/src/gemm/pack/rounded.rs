//! Groups of activations in integers of one byte or two, ties to even: `q = round(x / scale)`, of one byte with the largest
//! of a group as 127, of two with the smallest power of two as scale that leaves it no larger than 32,639.

use crate::packed::LEAST;
use crate::simd::{LANES, Simd};

/// The largest integer of two bytes, both signed: `127 · 256 + 127`.
const MOST_OF_TWO: f32 = 32_639.0;

/// Sixteen groups of activations in integers of `BYTES` bytes, each of at most `G` values: so many, since what is asked of
/// the lanes of one vector is asked of all groups at once after a transposition.
pub(super) struct Quantized<const G: usize, const BYTES: usize> {
    /// What the values of each group are multiplied with. NaN where one of them was not finite, unless it is of two bytes,
    /// an infinity, and alone: then that, and the group's values are its sign and zeros.
    pub scales: [f32; LANES],
    /// The sums of the values' bytes, as below.
    pub sums: [[f32; LANES]; BYTES],
    /// The values' bytes, the highest first, each signed: a value of two is 256 times the first and the second.
    pub values: [[[i8; G]; LANES]; BYTES],
}

impl<const G: usize, const BYTES: usize> Quantized<G, BYTES> {
    /// Rounds the first `count` groups of `x`, at most sixteen. Behind a group's values are zeros.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of<S: Simd>(x: &[[f32; G]; LANES], count: usize) -> Self {
        const { assert!(BYTES == 1 || BYTES == 2) };
        let mut quantized =
            Self { scales: [0.0; LANES], sums: [[0.0; LANES]; BYTES], values: [[[0; G]; LANES]; BYTES] };
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
            let [scale, inverse] = if BYTES == 1 { of_byte::<S>(largest) } else { of_two::<S>(largest) };
            S::store(quantized.scales.as_mut_ptr(), S::add(scale, finite));
            S::store(inverses.as_mut_ptr(), inverse);

            let mut sums = [[zero; LANES]; BYTES];
            for group in 0..count {
                if quantized.scales[group].is_nan() {
                    continue;
                }
                let inverse = S::splat(inverses[group]);
                for (i, x) in x[group].as_chunks::<LANES>().0.iter().enumerate() {
                    let rounded = S::round(S::mul(S::load(x.as_ptr()), inverse));
                    let mut bytes = [rounded; BYTES];
                    if BYTES == 2 {
                        // A lower byte is -128 to 127: halves are rounded up.
                        bytes[0] = S::round(S::fma(rounded, S::splat(1.0 / 256.0), S::splat(1.0 / 512.0)));
                        bytes[1] = S::fma(bytes[0], S::splat(-256.0), rounded);
                    }
                    for ((values, sums), byte) in quantized.values.iter_mut().zip(&mut sums).zip(bytes) {
                        S::store_i8(values[group].as_mut_ptr().add(i * LANES), byte);
                        sums[group] = S::add(sums[group], byte);
                    }
                }
            }
            for (to, sums) in quantized.sums.iter_mut().zip(sums) {
                let sums = S::transpose(sums).into_iter().fold(zero, |sum, lanes| S::add(sum, lanes));
                S::store(to.as_mut_ptr(), sums);
            }
        }
        if BYTES == 2 && quantized.scales.iter().any(|scale| scale.is_nan()) {
            quantized.keep_lone_infinities(&x[..count]);
        }
        quantized
    }

    /// Of each group whose one value that is not finite is an infinity, that, so that its products are what they would be.
    #[cold]
    fn keep_lone_infinities(&mut self, x: &[[f32; G]]) {
        for (group, x) in x.iter().enumerate() {
            let mut not_finite = x.iter().enumerate().filter(|(_, x)| !x.is_finite());
            if let (Some((at, x)), None) = (not_finite.next(), not_finite.next())
                && x.is_infinite()
            {
                let sign = x.signum();
                self.scales[group] = f32::INFINITY;
                self.sums[BYTES - 1][group] = sign;
                self.values[BYTES - 1][group][at] = sign as i8;
            }
        }
    }
}

/// The scales of groups of one byte, and their inverses, by the largest of each.
#[inline(always)]
unsafe fn of_byte<S: Simd>(largest: S::F) -> [S::F; 2] {
    // SAFETY: passed on.
    unsafe {
        let (zero, least, most) = (S::splat(0.0), S::splat(LEAST), S::splat(127.0));
        [S::div(largest, most), S::div(most, largest)].map(|x| S::select_lt(largest, least, zero, x))
    }
}

/// The same of two bytes: `2^(e - 14)` where `2^e` is the highest power of two up to the largest times 32,768 / 32,639. It
/// is no subnormal: of values below 2^-112 less is kept.
#[inline(always)]
unsafe fn of_two<S: Simd>(largest: S::F) -> [S::F; 2] {
    // SAFETY: passed on.
    unsafe {
        let exponent = S::bits_from(S::mul(largest, S::splat(32_768.0 / MOST_OF_TWO)), 23);
        let n = S::max(S::sub(exponent, S::splat(127.0 + 14.0)), S::splat(-126.0));
        [S::pow2(n), S::pow2(S::sub(S::splat(0.0), n))]
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{Kernel, launch};

    /// Kinds of groups.
    const KINDS: usize = 19;

    /// Groups of activations, compared with what the formulas say of each.
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
                15 => std::array::from_fn(|i| [255.0, -1.0, 254.0, 127.5][i % 4]),
                16 => of(1e-37),
                17 => [1.9921875; G],
                18 => [-1.0; G],
                _ => [f32::NAN; G],
            }
        }
    }

    impl<const G: usize> Kernel for Activations<G> {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
            let count = [16, 15, 7, 1][task % 4];
            let first = task / 4;
            let kind = |i: usize| if i < count { (first + i) % KINDS } else { KINDS };
            let x: [[f32; G]; LANES] = std::array::from_fn(|i| Self::group(kind(i)));
            // SAFETY: the machine has the level.
            let (quantized, wide) =
                unsafe { (Quantized::<G, 1>::of::<S>(&x, count), Quantized::<G, 2>::of::<S>(&x, count)) };
            for (i, x) in x.iter().enumerate().take(count) {
                let of = format!("group {} of {G}, one of {count}, at {}", kind(i), S::LEVEL);
                let largest = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                let [upper, lower] = wide.values.map(|values| values[i].map(i32::from));
                let words: [i32; G] = std::array::from_fn(|i| 256 * upper[i] + lower[i]);
                for (sum, bytes) in wide.sums.iter().zip([upper, lower]) {
                    assert_eq!(sum[i] as i32, bytes.iter().sum::<i32>(), "{of}");
                }
                if !x.iter().all(|x| x.is_finite()) {
                    assert!(quantized.scales[i].is_nan(), "{of}");
                    assert_eq!((quantized.values[0][i], quantized.sums[0][i]), ([0; G], 0.0), "{of}");
                    let alone = x.iter().filter(|x| !x.is_finite()).count() == 1 && !x.iter().any(|x| x.is_nan());
                    let sign = |x: &f32| if alone && x.is_infinite() { x.signum() as i32 } else { 0 };
                    assert_eq!(words, std::array::from_fn(|i| sign(&x[i])), "{of}");
                    assert_eq!(wide.scales[i].is_nan(), !alone, "{of}");
                    assert!(wide.scales[i].is_nan() || wide.scales[i] == f32::INFINITY, "{of}");
                    continue;
                }
                // The smallest power of two that leaves no integer too large, and is no subnormal.
                let power = (-126..=127).map(|n| 2.0f32.powi(n)).find(|power| largest / power <= MOST_OF_TWO);
                assert_eq!(Some(wide.scales[i]), power, "{of}");
                assert_eq!(words, x.map(|x| (x / wide.scales[i]).round_ties_even() as i32), "{of}");
                let (scale, inverse) = if largest < LEAST { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
                let values = x.map(|x| (x * inverse).round_ties_even() as i8);
                assert_eq!(quantized.scales[i].to_bits(), scale.to_bits(), "{of}");
                assert_eq!(quantized.values[0][i], values, "{of}");
                assert_eq!(quantized.sums[0][i] as i32, values.iter().map(|&x| i32::from(x)).sum::<i32>(), "{of}");
            }
        }
    }

    #[test]
    fn activations_are_rounded_group_by_group_whatever_their_neighbours_are() {
        let team = Team::new(1).expect("a thread");
        for level in SimdLevel::ALL {
            // SAFETY: none are asked for.
            unsafe {
                launch(level, &team, 4 * KINDS, &Activations::<32>);
                launch(level, &team, 4 * KINDS, &Activations::<64>);
                launch(level, &team, 4 * KINDS, &Activations::<128>);
            }
        }
    }
}
