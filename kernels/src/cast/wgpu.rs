//! Any dtype to any in WGSL, element by element.

use sinew_memory::DeviceKind;
use sinew_tensor::DType;

use super::{Cast, CastStatic};
use crate::Result;
use crate::elementwise::Elements;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::{Walk, cost};
use crate::wgpu::{Call, Part, arithmetic, largest_part};

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
        cost: |fixed, call, hardware| cost(Cast::work(fixed, call), hardware, READS, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &CastStatic, call: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Cast::NAME, Cast::Y, "y")?.view();
    let x = operands.input(Cast::NAME, Cast::X, "x")?;
    if call.0 == 0 {
        return Ok(());
    }
    let walk = Walk::any_order([y.layout(), x.layout()]);
    let largest = largest_part(launch);
    if [y, x].iter().all(|view| view.buffer().len() <= largest) {
        return dispatch(launch, fixed, &walk, [Part::write(y), Part::read(x)]);
    }
    // In pieces of the outermost dimension, as many of its indices at once as both operands can be bound with.
    let dimensions: Vec<(usize, [usize; 2])> = walk.dimensions().collect();
    let (sizes, strides): (Vec<usize>, Vec<[usize; 2]>) = dimensions.into_iter().unzip();
    let end = |count: usize, n: usize| {
        let inner: usize = sizes[1..].iter().zip(&strides[1..]).map(|(size, stride)| (size - 1) * stride[n]).sum();
        (count - 1) * strides[0][n] + inner + 1
    };
    let fits = |n: usize, dtype: DType| {
        let room = (largest / dtype.size()).saturating_sub(end(1, n));
        1 + room.checked_div(strides[0][n]).unwrap_or(sizes[0])
    };
    let most = fits(0, fixed.output).min(fits(1, fixed.input));
    for first in (0..sizes[0]).step_by(most) {
        let count = (sizes[0] - first).min(most);
        let mut piece = sizes.clone();
        piece[0] = count;
        let [y_first, x_first] = strides[0].map(|stride| first * stride);
        let parts = [
            Part::write(y).range(y_first, y_first + end(count, 0)),
            Part::read(x).range(x_first, x_first + end(count, 1)),
        ];
        dispatch(launch, fixed, &Walk::of(&piece, |d| strides[d]), parts)?;
    }
    Ok(())
}

fn dispatch<'a>(launch: &Launch<'a>, fixed: &CastStatic, walk: &Walk<2>, [y, x]: [Part<'a>; 2]) -> Result<()> {
    let mut call = Call::new(launch, "cast.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("INPUT", fixed.input as u32)?;
    call.option("OUTPUT", fixed.output as u32)?;
    call.part("y", y)?;
    call.part("x", x)?;
    call.walk(walk, ["y", "x"])?;
    let count: usize = walk.dimensions().map(|(size, _)| size).product();
    call.param("count", count)?;
    call.dispatch_linear(count.div_ceil(THREADS))
}
