//! The `gemm` crate as a row. Its bits depend on the shape, so it is chosen only where that is allowed.

use sinew_memory::DeviceKind;
use sinew_tensor::{DType, View};

use super::{A, B, Compute, D, Gemm, GemmDynamic, GemmStatic, Residual, Rhs, cpu, takes_no_norm};
use crate::{Arithmetic, Launch, Operands, Operator, Refusal, Result, Row};

const FOREIGN: Arithmetic = Arithmetic { name: "gemm.foreign", foreign: true, flushes_subnormals: false };

pub(super) const ROW: Row<Gemm> = Row {
    name: "gemm.cpu.gemm-crate",
    device: DeviceKind::CPU,
    arithmetic: FOREIGN,
    admits: |fixed, _| admit(fixed),
    cost: |fixed, call, hardware| cpu::cost(fixed, call, hardware, hardware.rates.f32_flops_per_s * 0.5),
    workspace: |_, _, _| 0,
    run,
};

/// The crate adds up blocks of K in the result's own type: beyond this an f16 result would be rounded more than once.
const F16_BLOCK: usize = 256;

fn admit(fixed: &GemmStatic) -> Result<(), Refusal> {
    takes_no_norm(fixed)?;
    let epilogue = &fixed.epilogue;
    let Rhs::Strided(b) = fixed.b else { return Err("does not read packed weights".into()) };
    if fixed.compute != Compute::F32 || fixed.a != b || b != fixed.out || !matches!(b, DType::F32 | DType::F16) {
        return Err("multiplies f32 with f32 into f32, or f16 with f16 into f16".into());
    }
    if epilogue.bias.is_some() || epilogue.activation.is_some() || epilogue.gated {
        return Err("has no bias, activation or gate".into());
    }
    if matches!(epilogue.residual, Some(Residual::Input(_))) {
        return Err("reads no residual but the output".into());
    }
    if fixed.k == 0 {
        return Err("needs K of 1 or more".into());
    }
    if fixed.out == DType::F16 && (fixed.k > F16_BLOCK || epilogue.alpha != 1.0 || epilogue.residual.is_some()) {
        return Err(format!("would round f16 twice (K above {F16_BLOCK}, alpha, or a residual)").into());
    }
    Ok(())
}

unsafe fn run(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let a = operands.input(Gemm::NAME, A, "A")?;
    let b = operands.input(Gemm::NAME, B, "B")?;
    let d = operands.output(Gemm::NAME, D, "D")?.view();
    let (alpha, beta) = (fixed.epilogue.alpha, fixed.epilogue.beta);
    // SAFETY: `check` vouches for shapes and types, and `admit` for one type of all three.
    unsafe {
        if fixed.out == DType::F16 {
            let (alpha, beta) = (half::f16::from_f32(alpha), half::f16::from_f32(beta));
            products(launch, fixed, call, [a, b, d], alpha, beta)
        } else {
            products(launch, fixed, call, [a, b, d], alpha, beta)
        }
    }
}

/// `D = beta·D + alpha·A·B` for each of the batch.
///
/// # Safety
/// The views are `[batch, M, K]`, `[batch, K, N]` and `[batch, M, N]` of `T`.
unsafe fn products<T: Copy + Send + Sync + 'static>(
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    [a, b, d]: [&View<'_>; 3],
    alpha: T,
    beta: T,
) -> Result<()> {
    // As many tasks as the team has threads; the threads are Rayon's own, which the crate forks on.
    let parallelism = match launch.team()?.threads() {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let at = |view: &View<'_>| view.host_ptr().map(|p| p as usize);
    let (a_ptr, b_ptr, d_ptr) = (at(a)?, at(b)?, at(d)?);
    let strides = |view: &View<'_>| {
        let s = view.strides();
        (s[0] * size_of::<T>(), s[1] as isize, s[2] as isize)
    };
    let ((a_batch, a_row, a_col), (b_batch, b_row, b_col), (d_batch, d_row, d_col)) =
        (strides(a), strides(b), strides(d));
    let read = fixed.epilogue.residual.is_some();
    if call.m == 0 || fixed.n == 0 {
        return Ok(());
    }
    for i in 0..call.batch {
        let d = (d_ptr + i * d_batch) as *mut T;
        let (a, b) = ((a_ptr + i * a_batch) as *const T, (b_ptr + i * b_batch) as *const T);
        // SAFETY: passed on. The crate scales what it reads of D by its `alpha`, and the product by its `beta`.
        unsafe {
            gemm::gemm(
                call.m,
                fixed.n,
                fixed.k,
                d,
                d_col,
                d_row,
                read,
                a,
                a_col,
                a_row,
                b,
                b_col,
                b_row,
                beta,
                alpha,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
    Ok(())
}
