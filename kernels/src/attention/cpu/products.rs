//! The two products of attention by tile: how operands are packed, and how blocks of them are multiplied.

use std::cell::Cell;
use std::marker::PhantomData;

use float8::F8E4M3;
use half::{bf16, f16};
use sinew_memory::SimdLevel;
use sinew_tensor::DType;

use super::plan::{Located, Packing, TileRows};
use crate::attention::TILE;
use crate::cpu::CACHE_LINE;
use crate::cpu::line::Line;
use crate::simd::{self, LANES, Part, Portable, Reach, Simd, Stored};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// An arithmetic: how it packs tiles, and a step of the chains of multiply-adds that a block of [`TileProduct`] keeps in
/// registers.
///
/// # Safety
/// Every function must run on a machine with the arithmetic's instructions, inside a function that enables them.
/// Pointers are those of [`super::plan::Scratch`], made for a plan with this arithmetic's packing.
pub(super) unsafe trait Products: Copy + Send + Sync + 'static {
    /// Lanes of the sums, and of everything that is not a product.
    type S: Simd;
    /// Elements of packed operands.
    type E: Copy;
    /// Elements of the contracted dimension that are multiplied at once.
    const PAIR: usize;
    /// A step of sixteen chains: lanes of what is multiplied at once.
    type Step: Copy;
    /// Rows that are multiplied at once, at most: their sums fill the registers, and leave room for operands.
    const ROWS: usize;
    /// How operands are packed. A block has several times [`Products::ROWS`], so that there is independent work between
    /// its products, and at most a lane for each row.
    const PACKING: Packing = {
        assert!(2 * Self::ROWS <= LANES);
        Packing { pair: Self::PAIR, element: size_of::<Self::E>(), block_rows: 2 * Self::ROWS }
    };

    /// One step of a chain in all lanes, from its elements at `p`.
    unsafe fn same(p: *const Self::E) -> Self::Step;
    /// One step of sixteen chains, from `p` on.
    unsafe fn sixteen(p: *const Self::E) -> Self::Step;
    /// The sums, and a step's products.
    unsafe fn multiply_add(a: Self::Step, b: Self::Step, sums: <Self::S as Simd>::F) -> <Self::S as Simd>::F;
    /// A step with zeros for the elements whose weight at `p` is 0.
    unsafe fn present(p: *const Self::E, step: Self::Step) -> Self::Step;

    /// Packs a query of `n` elements, with zeros up to `depth`. `round` asks for bf16.
    unsafe fn pack_query(line: Line, n: usize, dst: *mut Self::E, depth: usize, round: bool);
    /// Packs a tile of keys; absent ones are zeros.
    unsafe fn pack_keys(rows: &TileRows<'_>, dst: *mut Self::E, depth: usize);
    /// Packs a tile of values; absent ones are zeros. Returns whether all are finite.
    unsafe fn pack_values(rows: &TileRows<'_>, dst: *mut Self::E, width: usize) -> bool;
    /// Packs sixteen weights. `round` asks for bf16.
    unsafe fn pack_weights(weights: <Self::S as Simd>::F, dst: *mut Self::E, round: bool);
    /// Computes a product, out of line.
    unsafe fn multiply(product: &TileProduct<'_, Self::E>);
}

/// `c[r] = c[r] · scale[r] + Σ_k a[r, k] · b[k]` for some rows and vectors of columns, where `k` counts steps of
/// [`Products::PAIR`] elements.
#[derive(Clone, Copy)]
pub(super) struct TileProduct<'a, E> {
    /// Rows of a block.
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
    /// A factor for each row of `c`, with which the sums start; null to start from 0.
    pub scale: *const f32,
    /// The rows to prefetch meanwhile.
    pub ahead: &'a Ahead<'a>,
}

/// Returns how many of `left` rows are multiplied next, at most `most`. The last two parts are alike.
#[inline(always)]
fn next_rows(left: usize, most: usize) -> usize {
    match if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) } {
        // There is no block of five rows: three and two take as long.
        5 => 3,
        rows => rows,
    }
}

