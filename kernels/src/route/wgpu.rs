//! Routing in WGSL: a workgroup for each token, and then one for each expert.

use sinew_memory::DeviceKind;

use super::{Route, RouteDynamic, RouteStatic};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::wgpu::{Call, arithmetic};

/// Threads for a token, and for an expert.
const CHOOSING: u32 = 64;
const SORTING: u32 = 128;

pub(super) const ROW: Row<Route> = Row {
    name: "route.wgpu",
    device: DeviceKind::WGPU,
    arithmetic: arithmetic("route.wgpu"),
    admits: |_, _| Ok(()),
    cost: |fixed, call, hardware| predicted::by_shares(Route::work(fixed, call), hardware, 0.3, 0.1),
    workspace: |_, _, _| 0,
    run,
};

unsafe fn run(launch: &Launch<'_>, fixed: &RouteStatic, dynamic: &RouteDynamic, operands: Operands<'_>) -> Result<()> {
    let logits = operands.input(Route::NAME, Route::LOGITS, "logits")?;
    let experts = operands.output(Route::NAME, Route::EXPERTS, "experts")?;
    let weights = operands.output(Route::NAME, Route::WEIGHTS, "weights")?;
    let body = concat!(
        include_str!("../wgpu/math.wgsl"),
        include_str!("../wgpu/order.wgsl"),
        include_str!("wgpu_choose.wgsl")
    );
    let mut call = Call::new(launch, "route.wgpu.choose", body)?;
    call.option("WORKGROUP", CHOOSING)?;
    call.option("RENORMALIZE", u32::from(fixed.renormalize))?;
    call.write("experts", experts)?;
    call.write("weights", weights)?;
    call.read("logits", logits)?;
    let of_token = [("experts", experts), ("weights", weights)].map(|(name, view)| (name, view.strides()[0]));
    let of_token = [of_token[0], of_token[1], ("logits", logits.strides()[0])];
    call.dimension(("tokens", dynamic.tokens), None, &of_token)?;
    let params = [
        ("num_experts", fixed.experts),
        ("top_k", fixed.top_k),
        ("logits_row", logits.strides()[0]),
        ("logits_step", logits.strides()[1]),
        ("experts_row", experts.strides()[0]),
        ("experts_step", experts.strides()[1]),
        ("weights_row", weights.strides()[0]),
        ("weights_step", weights.strides()[1]),
    ];
    params.into_iter().try_for_each(|(name, value)| call.param(name, value))?;
    call.dispatch_in_parts(|p| p("tokens"))?;

    let offsets = operands.output(Route::NAME, Route::OFFSETS, "offsets")?;
    let place = operands.output(Route::NAME, Route::PLACE, "place")?;
    let source = operands.output(Route::NAME, Route::SOURCE, "source")?;
    let mut call = Call::new(launch, "route.wgpu.sort", include_str!("wgpu_sort.wgsl"))?;
    call.option("WORKGROUP", SORTING)?;
    call.write("offsets", offsets)?;
    call.write("place", place)?;
    call.write("source", source)?;
    call.read("experts", experts)?;
    let params = [
        ("num_experts", fixed.experts),
        ("top_k", fixed.top_k),
        ("slots", dynamic.tokens * fixed.top_k),
        ("experts_row", experts.strides()[0]),
        ("experts_step", experts.strides()[1]),
        ("offsets_step", offsets.strides()[0]),
        ("place_step", place.strides()[0]),
        ("source_step", source.strides()[0]),
    ];
    params.into_iter().try_for_each(|(name, value)| call.param(name, value))?;
    call.dispatch_linear(fixed.experts + 1)
}
