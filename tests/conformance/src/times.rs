//! Times of every row that takes a problem of a real model's size, with shares of the device's measured copy rate and
//! of the vendor's library.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use sinew::kernels::activation::Activation;
use sinew::kernels::attention::{Attention, AttentionDynamic, AttentionStatic, KvSource};
use sinew::kernels::gemm::{Epilogue, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew::kernels::harness::accuracy::Run;
use sinew::kernels::harness::case::{Case, Lay, Reference, Values};
use sinew::kernels::norm::{Norm, NormDynamic, NormFormula, NormStatic};
use sinew::kernels::rates::Peaks;
use sinew::kernels::{Compute, Registry, Work};
use sinew::memory::Device;
use sinew::models::precision::Precision;
use sinew::tensor::DType;

/// Seconds that each row is timed for, and the fewest timings.
const SECONDS: f64 = 0.3;
const TIMES: usize = 5;
/// A row that took longer than this once is not timed again.
const SLOW: f64 = 1.0;
/// Launches that are waited for together, so that waiting counts little.
const TOGETHER: usize = 8;

/// How large the problems are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Of an 8B model: for a GPU.
    Full,
    /// A hundredth: to see that everything runs.
    Small,
}

/// One row on one problem.
struct Timed {
    row: &'static str,
    problem: String,
    seconds: f64,
    work: Work,
}

/// Times every row and prints a line for each.
///
/// # Errors
/// A failed device, or a writer that fails.
pub fn report(
    registry: &Registry,
    device: &Arc<dyn Device>,
    size: Size,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let copy = Peaks::measure(device)?.memory_bytes_per_s;
    writeln!(out, "memory: {:.1} GB/s", copy / 1e9)?;
    writeln!(out, "{:<28} {:>10} {:>9} {:>8} {:>7} {:>10}", "row", "µs", "GFLOP/s", "GB/s", "memory", "of library")?;
    let mut problem = |timed: Vec<Timed>| -> Result<(), Box<dyn Error>> {
        let library = timed.iter().find(|t| t.row.contains("cublas")).map(|t| t.seconds);
        for (i, Timed { row, problem, seconds, work }) in timed.iter().enumerate() {
            if i == 0 {
                writeln!(out, "{problem}")?;
            }
            let share = library.map_or_else(|| "-".to_owned(), |library| format!("{:.2}", library / seconds));
            writeln!(
                out,
                "  {row:<26} {:>10.1} {:>9.0} {:>8.1} {:>6.1}% {share:>10}",
                seconds * 1e6,
                work.flops / seconds / 1e9,
                work.bytes / seconds / 1e9,
                100.0 * work.bytes / seconds / copy
            )?;
        }
        Ok(())
    };
    let least = |n: usize| if size == Size::Full { n } else { (n / 16).max(1) };
    let hardware = device.hardware();
    let Precision { activations, compute, .. } = Precision::of(DType::BF16, hardware)?;
    for (m, n, k) in [(4096, 4096, 4096), (512, 4096, 4096), (1, 6144, 4096), (1, 4096, 14336), (8, 4096, 4096)] {
        for dtype in [DType::BF16, DType::F32] {
            let format = registry.format(dtype, hardware).ok_or("no packed format")?;
            let (a, compute) = if dtype == DType::BF16 { (activations, compute) } else { (dtype, Compute::F32) };
            let fixed = GemmStatic::new(least(n), least(k), a, Rhs::Packed(format), a, compute);
            let call = GemmDynamic { batch: 1, m: if m > 8 { least(m) } else { m } };
            problem(times::<Gemm>(registry, device, fixed, call)?)?;
        }
    }
    let format = registry.format(DType::BF16, hardware).ok_or("no packed format")?;
    let epilogue = Epilogue { activation: Some(Activation::Silu), gated: true, ..Epilogue::default() };
    let (n, k) = (least(28672), least(4096));
    let fixed = GemmStatic::new(n, k, activations, Rhs::Packed(format), activations, compute).with(epilogue);
    problem(times::<Gemm>(registry, device, fixed, GemmDynamic { batch: 1, m: 1 })?)?;
    for (sequences, queries, keys) in [(1, 4096, 4096), (1, 1, 4096), (8, 1, 2048)] {
        let dtypes = [activations, DType::BF16, activations];
        let kv_source = KvSource::Paged { block_size: 16 };
        let fixed = AttentionStatic { causal: true, kv_source, ..AttentionStatic::new(32, 8, 128, dtypes, compute) };
        let (max_query, max_kv) = (least(queries), least(keys));
        let call = AttentionDynamic { sequences, tokens: sequences * max_query, max_query, max_kv };
        problem(times::<Attention>(registry, device, fixed, call)?)?;
    }
    let formula = NormFormula { weight: Some(DType::F32), ..NormFormula::default() };
    let fixed = NormStatic { width: 4096, formula, residual: Some(DType::F32), ..NormStatic::default() };
    problem(times::<Norm>(registry, device, fixed, NormDynamic { rows: least(4096) })?)
}

/// Every row that takes the problem, timed.
fn times<O: Reference>(
    registry: &Registry,
    device: &Arc<dyn Device>,
    fixed: O::Static,
    call: O::Dynamic,
) -> Result<Vec<Timed>, Box<dyn Error>> {
    let case = Case::<O> { fixed, call, lay: Lay::Contiguous, values: Values::Normal, seed: 0 };
    let stream = device.clone().stream()?;
    let (rows, _) = registry.table::<O>()?.candidates(&case.fixed, device.hardware());
    let mut timed = Vec::new();
    for row in rows {
        let mut run = Run::new(row, &case, &stream)?;
        let start = Instant::now();
        run.run()?;
        let first = start.elapsed().as_secs_f64();
        let (mut seconds, start) = (Vec::new(), Instant::now());
        let together = if first > SLOW { 1 } else { TOGETHER };
        while seconds.is_empty() || first <= SLOW && (seconds.len() < TIMES || start.elapsed().as_secs_f64() < SECONDS)
        {
            let once = Instant::now();
            (0..together).try_for_each(|_| (run.enqueue)())?;
            stream.synchronize()?;
            seconds.push(once.elapsed().as_secs_f64() / together as f64);
        }
        seconds.sort_by(f64::total_cmp);
        let problem = format!("{}: {}; {}", O::NAME, case.fixed, case.call);
        timed.push(Timed { row: row.name, problem, seconds: seconds[seconds.len() / 2], work: run.work });
    }
    Ok(timed)
}
