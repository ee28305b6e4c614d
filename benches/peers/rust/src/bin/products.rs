//! `C[m, n] = A[m, k] · W[n, k]ᵀ` by other crates, as JSON lines: `products THREADS REPEATS`.
//!
//! Small products rotate over several weights, so that these come from memory as they do in a model.

use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use gemm::{Parallelism, f16};

/// `[m, n, k]`, those of the other contenders.
const SHAPES: [[usize; 3]; 15] = [
    [512, 4864, 896],
    [512, 896, 4864],
    [512, 896, 896],
    [512, 151936, 896],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [1, 4864, 896],
    [1, 896, 4864],
    [1, 151936, 896],
    [1, 8192, 2048],
    [2, 4864, 896],
    [4, 4864, 896],
    [8, 4864, 896],
    [16, 4864, 896],
];
/// Up to so many rows weights are rotated, over so many bytes.
const FEW_ROWS: usize = 16;
const ROTATE: usize = 256 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse().expect("THREADS REPEATS"));
    let (threads, repeats): (usize, usize) = (arguments.next().unwrap_or(2), arguments.next().unwrap_or(3));
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().expect("one pool");
    let (parallelism, par) = match threads {
        1 => (Parallelism::None, Par::Seq),
        n => (Parallelism::Rayon(n), Par::rayon(n)),
    };
    let wide = if cfg!(feature = "x86-v4") { " (x86-v4)" } else { "" };
    for [m, n, k] in SHAPES {
        let copies = if m <= FEW_ROWS { (ROTATE / (n * k * 4)).max(1) } else { 1 };
        let value = |i: usize| (i * 7919 % 1000) as f32 / 1000.0 - 0.5;
        let a: Vec<f32> = (0..m * k).map(value).collect();
        let weights: Vec<Vec<f32>> = (0..copies).map(|c| (0..n * k).map(|i| value(i + c)).collect()).collect();
        let mut c = vec![0.0f32; m * n];
        let report = |library: &str, dtype: &str, run: &mut dyn FnMut(usize)| {
            let flops = 2.0 * (m * n * k) as f64;
            let inner = ((1e9 / flops) as usize).clamp(1, 64).max(copies.min(64));
            run(0);
            let mut turn = 0;
            for _ in 0..repeats {
                let start = Instant::now();
                for _ in 0..inner {
                    run(turn % copies);
                    turn += 1;
                }
                let seconds = start.elapsed().as_secs_f64() / inner as f64;
                let what = format!("{dtype} {m},{n},{k}");
                println!("{{\"library\":\"{library}{wide}\",\"what\":\"{what}\",\"value\":{seconds:e}}}");
            }
        };
        report("gemm", "f32", &mut |i| {
            let (a, w) = (a.as_ptr(), weights[i].as_ptr());
            // SAFETY: the three matrices are of these sizes, dense, and C is not aliased.
            unsafe {
                gemm::gemm(
                    m, n, k, c.as_mut_ptr(), 1, n as isize, false, a, 1, k as isize, w, k as isize, 1, 0.0, 1.0, false,
                    false, false, parallelism,
                )
            }
        });
        if cfg!(feature = "x86-v4") {
            continue;
        }
        report("matrixmultiply", "f32", &mut |i| {
            let (a, w) = (a.as_ptr(), weights[i].as_ptr());
            // SAFETY: the same.
            unsafe {
                matrixmultiply::sgemm(
                    m, k, n, 1.0, a, k as isize, 1, w, 1, k as isize, 0.0, c.as_mut_ptr(), n as isize, 1,
                )
            }
        });
        report("faer", "f32", &mut |i| {
            let a = MatRef::from_row_major_slice(&a, m, k);
            let w = MatRef::from_row_major_slice(&weights[i], n, k);
            let c = MatMut::from_row_major_slice_mut(&mut c, m, n);
            matmul(c, Accum::Replace, a, w.transpose(), 1.0, par);
        });
        let a: Vec<f16> = a.iter().map(|&x| f16::from_f32(x)).collect();
        let weights: Vec<Vec<f16>> =
            weights.iter().map(|w| w.iter().map(|&x| f16::from_f32(x)).collect()).collect();
        let mut c = vec![f16::ZERO; m * n];
        report("gemm", "f16", &mut |i| {
            let (a, w) = (a.as_ptr(), weights[i].as_ptr());
            // SAFETY: the same.
            unsafe {
                gemm::gemm(
                    m, n, k, c.as_mut_ptr(), 1, n as isize, false, a, 1, k as isize, w, k as isize, 1, f16::ZERO,
                    f16::ONE, false, false, false, parallelism,
                )
            }
        });
    }
}
