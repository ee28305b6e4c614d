//! Reductions in WGSL: a workgroup for each result.

use sinew_memory::DeviceKind;
use sinew_tensor::DType;

use super::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic, split};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 256;

pub(super) fn row() -> Row<Reduce> {
    Row {
        name: "reduce.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("reduce.wgpu"),
        admits: |fixed, _| if fixed.input == DType::F64 { Err("WGSL has no f64".into()) } else { Ok(()) },
        cost: |fixed, call, hardware| predicted::by_shares(Reduce::work(fixed, call), hardware, 0.5, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

/// The text that finds an element: the largest of keys of one kind, and what is stored of it.
macro_rules! find_body {
    ($key:literal, $result:literal) => {
        concat!(include_str!("../wgpu/order.wgsl"), include_str!($key), $result, include_str!("find.wgsl"))
    };
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &ReduceStatic,
    dynamic: &ReduceDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    use ReduceFunction as F;
    let x = operands.input(Reduce::NAME, Reduce::X, "x")?;
    let y = operands.output(Reduce::NAME, Reduce::Y, "y")?;
    let is_float = DType::COMPUTE.contains(&fixed.input);
    let body = match (fixed.function, is_float) {
        (F::Sum | F::Mean, true) => include_str!("sum_float.wgsl"),
        (F::Sum | F::Mean, false) => concat!(include_str!("../wgpu/integer.wgsl"), include_str!("sum_integer.wgsl")),
        (F::Max | F::Min, true) => {
            find_body!("key_float.wgsl", "fn result(at: u32, i: u32) -> f32 { return load_x(at); }")
        }
        (F::Max | F::Min, false) => {
            find_body!("key_integer.wgsl", "fn result(at: u32, i: u32) -> vec2<u32> { return load_x(at); }")
        }
        (F::ArgMax | F::ArgMin, true) => {
            find_body!("key_float.wgsl", "fn result(at: u32, i: u32) -> vec2<u32> { return vec2(i, 0u); }")
        }
        (F::ArgMax | F::ArgMin, false) => {
            find_body!("key_integer.wgsl", "fn result(at: u32, i: u32) -> vec2<u32> { return vec2(i, 0u); }")
        }
    };
    let (rows, width) = split(x.layout(), fixed.dims);
    let mut call = Call::new(launch, "reduce.wgpu", body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    call.option("MEAN", u32::from(fixed.function == F::Mean))?;
    call.option("SMALLEST", u32::from(matches!(fixed.function, F::Min | F::ArgMin)))?;
    call.write("y", y)?;
    call.read("x", x)?;
    call.walk_in_parts("rows", &Walk::of(rows, |d| [y.strides()[d], x.strides()[d]]), ["y", "x"])?;
    // Of the trailing dimensions: where an element of a row is.
    call.walk(&Walk::of(width, |d| [x.strides()[rows.len() + d]]), ["width"])?;
    call.param("width", dynamic.width)?;
    call.dispatch_in_parts(|p| p("rows"))
}