// Indices, and no iterators: this is compiled for each shape of a block.
impl<E: Copy> TileProduct<'_, E> {
    /// Computes it by blocks of up to two rows and one vector.
    ///
    /// # Safety
    /// The caller has the instructions of `P`; `a` and `b` are readable, and `c` is writable, in whole vectors.
    #[inline(always)]
    unsafe fn two_rows<P: Products<E = E>>(&self) {
        let mut row = 0;
        while row < self.rows {
            let rows = next_rows(self.rows - row, 2);
            let mut at = 0;
            while at < self.vectors {
                // SAFETY: passed on.
                unsafe { if rows == 1 { self.block::<P, 1, 1>(row, at) } else { self.block::<P, 2, 1>(row, at) } }
                at += 1;
            }
            row += rows;
        }
    }

    /// Computes it by blocks of up to six rows and one vector.
    ///
    /// # Safety
    /// The caller has the instructions of `P`; `a` and `b` are readable, and `c` is writable, in whole vectors.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn six_rows<P: Products<E = E>>(&self) {
        let mut row = 0;
        while row < self.rows {
            let rows = next_rows(self.rows - row, 6);
            let mut at = 0;
            while at < self.vectors {
                // SAFETY: passed on.
                unsafe { self.up_to_six::<P, 1>(row, rows, at) };
                at += 1;
            }
            row += rows;
        }
    }

    /// Computes it by blocks of up to six rows and four vectors.
    ///
    /// # Safety
    /// The caller has the instructions of `P`; `a` and `b` are readable, and `c` is writable, in whole vectors.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub unsafe fn six_rows_of_four<P: Products<E = E>>(&self) {
        let mut row = 0;
        while row < self.rows {
            let rows = next_rows(self.rows - row, 6);
            let mut at = 0;
            while at < self.vectors {
                // SAFETY: passed on.
                at += unsafe {
                    match self.vectors - at {
                        1 => {
                            self.up_to_six::<P, 1>(row, rows, at);
                            1
                        }
                        2 | 3 => {
                            self.up_to_six::<P, 2>(row, rows, at);
                            2
                        }
                        _ => {
                            self.up_to_six::<P, 4>(row, rows, at);
                            4
                        }
                    }
                };
            }
            row += rows;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn up_to_six<P: Products<E = E>, const C: usize>(&self, row: usize, rows: usize, at: usize) {
        // SAFETY: passed on.
        unsafe {
            match rows {
                1 => self.block::<P, 1, C>(row, at),
                2 => self.block::<P, 2, C>(row, at),
                3 => self.block::<P, 3, C>(row, at),
                4 => self.block::<P, 4, C>(row, at),
                _ => self.block::<P, 6, C>(row, at),
            }
        }
    }

    #[inline(always)]
    unsafe fn block<P: Products<E = E>, const R: usize, const C: usize>(&self, row: usize, at: usize) {
        // SAFETY: rows below `rows` and vectors below `vectors`, as the caller sees to.
        unsafe {
            // A call: before the sums fill the registers.
            let mut ahead = self.ahead.steps(self.steps);
            let c = self.c.add(row * self.ldc + at * LANES);
            let a = self.a.add(row * self.lda);
            let mut b = self.b.add(P::PAIR * at * LANES);
            let mut sums = [[P::S::splat(0.0); C]; R];
            if !self.scale.is_null() {
                let mut r = 0;
                while r < R {
                    let scale = P::S::splat(*self.scale.add(row + r));
                    let mut v = 0;
                    while v < C {
                        sums[r][v] = P::S::mul(P::S::load(c.add(r * self.ldc + v * LANES)), scale);
                        v += 1;
                    }
                    r += 1;
                }
            }
            let mut k = 0;
            while k < self.steps {
                ahead.ask();
                let mut columns = [P::sixteen(b); C];
                let mut v = 0;
                while v < C {
                    columns[v] = P::sixteen(b.add(P::PAIR * v * LANES));
                    v += 1;
                }
                let mut r = 0;
                while r < R {
                    let x = P::same(a.add(r * self.lda + P::PAIR * k));
                    let mut v = 0;
                    while v < C {
                        sums[r][v] = P::multiply_add(x, columns[v], sums[r][v]);
                        v += 1;
                    }
                    r += 1;
                }
                b = b.wrapping_add(P::PAIR * self.ldb);
                k += 1;
            }
            let mut r = 0;
            while r < R {
                let mut v = 0;
                while v < C {
                    P::S::store(c.add(r * self.ldc + v * LANES), sums[r][v]);
                    v += 1;
                }
                r += 1;
            }
        }
    }

    /// Computes it one row and one vector at a time, leaving out steps whose weight is 0: for values that are not
    /// finite. Gives the bits of [`Products::multiply`] where they are, but for the sign of zeros.
    ///
    /// # Safety
    /// As for [`Products::multiply`]; `scale` is not null.
    #[inline(always)]
    pub unsafe fn multiply_present<P: Products<E = E>>(&self) {
        for r in 0..self.rows {
            for at in 0..self.vectors {
                // SAFETY: passed on.
                unsafe {
                    let to = self.c.add(r * self.ldc + at * LANES);
                    let mut sum = P::S::mul(P::S::load(to), P::S::splat(*self.scale.add(r)));
                    for step in 0..self.steps {
                        let weight = self.a.add(r * self.lda + P::PAIR * step);
                        let value = P::sixteen(self.b.add(P::PAIR * (step * self.ldb + at * LANES)));
                        sum = P::multiply_add(P::same(weight), P::present(weight, value), sum);
                    }
                    P::S::store(to, sum);
                }
            }
        }
    }
}

