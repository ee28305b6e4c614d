//! exp and the reductions on lanes, at every SIMD level.

use sinew_kernels::simd::{Kernel, LANES, Simd, launch, math};
use sinew_memory::{SimdLevel, Team};
use sinew_tensor::DType;

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Exp2Nonpositive,
    /// The sum and the maximum of the lanes, in the first two places.
    Reduce,
}

struct Map<'a> {
    function: Function,
    x: &'a [f32],
    y: *mut f32,
}

// SAFETY: each task writes sixteen lanes of its own.
unsafe impl Sync for Map<'_> {}

impl Kernel for Map<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        // SAFETY: both hold sixteen values for each task.
        unsafe {
            let (x, y) = (S::load(self.x.as_ptr().add(task * LANES)), self.y.add(task * LANES));
            match self.function {
                Function::Exp => S::store(y, math::exp::<S>(x)),
                Function::Exp2Nonpositive => S::store(y, math::exp2_nonpositive::<S>(x)),
                Function::Reduce => {
                    *y = S::reduce_add(x);
                    *y.add(1) = S::reduce_max(x);
                }
            }
        }
    }
}

fn levels() -> impl Iterator<Item = SimdLevel> {
    [SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512].into_iter().filter(|&l| l <= SimdLevel::detected())
}

fn map(level: SimdLevel, function: Function, x: &[f32]) -> Vec<f32> {
    let mut padded = x.to_vec();
    padded.resize(x.len().next_multiple_of(LANES), 0.0);
    let mut y = vec![0.0; padded.len()];
    let kernel = Map { function, x: &padded, y: y.as_mut_ptr() };
    let team = Team::new(1).expect("one thread");
    // SAFETY: `y` has as many values as `x`, a multiple of sixteen.
    unsafe { launch(level, &team, padded.len() / LANES, &kernel) };
    y.truncate(x.len());
    y
}

#[test]
fn exp_is_within_its_ulps_over_all_of_its_range() {
    // Every 2,003rd float of either sign (1.06 million of each), and every float near the edges.
    let edges = [-87.33654f32, 88.722_83, 0.0, 0.346_573_6, -0.346_573_6, -103.97];
    let near = edges.into_iter().flat_map(|x| {
        (-3000..=3000).map(move |i| f32::from_bits((x.to_bits() as i64 + i).clamp(0, 0xff7f_ffff) as u32))
    });
    let x: Vec<f32> =
        (0..=f32::MAX.to_bits()).step_by(2003).map(f32::from_bits).flat_map(|x| [x, -x]).chain(near).collect();
    let mut bits: Option<Vec<u32>> = None;
    for level in levels() {
        let y = map(level, Function::Exp, &x);
        let (mut worst, mut at) = (0.0, 0.0);
        for (&x, &y) in x.iter().zip(&y).filter(|(x, _)| !x.is_nan()) {
            let expected = f64::from(x).exp();
            if expected > f64::from(f32::MAX) + DType::F32.ulp(f64::from(f32::MAX)) / 2.0 {
                assert_eq!(y, f32::INFINITY, "e^{x} at {level}");
            } else if expected >= f64::from(f32::MIN_POSITIVE) {
                let error = (f64::from(y) - expected).abs() / DType::F32.ulp(expected);
                if error > worst {
                    (worst, at) = (error, x);
                }
            } else {
                // Subnormal results may be zeros, nothing else.
                let good = y == 0.0 || (f64::from(y) - expected).abs() <= 1.5 * 2f64.powi(-149);
                assert!(good, "e^{x} = {y:e} at {level}, not {expected:e}");
            }
        }
        println!("{level} exp: {worst:.3} ulp at {at:e}");
        assert!(worst <= 1.5, "{worst} ulp at {at:e} at {level}");
        if level >= SimdLevel::Avx2 {
            let these: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
            assert!(bits.as_ref().is_none_or(|others| *others == these), "levels with one arithmetic differ");
            bits = Some(these);
        }
    }
}

#[test]
fn exp2_of_what_is_not_positive_is_within_its_ulps() {
    // Every 997th float of the range where results are not 0, and every float near its end.
    let near = (-3000..=3000).map(|i| f32::from_bits((125.5f32.to_bits() as i32 + i) as u32));
    let x: Vec<f32> = (0..130f32.to_bits()).step_by(997).map(f32::from_bits).chain(near).map(|x| -x).collect();
    let mut bits: Option<Vec<u32>> = None;
    for level in levels() {
        let y = map(level, Function::Exp2Nonpositive, &x);
        let (mut worst, mut at) = (0.0, 0.0);
        for (&x, &y) in x.iter().zip(&y) {
            if x < -125.5 {
                assert_eq!(y, 0.0, "2^{x} at {level}");
                continue;
            }
            let expected = f64::from(x).exp2();
            let error = (f64::from(y) - expected).abs() / DType::F32.ulp(expected);
            if error > worst {
                (worst, at) = (error, x);
            }
        }
        println!("{level} exp2: {worst:.3} ulp at {at:e}");
        assert!(worst <= 1.5, "{worst} ulp at {at:e} at {level}");
        let special =
            map(level, Function::Exp2Nonpositive, &[0.0, -0.0, -1e-45, f32::NEG_INFINITY, f32::MIN, f32::NAN]);
        assert_eq!(&special[..5], &[1.0, 1.0, 1.0, 0.0, 0.0], "{level}");
        assert!(special[5].is_nan(), "{level}");
        if level >= SimdLevel::Avx2 {
            let these: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
            assert!(bits.as_ref().is_none_or(|others| *others == these), "levels with one arithmetic differ");
            bits = Some(these);
        }
    }
}

#[test]
fn exp_of_what_is_no_number_is_what_it_should_be() {
    for level in levels() {
        let x = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45, -1e-45, f32::MAX, f32::MIN];
        let y = map(level, Function::Exp, &x);
        assert_eq!(&y[..4], &[1.0, 1.0, f32::INFINITY, 0.0], "{level}");
        assert!(y[4].is_nan(), "{level}");
        assert_eq!(&y[5..], &[1.0, 1.0, f32::INFINITY, 0.0], "{level}");
    }
}

#[test]
fn reductions_are_the_same_tree_at_every_level() {
    let mut state = 1u32;
    let mut x: Vec<f32> = (0..LANES * 500)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 1e4 - 800.0
        })
        .collect();
    for (i, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN].into_iter().enumerate() {
        (0..LANES).for_each(|lane| x[(i * LANES + lane) * LANES + lane] = special);
    }
    let expected: Vec<(f32, f32)> = x
        .chunks(LANES)
        .map(|lanes| {
            let mut a = lanes.to_vec();
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| a[i] += a[i + half]);
            }
            let max = if lanes.iter().any(|x| x.is_nan()) {
                f32::NAN
            } else {
                lanes.iter().copied().fold(f32::MIN, f32::max)
            };
            (a[0], max)
        })
        .collect();
    for level in levels() {
        for (found, &(sum, max)) in map(level, Function::Reduce, &x).chunks(LANES).zip(&expected) {
            assert!(found[0] == sum || (found[0].is_nan() && sum.is_nan()), "{level}: {} {sum}", found[0]);
            assert!(found[1] == max || (found[1].is_nan() && max.is_nan()), "{level}: {} {max}", found[1]);
        }
    }
}
