//! The public operators against plain loops in f64, on operands of every kind of layout; and the arithmetic of
//! a problem, and with it the bits, on any number of threads.

// Tables of functions beside their definitions.
#![allow(clippy::type_complexity)]

mod activation;
mod attention;
mod copy;
mod elementwise;
mod errors;
mod index;
mod lay;
mod layers;
mod matmul;
mod mixture;
mod norm;
mod reduce;
mod rotary;
mod softmax;
mod unwritten;

use sinew_kernels::Operator;
use sinew_kernels::activation::Activate;
use sinew_kernels::attention::Attention;
use sinew_kernels::gemm::Gemm;
use sinew_kernels::harness::case::{Depth, Reference};
use sinew_kernels::norm::Norm;
use sinew_kernels::reduce::Reduce;
use sinew_kernels::rotary::Rotary;
use sinew_kernels::softmax::Softmax;
use sinew_memory::{Cpu, SimdLevel};
use sinew_ops::{Context, Policy};

const THREADS: [usize; 6] = [1, 2, 5, 16, 64, 300];

/// Every case of an operator gets one arithmetic on all `contexts`.
fn same_on_all<O: Reference>(contexts: &[Context]) {
    let mut problems = 0;
    for case in O::cases(Depth::Quick) {
        let chosen = |ctx: &Context| ctx.choose::<O>(&case.fixed, &case.call).map(|row| row.arithmetic).ok();
        let first = chosen(&contexts[0]);
        for (ctx, threads) in contexts.iter().zip(THREADS) {
            assert_eq!(chosen(ctx), first, "{}: {}; {} on {threads} threads", O::NAME, case.fixed, case.call);
        }
        problems += usize::from(first.is_some());
    }
    println!("{}: {problems} problems", <O as Operator>::NAME);
    assert!(problems > 0, "{}", O::NAME);
}

#[test]
fn the_arithmetic_is_the_same_on_any_number_of_threads() {
    for level in SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected()) {
        let context = |threads| {
            let cpu = Cpu::with(threads, level).expect("threads start");
            Context::on(cpu, Policy::default()).expect("a context")
        };
        let contexts = THREADS.map(context);
        same_on_all::<Gemm>(&contexts);
        same_on_all::<Attention>(&contexts);
        same_on_all::<Norm>(&contexts);
        same_on_all::<Softmax>(&contexts);
        same_on_all::<Rotary>(&contexts);
        same_on_all::<Activate>(&contexts);
        same_on_all::<Reduce>(&contexts);
    }
}
