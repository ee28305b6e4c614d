//! FP8 with a scale for each block, row or tensor: DeepSeek, Qwen and Ministral (`fp8`), AutoFP8, FBGEMM, modelopt.
//!
//! `weight` F8_E4M3 `[out, in]`, and scales by which it is multiplied, whatever they are called. Where the config has a
//! `weight_block_size` `[rows, columns]`, they are `[⌈out / rows⌉, ⌈in / columns⌉]`, and the last blocks are cut off;
//! where `fp8` has none, they are one, or `[out]` or `[out, 1]`.
//! `w = weight · scale`, in f32, rounded to the model's dtype (DeepSeek's `weight_dequant`, compressed-tensors'
//! `FP8BlockDequantizer`; transformers 5.23 takes other blocks where the last ones are cut off).

use std::borrow::Cow;

use safetensors::Dtype;
use sinew_tensor::{BlockValues, DType};

use super::QuantizedFormat;
use super::config::{block_size, expect, unsupported};
use super::layout::{CodesLayout, ScalesLayout, Stored};
use super::module::{Groups, Parts, StoredModule};
use super::probe::{Found, Probe, SCALES, scale_dtype};
use crate::error::Result;
use crate::json::Fields;
use crate::tensors::Tensors;
use crate::tensors::floats::float;

/// How all quantized modules are.
#[derive(Debug, Clone)]
pub(super) struct Fp8 {
    /// `None`: one for the tensor or for each row, as there are.
    scales: Option<ScaleOf>,
}

/// What shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleOf {
    Tensor,
    /// A row of the weight, that is an output.
    Channel,
    /// So many consecutive columns of a row.
    Group(usize),
    /// So many rows and columns.
    Block([usize; 2]),
}

impl Fp8 {
    /// What the config of `fp8` says.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        expect(fields, "fmt", "e4m3", &["e4m3", "float8_e4m3fn"])?;
        Ok(Self { scales: block_size(fields, "weight_block_size")?.map(ScaleOf::Block) })
    }

    /// FBGEMM's: its config says nothing of scales.
    pub fn of_rows() -> Self {
        Self { scales: Some(ScaleOf::Channel) }
    }

    /// What modelopt's config says.
    pub fn read_modelopt(fields: &Fields<'_>) -> Result<Self> {
        let algo = fields.required("quant_algo", fields.text("quant_algo")?)?;
        match algo.to_ascii_uppercase().as_str() {
            "FP8" => Ok(Self { scales: Some(ScaleOf::Tensor) }),
            "FP8_PER_CHANNEL_PER_TOKEN" => Ok(Self { scales: Some(ScaleOf::Channel) }),
            _ => Err(unsupported(fields, "quant_algo", algo, "FP8, FP8_PER_CHANNEL_PER_TOKEN")),
        }
    }
}

impl QuantizedFormat for Fp8 {
    fn name(&self) -> Cow<'static, str> {
        "FP8".into()
    }

    fn module(&self, tensors: &Tensors, name: &str, dtype: Option<DType>) -> Result<Option<StoredModule>> {
        let probe = Probe { tensors, module: name, format: "FP8" };
        let Some(codes) = probe.find("weight") else { return Ok(None) };
        if float(codes.dtype).is_some() {
            return Ok(None);
        }
        let dtypes = [SCALES.as_slice(), &[Dtype::F8_E8M0]].concat();
        let scales = match (probe.find("weight_scale_inv"), probe.find("weight_scale")) {
            (Some(scales), Some(others)) => {
                let [one, other] = [&scales, &others].map(|scales| scales.name.escape_debug());
                return Err(probe.problem(format!("it has scales twice, `{one}` and `{other}`")));
            }
            (Some(scales), None) => {
                probe.check_dtype(&scales, &dtypes)?;
                scales
            }
            (None, _) => probe.tensor("weight_scale", &dtypes)?,
        };
        let of = self.scales.unwrap_or(if scales.is_single() { ScaleOf::Tensor } else { ScaleOf::Channel });
        Ok(Some(module(&probe, codes, scales, of, dtype)?))
    }

    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        check_floats(probe)
    }
}

/// Refuses floats that have scales.
pub(super) fn check_floats(probe: &Probe<'_>) -> Result<()> {
    probe.refuse_beside_floats(&["weight_scale_inv", "weight_scale"])
}

/// A weight of F8_E4M3 whose scales are shared in this way, dequantized to the model's dtype, or where that is not
/// known to the scales'.
pub(super) fn module(
    probe: &Probe<'_>,
    codes: Found<'_>,
    scales: Found<'_>,
    of: ScaleOf,
    dtype: Option<DType>,
) -> Result<StoredModule> {
    probe.check_dtype(&codes, &[Dtype::F8_E4M3])?;
    let [n, k] = probe.matrix(&codes)?;
    let (rows, groups) = of.check(probe, &scales, [n, k])?;
    let scale_dtype = scale_dtype(scales.dtype);
    let layout = match scales.dtype {
        Dtype::F8_E8M0 => ScalesLayout::Exponents(rows),
        _ => ScalesLayout::Rows(rows),
    };
    let parts = Parts {
        shape: [n, k],
        dtype: dtype.unwrap_or(scale_dtype),
        values: BlockValues::F8E4M3,
        codes: Stored { tensor: codes.name, layout: CodesLayout::Bytes },
        scales: Stored { tensor: scales.name, layout },
        scale_dtype,
        zeros: None,
        groups,
        others: Vec::new(),
    };
    StoredModule::new(probe, parts)
}

impl ScaleOf {
    /// The rows that share scales, and the groups of each, of a weight `[n, k]`, if the shape of `scales` bears it out.
    pub fn check(self, probe: &Probe<'_>, scales: &Found<'_>, [n, k]: [usize; 2]) -> Result<(usize, Groups)> {
        match self {
            Self::Tensor => {
                probe.check_single(scales)?;
                Ok((n, Groups::whole(k)))
            }
            Self::Channel => {
                // Some are vectors.
                let shape: &[usize] = if scales.shape.len() == 1 { &[n] } else { &[n, 1] };
                probe.check_shape(scales, shape)?;
                Ok((1, Groups::whole(k)))
            }
            Self::Group(size) => {
                let groups = Groups::of(k, size);
                probe.check_shape(scales, &[n, groups.count])?;
                Ok((1, groups))
            }
            Self::Block([rows, columns]) => {
                let groups = Groups::of(k, columns);
                probe.check_shape(scales, &[n.div_ceil(rows), groups.count])?;
                Ok((rows, groups))
            }
        }
    }
}
