//! tanh, sigmoid, erf, erfc and the activations on lanes, at every SIMD level, against f64.

use sinew_kernels::activation::Activation;
use sinew_kernels::activation::reference::{erf, erfc};
use sinew_kernels::simd::{Kernel, LANES, Simd, launch, math};
use sinew_memory::{SimdLevel, Team};
use sinew_tensor::DType;

#[derive(Clone, Copy, Debug)]
enum Function {
    Sigmoid,
    Tanh,
    Erf,
    Erfc,
    Act(Activation),
    Factor(Activation),
}

impl Function {
    fn reference(self, x: f64) -> f64 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
            Self::Erf => erf(x),
            Self::Erfc => erfc(x),
            Self::Act(activation) => activation.reference(x),
            Self::Factor(activation) => activation.factor_reference(x),
        }
    }
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
            let x = S::load(self.x.as_ptr().add(task * LANES));
            let y = match self.function {
                Function::Sigmoid => math::sigmoid::<S>(x),
                Function::Tanh => math::tanh::<S>(x),
                Function::Erf => math::erf::<S>(x),
                Function::Erfc => math::erfc::<S>(x),
                Function::Act(activation) => activation.apply::<S>(x),
                Function::Factor(activation) => activation.factor::<S>(x),
            };
            S::store(self.y.add(task * LANES), y);
        }
    }
}

fn levels() -> impl Iterator<Item = SimdLevel> {
    // The highest level has the instructions of the one below it, as far as these functions go.
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

/// Every sign, from tiny to huge, dense where the functions bend.
fn inputs() -> Vec<f32> {
    let mut x =
        vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45];
    // Multiples of an odd fraction, so that they do not fall on round numbers.
    x.extend((-40_000..=40_000).map(|i| i as f32 * 0.002_561_3));
    x.extend((-149..128).flat_map(|e| [1.0f32, 1.3, 1.9].map(|m| m * 2f64.powi(e) as f32)).flat_map(|v| [v, -v]));
    x
}

/// The largest error in ulp of f32 over what `count` says, and where.
fn worst(level: SimdLevel, function: Function, count: impl Fn(f64, f64) -> bool) -> (f64, f32) {
    let x = inputs();
    let y = map(level, function, &x);
    let mut worst = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(&y) {
        let expected = function.reference(f64::from(x));
        let rounded = DType::F32.round(expected);
        if !rounded.is_finite() {
            assert!(
                y.is_nan() == rounded.is_nan() && (y.is_nan() || f64::from(y) == rounded),
                "{function:?}({x}) = {y}"
            );
            continue;
        }
        assert!(y.is_finite(), "{function:?}({x}) = {y} at {level}");
        let error = (f64::from(y) - expected).abs() / DType::F32.ulp(expected);
        if count(f64::from(x), expected) && error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

#[test]
fn elementary_functions_are_within_their_ulps_where_results_are_normal() {
    for level in levels() {
        for (function, ulps) in [(Function::Sigmoid, 3.0), (Function::Tanh, 3.0), (Function::Erf, 3.0)] {
            let (error, x) = worst(level, function, |_, y| y.abs() > 1.2e-38);
            println!("{level} {function:?}: {error:.2} ulp at {x}");
            assert!(error <= ulps, "{level} {function:?}: {error} ulp at {x}");
        }
        // Where multiply-adds are not fused, the rounding of x² in e^-x² grows with it.
        let ulps = if level == SimdLevel::Portable { 90.0 } else { 6.0 };
        let (error, x) = worst(level, Function::Erfc, |_, y| y.abs() > 1.2e-38);
        println!("{level} erfc: {error:.2} ulp at {x}");
        assert!(error <= ulps, "{level} erfc: {error} ulp at {x}");
    }
}

#[test]
fn the_gate_and_up_of_gpt_oss_stay_within_limits_and_let_nan_through() {
    let x = inputs();
    let (limited, act) = (Activation::SwigluOai, Function::Act(Activation::SwigluOai));
    for level in levels() {
        let at_limit = map(level, act, &[7.0])[0];
        for ((&x, y), factor) in x.iter().zip(map(level, act, &x)).zip(map(level, Function::Factor(limited), &x)) {
            let expected = if x.is_nan() { f32::NAN } else { x.clamp(-7.0, 7.0) + 1.0 };
            assert_eq!(factor.to_bits(), expected.to_bits(), "{level}: factor of {x}");
            assert!(x.is_nan() || x < 7.0 || y == at_limit, "{level}: {y} of {x}");
            assert!(!x.is_nan() || y.is_nan(), "{level}: {y} of {x}");
        }
        // 7 · σ(1.702 · 7).
        assert!((at_limit - 6.999_953).abs() < 2e-6, "{at_limit}");
        assert_eq!(map(level, Function::Factor(limited), &[-9.0, 9.0, -0.5]), [-6.0, 8.0, 0.5]);
        assert_eq!(map(level, Function::Factor(Activation::Silu), &[-9.0, 9.0]), [-9.0, 9.0]);
    }
}

#[test]
fn activations_are_within_4_ulp_or_1e_7() {
    for level in levels() {
        for activation in Activation::ALL {
            let function = Function::Act(activation);
            let (error, x) = worst(level, function, |x, y| y.abs() > 1.2e-38 && x > 0.0);
            println!("{level} {activation}: {error:.2} ulp at {x}, x > 0");
            let x = inputs();
            let y = map(level, function, &x);
            let mut largest = (0.0, 0.0);
            for (&x, &y) in x.iter().zip(&y) {
                let expected = function.reference(f64::from(x));
                if !expected.is_finite() || DType::F32.round(expected).is_infinite() {
                    continue;
                }
                let allowed = (4.0 * DType::F32.ulp(expected)).max(1e-7);
                let share = (f64::from(y) - expected).abs() / allowed;
                assert!(share <= 1.0, "{level} {activation}({x}) = {y}, not {expected}");
                if share > largest.0 {
                    largest = (share, x);
                }
            }
            println!("{level} {activation}: {:.2} of 4 ulp or 1e-7, at {}", largest.0, largest.1);
        }
    }
}
