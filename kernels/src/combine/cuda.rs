//! One row: a thread for each element of the output.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Combine, CombineDynamic, CombineStatic};
use crate::Result;
use crate::cuda::{self, Kernel, THREADS};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("combine", "cuda.cu");
static COMBINE: Kernel = Kernel { module: &CUDA, name: "combine" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    y: u64,
    weights: u64,
    place: u64,
    out: u64,
    status: u64,
    y_strides: [i64; 2],
    weights_strides: [i64; 2],
    place_step: i64,
    out_strides: [i64; 2],
    tokens: u64,
    width: u64,
    slots: u64,
    top_k: u32,
    y_type: u32,
    out_type: u32,
    accumulate: u32,
}

pub(super) const ROW: Row<Combine> = Row {
    name: "combine.cuda",
    device: DeviceKind::CUDA,
    arithmetic: Arithmetic::named("combine.cuda"),
    admits: |fixed, _| crate::operator::takes_lanes([fixed.y, fixed.out]),
    cost: |fixed, call, hardware| cuda::cost(Combine::work(fixed, call), hardware, 0.6, 0.5),
    workspace: |_, _, _| 0,
    run,
};

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &CombineStatic, call: &CombineDynamic, operands: Operands<'_>) -> Result<()> {
    let y = operands.input(Combine::NAME, Combine::Y, "y")?;
    let weights = operands.input(Combine::NAME, Combine::WEIGHTS, "weights")?;
    let place = operands.input(Combine::NAME, Combine::PLACE, "place")?;
    let out = operands.output(Combine::NAME, Combine::OUT, "out")?.view();
    let plane = |strides: &[usize]| [strides[0] as i64, strides[1] as i64];
    let params = Params {
        y: cuda::pointer(y)?,
        weights: cuda::pointer(weights)?,
        place: cuda::pointer(place)?,
        out: cuda::pointer(out)?,
        status: cuda::status_pointer(launch, &COMBINE, cuda::OUTSIDE)?,
        y_strides: plane(y.strides()),
        weights_strides: plane(weights.strides()),
        place_step: place.strides()[0] as i64,
        out_strides: plane(out.strides()),
        tokens: call.tokens as u64,
        width: fixed.width as u64,
        slots: y.shape()[0] as u64,
        top_k: fixed.top_k as u32,
        y_type: cuda::code(fixed.y),
        out_type: cuda::code(fixed.out),
        accumulate: u32::from(fixed.accumulate),
    };
    let blocks = cuda::blocks(call.tokens.saturating_mul(fixed.width), THREADS);
    // SAFETY: the operator's check has seen shapes and dtypes, and the kernel leaves out places that are no rows; views
    // lie within their buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, &COMBINE, [blocks, 1, 1], THREADS, 0, &params, operands) }
}
