//! Norms in WGSL: a workgroup for each row.

use sinew_memory::DeviceKind;
use sinew_tensor::Layout;

use super::{Norm, NormDynamic, NormKind, NormStatic};
use crate::Result;
use crate::operator::takes_lanes;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row};
use crate::rates::predicted;
use crate::strided::Walk;
use crate::wgpu::{self, Call};

/// Sums in a thread for every 64 or 256 elements, then in a tree; inverse roots to a unit in the last place.
const TREE: Arithmetic = wgpu::arithmetic("norm.wgpu");

/// Width from which a row is worth a workgroup of 256 threads, and not one of 64.
const WIDE: usize = 1024;

pub(super) fn row() -> Row<Norm> {
    Row {
        name: "norm.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: TREE,
        admits: |fixed, _| takes(fixed),
        cost: |fixed, call, hardware| predicted::by_shares(Norm::work(fixed, call), hardware, 0.5, 0.1),
        workspace: |_, _, _| 0,
        run,
    }
}

fn takes(fixed: &NormStatic) -> Result<(), Refusal> {
    takes_lanes(fixed.dtypes())
}

/// The step from one element of a row to the next.
fn step(layout: Option<&Layout>) -> usize {
    layout.and_then(|layout| layout.strides().last().copied()).unwrap_or(0)
}

unsafe fn run(launch: &Launch<'_>, fixed: &NormStatic, _: &NormDynamic, operands: Operands<'_>) -> Result<()> {
    if fixed.width == 0 {
        return Ok(());
    }
    let y = operands.output(Norm::NAME, Norm::Y, "y")?.view();
    let x = operands.optional(Norm::X);
    let residual = match fixed.residual {
        Some(_) => Some(operands.output(Norm::NAME, Norm::RESIDUAL, "residual")?.view()),
        None => None,
    };
    let (weight, bias) = (operands.optional(Norm::WEIGHT), operands.optional(Norm::BIAS));
    let mut call = Call::new(launch, "norm.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("WORKGROUP", if fixed.width < WIDE { 64 } else { 256 })?;
    call.option("LAYER", u32::from(fixed.formula.kind == NormKind::Layer))?;
    call.write("y", y)?;
    call.optional("x", x)?;
    call.optional_write("residual", residual)?;
    call.optional("weight", weight)?;
    call.optional("bias", bias)?;
    let layouts = [Some(y), x, residual].map(|view| view.map(|view| view.layout()));
    let leading = y.shape().len() - 1;
    let strides = |d: usize| layouts.map(|layout| layout.map_or(0, |layout| layout.strides()[d]));
    call.walk_in_parts("rows", &Walk::of(&y.shape()[..leading], strides), ["y", "x", "residual"])?;
    for (name, layout) in ["y_step", "x_step", "residual_step"].into_iter().zip(layouts) {
        call.param(name, step(layout))?;
    }
    call.param("weight_step", step(weight.map(|view| view.layout())))?;
    call.param("bias_step", step(bias.map(|view| view.layout())))?;
    call.param("width", fixed.width)?;
    call.param_f32("share", 1.0 / fixed.width as f32)?;
    call.param_f32("eps", fixed.formula.eps.get())?;
    call.param_f32("offset", fixed.formula.weight_offset.get())?;
    call.dispatch_in_parts(|p| p("rows"))
}
