//! One row: a block for each row of the operands.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use crate::Result;
use crate::cuda::{self, Kernel, Strided3};
use crate::operator::takes_lanes;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("softmax", "cuda.cu");
static SOFTMAX: Kernel = Kernel { module: &CUDA, name: "softmax" };

/// Up to 32 exponentials of a thread are summed in f32, the rest in f64; then threads by halves.
const BY_THREADS: Arithmetic = Arithmetic::named("softmax.cuda");

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: Strided3,
    strides: [i64; 3],
    width: u64,
    scale: f32,
    masked: u32,
    log: u32,
    padding: u32,
}

pub(super) fn rows() -> Vec<Row<Softmax>> {
    vec![Row {
        name: "softmax.cuda",
        device: DeviceKind::CUDA,
        arithmetic: BY_THREADS,
        admits: |fixed, _| takes_lanes([Some(fixed.x), Some(fixed.out), fixed.mask].into_iter().flatten()),
        cost: |fixed, call, hardware| cuda::cost(Softmax::work(fixed, call), hardware, 0.5, 0.2),
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &SoftmaxStatic, call: &SoftmaxDynamic, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Softmax::NAME, Softmax::Y, "y")?.view();
    let x = operands.optional(Softmax::X).unwrap_or(y);
    let mask = operands.optional(Softmax::MASK);
    // Without a mask it is not read.
    let views = [y, x, mask.unwrap_or(x)];
    let last = y.shape().len() - 1;
    let walk = Walk::of(&y.shape()[..last], |d| views.map(|view| view.strides()[d]));
    let rows = Strided3::new(&walk, views)?;
    let params = Params {
        rows,
        strides: views.map(|view| view.strides()[last] as i64),
        width: call.width as u64,
        scale: fixed.scale.get(),
        masked: u32::from(mask.is_some()),
        log: u32::from(fixed.log),
        padding: 0,
    };
    // The same for every number of rows, so that the bits are.
    let threads = cuda::row_threads(call.width);
    let blocks = if call.width == 0 { 0 } else { rows.blocks(1) };
    // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within their
    // buffers, and the indices of an output share no elements, so that blocks do not meet.
    unsafe { cuda::launch(launch, &SOFTMAX, [blocks, 1, 1], threads, 0, &params, operands) }
}
