//! The product of both steps: a block of rows by vectors of columns, one chain of multiply-adds per element.

use super::ahead::Ahead;
use super::products::Products;
use crate::simd::{LANES, Simd};

/// `c[r] = start[r] + Σ_k a[r, k] · b[k]` for some rows and vectors of columns, where `k` counts steps of
/// [`Products::PAIR`] elements.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, E> {
    /// Rows, at most [`Products::ROWS`].
    pub rows: usize,
    /// `[rows, lda]` elements.
    pub a: *const E,
    pub lda: usize,
    /// `[steps, ldb]` steps.
    pub b: *const E,
    pub ldb: usize,
    pub steps: usize,
    /// `[rows, ldc]`.
    pub c: *mut f32,
    pub ldc: usize,
    pub vectors: usize,
    /// What `c` is multiplied by to start the chain, for each row; null to start from 0.
    pub scale: *const f32,
    /// What is asked for meanwhile.
    pub ahead: &'a Ahead<'a>,
}

impl<E: Copy> Product<'_, E> {
    /// Computes it.
    ///
    /// # Safety
    /// Those of [`Products`]; `a` is readable, `b` readable and `c` readable and writable in whole vectors.
    #[inline(always)]
    pub unsafe fn run<P: Products<E = E>>(&self) {
        debug_assert!((1..=P::ROWS).contains(&self.rows));
        let mut at = 0;
        while at < self.vectors {
            let n = (self.vectors - at).min(P::COLUMNS);
            // SAFETY: passed on; `at + n <= vectors`.
            unsafe {
                match n {
                    1 => self.columns::<P, 1>(at),
                    _ if P::COLUMNS == 1 => unreachable!("more vectors of columns than one at a time"),
                    2 => self.columns::<P, 2>(at),
                    3 => self.columns::<P, 3>(at),
                    _ => self.columns::<P, 4>(at),
                }
            }
            at += n;
        }
    }

    #[inline(always)]
    unsafe fn columns<P: Products<E = E>, const C: usize>(&self, at: usize) {
        // SAFETY: passed on.
        unsafe {
            match self.rows {
                1 => self.block::<P, 1, C>(at),
                2 => self.block::<P, 2, C>(at),
                _ if P::ROWS == 2 => unreachable!("more rows than two at a time"),
                3 => self.block::<P, 3, C>(at),
                4 => self.block::<P, 4, C>(at),
                5 => self.block::<P, 5, C>(at),
                _ => self.block::<P, 6, C>(at),
            }
        }
    }

    #[inline(always)]
    unsafe fn block<P: Products<E = E>, const R: usize, const C: usize>(&self, at: usize) {
        // SAFETY: rows below `rows` and vectors below `vectors`, as the caller sees to.
        unsafe {
            let c = self.c.add(at * LANES);
            let mut sums = [[P::S::splat(0.0); C]; R];
            if !self.scale.is_null() {
                for (r, row) in sums.iter_mut().enumerate() {
                    let scale = P::S::splat(*self.scale.add(r));
                    for (v, sum) in row.iter_mut().enumerate() {
                        *sum = P::S::mul(P::S::load(c.add(r * self.ldc + v * LANES)), scale);
                    }
                }
            }
            let mut b = self.b.add(P::PAIR * at * LANES);
            let mut ahead = self.ahead.steps(self.steps);
            for k in 0..self.steps {
                ahead.ask();
                let mut columns = [P::sixteen(b); C];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = P::sixteen(b.add(P::PAIR * v * LANES));
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    let x = P::same(self.a.add(r * self.lda + P::PAIR * k));
                    for (sum, column) in row.iter_mut().zip(columns) {
                        *sum = P::multiply_add(x, column, *sum);
                    }
                }
                b = b.wrapping_add(P::PAIR * self.ldb);
            }
            for (r, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    P::S::store(c.add(r * self.ldc + v * LANES), *sum);
                }
            }
        }
    }
}
