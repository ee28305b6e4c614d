//! Sampling in WGSL: a workgroup for each row, so that of a step only tokens leave the device.

use sinew_memory::DeviceKind;

use super::{LOGITS, PARAMS, Sample, SampleDynamic, SampleStatic, TOKENS, TOP_K};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 256;

pub(super) fn row() -> Row<Sample> {
    Row {
        name: "sample.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("sample.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| predicted::by_shares(Sample::work(fixed, call), hardware, 0.1, 0.1),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &SampleStatic,
    dynamic: &SampleDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let logits = operands.input(Sample::NAME, LOGITS, "logits")?;
    let params = operands.input(Sample::NAME, PARAMS, "params")?;
    let top_k = operands.input(Sample::NAME, TOP_K, "top_k")?;
    let tokens = operands.output(Sample::NAME, TOKENS, "tokens")?;
    let body =
        concat!(include_str!("../wgpu/math.wgsl"), include_str!("../wgpu/order.wgsl"), include_str!("wgpu.wgsl"));
    let mut call = Call::new(launch, "sample.wgpu", body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.write("tokens", tokens)?;
    call.read("logits", logits)?;
    call.read("params", params)?;
    call.read("top_k", top_k)?;
    let rows = [
        ("logits", logits.strides()[0]),
        ("params", params.strides()[0]),
        ("top_k", top_k.strides()[0]),
        ("tokens", tokens.strides()[0]),
    ];
    call.dimension(("rows", dynamic.rows), Some("first"), &rows)?;
    call.param("vocab", fixed.vocab)?;
    call.param("share", fixed.vocab.div_ceil(WORKGROUP as usize))?;
    call.param("logits_row", logits.strides()[0])?;
    call.param("logits_step", logits.strides()[1])?;
    call.param("params_row", params.strides()[0])?;
    call.param("params_step", params.strides()[1])?;
    call.param("top_k_row", top_k.strides()[0])?;
    call.param("tokens_row", tokens.strides()[0])?;
    call.reports_that("row {} has no finite logit, or has NaN or infinity");
    call.dispatch_in_parts(|p| p("rows"))
}
