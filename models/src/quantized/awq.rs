//! AWQ, as AutoAWQ packs it for its `gemm` kernel.
//!
//! With `G = in / group_size`: `qweight` I32 `[in, out / 8]` and `qzeros` I32 `[G, out / 8]`, both packed along `out`
//! and interleaved, and `scales` `[G, out]`. `w[o, i] = (q[i, o] − z[g, o]) · scales[g, o]` in the scales' dtype, with
//! `g = i / group_size` (AutoAWQ's `dequantize_gemm`).

use std::borrow::Cow;

use safetensors::Dtype;
use sinew_tensor::{BlockValues, DType};

use super::QuantizedFormat;
use super::bits::Bits;
use super::config::{bits, expect, group_size, unsupported};
use super::layout::{CodesLayout, ScalesLayout, Stored, ZerosLayout};
use super::module::{Groups, Parts, StoredModule};
use super::probe::{Probe, SCALES, scale_dtype};
use crate::error::Result;
use crate::json::Fields;
use crate::tensors::Tensors;

/// How all quantized modules are.
#[derive(Debug, Clone)]
pub(super) struct Awq {
    /// `None`: a scale for each row.
    group: Option<usize>,
}

impl Awq {
    /// What a config says.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        // GPTQModel says `format`; AutoAWQ's own files have `w_bit` and `q_group_size`.
        for name in ["version", "format", "checkpoint_format"] {
            expect(fields, name, "gemm", &["gemm"])?;
        }
        let bits_name = if fields.get("bits").is_some() { "bits" } else { "w_bit" };
        let bits = fields.required(bits_name, bits(fields, bits_name)?)?;
        if bits != Bits::Four {
            return Err(unsupported(fields, bits_name, &bits.count().to_string(), "4"));
        }
        if fields.flag("zero_point")? == Some(false) {
            return Err(unsupported(fields, "zero_point", "false", "true"));
        }
        let group_name = if fields.get("group_size").is_some() { "group_size" } else { "q_group_size" };
        Ok(Self { group: fields.required(group_name, group_size(fields, group_name)?)? })
    }
}

impl QuantizedFormat for Awq {
    fn name(&self) -> Cow<'static, str> {
        "AWQ, 4 bits".into()
    }

    fn module(&self, tensors: &Tensors, name: &str, _: Option<DType>) -> Result<Option<StoredModule>> {
        let probe = Probe { tensors, module: name, format: "AWQ" };
        let Some(codes) = probe.find("qweight") else { return Ok(None) };
        probe.check_dtype(&codes, &[Dtype::I32])?;
        let [k, words] = probe.matrix(&codes)?;
        let n = probe.times(words, Bits::Four.per_word())?;
        let groups = self.group.map_or_else(|| Groups::whole(k), |size| Groups::of(k, size));
        let scales = probe.tensor("scales", &SCALES)?;
        probe.check_shape(&scales, &[groups.count, n])?;
        let zeros = probe.tensor("qzeros", &[Dtype::I32])?;
        probe.check_shape(&zeros, &[groups.count, words])?;
        let scale = scale_dtype(scales.dtype);
        let parts = Parts {
            shape: [n, k],
            dtype: scale,
            values: BlockValues::Int4,
            codes: Stored { tensor: codes.name, layout: CodesLayout::WordsOfN },
            scales: Stored { tensor: scales.name, layout: ScalesLayout::Columns },
            scale_dtype: scale,
            zeros: Some(Stored { tensor: zeros.name, layout: ZerosLayout::Interleaved }),
            groups,
            others: Vec::new(),
        };
        Ok(Some(StoredModule::new(&probe, parts)?))
    }

    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        probe.refuse_beside_floats(&["scales", "qzeros"])
    }

    /// AutoAWQ's scales of what an activation gives, by which it has divided the weights of the module behind.
    fn scaled_before<'t>(&self, tensors: &Tensors, name: &'t str) -> Option<&'t str> {
        name.strip_suffix(".scales").filter(|activation| !tensors.contains(&format!("{activation}.qweight")))
    }
}
