//! A kernel that no recorded run has confirmed on a class of devices checks itself at its first use there.
#![cfg(target_os = "linux")]

use std::sync::{Arc, OnceLock};

use sinew::kernels::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew::kernels::norm::{Norm, NormDynamic, NormStatic};
use sinew::kernels::{Arithmetic, Compute, Registry, Row};
use sinew::memory::DeviceKind;
use sinew::ops::{Context, Policy};

#[test]
fn a_row_that_is_wrong_on_the_device_is_not_chosen() {
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
    let (fixed, call) = (NormStatic { width: 64, ..NormStatic::default() }, NormDynamic { rows: 4 });
    let idle = Row::<Norm> {
        name: "norm.cuda.idle",
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("norm.idle"),
        admits: |_, _| Ok(()),
        // Nothing is faster.
        cost: |_, _, _| 0.0,
        workspace: |_, _, _| 0,
        run: |_, _, _, _| Ok(()),
    };
    // Where bits must not depend on the shape, the row's arithmetic goes with it.
    for deterministic in [false, true] {
        let mut registry = Registry::standard();
        registry.add([idle]);
        let policy = Policy { deterministic, ..Policy::of(DeviceKind::CUDA) };
        let ctx = Context::new(device.clone(), Arc::new(registry), policy).unwrap();
        assert_eq!(ctx.choose::<Norm>(&fixed, &call).unwrap().name, "norm.cuda");
        let explanation = ctx.explain::<Norm>(&fixed, &call).unwrap();
        let verdict = |row: &str| explanation.candidates.iter().find(|c| c.row == row).unwrap().verdict.clone();
        assert!(verdict("norm.cuda.idle").starts_with("failed its self-check: "), "{explanation}");
        assert!(verdict("norm.cuda").starts_with("chosen"), "{explanation}");
    }
}

#[test]
fn a_row_that_is_wrong_on_the_problem_alone_is_not_chosen_from_then_on() {
    static HONEST: OnceLock<Row<Norm>> = OnceLock::new();
    const SPOILED: usize = 777;
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
    let mut registry = Registry::standard();
    let rows = registry.table::<Norm>().unwrap().rows();
    let honest = *HONEST.get_or_init(|| *rows.iter().find(|row| row.name == "norm.cuda").unwrap());
    registry.add([Row {
        name: "norm.cuda.mostly",
        cost: |_, _, _| 0.0,
        run: |launch, fixed: &NormStatic, call, operands| match fixed.width {
            SPOILED => Ok(()),
            // SAFETY: passed on.
            _ => unsafe { (HONEST.wait().run)(launch, fixed, call, operands) },
        },
        ..honest
    }]);
    let ctx = Context::new(device, Arc::new(registry), Policy::of(DeviceKind::CUDA)).unwrap();
    let chosen = |width, rows| {
        ctx.choose::<Norm>(&NormStatic { width, ..NormStatic::default() }, &NormDynamic { rows }).unwrap().name
    };
    assert_eq!(chosen(64, 4), "norm.cuda.mostly");
    assert_eq!(chosen(SPOILED, 4), "norm.cuda");
    // Nothing trusts the row any more.
    assert_eq!(chosen(64, 4), "norm.cuda");
    assert_eq!(chosen(65, 4), "norm.cuda");
}

#[test]
fn a_row_that_is_wrong_on_large_problems_is_seen_on_smaller_ones_of_their_kind() {
    static HONEST: OnceLock<Row<Gemm>> = OnceLock::new();
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
    let mut registry = Registry::standard();
    let rows = registry.table::<Gemm>().unwrap().rows();
    let honest = *HONEST.get_or_init(|| *rows.iter().find(|row| row.name == "gemm.cuda.gemv").unwrap());
    registry.add([Row {
        name: "gemm.cuda.mostly",
        cost: |_, _, _| 0.0,
        run: |launch, fixed: &GemmStatic, call: &GemmDynamic, operands| match (call.m, fixed.n) {
            (3, 1000..) => Ok(()),
            // SAFETY: passed on.
            _ => unsafe { (HONEST.wait().run)(launch, fixed, call, operands) },
        },
        ..honest
    }]);
    let ctx = Context::new(device, Arc::new(registry), Policy::of(DeviceKind::CUDA)).unwrap();
    let f32 = sinew::tensor::DType::F32;
    let fixed = GemmStatic::new(40_000, 4096, f32, Rhs::Strided(f32), f32, Compute::F32);
    let chosen = |m| ctx.choose::<Gemm>(&fixed, &GemmDynamic { batch: 1, m }).unwrap().name;
    assert_eq!(chosen(1), "gemm.cuda.mostly");
    assert_ne!(chosen(3), "gemm.cuda.mostly");
}
