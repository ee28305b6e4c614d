//! Groups of activations in integers of one byte or two, ties to even: `q = round(x / scale)`, of one byte with the largest
//! of a group as 127, of two with the smallest power of two as scale that leaves it no larger than 32,639, and what these
//! do not hold [apart](take_apart).

use crate::gemm::block_float::{LEAST_HELD, MOST_OF_INT8, MOST_OF_INT16, MOST_TINY, OUTLIERS, TINY};
use crate::packed::{LEAST, MAX_GROUP};
use crate::simd::{LANES, Simd};

/// Values of sixteen groups, at most.
pub(super) const ROOM: usize = LANES * MAX_GROUP;

/// Sixteen groups of activations in integers of `BYTES` bytes: so many, since what is asked of the lanes of one vector is
/// asked of all groups at once after a transposition.
pub(super) struct Quantized<const BYTES: usize> {
    /// What the values of each group are multiplied with; NaN where one of them was not finite.
    pub scales: [f32; LANES],
    /// The sums of the values' bytes, as below.
    pub sums: [[f32; LANES]; BYTES],
    /// The values' bytes, the highest first, each signed: a value of two is 256 times the first and the second. One group
    /// follows another.
    values: [[i8; ROOM]; BYTES],
}

impl<const BYTES: usize> Quantized<BYTES> {
    /// Room for groups.
    #[inline(always)]
    pub fn new() -> Self {
        const { assert!(BYTES == 1 || BYTES == 2) };
        Self { scales: [0.0; LANES], sums: [[0.0; LANES]; BYTES], values: [[0; ROOM]; BYTES] }
    }

    /// A byte of each value of a group.
    #[inline(always)]
    pub fn values(&self, byte: usize, at: usize, group: usize) -> &[i8] {
        &self.values[byte][at * group..(at + 1) * group]
    }

    /// Rounds groups of so many values of `x`, at most sixteen of them.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn round<S: Simd>(&mut self, x: &[f32], group: usize) {
        let count = x.len() / group;
        let mut inverses = [0.0; LANES];
        // SAFETY: passed on; vectors are inside their groups.
        unsafe {
            let zero = S::splat(0.0);
            let [largest, finite] = largest_of::<S>(x, group);
            let [scale, inverse] = if BYTES == 1 { of_byte::<S>(largest) } else { of_two::<S>(largest) };
            S::store(self.scales.as_mut_ptr(), S::add(scale, finite));
            S::store(inverses.as_mut_ptr(), inverse);

            let mut sums = [[zero; LANES]; BYTES];
            for at in 0..count {
                if self.scales[at].is_nan() {
                    for byte in 0..BYTES {
                        self.values[byte][at * group..(at + 1) * group].fill(0);
                    }
                    continue;
                }
                let inverse = S::splat(inverses[at]);
                let mut i = at * group;
                while i < (at + 1) * group {
                    let rounded = S::round(S::mul(S::load(x.as_ptr().add(i)), inverse));
                    let mut bytes = [rounded; BYTES];
                    if BYTES == 2 {
                        // A lower byte is -128 to 127: halves are rounded up.
                        bytes[0] = S::round(S::fma(rounded, S::splat(1.0 / 256.0), S::splat(1.0 / 512.0)));
                        bytes[1] = S::fma(bytes[0], S::splat(-256.0), rounded);
                    }
                    for byte in 0..BYTES {
                        S::store_i8(self.values[byte].as_mut_ptr().add(i), bytes[byte]);
                        sums[byte][at] = S::add(sums[byte][at], bytes[byte]);
                    }
                    i += LANES;
                }
            }
            for byte in 0..BYTES {
                S::store(self.sums[byte].as_mut_ptr(), sum_of_lanes::<S>(sums[byte]));
            }
        }
    }

    /// Holds values of a group apart, in bf16, where there are any: elsewhere they are zero.
    pub fn set_apart(&mut self, at: usize, apart: &[f32]) {
        for (i, x) in apart.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            for (values, byte) in self.values.iter_mut().zip(x.to_be_bytes()) {
                values[at * apart.len() + i] = byte as i8;
            }
        }
    }
}

/// The sum of the lanes of each of sixteen vectors, one after another.
#[inline(always)]
unsafe fn sum_of_lanes<S: Simd>(of: [S::F; LANES]) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let (lanes, mut sum) = (S::transpose(of), S::splat(0.0));
        for i in 0..LANES {
            sum = S::add(sum, lanes[i]);
        }
        sum
    }
}

