//! Functions of one and two operands, and selection, of every dtype.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;
use sinew_tensor::{DType, Element};

use super::{Binary, BinaryDynamic, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic, Where, WhereStatic};
use crate::Result;
use crate::cuda::{self, Kernel, Strided2, Strided3, Strided4, THREADS};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernels' source.
pub static CUDA: CudaModule = cuda::module!("elementwise", "cuda.cu");
static UNARY: Kernel = Kernel { module: &CUDA, name: "unary" };
static BINARY: Kernel = Kernel { module: &CUDA, name: "binary" };
static SELECTION: Kernel = Kernel { module: &CUDA, name: "selection" };

/// Operations round to nearest; functions are those of CUDA's library.
const LIBRARY: Arithmetic = Arithmetic::named("elementwise.cuda");

/// Shares of the GPU's memory rate and of its f32 rate.
const READS: f64 = 0.7;
const COMPUTES: f64 = 0.05;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct UnaryParams {
    operands: Strided2,
    function: u32,
    padding: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BinaryParams {
    operands: Strided3,
    scalar: f64,
    integer: i64,
    by_scalar: u32,
    function: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WhereParams {
    operands: Strided4,
    size: u32,
    padding: u32,
}

pub(super) fn unary_row() -> Row<Unary> {
    Row {
        name: "unary.cuda",
        device: DeviceKind::CUDA,
        arithmetic: LIBRARY,
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Unary::work(fixed, call), hardware, READS, COMPUTES),
        workspace: |_, _, _| 0,
        run: run_unary,
    }
}

pub(super) fn binary_row() -> Row<Binary> {
    Row {
        name: "binary.cuda",
        device: DeviceKind::CUDA,
        arithmetic: LIBRARY,
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Binary::work(fixed, call), hardware, READS, COMPUTES),
        workspace: |_, _, _| 0,
        run: run_binary,
    }
}

pub(super) fn where_row() -> Row<Where> {
    Row {
        name: "where.cuda",
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("where.exact"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Where::work(fixed, call), hardware, READS, COMPUTES),
        workspace: |_, _, _| 0,
        run: run_where,
    }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run_unary(launch: &Launch<'_>, fixed: &UnaryStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Unary::NAME, Unary::Y, "y")?.view();
    let x = operands.optional(Unary::X).unwrap_or(y);
    let strided = Strided2::new(&Walk::any_order([y.layout(), x.layout()]), [y, x])?;
    let params = UnaryParams { operands: strided, function: fixed.function as u32, padding: 0 };
    let by_quads = DType::COMPUTE.contains(&fixed.input) && fixed.function != UnaryFunction::Not;
    let blocks = if by_quads { strided.map_blocks(THREADS) } else { strided.blocks(THREADS) };
    // SAFETY: the operator's check has seen that operands have one shape and the named dtypes; views lie within their
    // buffers, and the indices of an output share no elements, so that threads do not meet.
    unsafe { cuda::launch(launch, &UNARY, [blocks, 1, 1], THREADS, 0, &params, operands) }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run_binary(
    launch: &Launch<'_>,
    fixed: &BinaryStatic,
    call: &BinaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let y = operands.output(Binary::NAME, Binary::Y, "y")?.view();
    let a = operands.optional(Binary::A).unwrap_or(y);
    // The scalar takes no part in the walk: `a` stands in for it.
    let b = operands.optional(Binary::B);
    let views = [y, a, b.unwrap_or(a)];
    let strided = Strided3::new(&Walk::any_order(views.map(|view| view.layout())), views)?;
    let params = BinaryParams {
        operands: strided,
        scalar: fixed.b.round(call.scalar()),
        integer: if fixed.b == DType::I64 { i64::from_f64(call.scalar()) } else { fixed.b.round(call.scalar()) as i64 },
        by_scalar: u32::from(b.is_none()),
        function: fixed.function as u32,
    };
    let by_quads = DType::COMPUTE.contains(&fixed.a) && !fixed.function.compares();
    let blocks = if by_quads { strided.map_blocks(THREADS) } else { strided.blocks(THREADS) };
    // SAFETY: as for `run_unary`.
    unsafe { cuda::launch(launch, &BINARY, [blocks, 1, 1], THREADS, 0, &params, operands) }
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run_where(launch: &Launch<'_>, fixed: &WhereStatic, _: &Elements, operands: Operands<'_>) -> Result<()> {
    let y = operands.output(Where::NAME, Where::Y, "y")?.view();
    let condition = operands.input(Where::NAME, Where::CONDITION, "condition")?;
    let (a, b) = (operands.input(Where::NAME, Where::A, "a")?, operands.input(Where::NAME, Where::B, "b")?);
    let views = [y, condition, a, b];
    let strided = Strided4::new(&Walk::any_order(views.map(|view| view.layout())), views)?;
    let params = WhereParams { operands: strided, size: fixed.dtype.size() as u32, padding: 0 };
    // SAFETY: as for `run_unary`; conditions are one byte, whatever it holds.
    unsafe { cuda::launch(launch, &SELECTION, [strided.blocks(THREADS), 1, 1], THREADS, 0, &params, operands) }
}