/// f32 operands and fused multiply-adds (or a product and a sum at the portable level). Keys are packed as `[depth, TILE]`,
/// values as `[TILE, width]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Float<S>(PhantomData<S>);

// SAFETY: the trait's contract is passed on.
unsafe impl<S: Simd> Products for Float<S> {
    type S = S;
    type E = f32;
    const PAIR: usize = 1;
    type Step = S::F;
    const ROWS: usize = if matches!(S::LEVEL, SimdLevel::Portable) { 2 } else { 6 };

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

    #[inline(always)]
    unsafe fn present(p: *const f32, step: S::F) -> S::F {
        // SAFETY: see the impl.
        unsafe { if *p == 0.0 { S::splat(0.0) } else { step } }
    }

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
    unsafe fn pack_keys(rows: &TileRows<'_>, dst: *mut f32, depth: usize) {
        // SAFETY: see the impl.
        unsafe { S::part(PackKeys { rows, dst, depth }) }
    }

    #[inline(always)]
    unsafe fn pack_values(rows: &TileRows<'_>, dst: *mut f32, width: usize) -> bool {
        // SAFETY: see the impl.
        unsafe { S::part(PackValues { rows, dst, width }) }
    }

    #[inline(always)]
    unsafe fn pack_weights(weights: S::F, dst: *mut f32, round: bool) {
        // SAFETY: see the impl.
        unsafe { S::store(dst, if round { bf16::rounded::<S>(weights) } else { weights }) }
    }

    #[inline(always)]
    unsafe fn multiply(product: &TileProduct<'_, f32>) {
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
unsafe fn multiply_portable(product: &TileProduct<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.two_rows::<Float<Portable>>() }
}

/// AVX2 has 16 registers of half a vector.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_avx2(product: &TileProduct<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.six_rows::<Float<Avx2>>() }
}

/// AVX-512 has 32 registers of a vector.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn multiply_avx512(product: &TileProduct<'_, f32>) {
    // SAFETY: passed on from the caller.
    unsafe { product.six_rows_of_four::<Float<Avx512>>() }
}

/// Widens elements `at..at + 16` of sixteen rows; zeros where there are none.
///
/// The rows are readable and go on behind `at`, and `to` is writable for sixteen vectors.
struct WidenRagged<'a> {
    rows: &'a TileRows<'a>,
    first: usize,
    at: usize,
    to: *mut f32,
}

impl Part for WidenRagged<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, first, at, to } = self;
        for i in 0..LANES {
            // SAFETY: passed on; so many elements are of the row.
            unsafe {
                let to = to.add(i * LANES);
                match rows.get(first + i) {
                    Some(line) => S::store(to, line.skip(at).gather::<S>(None, rows.left(at).min(LANES))),
                    None => S::store(to, S::splat(0.0)),
                }
            }
        }
    }
}