/// Moves values of groups of `x`, at most sixteen, that integers of two bytes do not hold beside the others to `apart`, and
/// leaves zeros where they were. Which of the groups have some; `apart` is not touched of the others.
///
/// # Safety
/// Those of [`Simd`]; `apart` has room for as many values.
#[inline(always)]
pub(super) unsafe fn take_apart<S: Simd>(x: &mut [f32], apart: *mut f32, group: usize) -> [bool; LANES] {
    let count = x.len() / group;
    // Of each group the largest, NaN where one is not finite; how many more are small than not; and how many more are tiny
    // than may be.
    let (mut largest, mut small, mut tiny) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    // SAFETY: passed on; vectors are inside their groups.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let [most, finite] = largest_of::<S>(x, group);
        S::store(largest.as_mut_ptr(), S::add(most, finite));
        let (mut smalls, mut tinies) = ([zero; LANES], [zero; LANES]);
        for at in 0..count {
            let least = S::splat(largest[at] * OUTLIERS);
            let held = S::splat((largest[at] * TINY).max(LEAST_HELD));
            let mut i = at * group;
            while i < (at + 1) * group {
                let x = S::abs(S::load(x.as_ptr().add(i)));
                let small = S::select_lt(x, least, one, S::splat(-1.0));
                let tiny = S::select_lt(x, held, S::splat(1.0 - MOST_TINY), S::splat(-MOST_TINY));
                smalls[at] = S::add(smalls[at], S::select_lt(zero, x, small, zero));
                tinies[at] = S::add(tinies[at], S::select_lt(zero, x, tiny, zero));
                i += LANES;
            }
        }
        S::store(small.as_mut_ptr(), sum_of_lanes::<S>(smalls));
        S::store(tiny.as_mut_ptr(), sum_of_lanes::<S>(tinies));
    }
    let mut have = [false; LANES];
    for at in 0..count {
        have[at] = largest[at].is_nan() || small[at] > 0.0 || tiny[at] > 0.0;
        if have[at] {
            // SAFETY: there is room for the group, and zeros are written before anything is read.
            let apart = unsafe {
                apart.add(at * group).write_bytes(0, group);
                std::slice::from_raw_parts_mut(apart.add(at * group), group)
            };
            take_apart_of(&mut x[at * group..(at + 1) * group], apart);
        }
    }
    have
}

/// Moves the outliers of one group to `apart`.
#[cold]
fn take_apart_of(x: &mut [f32], apart: &mut [f32]) {
    let mut take = |x: &mut [f32], of: &dyn Fn(f32) -> bool| {
        for (x, apart) in x.iter_mut().zip(&mut *apart).filter(|(x, _)| of(**x)) {
            *apart = std::mem::take(x);
        }
    };
    take(x, &|x| !x.is_finite());
    let largest = loop {
        let largest = largest(x);
        if !is_more(x, 0.5, &|x| x.abs() < largest * OUTLIERS) {
            break largest;
        }
        take(x, &|x| x.abs() >= largest * OUTLIERS);
    };
    let tiny = |x: f32| x != 0.0 && x.abs() < (largest * TINY).max(LEAST_HELD);
    if is_more(x, MOST_TINY, &tiny) {
        take(x, &tiny);
    }
}

/// The largest magnitude, NaNs aside.
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
}

/// Whether more than a share of the values that are not zero are so.
fn is_more(x: &[f32], share: f32, so: &dyn Fn(f32) -> bool) -> bool {
    let some = x.iter().filter(|&&x| x != 0.0);
    let all = some.clone().count();
    some.filter(|&&x| so(x)).count() as f32 > share * all as f32
}

/// The largest magnitudes of groups, and zeros: NaN of a group that has a value that is not finite, and then the first is
/// that of some of its values.
#[inline(always)]
unsafe fn largest_of<S: Simd>(x: &[f32], group: usize) -> [S::F; 2] {
    // SAFETY: passed on; vectors are inside their groups.
    unsafe {
        let zero = S::splat(0.0);
        // The largest of each lane; NaN where one is not finite.
        let mut all = [zero; LANES];
        for at in 0..x.len() / group {
            let (mut largest, mut finite) = (zero, zero);
            let mut i = at * group;
            while i < (at + 1) * group {
                let x = S::load(x.as_ptr().add(i));
                largest = S::max(S::abs(x), largest);
                finite = S::fma(x, zero, finite);
                i += LANES;
            }
            all[at] = S::add(largest, finite);
        }
        let (mut largest, mut finite) = (zero, zero);
        let all = S::transpose(all);
        for i in 0..LANES {
            largest = S::max(all[i], largest);
            finite = S::fma(all[i], zero, finite);
        }
        [largest, finite]
    }
}

/// The scales of groups of one byte, and their inverses, by the largest of each.
#[inline(always)]
unsafe fn of_byte<S: Simd>(largest: S::F) -> [S::F; 2] {
    // SAFETY: passed on.
    unsafe {
        let (zero, least, most) = (S::splat(0.0), S::splat(LEAST), S::splat(MOST_OF_INT8));
        let (scale, inverse) = (S::div(largest, most), S::div(most, largest));
        [S::select_lt(largest, least, zero, scale), S::select_lt(largest, least, zero, inverse)]
    }
}

