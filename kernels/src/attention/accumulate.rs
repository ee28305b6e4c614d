//! The product of both steps in f32: a block of rows by vectors of columns, one chain of multiply-adds per element.

use crate::simd::{LANES, Portable, Simd};
use sinew_memory::SimdLevel;

/// Rows that fill the registers of a level with [`columns`] vectors each, and leave room for operands.
pub(super) const fn rows(level: SimdLevel) -> usize {
    match level {
        SimdLevel::Portable => 2,
        _ => 6,
    }
}

/// Vectors of sixteen columns per block: AVX-512 has 32 registers of a vector, AVX2 16 of half a vector.
const fn columns(level: SimdLevel) -> usize {
    match level {
        SimdLevel::Portable | SimdLevel::Avx2 => 1,
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 4,
    }
}

/// `c[r] = start[r] + Σ_k a[r, k] · b[k]` for `rows` rows and `vectors` vectors of columns.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// Rows, at most [`rows`] of the level.
    pub rows: usize,
    /// `[rows, lda]`.
    pub a: *const f32,
    pub lda: usize,
    /// `[depth, ldb]`.
    pub b: *const f32,
    pub ldb: usize,
    pub depth: usize,
    /// `[rows, ldc]`.
    pub c: *mut f32,
    pub ldc: usize,
    pub vectors: usize,
    /// What `c` is multiplied by to start the chain, for each row; null to start from 0.
    pub scale: *const f32,
}

impl Product {
    /// Computes it.
    ///
    /// # Safety
    /// Those of [`Simd`]; `a` is readable, `b` readable and `c` readable and writable in whole vectors.
    #[inline(always)]
    pub unsafe fn run<S: Simd>(&self) {
        // Out of line, so that the many blocks are compiled once for a level and not wherever it is called.
        // SAFETY: passed on.
        unsafe {
            match S::LEVEL {
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => run_avx512(self),
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx2 => run_avx2(self),
                _ => run_portable(self),
            }
        }
    }

    #[inline(always)]
    unsafe fn run_at<S: Simd>(&self) {
        debug_assert!((1..=rows(S::LEVEL)).contains(&self.rows));
        let mut at = 0;
        while at < self.vectors {
            let left = self.vectors - at;
            // SAFETY: passed on; `at + C <= vectors`.
            unsafe {
                if columns(S::LEVEL) == 1 || left == 1 {
                    self.columns::<S, 1>(at);
                    at += 1;
                } else if left == 2 {
                    self.columns::<S, 2>(at);
                    at += 2;
                } else if left == 3 {
                    self.columns::<S, 3>(at);
                    at += 3;
                } else {
                    self.columns::<S, 4>(at);
                    at += 4;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn columns<S: Simd, const C: usize>(&self, at: usize) {
        // SAFETY: passed on.
        unsafe {
            match self.rows {
                1 => self.block::<S, 1, C>(at),
                2 => self.block::<S, 2, C>(at),
                _ if rows(S::LEVEL) == 2 => debug_assert!(false),
                3 => self.block::<S, 3, C>(at),
                4 => self.block::<S, 4, C>(at),
                5 => self.block::<S, 5, C>(at),
                _ => self.block::<S, 6, C>(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const C: usize>(&self, at: usize) {
        // SAFETY: rows below `rows` and vectors below `vectors`, as the caller sees to.
        unsafe {
            let c = self.c.add(at * LANES);
            let mut acc = [[S::splat(0.0); C]; R];
            if !self.scale.is_null() {
                for (r, row) in acc.iter_mut().enumerate() {
                    let scale = S::splat(*self.scale.add(r));
                    for (v, x) in row.iter_mut().enumerate() {
                        *x = S::mul(S::load(c.add(r * self.ldc + v * LANES)), scale);
                    }
                }
            }
            let mut b = self.b.add(at * LANES);
            for k in 0..self.depth {
                let mut columns = [S::splat(0.0); C];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = S::load(b.add(v * LANES));
                }
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = S::splat(*self.a.add(r * self.lda + k));
                    for (x_acc, column) in row.iter_mut().zip(columns) {
                        *x_acc = S::fma(x, column, *x_acc);
                    }
                }
                b = b.wrapping_add(self.ldb);
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, x) in row.iter().enumerate() {
                    S::store(c.add(r * self.ldc + v * LANES), *x);
                }
            }
        }
    }
}

#[inline(never)]
unsafe fn run_portable(product: &Product) {
    // SAFETY: passed on from the caller.
    unsafe { product.run_at::<Portable>() }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2(product: &Product) {
    // SAFETY: passed on from the caller.
    unsafe { product.run_at::<crate::simd::Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn run_avx512(product: &Product) {
    // SAFETY: passed on from the caller.
    unsafe { product.run_at::<crate::simd::Avx512>() }
}
