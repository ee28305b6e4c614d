//! Weighted sums in WGSL: a thread for each element of the output.

use sinew_memory::DeviceKind;

use super::{Combine, CombineDynamic, CombineStatic};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 64;

pub(super) const ROW: Row<Combine> = Row {
    name: "combine.wgpu",
    device: DeviceKind::WGPU,
    arithmetic: arithmetic("combine.wgpu"),
    admits: |_, _| Ok(()),
    cost: |fixed, call, hardware| predicted::by_shares(Combine::work(fixed, call), hardware, 0.5, 0.5),
    workspace: |_, _, _| 0,
    run,
};

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &CombineStatic,
    dynamic: &CombineDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.input(Combine::NAME, Combine::Y, "y")?;
    let weights = operands.input(Combine::NAME, Combine::WEIGHTS, "weights")?;
    let place = operands.input(Combine::NAME, Combine::PLACE, "place")?;
    let out = operands.output(Combine::NAME, Combine::OUT, "out")?;
    let mut call = Call::new(launch, "combine.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.option("ACCUMULATE", u32::from(fixed.accumulate))?;
    call.write("out", out)?;
    call.read("y", y)?;
    call.read("weights", weights)?;
    call.read("place", place)?;
    let of_token =
        [("out", out.strides()[0]), ("weights", weights.strides()[0]), ("place", fixed.top_k * place.strides()[0])];
    call.dimension(("tokens", dynamic.tokens), None, &of_token)?;
    call.dimension(("width", fixed.width), None, &[("out", out.strides()[1]), ("y", y.strides()[1])])?;
    let strides = [
        ("out_row", out.strides()[0]),
        ("out_step", out.strides()[1]),
        ("y_row", y.strides()[0]),
        ("y_step", y.strides()[1]),
        ("weights_row", weights.strides()[0]),
        ("weights_step", weights.strides()[1]),
        ("place_step", place.strides()[0]),
        ("top_k", fixed.top_k),
        ("slots", y.shape()[0]),
    ];
    strides.into_iter().try_for_each(|(name, value)| call.param(name, value))?;
    call.reports();
    call.dispatch_in_parts(|p| (p("tokens") * p("width")).div_ceil(WORKGROUP as usize))
}
