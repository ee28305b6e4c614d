//! cuBLASLt as a row. Its bits depend on the shape and on the library's version, so it is chosen only where that is
//! allowed.
//!
//! The library's matrices lie by columns, so it computes `Dᵀ = Bᵀ·Aᵀ`. Strides that no leading dimension says, and
//! products that the library has no algorithm for, go to Sinew's own kernels.

use sinew_memory::messages::{self, Severity};
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::cuda::{self as own, MMA_CAPABILITY};
use super::{A, B, BIAS, Compute, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, takes_rows};
use crate::Result;
use crate::cuda::cublaslt::{self, CublasLt, Matrix, Product};
use crate::cuda::{self, workspace_pointer};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};

const NAME: &str = "gemm.cuda.cublaslt";

pub(super) const ROW: Row<Gemm> = Row {
    name: NAME,
    device: DeviceKind::CUDA,
    arithmetic: Arithmetic { name: "gemm.cublaslt", foreign: true, flushes_subnormals: false },
    admits,
    cost: |fixed, call, hardware| {
        let rates = &hardware.rates;
        let peak = if fixed.a == DType::F32 { rates.f32_flops_per_s } else { rates.bf16_flops_per_s };
        own::tile_cost(fixed, call, hardware, [64, 128], 0.75 * peak, 0.7)
    },
    workspace: |_, _, hardware| workspace_bytes(hardware),
    run,
};

/// More where a multiprocessor has more to hide.
fn workspace_bytes(hardware: &Hardware) -> usize {
    if cuda::needs((9, 0), hardware).is_ok() { 32 << 20 } else { 4 << 20 }
}

fn admits(fixed: &GemmStatic, hardware: &Hardware) -> Result<(), Refusal> {
    cublaslt::present()?;
    takes_rows(fixed)?;
    let epilogue = &fixed.epilogue;
    let b = match fixed.b {
        Rhs::Packed(format) => format.row_dtype().map_err(|error| error.to_string())?,
        Rhs::Strided(dtype) => dtype,
    };
    if fixed.a != b {
        return Err(format!("multiplies operands of one type, not {} with {b}", fixed.a).into());
    }
    if fixed.compute == Compute::Bf16 && b != DType::BF16 {
        return Err(format!("does not round {b} to bf16").into());
    }
    if fixed.out != b && fixed.out != DType::F32 {
        return Err(format!("gives {b} or f32, not {}", fixed.out).into());
    }
    if epilogue.activation.is_some() || epilogue.gated {
        return Err("has no activation or gate".into());
    }
    let added = [epilogue.bias, epilogue.residual_input()];
    if let Some(other) = added.into_iter().flatten().find(|&other| other != fixed.out) {
        return Err(format!("adds what is of the result's type, {}, not {other}", fixed.out).into());
    }
    if epilogue.alpha == 0.0 || epilogue.residual.is_some() && epilogue.beta == 0.0 {
        return Err("does not read what has a factor of 0, though it may be NaN".into());
    }
    if b == DType::F32 { Ok(()) } else { cuda::needs(MMA_CAPABILITY, hardware) }
}

/// How a matrix of these sizes and strides lies by columns, `[rows, columns, leading]`, and whether that is its
/// transposed.
fn lie([rows, columns]: [usize; 2], [row, column]: [usize; 2]) -> Option<([usize; 3], bool)> {
    let by_columns = |rows: usize, columns: usize, step: usize, leading: usize| {
        let leading = if columns == 1 { rows } else { leading };
        ((step == 1 || rows == 1) && leading >= rows).then_some([rows, columns, leading])
    };
    let lies = by_columns(rows, columns, row, column).map(|lies| (lies, false));
    lies.or_else(|| by_columns(columns, rows, column, row).map(|lies| (lies, true)))
}

fn matrix(view: &View<'_>, dtype: DType, lies: [usize; 3], batch_stride: usize) -> Result<Matrix> {
    const MOST: u32 = 256;
    let [rows, columns, leading] = lies;
    let alignment = 1 << cuda::pointer(view)?.trailing_zeros().min(MOST.ilog2());
    Ok(Matrix { dtype, rows, columns, leading, batch_stride, alignment })
}

fn strides(view: &View<'_>) -> [usize; 3] {
    [view.strides()[0], view.strides()[1], view.strides()[2]]
}

