//! Products by candle, as JSON lines: `candle_products THREADS REPEATS M N K COPIES`.

use candle_core::{DType, Device, Result, Tensor};
use sinew_peers::Problem;

fn main() -> Result<()> {
    let problem = Problem::from_arguments();
    let Problem { m, n, k, .. } = problem;
    let (a, weights) = problem.values();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let tensor =
            |values: &[f32], shape: (usize, usize)| Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype);
        let a = tensor(&a, (m, k))?;
        // As candle's Linear has them.
        let weights = weights.iter().map(|w| tensor(w, (n, k))?.t()).collect::<Result<Vec<_>>>()?;
        if let Err(error) = a.matmul(&weights[0]) {
            eprintln!("{dtype:?}: {error}");
            continue;
        }
        problem.report("candle", dtype.as_str(), &mut |copy| {
            std::hint::black_box(a.matmul(&weights[copy]).expect("it went once"));
        });
    }
    Ok(())
}
