//! Routing on CPUs, the same at every level: the router's product before it takes a thousand times as long.

use sinew_memory::DeviceKind;

use super::{Route, RouteDynamic, RouteStatic};
use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::simd::{LANES, Portable, Simd, math};
use crate::strided::Address;

/// Tokens of a task.
const TOKENS: usize = 16;

pub(super) const ROW: Row<Route> = Row {
    name: "route.cpu.portable",
    device: DeviceKind::CPU,
    arithmetic: Arithmetic::named("route.f64-sum"),
    admits: |_, _| Ok(()),
    cost: |fixed, call, hardware| predicted::by_shares(Route::work(fixed, call), hardware, 0.3, 0.05),
    workspace: |_, _, _| 0,
    run,
};

/// Elements of two dimensions.
#[derive(Clone, Copy)]
struct Plane {
    ptr: Address,
    strides: [usize; 2],
}

impl Plane {
    #[inline(always)]
    fn at(self, row: usize, column: usize) -> *mut u8 {
        self.ptr.at(row * self.strides[0] + column * self.strides[1], 4)
    }
}

/// Numbers of one dimension.
#[derive(Clone, Copy)]
struct Numbers {
    ptr: Address,
    stride: usize,
}

impl Numbers {
    #[inline(always)]
    fn at(self, i: usize) -> *mut u32 {
        self.ptr.at(i * self.stride, 4).cast()
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &RouteStatic, call: &RouteDynamic, operands: Operands<'_>) -> Result<()> {
    let logits = operands.input(Route::NAME, Route::LOGITS, "logits")?;
    let logits = Plane { ptr: Address::read(logits.host_ptr()?), strides: [logits.strides()[0], logits.strides()[1]] };
    let plane = |position, name| -> Result<Plane> {
        let view = operands.output(Route::NAME, position, name)?;
        Ok(Plane { ptr: Address(view.host_ptr()?), strides: [view.strides()[0], view.strides()[1]] })
    };
    let numbers = |position, name| -> Result<Numbers> {
        let view = operands.output(Route::NAME, position, name)?;
        Ok(Numbers { ptr: Address(view.host_ptr()?), stride: view.strides()[0] })
    };
    let (experts, weights) = (plane(Route::EXPERTS, "experts")?, plane(Route::WEIGHTS, "weights")?);
    let offsets = numbers(Route::OFFSETS, "offsets")?;
    let (place, source) = (numbers(Route::PLACE, "place")?, numbers(Route::SOURCE, "source")?);
    let tokens = call.tokens;
    launch.team()?.run(tokens.div_ceil(TOKENS), |task, _| {
        for token in task * TOKENS..tokens.min((task + 1) * TOKENS) {
            // SAFETY: the operator's check has seen shapes and dtypes, and that an output's indices share no elements;
            // this task alone has the token.
            unsafe { choose(fixed, logits, token, experts, weights) };
        }
    });
    // SAFETY: as above; every expert was written just now, and is one.
    unsafe { sort(fixed, tokens, experts, offsets, place, source) };
    Ok(())
}

/// Writes the experts of a token and their weights.
///
/// # Safety
/// The operands are those of the problem, with room for the token.
unsafe fn choose(fixed: &RouteStatic, logits: Plane, token: usize, experts: Plane, weights: Plane) {
    // SAFETY: passed on: an expert is below the problem's.
    let logit = |expert: usize| unsafe { *logits.at(token, expert).cast::<f32>() };
    let largest = (0..fixed.experts).map(logit).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for first in (0..fixed.experts).step_by(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let count = LANES.min(fixed.experts - first);
        (0..count).for_each(|i| lanes[i] = logit(first + i));
        sum += exponentials(lanes, largest)[..count].iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    // What the last one taken had, of which those of higher number come next.
    let (mut bar, mut next) = (u32::MAX, 0);
    let mut chosen = 0.0f64;
    for j in 0..fixed.top_k {
        let mut best = (0, 0);
        for expert in 0..fixed.experts {
            let order = ordered(logit(expert));
            if (order < bar || order == bar && expert >= next) && order > best.0 {
                best = (order, expert);
            }
        }
        (bar, next) = (best.0, best.1 + 1);
        let weight = exponentials([logit(best.1); LANES], largest)[0];
        chosen += f64::from(weight);
        // SAFETY: passed on.
        unsafe {
            *experts.at(token, j).cast::<u32>() = best.1 as u32;
            *weights.at(token, j).cast::<f32>() = weight;
        }
    }
    // A sum that is NaN must show in weights that are finite, too.
    let sum = if fixed.renormalize && !sum.is_nan() { chosen } else { sum };
    for j in 0..fixed.top_k {
        // SAFETY: passed on; written above.
        unsafe {
            let weight = weights.at(token, j).cast::<f32>();
            *weight = (f64::from(*weight) / sum) as f32;
        }
    }
}

/// `e^(x - largest)`; NaN where all are infinite.
fn exponentials(x: [f32; LANES], largest: f32) -> [f32; LANES] {
    let mut y = [0.0; LANES];
    // SAFETY: every machine has the portable level; the arrays have sixteen lanes.
    unsafe {
        let difference = Portable::sub(Portable::load(x.as_ptr()), Portable::splat(largest));
        Portable::store(y.as_mut_ptr(), math::exp::<Portable>(difference));
    }
    y
}

/// A number above 0 that orders as f32 does, with -0 equal to 0 and every NaN above all.
fn ordered(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if x.is_nan() {
        u32::MAX
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Sorts slots by expert: a counting sort.
///
/// # Safety
/// The operands are those of the problem, and experts were written.
unsafe fn sort(fixed: &RouteStatic, tokens: usize, experts: Plane, offsets: Numbers, place: Numbers, source: Numbers) {
    // SAFETY: passed on: tokens, slots and experts are below the problem's.
    unsafe {
        let slots = || (0..tokens).flat_map(|token| (0..fixed.top_k).map(move |j| (token, j)));
        let expert_of = |token, j| *experts.at(token, j).cast::<u32>() as usize;
        (0..=fixed.experts).for_each(|expert| *offsets.at(expert) = 0);
        slots().for_each(|(token, j)| *offsets.at(expert_of(token, j) + 1) += 1);
        (0..fixed.experts).for_each(|expert| *offsets.at(expert + 1) += *offsets.at(expert));
        for (token, j) in slots() {
            // Each offset goes on to where the next expert's rows begin.
            let at = offsets.at(expert_of(token, j));
            *place.at(token * fixed.top_k + j) = *at;
            *source.at(*at as usize) = token as u32;
            *at += 1;
        }
        (1..=fixed.experts).rev().for_each(|expert| *offsets.at(expert) = *offsets.at(expert - 1));
        *offsets.at(0) = 0;
    }
}
