//! One row: a block for each row of the input.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{TopK, TopKDynamic, TopKStatic};
use crate::Result;
use crate::cuda::{self, Kernel, Strided3};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::strided::Walk;

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("topk", "cuda.cu");
static TOPK: Kernel = Kernel { module: &CUDA, name: "topk" };

/// Threads for a row: as many as a block may have where it is long, since few rows are sorted at once.
const THREADS: u32 = 256;
const LONG_THREADS: u32 = 1024;
const LONG_WIDTH: usize = 4096;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: Strided3,
    steps: [i64; 3],
    width: u64,
    k: u64,
    keys: u64,
}

pub(super) fn rows() -> Vec<Row<TopK>> {
    vec![Row {
        name: "topk.cuda",
        device: DeviceKind::CUDA,
        // An order has no rounding: every row gives the same.
        arithmetic: Arithmetic::named("topk.exact"),
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| {
            // One multiprocessor has a row, and reads it some four times.
            let alone = hardware.threads as f64 / call.rows.clamp(1, hardware.threads.max(1)) as f64;
            cuda::cost(TopK::work(fixed, call), hardware, 0.2 / alone, 0.05 / alone)
        },
        workspace: |fixed, call, _| keys_bytes(fixed, call),
        run,
    }]
}

/// Bytes of `k` keys for every row.
fn keys_bytes(fixed: &TopKStatic, call: &TopKDynamic) -> usize {
    call.rows * fixed.k * size_of::<u64>()
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(launch: &Launch<'_>, fixed: &TopKStatic, call: &TopKDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(TopK::NAME, TopK::X, "x")?;
    let values = operands.output(TopK::NAME, TopK::VALUES, "values")?.view();
    let indices = operands.output(TopK::NAME, TopK::INDICES, "indices")?.view();
    let views = [values, indices, x];
    let last = x.shape().len() - 1;
    let walk = Walk::of(&x.shape()[..last], |d| views.map(|view| view.strides()[d]));
    let rows = Strided3::new(&walk, views)?;
    let params = Params {
        rows,
        steps: views.map(|view| view.strides()[last] as i64),
        width: call.width as u64,
        k: fixed.k as u64,
        keys: cuda::workspace_pointer(launch, keys_bytes(fixed, call))?,
    };
    let blocks = if fixed.k == 0 { 0 } else { rows.blocks(1) };
    let threads = if call.width > LONG_WIDTH { LONG_THREADS } else { THREADS };
    // SAFETY: the operator's check has seen shapes and dtypes, and that `k` is at most the width; the workspace holds
    // the keys; views lie within their buffers, and the indices of an output share no elements, so that blocks do not
    // meet.
    unsafe { cuda::launch(launch, &TOPK, [blocks, 1, 1], threads, 0, &params, operands) }
}
