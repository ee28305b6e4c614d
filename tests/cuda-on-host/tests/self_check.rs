//! A kernel that no recorded run has confirmed on a class of devices checks itself at its first use there.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use sinew::kernels::norm::{Norm, NormDynamic, NormStatic};
use sinew::kernels::{Arithmetic, Registry, Row};
use sinew::memory::DeviceKind;
use sinew::ops::{Context, Policy};

#[test]
fn a_row_that_is_wrong_on_the_device_is_not_chosen() {
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
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
    let mut registry = Registry::standard();
    registry.add([idle]);
    let ctx = Context::new(device, Arc::new(registry), Policy::of(DeviceKind::CUDA)).unwrap();
    let (fixed, call) = (NormStatic { width: 64, ..NormStatic::default() }, NormDynamic { rows: 4 });
    assert_eq!(ctx.choose::<Norm>(&fixed, &call).unwrap().name, "norm.cuda");
    let explanation = ctx.explain::<Norm>(&fixed, &call).unwrap();
    let verdict = |row: &str| explanation.candidates.iter().find(|c| c.row == row).unwrap().verdict.clone();
    assert!(verdict("norm.cuda.idle").starts_with("failed its self-check: "), "{explanation}");
    assert!(verdict("norm.cuda").starts_with("chosen"), "{explanation}");
}
