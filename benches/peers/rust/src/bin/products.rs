//! Products by gemm, matrixmultiply and faer, as JSON lines: `products THREADS REPEATS M N K COPIES`.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use gemm::{Parallelism, f16};
use sinew_peers::Problem;

fn main() {
    let problem = Problem::from_arguments();
    let Problem { threads, m, n, k, .. } = problem;
    let (parallelism, par) = match threads {
        1 => (Parallelism::None, Par::Seq),
        n => (Parallelism::Rayon(n), Par::rayon(n)),
    };
    let wide = if cfg!(feature = "x86-v4") { " (x86-v4)" } else { "" };
    let (a, weights) = problem.values();
    let mut c = vec![0.0f32; m * n];
    let report = |library: &str, dtype: &str, run: &mut dyn FnMut(usize)| {
        problem.report(&format!("{library}{wide}"), dtype, run);
    };
    report("gemm", "f32", &mut |i| {
        let (a, w) = (a.as_ptr(), weights[i].as_ptr());
        // SAFETY: the three matrices are of these sizes, dense, and C is not aliased.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a,
                1,
                k as isize,
                w,
                k as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            )
        }
    });
    if cfg!(feature = "x86-v4") {
        return;
    }
    report("matrixmultiply", "f32", &mut |i| {
        let (a, w) = (a.as_ptr(), weights[i].as_ptr());
        // SAFETY: the same.
        unsafe {
            matrixmultiply::sgemm(m, k, n, 1.0, a, k as isize, 1, w, 1, k as isize, 0.0, c.as_mut_ptr(), n as isize, 1)
        }
    });
    report("faer", "f32", &mut |i| {
        let a = MatRef::from_row_major_slice(&a, m, k);
        let w = MatRef::from_row_major_slice(&weights[i], n, k);
        let c = MatMut::from_row_major_slice_mut(&mut c, m, n);
        matmul(c, Accum::Replace, a, w.transpose(), 1.0, par);
    });
    let a: Vec<f16> = a.iter().map(|&x| f16::from_f32(x)).collect();
    let weights: Vec<Vec<f16>> = weights.iter().map(|w| w.iter().map(|&x| f16::from_f32(x)).collect()).collect();
    let mut c = vec![f16::ZERO; m * n];
    report("gemm", "f16", &mut |i| {
        let (a, w) = (a.as_ptr(), weights[i].as_ptr());
        // SAFETY: the same.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a,
                1,
                k as isize,
                w,
                k as isize,
                1,
                f16::ZERO,
                f16::ONE,
                false,
                false,
                false,
                parallelism,
            )
        }
    });
}