/// The same of two bytes: `2^(e - 14)` where `2^e` is the highest power of two up to the largest times 32,768 / 32,639. It
/// is no subnormal.
#[inline(always)]
unsafe fn of_two<S: Simd>(largest: S::F) -> [S::F; 2] {
    // SAFETY: passed on.
    unsafe {
        let exponent = S::bits_from(S::mul(largest, S::splat(32_768.0 / MOST_OF_INT16)), 23);
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
    const KINDS: usize = 24;

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
                19 => with(3, 1e5),
                // Outliers beside outliers.
                20 => std::array::from_fn(|i| [1e9, -1.0, 2e4, 0.5, 0.75, 0.25, 1.5, -0.625][i % 8]),
                21 => with(5, 1e-5),
                22 => std::array::from_fn(|i| if i % 2 == 0 { 1e-38 } else { -1e-39 }),
                // As many of each.
                23 => std::array::from_fn(|i| if i % 2 == 0 { 1e5 } else { 1.0 }),
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
            let (mut quantized, mut wide) = (Quantized::<1>::new(), Quantized::<2>::new());
            let (mut beside, mut apart) = (x, [[0.0; G]; LANES]);
            // SAFETY: the machine has the level.
            let have_apart = unsafe {
                quantized.round::<S>(x[..count].as_flattened(), G);
                let beside = beside[..count].as_flattened_mut();
                let have_apart = take_apart::<S>(beside, apart.as_flattened_mut().as_mut_ptr(), G);
                wide.round::<S>(beside, G);
                have_apart
            };
            for (i, x) in x.iter().enumerate().take(count) {
                let of = format!("group {} of {G}, one of {count}, at {}", kind(i), S::LEVEL);
                self.check_bytes(&quantized, i, x, &of);
                assert_eq!(have_apart[i], apart[i].iter().any(|&x| x != 0.0), "{of}");
                for (x, (beside, apart)) in x.iter().zip(beside[i].iter().zip(&apart[i])) {
                    assert!(*beside == 0.0 || *apart == 0.0, "{of}");
                    assert_eq!(if *apart == 0.0 { *beside } else { *apart }.to_bits(), x.to_bits(), "{of}");
                }
                self.check_words(&wide, i, &beside[i], &of);
                if have_apart[i] {
                    wide.set_apart(i, &apart[i]);
                }
                let [upper, lower] = [0, 1].map(|byte| wide.values(byte, i, G));
                for (at, x) in apart[i].iter().enumerate().filter(|(_, x)| **x != 0.0) {
                    assert_eq!(x.to_bits() >> 16, u32::from(upper[at] as u8) << 8 | u32::from(lower[at] as u8), "{of}");
                }
            }
        }
    }

    impl<const G: usize> Activations<G> {
        /// One byte of each value.
        fn check_bytes(&self, quantized: &Quantized<1>, i: usize, x: &[f32; G], of: &str) {
            if !x.iter().all(|x| x.is_finite()) {
                assert!(quantized.scales[i].is_nan(), "{of}");
                assert_eq!((quantized.values(0, i, G), quantized.sums[0][i]), (&[0; G][..], 0.0), "{of}");
                return;
            }
            let largest = largest(x);
            let (scale, inverse) =
                if largest < LEAST { (0.0, 0.0) } else { (largest / MOST_OF_INT8, MOST_OF_INT8 / largest) };
            let values = x.map(|x| (x * inverse).round_ties_even() as i8);
            assert_eq!(quantized.scales[i].to_bits(), scale.to_bits(), "{of}");
            assert_eq!(quantized.values(0, i, G), values, "{of}");
            assert_eq!(quantized.sums[0][i] as i32, values.iter().map(|&x| i32::from(x)).sum::<i32>(), "{of}");
        }

        /// Two bytes of each that is held beside the others, which lose no more than is said.
        fn check_words(&self, wide: &Quantized<2>, i: usize, beside: &[f32; G], of: &str) {
            let largest = largest(beside);
            for (share, least) in [(0.5, largest * OUTLIERS), (MOST_TINY, (largest * TINY).max(LEAST_HELD))] {
                let some = beside.iter().filter(|x| **x != 0.0);
                let below = some.clone().filter(|x| x.abs() < least).count();
                assert!(below as f32 <= share * some.count() as f32, "{of}");
            }
            let of_byte = |byte| wide.values(byte, i, G).iter().map(|&x| i32::from(x)).collect::<Vec<_>>();
            let [upper, lower] = [0, 1].map(of_byte);
            let words: [i32; G] = std::array::from_fn(|i| 256 * upper[i] + lower[i]);
            for (sum, bytes) in wide.sums.iter().zip([upper, lower]) {
                assert_eq!(sum[i] as i32, bytes.iter().sum::<i32>(), "{of}");
            }
            // The smallest power of two that leaves no integer too large, and is no subnormal.
            let power = (-126..=127).map(|n| 2.0f32.powi(n)).find(|power| largest / power <= MOST_OF_INT16);
            assert_eq!(Some(wide.scales[i]), power, "{of}");
            assert_eq!(words, beside.map(|x| (x / wide.scales[i]).round_ties_even() as i32), "{of}");
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
