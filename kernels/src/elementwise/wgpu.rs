//! Elementwise operators in WGSL: a thread for each element. Integers are computed in 64 bits, and what is stored of
//! them wraps.

use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic, Where,
    WhereStatic,
};
use crate::Result;
use crate::operator::{Launch, Operands, Operator, Refusal, Row, Work};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

const WORKGROUP: u32 = 64;

fn cost(work: Work, hardware: &Hardware) -> f64 {
    predicted::by_shares(work, hardware, 0.5, 1.0)
}

fn refuse_f64(dtype: DType) -> Result<(), Refusal> {
    if dtype == DType::F64 { Err("WGSL has no f64".into()) } else { Ok(()) }
}

/// A call, all but its operands.
fn start<'a>(launch: &Launch<'a>, name: &'static str, body: &'static str) -> Result<Call<'a>> {
    let mut call = Call::new(launch, name, body)?;
    call.option("WORKGROUP", WORKGROUP)?;
    Ok(call)
}

/// A thread for each element.
fn finish(mut call: Call<'_>) -> Result<()> {
    call.dispatch_in_parts(|p| p("count").div_ceil(WORKGROUP as usize))
}

pub(super) fn unary_row() -> Row<Unary> {
    Row {
        name: "unary.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("unary.wgpu"),
        admits: |fixed, _| refuse_f64(fixed.input),
        cost: |fixed, call, hardware| cost(Unary::work(fixed, call), hardware),
        workspace: |_, _, _| 0,
        run: run_unary,
    }
}

unsafe fn run_unary(launch: &Launch<'_>, fixed: &UnaryStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Unary::NAME, Unary::Y, "y")?;
    let x = operands.optional(Unary::X).unwrap_or(y);
    let body = if !DType::COMPUTE.contains(&fixed.input) {
        concat!(
            include_str!("../wgpu/integer.wgsl"),
            include_str!("unary_integer.wgsl"),
            include_str!("unary_main.wgsl")
        )
    } else if fixed.function == UnaryFunction::Not {
        concat!(
            "fn function(x: f32) -> vec2<u32> {
                return vec2(select(0u, 1u, (bitcast<u32>(x) & 0x7fffffffu) == 0u), 0u);
            }",
            include_str!("unary_main.wgsl")
        )
    } else {
        concat!(
            include_str!("../wgpu/math.wgsl"),
            include_str!("../wgpu/integer.wgsl"),
            include_str!("unary_float.wgsl"),
            include_str!("unary_main.wgsl")
        )
    };
    let mut call = start(launch, "unary.wgpu", body)?;
    call.option("FUNCTION", fixed.function as u32)?;
    call.write("y", y)?;
    call.read("x", x)?;
    call.walk_in_parts("count", &Walk::any_order([y.layout(), x.layout()]), ["y", "x"])?;
    finish(call)
}

pub(super) fn binary_row() -> Row<Binary> {
    Row {
        name: "binary.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("binary.wgpu"),
        admits: |fixed, _| {
            if fixed.function == BinaryFunction::Pow {
                return Err("a power in f32 alone would be wrong in its last digits, and WGSL has no f64".into());
            }
            refuse_f64(fixed.a)
        },
        cost: |fixed, call, hardware| cost(Binary::work(fixed, call), hardware),
        workspace: |_, _, _| 0,
        run: run_binary,
    }
}

/// The text of one kind of function, with the second operand from a tensor or the call's scalar.
macro_rules! binary_body {
    ($has_b:expr, $($piece:literal),+) => {
        if $has_b {
            concat!(
                $(include_str!($piece),)+
                include_str!("binary_main.wgsl"),
                "fn second(i: u32) -> Operand { return load_b(at_b(i)); }"
            )
        } else {
            concat!(
                $(include_str!($piece),)+
                include_str!("binary_main.wgsl"),
                "fn second(i: u32) -> Operand { return scalar(); }"
            )
        }
    };
}

unsafe fn run_binary(
    launch: &Launch<'_>,
    fixed: &BinaryStatic,
    dynamic: &BinaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Binary::NAME, Binary::Y, "y")?;
    let a = operands.optional(Binary::A).unwrap_or(y);
    let b: Option<&View<'_>> = operands.optional(Binary::B);
    let (has_b, scalar) = (b.is_some(), dynamic.scalar());
    let is_float = DType::COMPUTE.contains(&fixed.a);
    let body = if !is_float {
        binary_body!(has_b, "../wgpu/integer.wgsl", "binary_integer.wgsl")
    } else if fixed.function.compares() {
        binary_body!(has_b, "../wgpu/order.wgsl", "binary_compare.wgsl")
    } else {
        binary_body!(has_b, "../wgpu/math.wgsl", "../wgpu/order.wgsl", "binary_float.wgsl")
    };
    let mut call = start(launch, "binary.wgpu", body)?;
    call.option("FUNCTION", fixed.function as u32)?;
    call.write("y", y)?;
    call.read("a", a)?;
    match b {
        Some(b) => {
            call.read("b", b)?;
            call.walk_in_parts("count", &Walk::any_order([y.layout(), a.layout(), b.layout()]), ["y", "a", "b"])?;
        }
        None => call.walk_in_parts("count", &Walk::any_order([y.layout(), a.layout()]), ["y", "a"])?,
    }
    if is_float {
        call.param_f32("scalar", fixed.b.round(scalar) as f32)?;
    } else {
        let bits = fixed.b.round(scalar) as i64 as u64;
        call.param("scalar", (bits & 0xffff_ffff) as usize)?;
        call.param("scalar_high", (bits >> 32) as usize)?;
    }
    finish(call)
}

pub(super) fn where_row() -> Row<Where> {
    Row {
        name: "where.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("where.wgpu"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cost(Where::work(fixed, call), hardware),
        workspace: |_, _, _| 0,
        run: run_where,
    }
}

unsafe fn run_where(launch: &Launch<'_>, _: &WhereStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Where::NAME, Where::Y, "y")?;
    let condition = operands.input(Where::NAME, Where::CONDITION, "condition")?;
    let (a, b) = (operands.input(Where::NAME, Where::A, "a")?, operands.input(Where::NAME, Where::B, "b")?);
    let mut call = start(launch, "where.wgpu", include_str!("where.wgsl"))?;
    call.write("y", y)?;
    call.read("condition", condition)?;
    call.read("a", a)?;
    call.read("b", b)?;
    let layouts = [y.layout(), condition.layout(), a.layout(), b.layout()];
    call.walk_in_parts("count", &Walk::any_order(layouts), ["y", "condition", "a", "b"])?;
    finish(call)
}
