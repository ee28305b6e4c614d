//! One row for every function and dtype: a block for each row of the input.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Reduce, ReduceDynamic, ReduceStatic, split};
use crate::Result;
use crate::cuda::{self, Kernel, Strided1, Strided2};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("reduce", "cuda.cu");
static REDUCE: Kernel = Kernel { module: &CUDA, name: "reduce" };

/// Up to 32 floats of a thread are summed in f32, the rest in f64; then threads by halves.
const BY_THREADS: Arithmetic = Arithmetic::named("reduce.cuda");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: Strided2,
    within: Strided1,
    function: u32,
    padding: u32,
}

pub(super) fn row() -> Row<Reduce> {
    Row {
        name: "reduce.cuda",
        device: DeviceKind::CUDA,
        arithmetic: BY_THREADS,
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Reduce::work(fixed, call), hardware, 0.5, 0.1),
        workspace: |_, _, _| 0,
        run,
    }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &ReduceStatic, call: &ReduceDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(Reduce::NAME, Reduce::X, "x")?;
    let y = operands.output(Reduce::NAME, Reduce::Y, "y")?.view();
    let (rows, width) = split(x.layout(), fixed.dims);
    let strides = x.strides();
    let rows_walk = Walk::of(rows, |d| [y.strides()[d], strides[d]]);
    let rows = Strided2::new(&rows_walk, [y, x])?;
    // In row-major order, by which positions are counted.
    let within = Strided1::new(&Walk::of(width, |d| [strides[y.shape().len() + d]]), [x])?;
    let params = Params { rows, within, function: fixed.function as u32, padding: 0 };
    // The same for every number of rows, so that the bits are.
    let threads = cuda::row_threads(call.width);
    // SAFETY: the operator's check has seen shapes and dtypes; views lie within their buffers, and the indices of an
    // output share no elements, so that blocks do not meet.
    unsafe { cuda::launch(launch, &REDUCE, [rows.blocks(1), 1, 1], threads, 0, &params, operands) }
}
