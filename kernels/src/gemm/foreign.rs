//! The `gemm` crate as a row, in f32: subnormal f16 results it cuts off where it should round them, and others it
//! rounds once for each block of K. Its bits depend on the shape, so it is chosen only where that is allowed.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;
use sinew_memory::DeviceKind;
use sinew_tensor::{DType, View};

use super::cpu::way;
use super::{A, B, Compute, D, Gemm, GemmDynamic, GemmStatic, Residual, Rhs, takes_left_as_it_is};
use crate::{Arithmetic, Launch, Operands, Operator, Refusal, Result, Row};

const FOREIGN: Arithmetic = Arithmetic { name: "gemm.foreign", foreign: true, flushes_subnormals: false };

pub(super) const ROW: Row<Gemm> = Row {
    name: "gemm.cpu.gemm-crate",
    device: DeviceKind::CPU,
    arithmetic: FOREIGN,
    admits: |fixed, _| admit(fixed),
    cost: |fixed, call, hardware| way::cost(fixed, call, hardware, hardware.rates.f32_flops_per_s * 0.5),
    workspace: |_, _, _| 0,
    run,
};

fn admit(fixed: &GemmStatic) -> Result<(), Refusal> {
    takes_left_as_it_is(fixed)?;
    let epilogue = &fixed.epilogue;
    let Rhs::Strided(b) = fixed.b else { return Err("does not read packed weights".into()) };
    if fixed.compute != Compute::F32 || [fixed.a, b, fixed.out] != [DType::F32; 3] {
        return Err("multiplies f32 with f32 into f32".into());
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
    Ok(())
}

unsafe fn run(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let a = operands.input(Gemm::NAME, A, "A")?;
    let b = operands.input(Gemm::NAME, B, "B")?;
    let d = operands.output(Gemm::NAME, D, "D")?.view();
    let (alpha, beta) = (fixed.epilogue.alpha, fixed.epilogue.beta);
    // As many tasks as the team has threads; the threads are Rayon's own, which the crate forks on.
    let parallelism = match launch.team()?.threads() {
        1 => Parallelism::None,
        threads => Parallelism::Rayon(threads),
    };
    let at = |view: &View<'_>| view.host_ptr().map(|p| p as usize);
    let (a_ptr, b_ptr, d_ptr) = (at(a)?, at(b)?, at(d)?);
    let strides = |view: &View<'_>| {
        let s = view.strides();
        (s[0] * size_of::<f32>(), s[1] as isize, s[2] as isize)
    };
    let ((a_batch, a_row, a_col), (b_batch, b_row, b_col), (d_batch, d_row, d_col)) =
        (strides(a), strides(b), strides(d));
    let read = fixed.epilogue.residual.is_some();
    if call.m == 0 || fixed.n == 0 {
        return Ok(());
    }
    let multiply = get_gemm_fn();
    for i in 0..call.batch {
        let d = (d_ptr + i * d_batch) as *mut f32;
        let (a, b) = ((a_ptr + i * a_batch) as *const f32, (b_ptr + i * b_batch) as *const f32);
        // The microkernel wants columns of D side by side: where rows are, D' = B' A' is multiplied.
        let (m, n, d_col, d_row, (a, a_col, a_row), (b, b_col, b_row)) = if d_col.abs() < d_row.abs() {
            (fixed.n, call.m, d_row, d_col, (b, b_row, b_col), (a, a_row, a_col))
        } else {
            (call.m, fixed.n, d_col, d_row, (a, a_col, a_row), (b, b_col, b_row))
        };
        // SAFETY: `check` vouches for the shapes, and `admit` for f32 of all three. The crate scales what it reads of D by
        // its `alpha`, and the product by its `beta`.
        unsafe {
            multiply(
                m,
                n,
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
