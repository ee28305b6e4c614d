//! The product of both steps: a block of rows by vectors of columns, one chain of multiply-adds per element.

use super::ahead::Ahead;
use crate::simd::{LANES, Simd};

/// An arithmetic of chains of multiply-adds: what a block of [`Product`] keeps in registers, and a step of it.
///
/// # Safety
/// Every function must run on a machine with the arithmetic's instructions, inside a function that enables them.
pub(super) unsafe trait Chains: Copy + Send + Sync + 'static {
    /// Lanes of the sums, and of everything that is not a product.
    type S: Simd;
    /// Elements of packed operands.
    type E: Copy;
    /// Elements of the contracted dimension that are multiplied at once.
    const PAIR: usize;
    /// A step of sixteen chains: lanes of what is multiplied at once.
    type Step: Copy;
    /// Rows that are multiplied at once, at most, with [`Chains::COLUMNS`] vectors each: their sums fill the registers,
    /// and leave room for operands.
    const ROWS: usize;
    /// Vectors of sixteen columns that are multiplied at once, at most.
    const COLUMNS: usize;

    /// One step of a chain in all lanes, from its elements at `p`.
    unsafe fn same(p: *const Self::E) -> Self::Step;
    /// One step of sixteen chains, from `p` on.
    unsafe fn sixteen(p: *const Self::E) -> Self::Step;
    /// The sums, and a step's products.
    unsafe fn multiply_add(a: Self::Step, b: Self::Step, sums: <Self::S as Simd>::F) -> <Self::S as Simd>::F;
}

/// `c[r] = start[r] + Σ_k a[r, k] · b[k]` for some rows and vectors of columns, where `k` counts steps of
/// [`Chains::PAIR`] elements.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, E> {
    /// Rows, at most [`Chains::ROWS`].
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
    /// Those of [`Chains`]; `a` is readable, `b` readable and `c` readable and writable in whole vectors.
    #[inline(always)]
    pub unsafe fn run<P: Chains<E = E>>(&self) {
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
    unsafe fn columns<P: Chains<E = E>, const C: usize>(&self, at: usize) {
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
    unsafe fn block<P: Chains<E = E>, const R: usize, const C: usize>(&self, at: usize) {
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
