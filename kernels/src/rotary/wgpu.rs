//! Rotary embedding in WGSL: a thread for each pair of values, and for each that passes through.

use sinew_memory::DeviceKind;

use super::{COS, OUT, POSITIONS, Rotary, RotaryDynamic, RotaryStatic, SIN, Style, X};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 64;

pub(super) fn row() -> Row<Rotary> {
    Row {
        name: "rotary.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("rotary.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Rotary::work(fixed, call), hardware, 0.5, 0.5),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &RotaryStatic,
    dynamic: &RotaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let out = operands.output(Rotary::NAME, OUT, "out")?;
    let x = if fixed.in_place { out.view() } else { operands.input(Rotary::NAME, X, "x")? };
    let positions = operands.input(Rotary::NAME, POSITIONS, "positions")?;
    let (cos, sin) = (operands.input(Rotary::NAME, COS, "cos")?, operands.input(Rotary::NAME, SIN, "sin")?);
    let pairs = fixed.rotary_dim / 2;
    let passing = if fixed.in_place { 0 } else { fixed.head_dim - fixed.rotary_dim };
    // From a pair to the next, and from its first value to its second.
    let (step, partner) = match fixed.style {
        Style::Half => (1, pairs),
        Style::Interleaved => (2, 1),
    };
    let mut call = Call::new(launch, "rotary.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.write("out", out)?;
    call.read("x", x)?;
    call.read("positions", positions)?;
    call.read("cos", cos)?;
    call.read("sin", sin)?;
    let units = pairs + passing;
    let tokens = [("out", out.strides()[0]), ("x", x.strides()[0]), ("positions", positions.strides()[0])];
    call.dimension(("tokens", dynamic.tokens), None, &tokens)?;
    call.dimension(("heads", dynamic.heads), None, &[("out", out.strides()[1]), ("x", x.strides()[1])])?;
    let table = [("cos", cos.strides()[0]), ("sin", sin.strides()[0])];
    call.dimension(("there", cos.shape()[0]), Some("first"), &table)?;
    call.param("pairs", pairs)?;
    call.param("units", units)?;
    call.param("step", step)?;
    call.param("partner", partner)?;
    call.param("length", cos.shape()[0])?;
    for (name, stride) in ["out_token", "out_head", "out_value"].into_iter().zip(out.strides()) {
        call.param(name, *stride)?;
    }
    for (name, stride) in ["x_token", "x_head", "x_value"].into_iter().zip(x.strides()) {
        call.param(name, *stride)?;
    }
    call.param("position_stride", positions.strides()[0])?;
    for (name, stride) in ["cos_position", "cos_pair"].into_iter().zip(cos.strides()) {
        call.param(name, *stride)?;
    }
    for (name, stride) in ["sin_position", "sin_pair"].into_iter().zip(sin.strides()) {
        call.param(name, *stride)?;
    }
    call.reports();
    call.dispatch_in_parts(|p| (p("tokens") * p("heads") * units).div_ceil(WORKGROUP as usize))
}
