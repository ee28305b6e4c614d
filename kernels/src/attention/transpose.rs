//! Sixteen rows of sixteen 4-byte values to sixteen columns, in registers.

use std::arch::x86_64::*;

/// `dst[j · to + i] = r[i][j]` for i and j below 16.
///
/// # Safety
/// The caller has AVX-512; `dst` is writable.
#[inline(always)]
pub(super) unsafe fn sixteen_avx512(r: [__m512; 16], dst: *mut f32, to: usize) {
    // SAFETY: passed on. Bits are moved, never computed with.
    unsafe {
        // Pairs of rows, then fours: each 128-bit quarter q of u[4g + c] holds column 4q + c of rows 4g to 4g + 3.
        let mut u = r;
        for g in 0..4 {
            let (a, b, c, d) = (r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]);
            let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            u[4 * g] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
            u[4 * g + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
            u[4 * g + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            u[4 * g + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        for c in 0..4 {
            let (a, b, e, f) = (u[c], u[4 + c], u[8 + c], u[12 + c]);
            let (ab_low, ab_high) =
                (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            let (ef_low, ef_high) =
                (_mm512_shuffle_f32x4::<0b10_00_10_00>(e, f), _mm512_shuffle_f32x4::<0b11_01_11_01>(e, f));
            let columns = [
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_low, ef_low),
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_high, ef_high),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_low, ef_low),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_high, ef_high),
            ];
            for (q, column) in columns.into_iter().enumerate() {
                _mm512_storeu_ps(dst.add((4 * q + c) * to), column);
            }
        }
    }
}

/// `dst[j · to + i] = src[i · from + j]` for i and j below 8.
///
/// # Safety
/// The caller has AVX2; both blocks are valid.
#[inline(always)]
pub(super) unsafe fn eight_avx2(src: *const f32, from: usize, dst: *mut f32, to: usize) {
    // SAFETY: passed on. Bits are moved, never computed with.
    unsafe {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, row) in r.iter_mut().enumerate() {
            *row = _mm256_loadu_ps(src.add(i * from));
        }
        let mut u = r;
        for g in 0..2 {
            let (a, b, c, d) = (r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]);
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            u[4 * g] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
            u[4 * g + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
            u[4 * g + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            u[4 * g + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        for c in 0..4 {
            _mm256_storeu_ps(dst.add(c * to), _mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]));
            _mm256_storeu_ps(dst.add((4 + c) * to), _mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]));
        }
    }
}
