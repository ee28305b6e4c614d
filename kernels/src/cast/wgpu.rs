//! Any dtype to any in WGSL, element by element.

use sinew_memory::DeviceKind;
use sinew_tensor::DType;

use super::{Cast, CastStatic};
use crate::Result;
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{Call, arithmetic};

/// Widening is exact and narrowing rounds once to nearest, but that f16 may lose its subnormals.
const NEAREST: Arithmetic = arithmetic("cast.wgpu");
/// Threads of a workgroup.
const THREADS: usize = 64;
/// Share of the memory rate: a thread moves one element.
const READS: f64 = 0.5;

pub(super) fn row() -> Row<Cast> {
    Row {
        name: "cast.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: NEAREST,
        admits: |fixed, _| match (fixed.input, fixed.output) {
            (input, output) if input == output => Ok(()),
            (DType::F64, _) | (_, DType::F64) => Err("WGSL computes nothing in f64".into()),
            _ => Ok(()),
        },
        cost: |fixed, call, hardware| predicted::by_shares(Cast::work(fixed, call), hardware, READS, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &CastStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Cast::NAME, Cast::Y, "y")?.view();
    let x = operands.input(Cast::NAME, Cast::X, "x")?;
    let mut kernel = Call::new(launch, "cast.wgpu", include_str!("wgpu.wgsl"))?;
    kernel.option("INPUT", fixed.input as u32)?;
    kernel.option("OUTPUT", fixed.output as u32)?;
    kernel.write("y", y)?;
    kernel.read("x", x)?;
    kernel.walk_in_parts("count", &Walk::any_order([y.layout(), x.layout()]), ["y", "x"])?;
    kernel.dispatch_in_parts(|p| p("count").div_ceil(THREADS))
}
