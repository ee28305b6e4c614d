//! Adds a kernel row from outside Sinew's crates, and has it tested, timed, explained and chosen like its own:
//! `cargo run --release --example add_kernel`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use sinew::kernels::harness::case::Depth;
use sinew::kernels::norm::{Norm, NormDynamic, NormFormula, NormKind, NormStatic};
use sinew::kernels::{AnyTable, Arithmetic, Launch, Operands, Registry, Row, Table};
use sinew::memory::{Cpu, DeviceKind, Hardware};
use sinew::ops::Policy;
use sinew::prelude::*;
use sinew::tensor::View;

/// RMS norm of f32 with f64 sums: slow, and more exact than any other row.
const ROW: Row<Norm> = Row {
    name: "norm.example.wide",
    device: DeviceKind::CPU,
    arithmetic: Arithmetic::named("norm.wide"),
    admits,
    cost: |fixed, call, _| (call.rows * fixed.width) as f64 * 2e-9,
    workspace: |_, _, _| 0,
    run,
};

/// The predicate: what this row does not do is left to others.
fn admits(fixed: &NormStatic, _: &Hardware) -> Result<(), sinew::kernels::Refusal> {
    let NormFormula { kind, weight, bias, .. } = fixed.formula;
    if kind != NormKind::Rms || bias.is_some() || fixed.residual.is_some() || fixed.in_place {
        return Err("only RMS, without bias and residual, not in place".into());
    }
    if [fixed.x, fixed.out, weight.unwrap_or(DType::F32)] != [DType::F32; 3] {
        return Err("only f32".into());
    }
    Ok(())
}

/// The kernel. Operands were checked against the problem when it is called; views may lie in any strides.
fn run(_: &Launch<'_>, fixed: &NormStatic, _: &NormDynamic, operands: Operands<'_>) -> sinew::kernels::Result<()> {
    let x = operands.input("norm", Norm::X, "x")?;
    let y = operands.output("norm", Norm::Y, "y")?;
    let (from, to) = (x.host_ptr()?.cast::<f32>(), y.host_ptr()?.cast::<f32>());
    let element = |view: &View<'_>, flat: usize| {
        let mut rest = flat;
        view.shape().iter().zip(view.strides()).rev().fold(0, |at, (&size, &stride)| {
            let index = rest % size;
            rest /= size;
            at + index * stride
        })
    };
    let width = fixed.width;
    let weight = operands
        .optional(Norm::WEIGHT)
        .map(|w| Ok::<_, sinew::tensor::Error>((w.host_ptr()?.cast::<f32>(), w.strides()[0])));
    let weight = weight.transpose()?;
    let offset = f64::from(fixed.formula.weight_offset.get());
    let rows = x.layout().elements() / width.max(1);
    for row in 0..rows {
        // SAFETY: `flat` is below the number of elements of both views, which have one shape.
        let read = |i: usize| f64::from(unsafe { *from.add(element(x, row * width + i)) });
        let mean = (0..width).map(|i| read(i) * read(i)).sum::<f64>() / width as f64;
        let scale = 1.0 / (mean + f64::from(fixed.formula.eps.get())).sqrt();
        for i in 0..width {
            // SAFETY: the weight has `width` elements.
            let factor = weight.map_or(1.0, |(w, stride)| f64::from(unsafe { *w.add(i * stride) }) + offset);
            // SAFETY: as above, and nothing else writes the output while this runs.
            unsafe { *to.add(element(y, row * width + i)) = (read(i) * scale * factor) as f32 };
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // One line: the row joins the table.
    let mut registry = Registry::standard();
    registry.add::<Norm>([ROW]);

    // Tested: the harness walks the operator's cases and compares with its f64 reference.
    let device = Cpu::get();
    let mine = Table::new([ROW]);
    for report in mine.verify(&device, Depth::Quick) {
        println!(
            "{}: {} cases, {} elements, at most {:.0} % of the error allowed, {} failures",
            report.row,
            report.cases,
            report.elements,
            100.0 * report.worst,
            report.failures.len()
        );
        if report.cases == 0 || !report.failures.is_empty() {
            return Err(report.failures.join("\n").into());
        }
    }

    // Benched: the same cases, ready to be timed.
    for mut run in mine.runs(&device, Depth::Quick)?.into_iter().take(3) {
        let start = Instant::now();
        run.run()?;
        println!("{} on {}: {:.1} µs", run.row, run.case, start.elapsed().as_secs_f64() * 1e6);
    }

    // Explained, and chosen because it is preferred by name.
    let policy = Policy { prefer: vec![ROW.name.to_owned()], ..Policy::default() };
    let ctx = Context::new(device, Arc::new(registry), policy)?;
    let fixed = NormStatic {
        width: 64,
        formula: NormFormula { kind: NormKind::Rms, eps: 1e-6.into(), ..NormFormula::default() },
        x: DType::F32,
        out: DType::F32,
        ..NormStatic::default()
    };
    let explanation = ctx.explain::<Norm>(&fixed, &NormDynamic { rows: 8 })?;
    print!("{explanation}");
    if !explanation.candidates.iter().any(|c| c.row == ROW.name && c.chosen) {
        return Err("the preferred row was not chosen".into());
    }
    Ok(())
}

#[test]
fn the_row_is_tested_timed_explained_and_chosen() {
    main().expect("the example runs");
}
