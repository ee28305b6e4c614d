//! How the activations of a product are held, for references: every rounding of operands that a problem or an arithmetic
//! asks for.

use sinew_tensor::DType;

use super::block_float::{LEAST_HELD, MOST_OF_INT8, MOST_OF_INT16, MOST_TINY, OUTLIERS, TINY, is_int16};
use super::{Compute, GemmStatic};
use crate::Arithmetic;
use crate::packed::{LEAST, PanelKind};

/// Values of K in a group of what is multiplied as integers on both sides, of int8 problems.
pub(super) fn group(fixed: &GemmStatic) -> Option<usize> {
    let format = fixed.panel_kind().and_then(PanelKind::blocks)?;
    (fixed.compute == Compute::Int8).then(|| format.group())
}

/// The values of a row, in its weight's order, as they are multiplied.
pub(super) fn held(fixed: &GemmStatic, arithmetic: Arithmetic, row: &[f64]) -> Vec<f64> {
    let low = |x: &f64| if fixed.compute == Compute::Bf16 { DType::BF16.round(*x) } else { *x };
    match (group(fixed), fixed.panel_kind().and_then(PanelKind::blocks)) {
        (Some(group), _) => int8(row, group),
        (None, Some(format)) if is_int16(arithmetic) => {
            let row: Vec<f64> = row.iter().map(low).collect();
            row.chunks(format.group()).flat_map(int16).collect()
        }
        _ => row.iter().map(low).collect(),
    }
}

/// What the sum of products may err by where each value of a row may be held as the next integer.
pub(super) fn step_error(fixed: &GemmStatic, arithmetic: Arithmetic, row: &[f64], right: &[f64]) -> f64 {
    let Some(format) = fixed.panel_kind().and_then(PanelKind::blocks) else { return 0.0 };
    let step_of: fn(&[f64]) -> f64 = match fixed.compute {
        Compute::Int8 => |group| largest(group) / f64::from(MOST_OF_INT8),
        _ if is_int16(arithmetic) => |group| step(&beside(group)),
        _ => return 0.0,
    };
    let of_group = |(x, y): (&[f64], &[f64])| step_of(x) * y.iter().map(|y| y.abs()).sum::<f64>();
    let error: f64 = row.chunks(format.group()).zip(right.chunks(format.group())).map(of_group).sum();
    if error.is_nan() { 0.0 } else { error }
}

fn largest(group: &[f64]) -> f64 {
    group.iter().fold(0.0, |a: f64, x| a.max(x.abs()))
}

/// Values as int8 holds them, in groups: multiples of the largest's 127th.
pub(super) fn int8(values: &[f64], group: usize) -> Vec<f64> {
    let rounded = |x: &[f64]| {
        let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let largest = x.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
        let (scale, inverse) = match largest {
            _ if x.iter().any(|x| !x.is_finite()) => (f32::NAN, 0.0),
            x if x < LEAST => (0.0, 0.0),
            _ => (largest / MOST_OF_INT8, MOST_OF_INT8 / largest),
        };
        x.iter().map(|x| f64::from(scale * (x * inverse).round_ties_even())).collect::<Vec<_>>()
    };
    values.chunks(group).flat_map(rounded).collect()
}

/// The smallest power of two, no subnormal, of which the largest of a group is at most 32,639 times.
fn step(group: &[f64]) -> f64 {
    let largest = largest(group);
    let fits = |step: &f64| largest <= f64::from(MOST_OF_INT16) * step;
    (-126..128).map(|n| 2.0f64.powi(n)).find(fits).unwrap_or(f64::NAN)
}

/// The values of a group that integers of 16 bits hold beside each other, and zeros for those that are held as they are:
/// what is not finite; the larger ones wherever [most are below a share of the largest](OUTLIERS); and then what is
/// [tiny](TINY), where that is [more than a few](MOST_TINY).
fn beside(group: &[f64]) -> Vec<f64> {
    let mut left: Vec<f64> = group.iter().map(|&x| if x.is_finite() { x } else { 0.0 }).collect();
    loop {
        let least = largest(&left) * f64::from(OUTLIERS);
        let (small, large): (Vec<f64>, Vec<f64>) =
            left.iter().copied().filter(|&x| x != 0.0).partition(|x| x.abs() < least);
        if small.len() <= large.len() {
            break;
        }
        left.iter_mut().filter(|x| x.abs() >= least).for_each(|x| *x = 0.0);
    }
    let least = (largest(&left) * f64::from(TINY)).max(f64::from(LEAST_HELD));
    let all = left.iter().filter(|&&x| x != 0.0).count();
    let tiny = left.iter().filter(|&&x| x != 0.0 && x.abs() < least).count();
    if tiny as f64 > f64::from(MOST_TINY) * all as f64 {
        left.iter_mut().filter(|x| x.abs() < least).for_each(|x| *x = 0.0);
    }
    left
}

/// A group of values as integers of 16 bits hold them, multiples of a power of two, and the others as they are.
fn int16(group: &[f64]) -> Vec<f64> {
    let beside = beside(group);
    let step = step(&beside);
    let held = |(x, &beside): (&f64, &f64)| if beside == 0.0 { *x } else { step * (x / step).round_ties_even() };
    group.iter().zip(&beside).map(held).collect()
}
