//! One row for every dtype.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Gather, GatherDynamic, GatherStatic};
use crate::Result;
use crate::cuda::{self, Kernel, Strided3, THREADS};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("gather", "cuda.cu");
static GATHER: Kernel = Kernel { module: &CUDA, name: "gather" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    operands: Strided3,
    status: u64,
    stride: i64,
    length: u64,
    size: u32,
    padding: u32,
}

pub(super) fn row() -> Row<Gather> {
    Row {
        name: "gather.cuda",
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("gather.exact"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Gather::work(fixed, call), hardware, 0.4, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &GatherStatic, call: &GatherDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(Gather::NAME, Gather::X, "x")?;
    let index = operands.input(Gather::NAME, Gather::INDEX, "index")?;
    let y = operands.output(Gather::NAME, Gather::Y, "y")?.view();
    // Along the dimension the input does not step with the output: the index says where.
    let step_of = |d: usize| if d == fixed.dim { 0 } else { x.strides()[d] };
    let walk = Walk::of(y.shape(), |d| [y.strides()[d], index.strides()[d], step_of(d)]);
    let strided = Strided3::new(&walk, [y, index, x])?;
    let params = Params {
        operands: strided,
        status: cuda::status_pointer(launch, &GATHER, cuda::OUTSIDE)?,
        stride: x.strides()[fixed.dim] as i64,
        length: call.size as u64,
        size: fixed.dtype.size() as u32,
        padding: 0,
    };
    // SAFETY: the operator's check has seen shapes and dtypes, and the kernel leaves out indices outside the dimension;
    // views lie within their buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, &GATHER, [strided.blocks(THREADS), 1, 1], THREADS, 0, &params, operands) }
}
