//! The table of support beside what runs on the CPU; `tests/wgpu.rs` has the same for an adapter.

use sinew::kernels::Registry;
use sinew::kernels::support::{StoredAs, Support};
use sinew::ops;
use sinew::prelude::*;

#[path = "common/support.rs"]
mod support;

#[test]
fn what_the_table_claims_runs_and_all_else_is_refused() {
    let [supported, refused] = support::agrees_with_what_runs(&Registry::standard(), &Cpu::get());
    assert!(supported > 80 && refused > 80, "{supported} and {refused}");
}

#[test]
fn public_operators_take_just_the_dtypes_that_the_table_claims() {
    type Run = fn(&Context, &Tensor) -> Result<(), ops::Error>;
    let runs: [(&str, Run); 11] = [
        ("activation", |ctx, x| ops::silu(ctx, x).map(drop)),
        ("binary", |ctx, x| ops::add(ctx, x, x).map(drop)),
        ("cast", |ctx, x| ops::cast(ctx, x, DType::F32).map(drop)),
        ("embedding", |ctx, x| ops::embedding(ctx, &ctx.tensor(&[1u32, 0], &[2])?, x).map(drop)),
        ("gather", |ctx, x| ops::index_select(ctx, x, 0, &ctx.tensor(&[1u32, 0], &[2])?).map(drop)),
        ("gemm", |ctx, x| ops::matmul(x, x).run(ctx).map(drop)),
        ("norm", |ctx, x| ops::rms_norm(x).run(ctx).map(drop)),
        ("reduce", |ctx, x| ops::sum(x).dim(1).run(ctx).map(drop)),
        ("softmax", |ctx, x| ops::softmax(ctx, x).map(drop)),
        ("topk", |ctx, x| ops::topk(ctx, x, 3).map(drop)),
        ("unary", |ctx, x| ops::neg(ctx, x).map(drop)),
    ];
    let ctx = Context::cpu().unwrap();
    let support = Support::of(ctx.registry(), [ctx.device()]);
    let ones = ctx.tensor(&[1f32; 64], &[8, 8]).unwrap();
    for (operator, run) in runs {
        for dtype in DType::ALL {
            let x = ops::cast(&ctx, &ones, dtype).unwrap();
            let cells = &support.devices[0].1;
            let cell = cells.iter().find(|cell| cell.operator == operator && cell.stored == StoredAs::Plain(dtype));
            let claimed = cell.expect("a cell for every dtype").is_supported();
            let outcome = run(&ctx, &x);
            assert_eq!(outcome.is_ok(), claimed, "{operator} of {dtype}: {outcome:?}");
        }
    }
}

#[test]
fn the_table_has_a_line_for_each_operator_and_a_column_for_each_way_to_store() {
    let registry = Registry::standard();
    let text = Support::of(&registry, [&Cpu::get()]).to_string();
    let mut lines = text.lines();
    let header = lines.next().expect("a header");
    assert!(StoredAs::all().all(|stored| header.contains(&stored.to_string())), "{text}");
    let names: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, registry.tables().map(|table| table.operator()).collect::<Vec<_>>());
}
