//! Attention on AVX512-BF16: both products by `vdpbf16ps`, over pairs of `head_dim` and over pairs of keys.

use std::arch::x86_64::*;

use float8::F8E4M3;
use half::bf16;
use sinew_memory::{DeviceKind, SimdLevel};
use sinew_tensor::DType;

use super::accumulate::{Chains, Product};
use super::body::{Body, Way};
use super::cpu::{cost, workspace};
use super::pack::TileRows;
use super::pack_bf16;
use super::products::Products;
use super::task::run_body;
use super::{Attention, AttentionDynamic, AttentionStatic, Compute};
use crate::cpu::leveled::needs;
use crate::cpu::line::Line;
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
            if fixed.kv == DType::BF16 || fixed.has_scales() {
                return Ok(());
            }
            Err(format!("keys are {}, not bf16, int8 or fp8", fixed.kv).into())
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

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl Chains for Dot {
    type S = Avx512;
    type E = u16;
    type Step = __m512bh;
    const PAIR: usize = 2;
    const ROWS: usize = 6;
    const COLUMNS: usize = 4;

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
}

// SAFETY: the trait's contract is passed on to each intrinsic.
unsafe impl Products for Dot {
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
        // SAFETY: passed on.
        unsafe {
            match rows.dtype {
                DType::I8 => pack_bf16::keys::<i8>(rows, dst, depth),
                DType::F8E4M3 => pack_bf16::keys::<F8E4M3>(rows, dst, depth),
                _ => pack_bf16::keys::<bf16>(rows, dst, depth),
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_values(rows: TileRows<'_>, dst: *mut u16, width: usize) -> bool {
        // SAFETY: passed on.
        unsafe {
            match rows.dtype {
                DType::I8 => pack_bf16::values::<i8>(rows, dst, width),
                DType::F8E4M3 => pack_bf16::values::<F8E4M3>(rows, dst, width),
                _ => pack_bf16::values::<bf16>(rows, dst, width),
            }
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
    unsafe fn multiply(product: &Product<'_, u16>) {
        // SAFETY: see the impl.
        unsafe { product.run::<Self>() }
    }
}
