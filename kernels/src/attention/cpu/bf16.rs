//! Products of bf16 by `vdpbf16ps`: keys are packed as `[depth / 2, TILE]` pairs along `head_dim`, values as
//! `[TILE / 2, width]` pairs of keys.

use std::arch::x86_64::*;

use float8::F8E4M3;
use half::bf16;
use sinew_tensor::DType;

use super::plan::TileRows;
use super::products::{Products, TileProduct};
use crate::attention::TILE;
use crate::cpu::line::Line;
use crate::simd::{Avx512, LANES, Simd, Stored};

/// bf16 operands in pairs.
#[derive(Clone, Copy)]
pub(super) struct Dot;

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl Products for Dot {
    type S = Avx512;
    type E = u16;
    type Step = __m512bh;
    const PAIR: usize = 2;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn same(p: *const u16) -> __m512bh {
        // SAFETY: see the impl; both are 512 bits of plain data.
        unsafe { std::mem::transmute(_mm512_set1_epi32(p.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn sixteen(p: *const u16) -> __m512bh {
        // SAFETY: see the impl; both are 512 bits of plain data.
        unsafe { std::mem::transmute(_mm512_loadu_si512(p.cast())) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512bh, b: __m512bh, sums: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_dpbf16_ps(sums, a, b) }
    }

    #[inline(always)]
    unsafe fn pack_query(line: Line, n: usize, dst: *mut u16, depth: usize, _round: bool) {
        for at in (0..depth).step_by(LANES) {
            // SAFETY: so many elements from `at` on are of the row.
            unsafe {
                let part = line.skip(at).load::<Avx512>(n.saturating_sub(at).min(LANES));
                Avx512::store_bf16(dst.add(at), part);
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_keys(rows: &TileRows<'_>, dst: *mut u16, depth: usize) {
        // SAFETY: passed on.
        unsafe { pack_keys(rows, dst, depth) }
    }

    #[inline(always)]
    unsafe fn pack_values(rows: &TileRows<'_>, dst: *mut u16, width: usize) -> bool {
        // SAFETY: passed on.
        unsafe { pack_values(rows, dst, width) }
    }

    #[inline(always)]
    unsafe fn pack_weights(weights: __m512, dst: *mut u16, _round: bool) {
        // SAFETY: see the impl; both are 256 bits of plain data.
        unsafe {
            let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(weights));
            _mm256_storeu_si256(dst.cast(), rounded);
        }
    }

    #[inline(always)]
    unsafe fn present(p: *const u16, step: __m512bh) -> __m512bh {
        // All bits of a value whose weight is not 0.
        let present = |p: u16| if p & 0x7fff == 0 { 0 } else { 0xffff_u32 };
        // SAFETY: see the impl; both are 512 bits of plain data.
        unsafe {
            let mask = _mm512_set1_epi32((present(*p) | present(*p.add(1)) << 16) as i32);
            std::mem::transmute(_mm512_and_si512(std::mem::transmute::<__m512bh, __m512i>(step), mask))
        }
    }

    #[inline(always)]
    unsafe fn multiply(product: &TileProduct<'_, u16>) {
        // SAFETY: see the impl.
        unsafe { multiply(product) }
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn multiply(product: &TileProduct<'_, u16>) {
    // SAFETY: passed on from the caller.
    unsafe { product.six_rows_of_four::<Dot>() }
}

/// Elements that bf16 holds exactly.
///
/// # Safety
/// Functions must run on a machine with AVX-512 and its BF16, inside a function that enables them.
unsafe trait ExactInBf16: Stored {
    /// The 32 elements at `p` in bf16.
    unsafe fn thirty_two(p: *const Self) -> __m512i;

    /// The first `n` elements of a line, or 32 of them, in bf16; zeros behind them.
    #[inline(always)]
    unsafe fn part(line: Line, n: usize) -> __m512i {
        // Codes of a cache follow one another.
        debug_assert_eq!(line.step, 1);
        let mut elements = [Self::zeroed(); 2 * LANES];
        // SAFETY: passed on; the caller's line has so many elements, and the array holds 32.
        unsafe {
            std::ptr::copy_nonoverlapping(line.ptr().cast(), elements.as_mut_ptr(), n.min(2 * LANES));
            Self::thirty_two(elements.as_ptr())
        }
    }
}

/// The first `n` of sixteen places.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl ExactInBf16 for bf16 {
    #[inline(always)]
    unsafe fn thirty_two(p: *const Self) -> __m512i {
        // SAFETY: passed on.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn part(line: Line, n: usize) -> __m512i {
        // SAFETY: passed on; what is gathered is sixteen elements, as they are.
        unsafe {
            let mut halves = [_mm256_setzero_si256(); 2];
            for (i, half) in halves.iter_mut().enumerate() {
                if i * LANES < n {
                    let (line, n) = (line.skip(i * LANES), (n - i * LANES).min(LANES));
                    *half = match line.step {
                        1 => _mm256_maskz_loadu_epi16(first(n), line.ptr().cast()),
                        _ => _mm256_loadu_si256(line.as_they_are::<Self>(n).as_ptr().cast()),
                    };
                }
            }
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1])
        }
    }
}

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl ExactInBf16 for i8 {
    #[inline(always)]
    unsafe fn thirty_two(p: *const Self) -> __m512i {
        // SAFETY: passed on; both are 512 bits of plain data.
        unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(Avx512::load_i8(p.add(LANES)), Avx512::load_i8(p))) }
    }
}

/// The bf16 of each magnitude of [`F8E4M3`].
const MAGNITUDES: [u16; 128] = {
    let mut all = [0; 128];
    let mut code = 0;
    while code < 128 {
        let (exponent, mantissa) = (code as u16 >> 3, code as u16 & 7);
        all[code] = match (exponent, mantissa) {
            (15, 7) => 0x7fc0,
            (0, 0) => 0,
            // Below 2^-6 multiples of 2^-9: the highest bit of the mantissa says which power of 2 comes first.
            (0, _) => {
                let highest = mantissa.ilog2() as u16;
                (127 - 9 + highest) << 7 | (mantissa << (7 - highest)) & 0x7f
            }
            _ => (127 - 7 + exponent) << 7 | mantissa << 4,
        };
        code += 1;
    }
    all
};

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl ExactInBf16 for F8E4M3 {
    #[inline(always)]
    unsafe fn thirty_two(p: *const Self) -> __m512i {
        // SAFETY: passed on; the table is four vectors, of which six bits of an index name an element of two.
        unsafe {
            let table = |i: usize| _mm512_loadu_si512(MAGNITUDES.as_ptr().add(32 * i).cast());
            let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            let low = _mm512_permutex2var_epi16(table(0), codes, table(1));
            let high = _mm512_permutex2var_epi16(table(2), codes, table(3));
            let upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
            let sign = _mm512_slli_epi16::<8>(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)));
            _mm512_or_si512(_mm512_mask_mov_epi16(low, upper, high), sign)
        }
    }
}

/// Packs a tile of keys; absent rows and what is behind a row's end are zeros.
///
/// # Safety
/// The caller has AVX512-BF16; the rows are readable, and `dst` is writable for the tile.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_keys(rows: &TileRows<'_>, dst: *mut u16, depth: usize) {
    let mut key = 0;
    while key < TILE {
        let whole = rows.whole(key, LANES, 2 * LANES);
        let ptrs = rows.ptrs[key..].as_ptr();
        let mut d = 0;
        while d < depth {
            // SAFETY: passed on; pairs are moved as f32 are.
            unsafe {
                let mut block = [_mm512_setzero_ps(); LANES];
                if d < whole {
                    match rows.dtype {
                        DType::I8 => load_block::<i8>(ptrs, d, &mut block),
                        DType::F8E4M3 => load_block::<F8E4M3>(ptrs, d, &mut block),
                        _ => load_block::<bf16>(ptrs, d, &mut block),
                    }
                } else {
                    block = ragged_block(rows, key, d);
                }
                let columns = Avx512::transpose(block);
                let to = dst.add(d * TILE + 2 * key).cast::<f32>();
                let mut pair = 0;
                while pair < LANES {
                    Avx512::store(to.add(pair * TILE), columns[pair]);
                    pair += 1;
                }
            }
            d += 2 * LANES;
        }
        key += LANES;
    }
}