/// The operands that the library reads and writes: B, A, what is added to the product, and D.
fn matrices<'a>(fixed: &GemmStatic, operands: &Operands<'a>) -> Result<[View<'a>; 4]> {
    let d = operands.output(Gemm::NAME, D, "D")?.view();
    let c = match fixed.epilogue.residual {
        Some(Residual::Input(_)) => operands.input(Gemm::NAME, RESIDUAL, "the residual")?,
        Some(Residual::Output) | None => d,
    };
    Ok([*operands.input(Gemm::NAME, B, "B")?, *operands.input(Gemm::NAME, A, "A")?, *c, *d])
}

/// The product as the library sees it; `None` where it does not.
fn product(
    fixed: &GemmStatic,
    call: &GemmDynamic,
    [b, a, c, d]: &[View<'_>; 4],
    bias: Option<&View<'_>>,
    workspace: usize,
) -> Result<Option<Product>> {
    let (n, k) = (fixed.n, fixed.k);
    let ([a_batch, a_row, a_step], [c_batch, c_row, c_step]) = (strides(a), strides(c));
    let [d_batch, d_row, d_step] = strides(d);
    let (b_type, [b_batch, b_step, b_column]) = match fixed.b {
        Rhs::Packed(format) => (format.row_dtype()?, [0, 1, k]),
        Rhs::Strided(dtype) => (dtype, strides(b)),
    };
    // Products that share B are rows of one.
    let joins =
        [(a_batch, a_row), (c_batch, c_row), (d_batch, d_row)].iter().all(|(batch, row)| *batch == call.m * row);
    let (batch, m) = if b_batch == 0 && joins { (1, call.batch * call.m) } else { (call.batch, call.m) };
    let (Some((b_lies, b_transposed)), Some((a_lies, a_transposed))) =
        (lie([n, k], [b_column, b_step]), lie([k, m], [a_step, a_row]))
    else {
        return Ok(None);
    };
    let (Some((c_lies, false)), Some((d_lies, false))) = (lie([n, m], [c_step, c_row]), lie([n, m], [d_step, d_row]))
    else {
        return Ok(None);
    };
    if k == 0 || bias.is_some_and(|bias| n > 1 && bias.strides()[0] != 1) {
        return Ok(None);
    }
    let matrices = [
        matrix(b, b_type, b_lies, b_batch)?,
        matrix(a, fixed.a, a_lies, a_batch)?,
        matrix(c, fixed.out, c_lies, c_batch)?,
        matrix(d, fixed.out, d_lies, d_batch)?,
    ];
    Ok(Some(Product { batch, matrices, transposed: [b_transposed, a_transposed], biased: bias.is_some(), workspace }))
}

unsafe fn run(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    if call.batch == 0 || call.m == 0 || fixed.n == 0 {
        return Ok(());
    }
    let (views, bias) = (matrices(fixed, &operands)?, operands.optional(BIAS));
    let workspace = workspace_bytes(launch.stream().device().hardware());
    let mut enqueued = false;
    if let Some(product) = product(fixed, call, &views, bias, workspace)? {
        let [b, a, c, d] = &views;
        let epilogue = &fixed.epilogue;
        let call = cublaslt::Operands {
            addresses: [cuda::pointer(b)?, cuda::pointer(a)?, cuda::pointer(c)?, cuda::pointer(d)?],
            bias: cuda::optional_pointer(bias)?,
            workspace: workspace_pointer(launch, workspace)?,
            alpha: epilogue.alpha,
            beta: if epilogue.residual.is_some() { epilogue.beta } else { 0.0 },
        };
        let stream = cuda::uses(launch, NAME, operands)?;
        let library = stream.cuda().library(CublasLt::open)?;
        stream.enqueue(NAME, |stream| {
            // SAFETY: the operator's check has seen that operands have the shapes and dtypes that the product says,
            // views lie within their buffers, which were just recorded as used, and the workspace is this row's alone.
            enqueued = unsafe { library.enqueue(&product, &call, stream) }?;
            Ok(())
        })?;
    }
    if !enqueued {
        messages::send(Severity::Debug, format_args!("cuBLASLt has no kernel for {fixed}, {call}"));
    }
    // SAFETY: passed on.
    if enqueued { Ok(()) } else { unsafe { own::run_any(launch, fixed, call, operands) } }
}
