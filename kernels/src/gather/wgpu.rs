//! Gathers in WGSL: a thread for each element of the output, moved as it is.

use sinew_memory::DeviceKind;

use super::{Gather, GatherDynamic, GatherStatic};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 64;

pub(super) fn row() -> Row<Gather> {
    Row {
        name: "gather.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("gather.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Gather::work(fixed, call), hardware, 0.3, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &GatherStatic,
    dynamic: &GatherDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let x = operands.input(Gather::NAME, Gather::X, "x")?;
    let index = operands.input(Gather::NAME, Gather::INDEX, "index")?;
    let y = operands.output(Gather::NAME, Gather::Y, "y")?;
    // Along the dimension the input does not step with the output: the index says where.
    let step_of = |d: usize| if d == fixed.dim { 0 } else { x.strides()[d] };
    let mut call = Call::new(launch, "gather.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.write("y", y)?;
    call.read("x", x)?;
    call.read("index", index)?;
    let walk = Walk::of(y.shape(), |d| [y.strides()[d], index.strides()[d], step_of(d)]);
    call.walk_in_parts("count", &walk, ["y", "index", "x"])?;
    let stride = x.strides()[fixed.dim];
    call.dimension(("there", dynamic.size), Some("first"), &[("x", stride)])?;
    call.param("size", dynamic.size)?;
    call.param("stride", stride)?;
    call.reports();
    call.dispatch_in_parts(|p| p("count").div_ceil(WORKGROUP as usize))
}
