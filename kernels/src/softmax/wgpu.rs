//! Softmax in WGSL: a workgroup for each row, in three passes over it: the largest, the sum, the result.

use sinew_memory::DeviceKind;

use super::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 256;

pub(super) fn row() -> Row<Softmax> {
    Row {
        name: "softmax.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("softmax.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Softmax::work(fixed, call), hardware, 0.3, 0.5),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &SoftmaxStatic,
    dynamic: &SoftmaxDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Softmax::NAME, Softmax::Y, "y")?;
    let x = operands.optional(Softmax::X).unwrap_or(y);
    let mask = operands.optional(Softmax::MASK);
    let strides = |d: usize| [y.strides()[d], x.strides()[d], mask.map_or(0, |mask| mask.strides()[d])];
    let last = y.shape().len() - 1;
    let body =
        concat!(include_str!("../wgpu/math.wgsl"), include_str!("../wgpu/order.wgsl"), include_str!("wgpu.wgsl"));
    let mut call = Call::new(launch, "softmax.wgpu", body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.option("LOG", u32::from(fixed.log))?;
    call.write("y", y)?;
    call.read("x", x)?;
    call.optional("mask", mask)?;
    call.walk_in_parts("rows", &Walk::of(&y.shape()[..last], strides), ["y", "x", "mask"])?;
    for (name, step) in ["y_step", "x_step", "mask_step"].into_iter().zip(strides(last)) {
        call.param(name, step)?;
    }
    call.param("width", dynamic.width)?;
    // Without a mask the scale comes last: the difference of two inputs is exact where it matters, and a product is
    // not. With one it must come before the sum.
    let scale = fixed.scale.get();
    let (first, then) = if mask.is_some() { (scale, 1.0) } else { (1f32.copysign(scale), scale.abs()) };
    call.param_f32("first", first)?;
    call.param_f32("then", then)?;
    call.dispatch_in_parts(|p| if dynamic.width == 0 { 0 } else { p("rows") })
}
