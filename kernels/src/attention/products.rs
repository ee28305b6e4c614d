//! The two products of attention, by tile: how operands are packed and multiplied.

use std::marker::PhantomData;

use half::bf16;

use super::TILE;
use super::accumulate::{Product, rows};
use super::pack::{self, TileRows};
use crate::line::Line;
use crate::simd::{LANES, Simd, Stored};

/// A way to pack and multiply tiles.
///
/// # Safety
/// Every function must run on a machine with the way's instructions, inside a function that enables them. Pointers are
/// those of [`super::plan::Scratch`], made for a plan of this way.
pub(super) unsafe trait Products: Copy + Send + Sync + 'static {
    /// Lanes of everything that is not a product.
    type S: Simd;
    /// Elements of packed operands.
    type E: Copy;
    /// Elements of the contracted dimension that are multiplied at once.
    const PAIR: usize;
    /// Query rows that are multiplied at once, at most.
    const ROWS: usize;

    /// Packs a query of `n` elements, with zeros up to `depth`. `round` asks for bf16.
    unsafe fn pack_query(line: Line, n: usize, dst: *mut Self::E, depth: usize, round: bool);
    /// Packs a tile of keys; absent ones are zeros.
    unsafe fn pack_keys(rows: TileRows<'_>, dst: *mut Self::E, depth: usize);
    /// Packs a tile of values; absent ones are zeros. Returns whether all are finite.
    unsafe fn pack_values(rows: TileRows<'_>, dst: *mut Self::E, width: usize) -> bool;
    /// Packs sixteen weights. `round` asks for bf16.
    unsafe fn pack_weights(weights: <Self::S as Simd>::F, dst: *mut Self::E, round: bool);
    /// The dot products of `rows` queries with the first `vectors · 16` keys of a tile, to `[rows, TILE]`.
    unsafe fn scores(shape: Shape, queries: *const Self::E, keys: *const Self::E, scores: *mut f32, vectors: usize);
    /// `acc[r] = acc[r] · scale[r] + Σ_j weights[r, j] · values[j]` over the first `keys` keys.
    unsafe fn weigh(
        shape: Shape,
        weights: *const Self::E,
        values: *const Self::E,
        acc: *mut f32,
        scale: *const f32,
        keys: usize,
    );
    /// The same, leaving out keys whose weight is 0: for values that are not finite. The same bits as
    /// [`Products::weigh`] where they are, but for the sign of zeros.
    unsafe fn weigh_present(
        shape: Shape,
        weights: *const Self::E,
        values: *const Self::E,
        acc: *mut f32,
        scale: *const f32,
        keys: usize,
    );
}

/// Sizes of the products of some rows.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// The rows, at most [`Products::ROWS`].
    pub rows: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a packed query.
    pub depth: usize,
    /// Elements of an accumulator.
    pub width: usize,
}

/// f32 operands and fused multiply-adds (or a product and a sum at the portable level).
#[derive(Clone, Copy, Debug)]
pub(super) struct Float<S>(PhantomData<S>);

// SAFETY: the trait's contract is passed on.
unsafe impl<S: Simd> Products for Float<S> {
    type S = S;
    type E = f32;
    const PAIR: usize = 1;
    const ROWS: usize = rows(S::LEVEL);

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
    unsafe fn scores(shape: Shape, queries: *const f32, keys: *const f32, scores: *mut f32, vectors: usize) {
        let product = Product {
            rows: shape.rows,
            a: queries,
            lda: shape.depth,
            b: keys,
            ldb: TILE,
            depth: shape.head_dim,
            c: scores,
            ldc: TILE,
            vectors,
            scale: std::ptr::null(),
        };
        // SAFETY: see the impl.
        unsafe { product.run::<S>() }
    }

    #[inline(always)]
    unsafe fn weigh(
        shape: Shape,
        weights: *const f32,
        values: *const f32,
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
            depth: keys,
            c: acc,
            ldc: shape.width,
            vectors: shape.width / LANES,
            scale,
        };
        // SAFETY: see the impl.
        unsafe { product.run::<S>() }
    }

    #[inline(always)]
    unsafe fn weigh_present(
        shape: Shape,
        weights: *const f32,
        values: *const f32,
        acc: *mut f32,
        scale: *const f32,
        keys: usize,
    ) {
        for r in 0..shape.rows {
            for at in (0..shape.width).step_by(LANES) {
                // SAFETY: see the impl.
                unsafe {
                    let to = acc.add(r * shape.width + at);
                    let mut sum = S::mul(S::load(to), S::splat(*scale.add(r)));
                    for j in 0..keys {
                        let weight = *weights.add(r * TILE + j);
                        if weight != 0.0 {
                            sum = S::fma(S::splat(weight), S::load(values.add(j * shape.width + at)), sum);
                        }
                    }
                    S::store(to, sum);
                }
            }
        }
    }
}
