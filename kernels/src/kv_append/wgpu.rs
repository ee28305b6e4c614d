//! The append in WGSL: a workgroup for each token, which leaves its slot alone where a later token has the same.

use sinew_memory::DeviceKind;

use super::{K_CACHE, K_NEW, KvAppend, KvAppendDynamic, KvAppendStatic, SLOTS, V_CACHE, V_NEW};
use crate::rates::predicted;
use crate::wgpu::{Call, arithmetic};
use crate::{Launch, Operands, Operator, Result, Row};

const WORKGROUP: u32 = 128;

pub(super) fn row() -> Row<KvAppend> {
    Row {
        name: "kv_append.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: arithmetic("kv_append.wgpu"),
        admits: |fixed, _| super::takes_on_gpu(fixed),
        cost: |fixed, call, hardware| predicted::by_shares(KvAppend::work(fixed, call), hardware, 0.5, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &KvAppendStatic,
    dynamic: &KvAppendDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let name = KvAppend::NAME;
    let (k_new, v_new) = (operands.input(name, K_NEW, "k_new")?, operands.input(name, V_NEW, "v_new")?);
    let (k_cache, v_cache) = (operands.output(name, K_CACHE, "k_cache")?, operands.output(name, V_CACHE, "v_cache")?);
    let slots = operands.input(name, SLOTS, "slots")?;
    let mut call = Call::new(launch, "kv_append.wgpu", include_str!("wgpu.wgsl"))?;
    call.option("WORKGROUP", WORKGROUP)?;
    // Where the dtypes are one, bits are moved as they are.
    call.option("MOVES", u32::from(fixed.source == fixed.kv))?;
    call.write("k_cache", k_cache)?;
    call.write("v_cache", v_cache)?;
    call.read("k_new", k_new)?;
    call.read("v_new", v_new)?;
    call.read("slots", slots)?;
    let tokens = [("k_new", k_new.strides()[0]), ("v_new", v_new.strides()[0])];
    call.dimension(("count", dynamic.tokens), Some("first"), &tokens)?;
    let blocks = [("k_cache", k_cache.strides()[0]), ("v_cache", v_cache.strides()[0])];
    call.dimension(("blocks", k_cache.shape()[0]), Some("first_block"), &blocks)?;
    call.param("tokens", dynamic.tokens)?;
    call.param("head_dim", fixed.head_dim)?;
    call.param("values", fixed.num_kv_heads * fixed.head_dim)?;
    call.param("block_size", fixed.block_size)?;
    call.param("places", k_cache.shape()[0] * fixed.block_size)?;
    call.param("slot_stride", slots.strides()[0])?;
    for (name, stride) in ["k_token", "k_head", "k_value"].into_iter().zip(k_new.strides()) {
        call.param(name, *stride)?;
    }
    for (name, stride) in ["v_token", "v_head", "v_value"].into_iter().zip(v_new.strides()) {
        call.param(name, *stride)?;
    }
    for (name, stride) in ["k_block", "k_to_head", "k_place", "k_to_value"].into_iter().zip(k_cache.strides()) {
        call.param(name, *stride)?;
    }
    for (name, stride) in ["v_block", "v_to_head", "v_place", "v_to_value"].into_iter().zip(v_cache.strides()) {
        call.param(name, *stride)?;
    }
    call.reports();
    call.dispatch_in_parts(|p| p("count"))
}