/// Packs a tile of keys as `[depth, TILE]`; absent rows and what is behind a row's end are zeros.
///
/// The rows are readable, and `dst` is writable for the tile.
struct PackKeys<'a> {
    rows: &'a TileRows<'a>,
    dst: *mut f32,
    depth: usize,
}

impl Part for PackKeys<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, dst, depth } = self;
        let mut ragged = [0.0f32; LANES * LANES];
        let mut key = 0;
        while key < TILE {
            let whole = rows.whole(key, LANES, LANES);
            let ptrs = rows.ptrs[key..].as_ptr();
            let mut d = 0;
            while d < depth {
                // SAFETY: the block lies inside the tile, and parts of rows end with them.
                unsafe {
                    let mut block = [S::splat(0.0); LANES];
                    if d < whole {
                        match rows.dtype {
                            DType::F16 => load_block::<S, f16>(ptrs, d, &mut block),
                            DType::BF16 => load_block::<S, bf16>(ptrs, d, &mut block),
                            DType::I8 => load_block::<S, i8>(ptrs, d, &mut block),
                            DType::F8E4M3 => load_block::<S, F8E4M3>(ptrs, d, &mut block),
                            _ => load_block::<S, f32>(ptrs, d, &mut block),
                        }
                    } else {
                        S::part(WidenRagged { rows, first: key, at: d, to: ragged.as_mut_ptr() });
                        let mut i = 0;
                        while i < LANES {
                            block[i] = S::load(ragged.as_ptr().add(i * LANES));
                            i += 1;
                        }
                    }
                    store_turned::<S>(block, dst.add(d * TILE + key));
                }
                d += LANES;
            }
            key += LANES;
        }
    }
}

/// Stores sixteen rows of sixteen as columns, [`TILE`] apart. Where vectors are arrays in memory, turning them around there
/// first would only be a second copy.
#[inline(always)]
unsafe fn store_turned<S: Simd>(block: [S::F; LANES], to: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        if S::LEVEL == SimdLevel::Portable {
            let mut row = [0.0f32; LANES];
            for j in 0..LANES {
                S::store(row.as_mut_ptr(), block[j]);
                for i in 0..LANES {
                    *to.add(i * TILE + j) = row[i];
                }
            }
            return;
        }
        let columns = S::transpose(block);
        for i in 0..LANES {
            S::store(to.add(i * TILE), columns[i]);
        }
    }
}

/// Loads elements `d..d + 16` of sixteen rows.
#[inline(always)]
unsafe fn load_block<S: Simd, T: Stored>(ptrs: *const *const u8, d: usize, block: &mut [S::F; LANES]) {
    let mut i = 0;
    while i < LANES {
        // SAFETY: passed on.
        block[i] = unsafe { T::load::<S>((*ptrs.add(i)).cast::<T>().add(d)) };
        i += 1;
    }
}

/// Packs a tile of values as `[TILE, width]`; absent rows and what is behind a row's end are zeros. Returns whether
/// all are finite.
///
/// The rows are readable, and `dst` is writable for the tile.
struct PackValues<'a> {
    rows: &'a TileRows<'a>,
    dst: *mut f32,
    width: usize,
}

