//! A top-k in WGSL: a workgroup for each row goes over it once for each of the `k`, and takes the first that comes
//! after the last.

use sinew_memory::DeviceKind;

use super::{TopK, TopKDynamic, TopKStatic};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 256;

pub(super) fn row() -> Row<TopK> {
    Row {
        name: "topk.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("topk.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| {
            fixed.k as f64 * predicted::by_shares(TopK::work(fixed, call), hardware, 0.5, 1.0)
        },
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &TopKStatic, dynamic: &TopKDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(TopK::NAME, TopK::X, "x")?;
    let values = operands.output(TopK::NAME, TopK::VALUES, "values")?;
    let indices = operands.output(TopK::NAME, TopK::INDICES, "indices")?;
    let strides = |d: usize| [values.strides()[d], indices.strides()[d], x.strides()[d]];
    let last = x.shape().len() - 1;
    let body = concat!(include_str!("../wgpu/order.wgsl"), include_str!("wgpu.wgsl"));
    let mut call = Call::new(launch, "topk.wgpu", body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.write("values", values)?;
    call.write("indices", indices)?;
    call.read("x", x)?;
    call.walk_in_parts("rows", &Walk::of(&x.shape()[..last], strides), ["values", "indices", "x"])?;
    for (name, step) in ["values_step", "indices_step", "x_step"].into_iter().zip(strides(last)) {
        call.param(name, step)?;
    }
    call.param("width", dynamic.width)?;
    call.param("k", fixed.k)?;
    call.dispatch_in_parts(|p| if fixed.k == 0 { 0 } else { p("rows") })
}
