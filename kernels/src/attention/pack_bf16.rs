//! Tiles of keys and values as pairs of bf16, for `vdpbf16ps`: keys as `[depth / 2, TILE]` pairs along `head_dim`, values as
//! `[TILE / 2, width]` pairs of keys.

use std::arch::x86_64::*;

use float8::F8E4M3;
use half::bf16;

use super::TILE;
use super::pack::TileRows;
use crate::cpu::line::Line;
use crate::simd::{Avx512, LANES, Simd, Stored};

/// Elements that bf16 holds exactly.
///
/// # Safety
/// Functions must run on a machine with AVX-512 and its BF16, inside a function that enables them.
pub(super) unsafe trait ExactInBf16: Stored {
    /// Whether every element is finite.
    const FINITE: bool;

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
    const FINITE: bool = false;

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
    const FINITE: bool = true;

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
    const FINITE: bool = false;

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

/// Packs a tile of keys of `T`.
///
/// # Safety
/// Those of [`super::products::Products`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn keys<T: ExactInBf16>(rows: TileRows<'_>, dst: *mut u16, depth: usize) {
    for key in (0..TILE).step_by(LANES) {
        let ptrs = &rows.ptrs[key..key + LANES];
        let whole = rows.whole(ptrs, 2 * LANES);
        for d in (0..depth).step_by(2 * LANES) {
            // SAFETY: passed on; pairs are moved as f32 are.
            unsafe {
                let mut block = [_mm512_setzero_ps(); LANES];
                if d < whole {
                    for (part, ptr) in block.iter_mut().zip(ptrs) {
                        *part = _mm512_castsi512_ps(T::thirty_two(ptr.cast::<T>().add(d)));
                    }
                } else {
                    for (i, part) in block.iter_mut().enumerate() {
                        *part = _mm512_castsi512_ps(ragged::<T>(&rows, key + i, d));
                    }
                }
                let to = dst.add(d * TILE + 2 * key).cast::<f32>();
                for (pair, column) in Avx512::transpose(block).into_iter().enumerate() {
                    Avx512::store(to.add(pair * TILE), column);
                }
            }
        }
    }
}

/// Elements `at..at + 32` of a row; zeros where there are none.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn ragged<T: ExactInBf16>(rows: &TileRows<'_>, row: usize, at: usize) -> __m512i {
    // SAFETY: passed on.
    rows.get(row).map_or(_mm512_setzero_si512(), |line| unsafe { T::part(line.skip(at), rows.left(at)) })
}

/// Packs a tile of values of `T`. Returns whether all are finite.
///
/// # Safety
/// Those of [`super::products::Products`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn values<T: ExactInBf16>(rows: TileRows<'_>, dst: *mut u16, width: usize) -> bool {
    let absolute = _mm512_set1_epi16(0x7fff);
    // Columns in order, of two rows of 32: the first sixteen, and the others.
    let low = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1,
        32, 0,
    );
    let high = _mm512_add_epi16(low, _mm512_set1_epi16(LANES as i16));
    let mut largest = _mm512_setzero_si512();
    for (j, ptrs) in rows.ptrs.chunks_exact(2).enumerate() {
        let whole = rows.whole(ptrs, 2 * LANES);
        for at in (0..width).step_by(2 * LANES) {
            // SAFETY: passed on; the tile has these rows, and so many elements.
            unsafe {
                let two = match at < whole {
                    true => [0, 1].map(|i: usize| T::thirty_two(ptrs[i].cast::<T>().add(at))),
                    false => [0, 1].map(|i| ragged::<T>(&rows, 2 * j + i, at)),
                };
                if !T::FINITE {
                    for row in two {
                        largest = _mm512_max_epu16(largest, _mm512_and_si512(row, absolute));
                    }
                }
                let to = dst.add(2 * (j * width + at));
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(two[0], low, two[1]));
                if at + LANES < width {
                    let to = to.add(2 * LANES).cast();
                    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(two[0], high, two[1]));
                }
            }
        }
    }
    // Infinities and NaNs are what has the largest exponent.
    T::FINITE || _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0
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