impl Part for PackValues<'_> {
    type Out = bool;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> bool {
        let Self { rows, dst, width } = self;
        let whole = if rows.step == 1 { rows.n / LANES * LANES } else { 0 };
        // SAFETY: rows and parts are inside the tile, and elements below `whole` follow one another in their row.
        unsafe {
            // A product with 0 is NaN for NaN and infinities, and 0 for all else. Four sums, so that rows do not wait for one
            // another.
            let mut probes = [S::splat(0.0); 4];
            let mut row = 0;
            while row < TILE {
                let to = dst.add(row * width);
                if let Some(line) = rows.get(row) {
                    let from = line.ptr();
                    let mut probe = match rows.dtype {
                        DType::F16 => widen_row::<S, f16>(from, whole, to, probes[0]),
                        DType::BF16 => widen_row::<S, bf16>(from, whole, to, probes[0]),
                        DType::I8 => widen_row::<S, i8>(from, whole, to, probes[0]),
                        DType::F8E4M3 => widen_row::<S, F8E4M3>(from, whole, to, probes[0]),
                        _ => widen_row::<S, f32>(from, whole, to, probes[0]),
                    };
                    if whole < rows.n {
                        line.skip(whole).widen::<S>(rows.left(whole), to.add(whole));
                        to.add(rows.n).write_bytes(0, width - rows.n);
                    }
                    let mut at = whole;
                    while at < width {
                        probe = S::fma(S::load(to.add(at)), S::splat(0.0), probe);
                        at += LANES;
                    }
                    probes = [probes[1], probes[2], probes[3], probe];
                } else {
                    to.write_bytes(0, width);
                }
                row += 1;
            }
            let [a, b, c, d] = probes;
            !S::reduce_add(S::add(S::add(a, b), S::add(c, d))).is_nan()
        }
    }
}

/// Widens `n` elements, a multiple of 16, and adds their products with 0 to `probe`.
#[inline(always)]
unsafe fn widen_row<S: Simd, T: Stored>(from: *const u8, n: usize, to: *mut f32, mut probe: S::F) -> S::F {
    let mut at = 0;
    while at < n {
        // SAFETY: passed on.
        unsafe {
            let v = T::load::<S>(from.cast::<T>().add(at));
            S::store(to.add(at), v);
            probe = S::fma(v, S::splat(0.0), probe);
        }
        at += LANES;
    }
    probe
}

/// Prefetches the next part of a tile: a few rows with each step of the products, since a core stalls once its line-fill
/// buffers are full.
pub(super) struct Ahead<'a> {
    rows: Cell<&'a [*const u8]>,
    of_a_step: usize,
    bytes: usize,
}

impl<'a> Ahead<'a> {
    /// Spreads the rows of the next part of a tile, if there is one, over `steps` steps at least.
    pub fn new(next: Option<&'a Located>, steps: usize) -> Self {
        let rows = next.map_or(&[][..], |at| at.rows.as_flattened());
        let bytes = next.map_or(0, |at| at.bytes);
        Self { rows: Cell::new(rows), of_a_step: rows.len().div_ceil(steps.max(1)), bytes }
    }

    /// Prefetches all of it.
    #[inline(never)]
    pub fn now(&self) {
        let mut rows = self.steps(self.rows.get().len());
        while !rows.done() {
            rows.ask();
        }
    }

    /// Takes the rows that fall to the next steps.
    #[inline(never)]
    pub fn steps(&self, steps: usize) -> Steps {
        let rows = self.rows.get();
        let (now, later) = rows.split_at(rows.len().min(steps * self.of_a_step));
        self.rows.set(later);
        let std::ops::Range { start, end } = now.as_ptr_range();
        Steps {
            next: start,
            end,
            of_a_step: self.of_a_step,
            second: CACHE_LINE.min(self.bytes.saturating_sub(1)),
            bytes: self.bytes,
        }
    }
}

/// The rows to prefetch in some steps of a product.
pub(super) struct Steps {
    next: *const *const u8,
    end: *const *const u8,
    of_a_step: usize,
    /// From a row's first line to its second, if it has two.
    second: usize,
    bytes: usize,
}

impl Steps {
    #[inline(always)]
    fn done(&self) -> bool {
        self.next >= self.end
    }

    /// Prefetches the rows of one step.
    #[inline(always)]
    pub fn ask(&mut self) {
        let mut left = self.of_a_step;
        while left > 0 && !self.done() {
            left -= 1;
            // SAFETY: `next` is one of a slice of rows that outlives this.
            let row = unsafe { *self.next };
            simd::prefetch(row, Reach::Near);
            simd::prefetch(row.wrapping_add(self.second), Reach::Near);
            let mut line = 2 * CACHE_LINE;
            while line < self.bytes {
                simd::prefetch(row.wrapping_add(line), Reach::Near);
                line += CACHE_LINE;
            }
            self.next = self.next.wrapping_add(1);
        }
    }
}
