//! Every conversion and copy.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;
use sinew_tensor::DType;

use super::{Cast, CastStatic};
use crate::Result;
use crate::cuda::{self, Kernel, Strided2, THREADS};
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernels' source.
pub static CUDA: CudaModule = cuda::module!("cast", "cuda.cu");
static NEAREST: Kernel = Kernel { module: &CUDA, name: "cast_nearest" };
static WIDE: Kernel = Kernel { module: &CUDA, name: "cast_wide" };
static COPY: Kernel = Kernel { module: &CUDA, name: "cast_copy" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    operands: Strided2,
    size: u32,
    padding: u32,
}

pub(super) fn rows() -> Vec<Row<Cast>> {
    let convert = Row::<Cast> {
        name: "cast.cuda",
        device: DeviceKind::CUDA,
        // Each result is defined to the last bit.
        arithmetic: Arithmetic::named("cast.wide"),
        admits: |fixed, _| {
            if fixed.input == fixed.output { Err("equal dtypes are copied".into()) } else { Ok(()) }
        },
        cost: |fixed, call, hardware| cuda::cost(Cast::work(fixed, call), hardware, 0.7, 1.0),
        workspace: |_, _, _| 0,
        run: convert,
    };
    let copy = Row::<Cast> {
        name: "cast.cuda.copy",
        arithmetic: Arithmetic::named("cast.copy"),
        admits: |fixed, _| {
            if fixed.input == fixed.output { Ok(()) } else { Err("copies one dtype to the same".into()) }
        },
        run: copy,
        ..convert
    };
    vec![convert, copy]
}

fn operands(operands: Operands<'_>) -> Result<Strided2> {
    let y = operands.output(Cast::NAME, Cast::Y, "y")?;
    let x = operands.input(Cast::NAME, Cast::X, "x")?;
    Strided2::new(&Walk::any_order([y.layout(), x.layout()]), [y, x])
}

/// # Safety
/// That of [`Row::run`].
unsafe fn convert(launch: &Launch<'_>, fixed: &CastStatic, _: &Elements, views: Operands<'_>) -> Result<()> {
    let params = Params { operands: operands(views)?, size: 0, padding: 0 };
    let (kernel, blocks) = if DType::COMPUTE.contains(&fixed.input) && DType::COMPUTE.contains(&fixed.output) {
        (&NEAREST, params.operands.map_blocks(THREADS))
    } else {
        (&WIDE, params.operands.blocks(THREADS))
    };
    // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within their
    // buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, kernel, [blocks, 1, 1], THREADS, 0, &params, views) }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn copy(launch: &Launch<'_>, fixed: &CastStatic, _: &Elements, views: Operands<'_>) -> Result<()> {
    let mut operands = operands(views)?;
    let size = operands.widest(fixed.output.size());
    let params = Params { operands, size, padding: 0 };
    // SAFETY: as for `convert`.
    unsafe { cuda::launch(launch, &COPY, [operands.blocks(THREADS), 1, 1], THREADS, 0, &params, views) }
}
