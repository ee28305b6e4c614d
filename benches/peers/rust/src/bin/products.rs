//! Products by gemm, matrixmultiply and faer, in products.py: `products THREADS M,N,K`.

use std::convert::Infallible;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use gemm::{Parallelism, f16};
use sinew_peers::contender::{Error, Product, serve};

/// C = A · Wᵀ by gemm, all of them dense.
fn by_gemm<T: 'static>(product: &Product, a: &[T], w: &[T], c: &mut [T], [zero, one]: [T; 2], how: Parallelism) {
    let Product { m, n, k } = *product;
    assert!(a.len() == m * k && w.len() == n * k && c.len() == m * n, "sizes of a product");
    let (k_stride, n_stride) = (k as isize, n as isize);
    // SAFETY: the three matrices are of these sizes, dense, and C is not aliased.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n_stride,
            false,
            a.as_ptr(),
            1,
            k_stride,
            w.as_ptr(),
            k_stride,
            1,
            zero,
            one,
            false,
            false,
            false,
            how,
        );
    }
}

fn main() -> Result<(), Error> {
    let (threads, product) = sinew_peers::product_from_arguments()?;
    let Product { m, n, k } = product;
    let (how, par) = match threads {
        1 => (Parallelism::None, Par::Seq),
        n => (Parallelism::Rayon(n), Par::rayon(n)),
    };
    let copies = product.copies(n * k * size_of::<f32>());
    let half_copies = product.copies(n * k * size_of::<f16>());
    let v4 = cfg!(feature = "x86-v4");
    let (a, weights) = sinew_peers::values(&product, copies);
    let mut c = vec![0.0f32; m * n];
    let halves = |values: &[f32]| values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<f16>>();
    let half_a = halves(&a);
    // The 512-bit kernels are of f32 alone.
    let half_weights: Vec<Vec<f16>> =
        (0..if v4 { 0 } else { half_copies }).map(|i| halves(&weights[i % copies])).collect();
    let mut half_c = vec![f16::ZERO; m * n];
    let items = match v4 {
        true => vec![product.item("gemm (x86-v4)", "f32")],
        false => [("gemm", "f32"), ("matrixmultiply", "f32"), ("faer", "f32"), ("gemm", "f16")]
            .map(|(library, dtype)| product.item(library, dtype))
            .to_vec(),
    };
    serve(&items, &mut |item| {
        let half = item.what.starts_with("f16");
        let Ok(seconds) = product.seconds::<Infallible>(if half { half_copies } else { copies }, &mut |i| {
            match item.library.as_str() {
                _ if half => by_gemm(&product, &half_a, &half_weights[i], &mut half_c, [f16::ZERO, f16::ONE], how),
                "matrixmultiply" => {
                    let (a, w, c) = (a.as_ptr(), weights[i].as_ptr(), c.as_mut_ptr());
                    // SAFETY: the three matrices are of these sizes, dense, and C is not aliased.
                    unsafe {
                        let (k_stride, n_stride) = (k as isize, n as isize);
                        matrixmultiply::sgemm(m, k, n, 1.0, a, k_stride, 1, w, 1, k_stride, 0.0, c, n_stride, 1)
                    }
                }
                "faer" => {
                    let a = MatRef::from_row_major_slice(&a, m, k);
                    let w = MatRef::from_row_major_slice(&weights[i], n, k);
                    let c = MatMut::from_row_major_slice_mut(&mut c, m, n);
                    matmul(c, Accum::Replace, a, w.transpose(), 1.0, par);
                }
                _ => by_gemm(&product, &a, &weights[i], &mut c, [0.0, 1.0], how),
            }
            Ok(())
        });
        Ok(seconds.into())
    })
}
