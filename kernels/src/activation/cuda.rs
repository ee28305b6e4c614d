//! One row for every activation, gate and dtype.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Activate, ActivationDynamic, ActivationStatic, Gate};
use crate::Result;
use crate::cuda::{self, Kernel, Strided3, THREADS};
use crate::operator::takes_lanes;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("activation", "cuda_function.cuh", "cuda.cu");
static ACTIVATION: Kernel = Kernel { module: &CUDA, name: "activation" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    operands: Strided3,
    activation: u32,
    gated: u32,
}

pub(super) fn rows() -> Vec<Row<Activate>> {
    vec![Row {
        name: "activation.cuda",
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("activation.cuda"),
        admits: |fixed, _| takes_lanes([fixed.x, fixed.out]),
        cost: |fixed, call, hardware| cuda::cost(Activate::work(fixed, call), hardware, 0.8, 0.3),
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(
    launch: &Launch<'_>,
    fixed: &ActivationStatic,
    call: &ActivationDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Activate::NAME, Activate::Y, "y")?.view();
    let x = operands.optional(Activate::X).unwrap_or(y);
    let (gate, up) = match fixed.gate {
        // The second operand is not used.
        Gate::None => (*x, *x),
        Gate::Tensor => (*x, *operands.input(Activate::NAME, Activate::UP, "up")?),
        Gate::Halves => {
            let last = x.layout().rank() - 1;
            let half = |start| x.with_layout(x.layout().narrow(last, start, call.width)?);
            (half(0)?, half(call.width)?)
        }
    };
    let views = [y, &gate, &up];
    let strided = Strided3::new(&Walk::any_order(views.map(|view| view.layout())), views)?;
    let gated = u32::from(fixed.gate != Gate::None);
    let params = Params { operands: strided, activation: fixed.activation as u32, gated };
    // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within their
    // buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, &ACTIVATION, [strided.map_blocks(THREADS), 1, 1], THREADS, 0, &params, operands) }
}