/// Loads elements `d..d + 32` of sixteen rows.
#[inline(always)]
unsafe fn load_block<T: ExactInBf16>(ptrs: *const *const u8, d: usize, block: &mut [__m512; LANES]) {
    let mut i = 0;
    while i < LANES {
        // SAFETY: passed on.
        block[i] = unsafe { _mm512_castsi512_ps(T::thirty_two((*ptrs.add(i)).cast::<T>().add(d))) };
        i += 1;
    }
}

/// Elements `at..at + 32` of sixteen rows; zeros where there are none.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn ragged_block(rows: &TileRows<'_>, first: usize, at: usize) -> [__m512; LANES] {
    let mut block = [_mm512_setzero_ps(); LANES];
    for (i, part) in block.iter_mut().enumerate() {
        if rows.get(first + i).is_some() {
            // SAFETY: passed on.
            *part = unsafe { _mm512_castsi512_ps(ragged(rows, first + i, at)) };
        }
    }
    block
}

/// Elements `at..at + 32` of a row; zeros where there are none.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn ragged(rows: &TileRows<'_>, row: usize, at: usize) -> __m512i {
    let Some(line) = rows.get(row) else { return _mm512_setzero_si512() };
    let (line, n) = (line.skip(at), rows.left(at));
    // SAFETY: passed on.
    unsafe {
        match rows.dtype {
            DType::I8 => i8::part(line, n),
            DType::F8E4M3 => F8E4M3::part(line, n),
            _ => bf16::part(line, n),
        }
    }
}

