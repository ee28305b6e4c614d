//! The two products of attention, by tile: how operands are packed and multiplied.

use std::marker::PhantomData;

use half::bf16;
use sinew_memory::SimdLevel;

use super::TILE;
use super::accumulate::{Chains, Product};
use super::ahead::Ahead;
use super::pack::{self, TileRows};
use crate::cpu::line::Line;
use crate::simd::{LANES, Portable, Simd, Stored};

/// A way to pack tiles for an arithmetic, and to multiply them by it.
///
/// # Safety
/// Every function must run on a machine with the way's instructions, inside a function that enables them. Pointers are
/// those of [`super::plan::Scratch`], made for a plan of this way.
pub(super) unsafe trait Products: Chains {
    /// Packs a query of `n` elements, with zeros up to `depth`. `round` asks for bf16.
    unsafe fn pack_query(line: Line, n: usize, dst: *mut Self::E, depth: usize, round: bool);
    /// Packs a tile of keys; absent ones are zeros.
    unsafe fn pack_keys(rows: TileRows<'_>, dst: *mut Self::E, depth: usize);
    /// Packs a tile of values; absent ones are zeros. Returns whether all are finite.
    unsafe fn pack_values(rows: TileRows<'_>, dst: *mut Self::E, width: usize) -> bool;
    /// Packs sixteen weights. `round` asks for bf16.
    unsafe fn pack_weights(weights: <Self::S as Simd>::F, dst: *mut Self::E, round: bool);
    /// A step with zeros for the elements whose weight at `p` is 0.
    unsafe fn present(p: *const Self::E, step: Self::Step) -> Self::Step;
    /// Runs [`Product::run`], in line or not.
    unsafe fn multiply(product: &Product<'_, Self::E>);

    /// The dot products of some queries with the first `vectors · 16` keys of a tile, to `[rows, TILE]`.
    #[inline(always)]
    unsafe fn scores(
        shape: Shape<'_>,
        queries: *const Self::E,
        keys: *const Self::E,
        scores: *mut f32,
        vectors: usize,
    ) {
        let product = Product {
            rows: shape.rows,
            a: queries,
            lda: shape.depth,
            b: keys,
            ldb: TILE,
            steps: shape.head_dim.div_ceil(Self::PAIR),
            c: scores,
            ldc: TILE,
            vectors,
            scale: std::ptr::null(),
            ahead: shape.ahead,
        };
        // SAFETY: passed on.
        unsafe { Self::multiply(&product) }
    }

    /// `acc[r] = acc[r] · scale[r] + Σ_j weights[r, j] · values[j]` over the first `keys` keys.
    #[inline(always)]
    unsafe fn weigh(
        shape: Shape<'_>,
        weights: *const Self::E,
        values: *const Self::E,
        acc: *mut f32,
        scale: *const f32,
        keys: usize,
    ) {
        let product = Product {
            rows: shape.rows,
            a: weights,
            lda: TILE,
            b: values,
            ldb: shape.width,
            steps: keys / Self::PAIR,
            c: acc,
            ldc: shape.width,
            vectors: shape.width / LANES,
            scale,
            ahead: shape.ahead,
        };
        // SAFETY: passed on.
        unsafe { Self::multiply(&product) }
    }

    /// The same, leaving out keys whose weight is 0: for values that are not finite. The same bits as
    /// [`Products::weigh`] where they are, but for the sign of zeros.
    #[inline(always)]
    unsafe fn weigh_present(
        shape: Shape<'_>,
        weights: *const Self::E,
        values: *const Self::E,
        acc: *mut f32,
        scale: *const f32,
        keys: usize,
    ) {
        for r in 0..shape.rows {
            for at in (0..shape.width).step_by(LANES) {
                // SAFETY: passed on.
                unsafe {
                    let to = acc.add(r * shape.width + at);
                    let mut sum = Self::S::mul(Self::S::load(to), Self::S::splat(*scale.add(r)));
                    for step in 0..keys / Self::PAIR {
                        let weight = weights.add(r * TILE + Self::PAIR * step);
                        let value = Self::sixteen(values.add(Self::PAIR * (step * shape.width + at)));
                        sum = Self::multiply_add(Self::same(weight), Self::present(weight, value), sum);
                    }
                    Self::S::store(to, sum);
                }
            }
        }
    }
}

/// The products of some rows: their sizes, and what goes on beside them.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    /// The rows, at most [`Chains::ROWS`].
    pub rows: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a packed query.
    pub depth: usize,
    /// Elements of an accumulator.
    pub width: usize,
    /// What is asked for meanwhile.
    pub ahead: &'a Ahead<'a>,
}

/// Rows of a block: several of [`Chains::ROWS`], so that what is done between the products of a block is independent
/// work enough, and few enough for a lane each.
pub(super) const fn block_rows<P: Products>() -> usize {
    const { assert!(2 * P::ROWS <= LANES) };
    2 * P::ROWS
}

/// f32 operands and fused multiply-adds (or a product and a sum at the portable level).
#[derive(Clone, Copy, Debug)]
pub(super) struct Float<S>(PhantomData<S>);

// SAFETY: the trait's contract is passed on.
unsafe impl<S: Simd> Chains for Float<S> {
    type S = S;
    type E = f32;
    const PAIR: usize = 1;
    type Step = S::F;
    const ROWS: usize = if matches!(S::LEVEL, SimdLevel::Portable) { 2 } else { 6 };
    // AVX-512 has 32 registers of a vector, AVX2 16 of half a vector.
    const COLUMNS: usize = if matches!(S::LEVEL, SimdLevel::Portable | SimdLevel::Avx2) { 1 } else { 4 };

    #[inline(always)]
    unsafe fn same(p: *const f32) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::splat(*p) }
    }

