//! Attention on AVX512-BF16: both products by `vdpbf16ps`, over pairs of `head_dim` and over pairs of keys.

use std::arch::x86_64::*;

use half::bf16;
use sinew_memory::{DeviceKind, SimdLevel};
use sinew_tensor::DType;

use super::accumulate::Product;
use super::body::{Body, Way};
use super::cpu::{cost, workspace};
use super::pack::TileRows;
use super::products::Products;
use super::task::run_body;
use super::{Attention, AttentionDynamic, AttentionStatic, Compute, TILE};
use crate::cpu_row::needs;
use crate::line::Line;
use crate::simd::{Avx512, LANES, Simd};
use crate::{Arithmetic, Launch, Operands, Result, Row};

/// The row. `vdpbf16ps` counts subnormals as zeros.
pub(super) fn row() -> Row<Attention> {
    Row {
        name: "attention.cpu.avx512bf16",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic { name: "attention.tiles.dot-bf16", foreign: false, flushes_subnormals: true },
        admits: |fixed, hardware| {
            needs(SimdLevel::Avx512Bf16, hardware)?;
            if fixed.compute != Compute::Bf16 {
                return Err("computes in bf16 only".into());
            }
            if fixed.kv != DType::BF16 { Err(format!("keys are {}, not bf16", fixed.kv).into()) } else { Ok(()) }
        },
        cost: |fixed, call, hardware| cost(SimdLevel::Avx512Bf16, fixed, call, hardware),
        workspace: workspace::<Dot>,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    // SAFETY: the operands were checked, and the row is admitted only where the instructions are.
    unsafe {
        run_body::<Dot>(launch, fixed, call, operands, &|team, tasks, body| {
            team.run(tasks, |task, worker| task_bf16(body, task, worker));
        })
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn task_bf16(body: &Body<'_>, task: usize, worker: usize) {
    // SAFETY: passed on from the caller; the body was made for a plan of this way.
    unsafe { Way::<Dot>::of(body).run_task(task, worker) }
}

/// bf16 operands in pairs. Keys are packed as `[depth / 2, TILE]` pairs, values as `[TILE / 2, width]` pairs.
#[derive(Clone, Copy)]
struct Dot;

/// The first `n` of sixteen places.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1u32 << n) - 1) as __mmask16
}

/// The first `n` bf16 values of a line, at most 16, as they are; zeros behind them.
///
/// # Safety
/// Those of [`Products`]; the line has `n` values.
#[inline(always)]
unsafe fn sixteen(line: Line, n: usize) -> __m256i {
    // SAFETY: passed on.
    unsafe {
        if line.step == 1 {
            return _mm256_maskz_loadu_epi16(first(n), line.ptr().cast());
        }
        _mm256_loadu_si256(line.gather::<bf16>(n).as_ptr().cast())
    }
}

/// The first `n` bf16 values of a line, or 32 of them, as they are; zeros behind them.
///
/// # Safety
/// Those of [`Products`]; the line has `n` values.
#[inline(always)]
unsafe fn thirty_two(line: Line, n: usize) -> __m512 {
    // SAFETY: passed on.
    unsafe {
        let mut halves = [_mm256_setzero_si256(); 2];
        for (i, half) in halves.iter_mut().enumerate() {
            if i * LANES < n {
                *half = sixteen(line.skip(i * LANES), (n - i * LANES).min(LANES));
            }
        }
        _mm512_castsi512_ps(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]))
    }
}

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl Products for Dot {
    type S = Avx512;
    type E = u16;
    type Step = __m512bh;
    const PAIR: usize = 2;
    const ROWS: usize = 6;
    const COLUMNS: usize = 4;

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
    unsafe fn pack_keys(rows: TileRows<'_>, dst: *mut u16, depth: usize) {
        for key in (0..TILE).step_by(LANES) {
            let ptrs = &rows.ptrs[key..key + LANES];
            let whole = if rows.step == 1 && ptrs.iter().all(|p| !p.is_null()) { rows.n } else { 0 };
            for d in (0..depth).step_by(2 * LANES) {
                // SAFETY: see the impl; pairs are moved as f32 are.
                unsafe {
                    let mut block = [_mm512_setzero_ps(); LANES];
                    if d + 2 * LANES <= whole {
                        for (part, ptr) in block.iter_mut().zip(ptrs) {
                            *part = _mm512_loadu_ps(ptr.cast::<u16>().add(d).cast());
                        }
                    } else {
                        for (i, part) in block.iter_mut().enumerate() {
                            if let Some(line) = rows.get(key + i) {
                                *part = thirty_two(line.skip(d), rows.left(d));
                            }
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

    #[inline(always)]
    unsafe fn pack_values(rows: TileRows<'_>, dst: *mut u16, width: usize) -> bool {
        // SAFETY: see the impl.
        unsafe {
            let absolute = _mm512_set1_epi16(0x7fff);
            // Columns in order, of two rows of 32: the first sixteen, and the others.
            let low = _mm512_set_epi16(
                47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2,
                33, 1, 32, 0,
            );
            let high = _mm512_add_epi16(low, _mm512_set1_epi16(LANES as i16));
            let mut largest = _mm512_setzero_si512();
            for j in 0..TILE / 2 {
                let (even, odd) = (rows.get(2 * j), rows.get(2 * j + 1));
                let whole = if rows.step == 1 && even.is_some() && odd.is_some() { rows.n } else { 0 };
                for at in (0..width).step_by(2 * LANES) {
                    let two = if at + 2 * LANES <= whole {
                        [2 * j, 2 * j + 1].map(|row| _mm512_loadu_si512(rows.ptrs[row].cast::<u16>().add(at).cast()))
                    } else {
                        let mut two = [_mm512_setzero_si512(); 2];
                        for (values, row) in two.iter_mut().zip([even, odd]) {
                            if let Some(line) = row {
                                *values = _mm512_castps_si512(thirty_two(line.skip(at), rows.left(at)));
                            }
                        }
                        two
                    };
                    for row in two {
                        largest = _mm512_max_epu16(largest, _mm512_and_si512(row, absolute));
                    }
                    let to = dst.add(2 * (j * width + at));
                    _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(two[0], low, two[1]));
                    if at + LANES < width {
                        let to = to.add(2 * LANES).cast();
                        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(two[0], high, two[1]));
                    }
                }
            }
            // Infinities and NaNs are what has the largest exponent.
            _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0
        }
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
    unsafe fn multiply(product: &Product<u16>) {
        // SAFETY: see the impl.
        unsafe { product.run::<Self>() }
    }
}
