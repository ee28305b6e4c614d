//! One row for every style and dtype.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{COS, OUT, POSITIONS, Rotary, RotaryDynamic, RotaryStatic, SIN, Style, X};
use crate::Result;
use crate::cuda::{self, Kernel, THREADS};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, refuse};

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("rotary", "cuda.cu");
static ROTARY: Kernel = Kernel { module: &CUDA, name: "rotary" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    out: u64,
    x: u64,
    positions: u64,
    cos: u64,
    sin: u64,
    status: u64,
    out_strides: [i64; 3],
    x_strides: [i64; 3],
    cos_strides: [i64; 2],
    sin_strides: [i64; 2],
    position_stride: i64,
    items: u64,
    length: u64,
    heads: u32,
    pairs: u32,
    items_per_head: u32,
    step: u32,
    partner: u32,
    out_type: u32,
    x_type: u32,
    padding: u32,
}

pub(super) fn rows() -> Vec<Row<Rotary>> {
    vec![Row {
        name: "rotary.cuda",
        device: DeviceKind::CUDA,
        // The second product is added in one rounding, as on a CPU with fused multiply-add.
        arithmetic: Arithmetic::named("rotary.fma"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cuda::cost(Rotary::work(fixed, call), hardware, 0.6, 0.1),
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &RotaryStatic, call: &RotaryDynamic, operands: Operands<'_>) -> Result<()> {
    let out = operands.output(Rotary::NAME, OUT, "out")?.view();
    let x = if fixed.in_place { out } else { operands.input(Rotary::NAME, X, "x")? };
    let positions = operands.input(Rotary::NAME, POSITIONS, "positions")?;
    let (cos, sin) = (operands.input(Rotary::NAME, COS, "cos")?, operands.input(Rotary::NAME, SIN, "sin")?);
    let pairs = fixed.rotary_dim / 2;
    let items_per_head = pairs + if fixed.in_place { 0 } else { fixed.head_dim - fixed.rotary_dim };
    let items = call.tokens * call.heads * items_per_head;
    let (step, partner) = match fixed.style {
        Style::Half => (1, pairs),
        Style::Interleaved => (2, 1),
    };
    let small = |n: usize| u32::try_from(n).map_err(|_| refuse(Rotary::NAME, format!("{fixed}, {call}: too large")));
    let strides = |view: &sinew_tensor::View<'_>| std::array::from_fn(|d| view.strides()[d] as i64);
    let params = Params {
        out: cuda::pointer(out)?,
        x: cuda::pointer(x)?,
        positions: cuda::pointer(positions)?,
        cos: cuda::pointer(cos)?,
        sin: cuda::pointer(sin)?,
        status: cuda::status_pointer(launch, &ROTARY, cuda::OUTSIDE)?,
        out_strides: strides(out),
        x_strides: strides(x),
        cos_strides: [0, 1].map(|d| cos.strides()[d] as i64),
        sin_strides: [0, 1].map(|d| sin.strides()[d] as i64),
        position_stride: positions.strides()[0] as i64,
        items: items as u64,
        length: cos.shape()[0] as u64,
        heads: small(call.heads)?,
        pairs: small(pairs)?,
        items_per_head: small(items_per_head)?,
        step,
        partner: small(partner)?,
        out_type: cuda::code(fixed.out),
        x_type: cuda::code(fixed.x),
        padding: 0,
    };
    let blocks = cuda::blocks(items, THREADS);
    // SAFETY: the operator's check has seen shapes and dtypes, and the kernel leaves out positions that the tables do
    // not have; views lie within their buffers, and a thread alone has its values of the output.
    unsafe { cuda::launch(launch, &ROTARY, [blocks, 1, 1], THREADS, 0, &params, operands) }
}
