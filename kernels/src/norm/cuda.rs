//! One row: a warp or a block for each row of the operands.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Norm, NormDynamic, NormKind, NormStatic};
use crate::Result;
use crate::cuda::{self, Kernel, LayoutParam};
use crate::operator::takes_lanes;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, refuse};

/// The kernels' source.
pub static CUDA: CudaModule = cuda::module!("norm", "cuda.cu");
static SHORT: Kernel = Kernel { module: &CUDA, name: "norm_short_rows" };
static LONG: Kernel = Kernel { module: &CUDA, name: "norm_long_rows" };

/// Threads of a block.
const THREADS: u32 = 256;
/// Rows up to this width are a warp's: 32 elements for each thread.
const SHORT_WIDTH: usize = 1024;
const WARPS: usize = THREADS as usize / 32;

/// Each thread's elements are summed in f32, threads in f64 by halves.
const BY_THREADS: Arithmetic = Arithmetic::named("norm.cuda");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    y: u64,
    x: u64,
    residual: u64,
    weight: u64,
    bias: u64,
    y_rows: LayoutParam,
    x_rows: LayoutParam,
    residual_rows: LayoutParam,
    y_stride: i64,
    x_stride: i64,
    residual_stride: i64,
    weight_stride: i64,
    bias_stride: i64,
    rows: u64,
    y_type: u32,
    x_type: u32,
    residual_type: u32,
    weight_type: u32,
    bias_type: u32,
    width: u32,
    kind: u32,
    eps: f32,
    weight_offset: f32,
    padding: u32,
}

/// The rows of [`Norm`] on NVIDIA GPUs.
pub(super) fn rows() -> Vec<Row<Norm>> {
    vec![Row {
        name: "norm.cuda",
        device: DeviceKind::CUDA,
        arithmetic: BY_THREADS,
        admits: |fixed, _| takes_lanes(fixed.dtypes()),
        cost: |fixed, call, hardware| cuda::cost(Norm::work(fixed, call), hardware, 0.7, 0.1),
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &NormStatic, call: &NormDynamic, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Norm::NAME, Norm::Y, "y")?.view();
    let x = if fixed.in_place { y } else { operands.input(Norm::NAME, Norm::X, "x")? };
    let residual = match fixed.residual {
        Some(_) => Some(operands.output(Norm::NAME, Norm::RESIDUAL, "residual")?.view()),
        None => None,
    };
    let (weight, bias) = (operands.optional(Norm::WEIGHT), operands.optional(Norm::BIAS));
    let ((y_rows, y_stride), (x_rows, x_stride)) = (cuda::rows(y)?, cuda::rows(x)?);
    let (residual_rows, residual_stride) = residual.map_or(Ok((Zeroable::zeroed(), 0)), cuda::rows)?;
    let stride = |vector: Option<&sinew_tensor::View<'_>>| vector.map_or(0, |v| v.strides()[0] as i64);
    let type_of = |dtype: Option<sinew_tensor::DType>| dtype.map_or(0, cuda::code);
    let params = Params {
        y: cuda::pointer(y)?,
        x: cuda::pointer(x)?,
        residual: cuda::optional_pointer(residual)?,
        weight: cuda::optional_pointer(weight)?,
        bias: cuda::optional_pointer(bias)?,
        y_rows,
        x_rows,
        residual_rows,
        y_stride,
        x_stride,
        residual_stride,
        weight_stride: stride(weight),
        bias_stride: stride(bias),
        rows: call.rows as u64,
        y_type: cuda::code(fixed.out),
        x_type: cuda::code(fixed.x),
        residual_type: type_of(fixed.residual),
        weight_type: type_of(fixed.formula.weight),
        bias_type: type_of(fixed.formula.bias),
        width: u32::try_from(fixed.width).map_err(|_| refuse(Norm::NAME, format!("{fixed}: rows are too wide")))?,
        kind: u32::from(fixed.formula.kind == NormKind::Layer),
        eps: fixed.formula.eps.get(),
        weight_offset: fixed.formula.weight_offset.get(),
        padding: 0,
    };
    let (kernel, rows_per_block) = if fixed.width <= SHORT_WIDTH { (&SHORT, WARPS) } else { (&LONG, 1) };
    let blocks = if fixed.width == 0 { 0 } else { call.rows.div_ceil(rows_per_block) };
    let blocks = u32::try_from(blocks).map_err(|_| refuse(Norm::NAME, format!("{call} are too many")))?;
    // SAFETY: the operator's check has seen that operands have the named shapes and dtypes; views lie within their
    // buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, kernel, [blocks, 1, 1], THREADS, 0, &params, operands) }
}
