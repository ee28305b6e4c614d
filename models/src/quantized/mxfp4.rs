//! MXFP4: floats of 4 bits, 32 of which share a power of 2, as the experts of gpt-oss have them.
//!
//! `m_blocks` is U8 `[experts, out, in / 32, 16]`, two floats (OCP's E2M1) in a byte, the earlier in the low bits, and
//! `m_scales` U8 `[experts, out, in / 32]`: `w = value · 2^(scale − 127)` in bf16 (transformers'
//! `convert_moe_packed_tensors`, whose result is transposed). All experts are one module of `experts · out` rows.

use std::borrow::Cow;

use safetensors::Dtype;
use sinew_tensor::{BlockValues, DType};

use super::QuantizedFormat;
use super::layout::{CodesLayout, ScalesLayout, Stored};
use super::module::{Groups, Parts, StoredModule};
use super::probe::Probe;
use crate::error::Result;
use crate::tensors::Tensors;

/// Values that share a scale.
const GROUP: usize = 32;

/// MXFP4, of which a config says no more.
#[derive(Debug)]
pub(super) struct Mxfp4;

impl QuantizedFormat for Mxfp4 {
    fn name(&self) -> Cow<'static, str> {
        "MXFP4".into()
    }

    fn module(&self, tensors: &Tensors, name: &str, _: Option<DType>) -> Result<Option<StoredModule>> {
        module(tensors, name)
    }

    /// Refuses those that have scales, of experts or of a weight.
    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        let scales = probe.find_named(format!("{}_scales", probe.module)).or_else(|| probe.find("weight_scale"));
        scales.map_or(Ok(()), |scales| probe.refuse_beside(&scales))
    }
}

fn module(tensors: &Tensors, name: &str) -> Result<Option<StoredModule>> {
    let probe = Probe { tensors, module: name, format: "MXFP4" };
    let Some(blocks) = probe.find_named(format!("{name}_blocks")) else { return Ok(None) };
    probe.check_dtype(&blocks, &[Dtype::U8])?;
    let scales_name = format!("{name}_scales");
    let Some(scales) = probe.find_named(scales_name.clone()) else {
        return Err(probe.problem(format!("there is no `{}`, the scales of its blocks", scales_name.escape_debug())));
    };
    probe.check_dtype(&scales, &[Dtype::U8, Dtype::F8_E8M0])?;
    let &[experts, rows, groups, 16] = blocks.shape else {
        let shape = blocks.shape;
        return Err(probe.problem(format!("blocks of shape {shape:?}, expected [experts, out, in / {GROUP}, 16]")));
    };
    if experts == 0 || rows == 0 || groups == 0 {
        return Err(probe.problem(format!("blocks of shape {:?}, which are empty", blocks.shape)));
    }
    probe.check_shape(&scales, &[experts, rows, groups])?;
    // The floats that the blocks are made of have the module's own name, or that of a weight.
    let of_floats = probe.find_named(name.to_owned()).or_else(|| probe.find("weight"));
    if let Some(floats) = of_floats {
        let [floats, blocks] = [&floats, &blocks].map(|found| found.name.escape_debug());
        return Err(probe.problem(format!("its weight is there twice, as `{floats}` and as `{blocks}`")));
    }
    let (n, k) = (probe.times(experts, rows)?, probe.times(groups, GROUP)?);
    let parts = Parts {
        shape: [n, k],
        dtype: DType::BF16,
        values: BlockValues::F4E2M1,
        codes: Stored { tensor: blocks.name, layout: CodesLayout::Nibbles },
        scales: Stored { tensor: scales.name, layout: ScalesLayout::Exponents(1) },
        scale_dtype: DType::BF16,
        zeros: None,
        groups: Groups::of(k, GROUP),
        others: Vec::new(),
    };
    Ok(Some(StoredModule::new(&probe, parts)?.stacked(experts)))
}
