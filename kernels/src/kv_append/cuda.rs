//! One row for every dtype.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;
use sinew_tensor::View;

use super::{K_CACHE, K_NEW, KvAppend, KvAppendDynamic, KvAppendStatic, SLOTS, V_CACHE, V_NEW};
use crate::cuda::{self, Kernel, THREADS};
use crate::operator::refuse;
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("kv_append", "cuda.cu");
static KV_APPEND: Kernel = Kernel { module: &CUDA, name: "kv_append" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    from: [u64; 2],
    to: [u64; 2],
    slots: u64,
    status: u64,
    from_strides: [[i64; 3]; 2],
    to_strides: [[i64; 4]; 2],
    slot_stride: i64,
    tokens: u64,
    places: u64,
    heads: u32,
    head_dim: u32,
    block_size: u32,
    source: u32,
    kv: u32,
    slots_type: u32,
}

pub(super) fn rows() -> Vec<Row<KvAppend>> {
    vec![Row {
        name: "kv_append.cuda",
        device: DeviceKind::CUDA,
        // Widening and rounding to nearest are the same bits everywhere.
        arithmetic: Arithmetic::named("kv_append.round"),
        admits: |fixed, _| super::takes_on_gpu(fixed),
        cost: |fixed, call, hardware| cuda::cost(KvAppend::work(fixed, call), hardware, 0.5, 1.0),
        workspace: |_, _, _| 0,
        run,
    }]
}

fn strides<const N: usize>(view: &View<'_>) -> [i64; N] {
    std::array::from_fn(|d| view.strides()[d] as i64)
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(
    launch: &Launch<'_>,
    fixed: &KvAppendStatic,
    call: &KvAppendDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let name = KvAppend::NAME;
    let new = [operands.input(name, K_NEW, "k_new")?, operands.input(name, V_NEW, "v_new")?];
    let caches = [operands.output(name, K_CACHE, "k_cache")?.view(), operands.output(name, V_CACHE, "v_cache")?.view()];
    let slots = operands.input(name, SLOTS, "slots")?;
    let small = |n: usize| u32::try_from(n).map_err(|_| refuse(name, format!("{fixed}, {call}: too large")));
    small(fixed.num_kv_heads.saturating_mul(fixed.head_dim))?;
    let params = Params {
        from: [cuda::pointer(new[0])?, cuda::pointer(new[1])?],
        to: [cuda::pointer(caches[0])?, cuda::pointer(caches[1])?],
        slots: cuda::pointer(slots)?,
        status: cuda::status_pointer(launch, &KV_APPEND, cuda::OUTSIDE)?,
        from_strides: new.map(strides),
        to_strides: caches.map(strides),
        slot_stride: slots.strides()[0] as i64,
        tokens: call.tokens as u64,
        places: (caches[0].shape()[0] * fixed.block_size) as u64,
        heads: small(fixed.num_kv_heads)?,
        head_dim: small(fixed.head_dim)?,
        block_size: small(fixed.block_size)?,
        source: cuda::code(fixed.source),
        kv: cuda::code(fixed.kv),
        slots_type: cuda::code(slots.dtype()),
    };
    let grid = [small(call.tokens)?, 2, 1];
    // SAFETY: the operator's check has seen shapes and dtypes, and the kernel leaves out slots that the caches do not
    // have; of tokens with one slot one block writes.
    unsafe { cuda::launch(launch, &KV_APPEND, grid, THREADS, 0, &params, operands) }
}
