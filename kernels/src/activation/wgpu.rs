//! Activations in WGSL: a thread for each element.

use sinew_memory::DeviceKind;

use super::{Activate, ActivationDynamic, ActivationStatic, Gate};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 64;

pub(super) fn row() -> Row<Activate> {
    Row {
        name: "activation.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("activation.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Activate::work(fixed, call), hardware, 0.5, 0.5),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &ActivationStatic,
    dynamic: &ActivationDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Activate::NAME, Activate::Y, "y")?;
    let x = operands.optional(Activate::X).unwrap_or(y);
    let (x, up) = match fixed.gate {
        Gate::None => (*x, None),
        Gate::Tensor => (*x, Some(*operands.input(Activate::NAME, Activate::UP, "up")?)),
        Gate::Halves => {
            let last = x.layout().rank() - 1;
            let half = |start| x.with_layout(x.layout().narrow(last, start, dynamic.width)?);
            (half(0)?, Some(half(dynamic.width)?))
        }
    };
    let body =
        concat!(include_str!("../wgpu/math.wgsl"), include_str!("wgpu_function.wgsl"), include_str!("wgpu.wgsl"));
    let mut call = Call::new(launch, "activation.wgpu", body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.option("ACTIVATION", fixed.activation as u32)?;
    call.write("y", y)?;
    call.read("x", &x)?;
    call.optional("up", up.as_ref())?;
    let layouts = [y.layout(), x.layout(), up.as_ref().unwrap_or(&x).layout()];
    call.walk_in_parts("count", &Walk::any_order(layouts), ["y", "x", "up"])?;
    call.dispatch_in_parts(|p| p("count").div_ceil(WORKGROUP as usize))
}
