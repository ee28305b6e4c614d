//! What the case generators of operators on strided operands share.

use sinew_tensor::DType;

use crate::harness::case::{Generator, Lay, Values};

/// Numbers of elements: none, one, a vector and its neighbours, products of primes, and two that take more than one
/// task.
const COUNTS: [usize; 11] = [1, 15, 16, 17, 0, 105, 512, 1001, 2310, 40_009, 33_033];

/// A shape of so many elements: one to four dimensions that the seed picks from its divisors.
pub(crate) fn shape(elements: usize, seed: u64) -> Vec<usize> {
    let mut random = Generator::new(seed ^ 0x5a4e);
    let mut shape = vec![elements];
    for _ in 0..seed % 4 {
        let last = shape.len() - 1;
        let divisors: Vec<usize> = (1..=shape[last].min(64)).filter(|d| shape[last].is_multiple_of(*d)).collect();
        let Some(&d) = divisors.get(random.below(divisors.len().max(1))) else { break };
        shape[last] /= d;
        shape.insert(random.below(shape.len() + 1), d);
    }
    shape
}

/// How operand `n` of a case lies: each otherwise than its neighbours, but that every fourth case has all alike.
pub(crate) fn lay(lay: Lay, seed: u64, n: usize) -> Lay {
    if seed.is_multiple_of(4) { lay } else { Lay::ALL[(lay as usize + n) % Lay::ALL.len()] }
}

/// Values that a dtype can hold of a kind: integers for the integers.
pub(crate) fn kind(dtype: DType, wanted: Values) -> Values {
    if dtype.is_float() { wanted } else { Values::Integers }
}

const KINDS: [Values; 4] = [Values::Normal, Values::Integers, Values::Special, Values::Subnormal];

/// Spreads options over the cases of a list of static problems: counts, lays, values and seeds advance at different
/// paces, so that pairs of them meet.
pub(crate) fn spread<S: Clone>(problems: &[S], rounds: usize) -> Vec<(S, usize, Lay, Values, u64)> {
    let mut cases = Vec::new();
    for round in 0..rounds {
        for (i, problem) in problems.iter().enumerate() {
            let n = round * problems.len() + i;
            let count = COUNTS[(n + n / COUNTS.len()) % COUNTS.len()];
            let lay = Lay::ALL[(n / 2 + round) % Lay::ALL.len()];
            let values = KINDS[(n / 3 + round) % KINDS.len()];
            cases.push((problem.clone(), count, lay, values, (n * 7 + round) as u64));
        }
    }
    cases
}

/// An integer result, wrapped as two's complement of the dtype's width.
pub(crate) fn wrapped(dtype: DType, value: i64) -> f64 {
    match dtype {
        DType::I64 => value as f64,
        DType::I32 => f64::from(value as i32),
        DType::I16 => f64::from(value as i16),
        DType::I8 => f64::from(value as i8),
        DType::U32 => f64::from(value as u32),
        _ => f64::from(value as u8),
    }
}