    #[inline(always)]
    unsafe fn sixteen(p: *const f32) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: S::F, b: S::F, sums: S::F) -> S::F {
        // SAFETY: see the impl.
        unsafe { S::fma(a, b, sums) }
    }
}

// SAFETY: the trait's contract is passed on.
unsafe impl<S: Simd> Products for Float<S> {
    #[inline(always)]
    unsafe fn pack_query(line: Line, n: usize, dst: *mut f32, depth: usize, round: bool) {
        // SAFETY: see the impl.
        unsafe {
            line.widen::<S>(n, dst);
            dst.add(n).write_bytes(0, depth - n);
            for at in (0..if round { depth } else { 0 }).step_by(LANES) {
                S::store(dst.add(at), bf16::rounded::<S>(S::load(dst.add(at))));
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_keys(rows: TileRows<'_>, dst: *mut f32, depth: usize) {
        // SAFETY: see the impl.
        unsafe { pack::keys::<S>(rows, dst, depth) }
    }

    #[inline(always)]
    unsafe fn pack_values(rows: TileRows<'_>, dst: *mut f32, width: usize) -> bool {
        // SAFETY: see the impl.
        unsafe { pack::values::<S>(rows, dst, width) }
    }

    #[inline(always)]
    unsafe fn pack_weights(weights: S::F, dst: *mut f32, round: bool) {
        // SAFETY: see the impl.
        unsafe { S::store(dst, if round { bf16::rounded::<S>(weights) } else { weights }) }
    }

    #[inline(always)]
    unsafe fn present(p: *const f32, step: S::F) -> S::F {
        // SAFETY: see the impl.
        unsafe { if *p == 0.0 { S::splat(0.0) } else { step } }
    }

    #[inline(always)]
    unsafe fn multiply(product: &Product<'_, f32>) {
        // Out of line, so that the many blocks are compiled once for a level and not wherever they are called.
        // SAFETY: see the impl.
        unsafe {
            match S::LEVEL {
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => multiply_avx512(product),
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx2 => multiply_avx2(product),
                _ => multiply_portable(product),
            }
        }
    }
}

#[inline(never)]
unsafe fn multiply_portable(product: &Product<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.run::<Float<Portable>>() }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_avx2(product: &Product<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.run::<Float<crate::simd::Avx2>>() }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn multiply_avx512(product: &Product<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.run::<Float<crate::simd::Avx512>>() }
}
