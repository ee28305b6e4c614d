//! NF4 of bitsandbytes, as transformers saves models that it has loaded with `load_in_4bit`.
//!
//! `weight` is U8 `[out · in / 2, 1]`, or those bytes under the name of a float (`bnb_4bit_quant_storage`): the codes of
//! all rows one after the other, two in a byte, the earlier in the high bits. `weight.absmax` has the scale of every `blocksize` of them, in f32, or, quantized again, in U8: then it is
//! `nested_quant_map[absmax] · nested_absmax + nested_offset`, where `nested_absmax` F32 has one for every
//! 256. `weight.quant_map` F32 `[16]` is what codes stand for, and `weight.quant_state.bitsandbytes__nf4`
//! U8 a JSON of the rest. `w = quant_map[code] · scale` in f32, rounded to the dtype that the state names
//! (bitsandbytes' `dequantize_4bit`).

use std::borrow::Cow;

use safetensors::Dtype;
use sinew_tensor::{BlockValues, DType};

use super::QuantizedFormat;
use super::config::{expect, unsupported};
use super::layout::{CodesLayout, Nested, ScalesLayout, Stored};
use super::module::{Groups, Parts, StoredModule};
use super::probe::Probe;
use crate::config::fields::{MAX_SIZE, read_dtype};
use crate::error::{Error, Result};
use crate::json::{self, Fields, as_count};
use crate::tensors::Tensors;
use crate::tensors::floats::{float, widened};

/// Refuses the configs of others than NF4.
pub(super) fn check(fields: &Fields<'_>) -> Result<()> {
    if fields.flag("load_in_8bit")? == Some(true) {
        return Err(unsupported(fields, "load_in_8bit", "true", "load_in_4bit, with nf4"));
    }
    expect(fields, "bnb_4bit_quant_type", "nf4", &["nf4"])?;
    expect(fields, "bnb_4bit_quant_storage", "uint8", &["uint8", "bfloat16", "float16", "float32"])?;
    Ok(())
}

/// NF4, whose tensors say all.
#[derive(Debug)]
pub(super) struct Nf4;

impl QuantizedFormat for Nf4 {
    fn name(&self) -> Cow<'static, str> {
        "bitsandbytes, NF4".into()
    }

    fn module(&self, tensors: &Tensors, name: &str, _: Option<DType>) -> Result<Option<StoredModule>> {
        module(tensors, name)
    }

    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        let parts = ["weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"];
        probe.refuse_beside_floats(&parts)
    }
}

/// What a weight's name has behind it where its state stands.
const STATE_OF_WEIGHT: &str = ".quant_state.bitsandbytes__nf4";

/// Whether a tensor holds codes, whatever its dtype says.
pub(super) fn has_codes(tensors: &Tensors, tensor: &str) -> bool {
    tensor.ends_with(".weight") && tensors.contains(&format!("{tensor}{STATE_OF_WEIGHT}"))
}

