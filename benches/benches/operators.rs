//! Every row of every table over its operator's cases: `cargo bench -p sinew-benches -- gemm.cpu.avx512`.
//!
//! A name is `operator/row/case`; an argument keeps the names that contain it.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sinew_kernels::Registry;
use sinew_memory::Cpu;

fn operators(criterion: &mut Criterion) {
    let runs = sinew_benches::runs(&Registry::standard(), &Cpu::get()).expect("cases run on the CPU");
    for mut run in runs {
        let mut group = criterion.benchmark_group(run.operator);
        group.throughput(if run.work.flops > run.work.bytes {
            Throughput::Elements(run.work.flops as u64)
        } else {
            Throughput::Bytes(run.work.bytes as u64)
        });
        group.bench_function(format!("{}/{}", run.row, run.case), |bencher| {
            bencher.iter(|| black_box(run.run().is_ok()));
        });
        group.finish();
    }
}

criterion_group! {
    name = all;
    // Hundreds of cases: enough of each to rank rows, not to publish.
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    targets = operators
}
criterion_main!(all);