/// Packs a tile of values; absent rows and what is behind a row's end are zeros. Returns whether all are finite.
///
/// # Safety
/// The caller has AVX512-BF16; the rows are readable, and `dst` is writable for the tile.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn pack_values(rows: &TileRows<'_>, dst: *mut u16, width: usize) -> bool {
    let absolute = _mm512_set1_epi16(0x7fff);
    // Columns in order, of two rows of 32: the first sixteen, and the others.
    let low = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1,
        32, 0,
    );
    let high = _mm512_add_epi16(low, _mm512_set1_epi16(LANES as i16));
    let mut largest = _mm512_setzero_si512();
    let mut row = 0;
    while row < TILE {
        let whole = rows.whole(row, 2, 2 * LANES);
        let (first, second) = (rows.ptrs[row], rows.ptrs[row + 1]);
        let mut at = 0;
        while at < width {
            // SAFETY: passed on; the tile has these rows, and so many elements.
            unsafe {
                let [a, b] = match rows.dtype {
                    _ if first.is_null() && second.is_null() => [_mm512_setzero_si512(); 2],
                    _ if at >= whole => [ragged(rows, row, at), ragged(rows, row + 1, at)],
                    DType::I8 => load_two::<i8>(first, second, at),
                    DType::F8E4M3 => load_two::<F8E4M3>(first, second, at),
                    _ => load_two::<bf16>(first, second, at),
                };
                largest = _mm512_max_epu16(largest, _mm512_and_si512(a, absolute));
                largest = _mm512_max_epu16(largest, _mm512_and_si512(b, absolute));
                let to = dst.add(row * width + 2 * at);
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(a, low, b));
                if at + LANES < width {
                    _mm512_storeu_si512(to.add(2 * LANES).cast(), _mm512_permutex2var_epi16(a, high, b));
                }
            }
            at += 2 * LANES;
        }
        row += 2;
    }
    // Infinities and NaNs have the largest exponent.
    _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0
}

/// Loads elements `at..at + 32` of two rows.
#[inline(always)]
unsafe fn load_two<T: ExactInBf16>(first: *const u8, second: *const u8, at: usize) -> [__m512i; 2] {
    // SAFETY: passed on.
    unsafe { [T::thirty_two(first.cast::<T>().add(at)), T::thirty_two(second.cast::<T>().add(at))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_magnitudes_is_that_of_fp8() {
        for (code, &bits) in (0u8..).zip(&MAGNITUDES) {
            let (found, exact) = (bf16::from_bits(bits).to_f32(), F8E4M3::from_bits(code).to_f32());
            assert!(found == exact || (found.is_nan() && exact.is_nan()), "{code}: {found}, {exact}");
        }
    }
}