fn module(tensors: &Tensors, name: &str) -> Result<Option<StoredModule>> {
    /// Bytes of a state, which is some two hundred of them.
    const MAX_STATE: usize = 1 << 16;
    /// Scales that share one, as bitsandbytes has them: so few are theirs that no plan need count them.
    const SCALES_OF_BLOCK: usize = 256;
    let probe = Probe { tensors, module: name, format: "bitsandbytes, NF4" };
    if probe.find("weight.quant_state.bitsandbytes__fp4").is_some() {
        let what = format!("FP4 of bitsandbytes, which module `{}` has,", name.escape_debug());
        return Err(Error::Unsupported { what, supported: "NF4".to_owned() });
    }
    let Some(state) = probe.find(&format!("weight{STATE_OF_WEIGHT}")) else {
        // A weight of floats is one that was left as it is.
        return match probe.find("weight").filter(|weight| weight.dtype == Dtype::U8) {
            None => Ok(None),
            Some(_) => Err(probe.problem(format!("there is no `{}.weight{STATE_OF_WEIGHT}`", name.escape_debug()))),
        };
    };
    probe.check_dtype(&state, &[Dtype::U8])?;
    if !matches!(state.shape, [bytes] if *bytes <= MAX_STATE) {
        return Err(probe.problem(format!(
            "`{}` has shape {:?}, which is no state",
            state.name.escape_debug(),
            state.shape
        )));
    }
    let bytes = tensors.tensor(&state.name)?.bytes;
    let file = format!("`{}` in {}", state.name, tensors.name());
    let json = json::parse(&String::from_utf8_lossy(&bytes), &file)?;
    let fields = Fields::of(&json, &state.name, "")?;
    let says = |field: &str, known: &str| {
        fields.required(field, fields.get(field))?;
        expect(&fields, field, "", &[known]).map(drop)
    };
    says("quant_type", "nf4")?;
    let size = |field: &str| fields.required(field, fields.size(field, MAX_SIZE)?);
    let [n, k] = shape(&fields)?;
    let block = size("blocksize")?;
    // Those that bitsandbytes has; of others two codes of a byte may be of two rows.
    if !(32..=4096).contains(&block) || !block.is_power_of_two() {
        return Err(fields.problem("blocksize", &format!("must be a power of 2 from 32 to 4096, found {block}")));
    }
    if !k.is_multiple_of(block) {
        let what = format!("module `{}`, whose rows of {k} are not whole blocks of {block},", name.escape_debug());
        return Err(Error::Unsupported { what, supported: "rows of whole blocks".to_owned() });
    }
    let dtype = read_dtype(&fields).ok().flatten().and_then(float).filter(|dtype| DType::COMPUTE.contains(dtype));
    let dtype = dtype.ok_or_else(|| fields.problem("dtype", "must be float16, bfloat16 or float32"))?;

    let codes = probe.tensor("weight", &[Dtype::U8, Dtype::BF16, Dtype::F16, Dtype::F32])?;
    let count = probe.times(n, k)?;
    // Rows are of 32 codes at least.
    let stored = count / 2 / (codes.dtype.bitsize() / 8);
    if codes.shape != [stored, 1] && codes.shape != [1, stored] {
        return Err(probe.problem(format!("codes of shape {:?}, expected {:?}", codes.shape, [stored, 1])));
    }
    let map = floats(&probe, "weight.quant_map", 16)?;
    if map[..] != BlockValues::NF4 {
        return Err(probe.problem("`weight.quant_map` has other values than NF4"));
    }
    let scales = probe.tensor("weight.absmax", &[Dtype::F32, Dtype::U8])?;
    let groups = Groups::of(k, block);
    probe.check_shape(&scales, &[count / block])?;
    let part = |part: &str| format!("{name}.weight.{part}");
    let mut others = vec![state.name.clone(), part("quant_map")];
    let layout = match scales.dtype {
        Dtype::U8 => {
            let block_of_scales = size("nested_blocksize")?;
            if block_of_scales != SCALES_OF_BLOCK {
                let found = block_of_scales.to_string();
                return Err(unsupported(&fields, "nested_blocksize", &found, &SCALES_OF_BLOCK.to_string()));
            }
            // bitsandbytes rounds scales to it before it adds the offset.
            says("nested_dtype", "float32")?;
            let offset = fields.required("nested_offset", fields.number("nested_offset")?)? as f32;
            if !offset.is_finite() {
                return Err(fields.problem("nested_offset", "is more than f32 has"));
            }
            let nested = Nested {
                map: floats(&probe, "weight.nested_quant_map", 256)?,
                scales: floats(&probe, "weight.nested_absmax", (count / block).div_ceil(block_of_scales))?,
                block: block_of_scales,
                offset,
            };
            others.extend([part("nested_quant_map"), part("nested_absmax")]);
            ScalesLayout::Nested(nested)
        }
        _ => ScalesLayout::Rows(1),
    };
    let parts = Parts {
        shape: [n, k],
        dtype,
        values: BlockValues::Nf4,
        codes: Stored { tensor: codes.name, layout: CodesLayout::HighNibbles },
        scales: Stored { tensor: scales.name, layout },
        scale_dtype: DType::F32,
        zeros: None,
        groups,
        others,
    };
    Ok(Some(StoredModule::new(&probe, parts)?))
}

/// `shape`: `[out, in]`.
fn shape(fields: &Fields<'_>) -> Result<[usize; 2]> {
    let extents: Vec<Option<usize>> = fields.list("shape")?.unwrap_or_default().iter().take(3).map(as_count).collect();
    match extents[..] {
        [Some(n), Some(k)] if (1..=MAX_SIZE).contains(&n) && (1..=MAX_SIZE).contains(&k) => Ok([n, k]),
        _ => Err(fields.problem("shape", "must be two sizes")),
    }
}

/// The values of a short tensor of F32.
fn floats(probe: &Probe<'_>, tensor: &str, count: usize) -> Result<Box<[f32]>> {
    let found = probe.tensor(tensor, &[Dtype::F32])?;
    probe.check_shape(&found, &[count])?;
    Ok(widened(&probe.tensors.tensor(&found.name)?.bytes, DType::F32).into())
}
