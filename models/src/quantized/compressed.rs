//! compressed-tensors, as llm-compressor writes it.
//!
//! | `format` | tensors |
//! |---|---|
//! | `pack-quantized` | `weight_packed` I32 `[out, ⌈in / n⌉]` of `n = 32 / bits` values along `in`; `weight_shape` |
//! | `int-quantized` | `weight` I8 `[out, in]`, a byte each, of 2 to 8 bits |
//! | `float-quantized` | `weight` F8_E4M3 `[out, in]` |
//!
//! and `weight_scale` `[out, G]`, `[out, 1]`, `[1]`, or one for each block. Asymmetric ones have a `weight_zero_point`,
//! packed along `out` as `[⌈out / n⌉, G]` or I8 `[out, G]`. With act-order `group` there is a `weight_g_idx`, the group
//! of each input. Packed integers and zero points are stored with 8 (or 128) added. `w = (q − z) · scale` in the
//! scales' dtype (`BaseCompressor.decompress`), or the model's where they are f32.

use std::borrow::Cow;

use safetensors::Dtype;
use serde_json::{Map, Value};
use sinew_tensor::DType;

use super::QuantizedFormat;
use super::bits::Bits;
use super::config::{MAX_BITS, block_size, expect, group_size, patterns, refuse, unsupported};
use super::fp8::{self, ScaleOf};
use super::layout::{CodesLayout, ScalesLayout, Stored, ZerosLayout};
use super::module::{Parts, StoredModule};
use super::patterns::{Budget, Match, Patterns};
use super::probe::{Found, Probe, SCALES, scale_dtype};
use crate::error::Result;
use crate::json::Fields;
use crate::tensors::Tensors;
use crate::tensors::floats::float;

#[derive(Debug, Clone)]
pub(super) struct Compressed {
    /// As the config names it.
    format: String,
    schemes: Vec<Scheme>,
    ignore: Patterns,
}

/// How the modules of a group are stored.
#[derive(Debug, Clone)]
struct Scheme {
    /// The group's name.
    name: String,
    targets: Patterns,
    /// `None`: as they are.
    weights: Option<Weights>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weights {
    format: Format,
    scales: ScaleOf,
    symmetric: bool,
    /// Whether columns are in groups by `weight_g_idx`.
    act_order: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Pack(Bits),
    Int8,
    Float8,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Pack(Bits::Four) => "pack-quantized, 4 bits",
            Self::Pack(Bits::Eight) => "pack-quantized, 8 bits",
            Self::Int8 => "int-quantized",
            Self::Float8 => "float-quantized, 8 bits",
        }
    }
}

impl Compressed {
    /// What a config says.
    pub fn read(fields: &Fields<'_>, budget: &mut Budget) -> Result<Self> {
        refuse(fields, "sparsity_config", |map| map.get("format").and_then(Value::as_str) == Some("dense"))?;
        refuse(fields, "transform_config", |map| {
            map.values().all(|value| value.is_null() || value.as_object().is_some_and(Map::is_empty))
        })?;
        let format = fields.required("format", fields.text("format")?)?;
        let mut schemes = Vec::new();
        if let Some(groups) = fields.section("config_groups")? {
            for name in groups.keys() {
                schemes.push(read_group(&groups, name, format, budget)?);
            }
        }
        let ignore = patterns(fields, "ignore", budget)?;
        Ok(Self { format: format.to_owned(), schemes, ignore })
    }

    /// The group of a module, and how it came to be in it: targets by its name win over expressions, and those over its
    /// class; of several the first in order of their texts, and of the same text in several groups the last
    /// (`match_targets`, `target_to_scheme`).
    fn scheme_of(&self, name: &str) -> Result<Option<(Match, &Scheme)>> {
        let mut best = None;
        for scheme in &self.schemes {
            if let Some(found) = scheme.targets.matched(name)?
                && best.as_ref().is_none_or(|(other, _)| found <= *other)
            {
                best = Some((found, scheme));
            }
        }
        Ok(best.map(|((how, _), scheme)| (how, scheme)))
    }

    /// How a module whose weight is quantized is.
    fn weights_of(&self, probe: &Probe<'_>) -> Result<Weights> {
        if let Some((_, found)) = self.ignore.matched(probe.module)? {
            let found = found.escape_debug();
            return Err(probe.problem(format!("its weight is quantized, while `ignore` has `{found}`")));
        }
        let Some((_, scheme)) = self.scheme_of(probe.module)? else {
            return Err(probe.problem("its weight is quantized, and it is no target of `config_groups`"));
        };
        scheme.weights.ok_or_else(|| {
            let group = scheme.name.escape_debug();
            probe.problem(format!("its weight is quantized, while its group `{group}` says that weights are not"))
        })
    }
}

impl QuantizedFormat for Compressed {
    fn name(&self) -> Cow<'static, str> {
        format!("compressed-tensors, {}", self.format).into()
    }

    fn module(&self, tensors: &Tensors, name: &str, dtype: Option<DType>) -> Result<Option<StoredModule>> {
        let probe = Probe { tensors, module: name, format: "compressed-tensors" };
        let (codes, packed) = match (probe.find("weight_packed"), probe.find("weight")) {
            (Some(packed), _) => (packed, true),
            (None, Some(weight)) if float(weight.dtype).is_none() => (weight, false),
            _ => return Ok(None),
        };
        let weights = self.weights_of(&probe)?;
        let probe = Probe { format: weights.format.name(), ..probe };
        if packed != matches!(weights.format, Format::Pack(_)) {
            let expected = if packed { "weight" } else { "weight_packed" };
            let name = codes.name.escape_debug();
            return Err(probe.problem(format!("there is `{name}`, where the config asks for `{expected}`")));
        }
        let scales = probe.tensor("weight_scale", &SCALES)?;
        // What transformers loads is rounded to the model's dtype.
        let dtype = match scale_dtype(scales.dtype) {
            DType::F32 => dtype.unwrap_or(DType::F32),
            dtype => dtype,
        };
        match weights.format {
            Format::Float8 => {
                check_zeros_of_floats(&probe, weights, &scales)?;
                check_order_of_floats(&probe, weights, &codes)?;
                fp8::module(&probe, codes, scales, weights.scales, Some(dtype))
            }
            Format::Int8 => integers(&probe, codes, scales, weights, Bits::Eight, dtype),
            Format::Pack(bits) => integers(&probe, codes, scales, weights, bits, dtype),
        }
        .map(Some)
    }

    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        let scheme = match self.ignore.matched(probe.module)? {
            Some(_) => None,
            None => self.scheme_of(probe.module)?,
        };
        // What is stored as it is may have the scales that it was rounded with.
        if scheme.as_ref().is_some_and(|(_, scheme)| scheme.weights.is_none()) {
            return Ok(());
        }
        fp8::check_floats(probe)?;
        probe.refuse_beside_floats(&["weight_zero_point", "weight_g_idx"])?;
        match scheme {
            // Expressions are written for layers, and heads left out of them by the tools' own classes.
            Some((how, scheme)) if how == Match::Name || how == Match::Expression && probe.is_of_layer() => {
                let group = scheme.name.escape_debug();
                Err(probe.problem(format!("its group `{group}` says that its weight is quantized, and it is not")))
            }
            _ => Ok(()),
        }
    }
}

/// A group of modules that are quantized alike, or a list of them under the name of a preset.
fn read_group<'a>(groups: &Fields<'a>, name: &'a str, global: &str, budget: &mut Budget) -> Result<Scheme> {
    if let Some(Value::Array(_)) = groups.get(name) {
        let (kind, count, symmetric, scales) = match name.to_ascii_uppercase().as_str() {
            "W8A16" => ("int", 8, true, ScaleOf::Channel),
            "W4A16" | "W4A8" => ("int", 4, true, ScaleOf::Group(128)),
            "W4A16_ASYM" => ("int", 4, false, ScaleOf::Group(128)),
            "W8A8" | "INT8" => ("int", 8, true, ScaleOf::Channel),
            "FP8" => ("float", 8, true, ScaleOf::Tensor),
            "FP8_DYNAMIC" => ("float", 8, true, ScaleOf::Channel),
            "FP8_BLOCK" => ("float", 8, true, ScaleOf::Block([128, 128])),
            _ => {
                let known = "W8A16, W4A16, W4A16_ASYM, W8A8, INT8, W4A8, FP8, FP8_DYNAMIC, FP8_BLOCK";
                return Err(unsupported(groups, name, "a preset", known));
            }
        };
        let format = stored_format(groups, name, global, kind, count)?;
        let weights = format.map(|format| Weights { format, scales, symmetric, act_order: false });
        return Ok(Scheme { name: name.to_owned(), targets: patterns(groups, name, budget)?, weights });
    }
    let group = groups.required(name, groups.section(name)?)?;
    let targets = patterns(&group, "targets", budget)?;
    let weights = match group.section("weights")? {
        None => None,
        Some(weights) => read_weights(&group, &weights, global)?,
    };
    Ok(Scheme { name: name.to_owned(), targets, weights })
}

/// How values of so many bits are stored; `None`: as they are.
fn stored_format(fields: &Fields<'_>, name: &str, format: &str, kind: &str, count: usize) -> Result<Option<Format>> {
    Ok(Some(match (format, kind, count) {
        ("dense" | "fakequant", _, _) => return Ok(None),
        ("pack-quantized", "int", 4) => Format::Pack(Bits::Four),
        ("pack-quantized", "int", 8) => Format::Pack(Bits::Eight),
        ("int-quantized" | "naive-quantized", "int", 2..=8) => Format::Int8,
        ("float-quantized" | "naive-quantized", "float", 8) => Format::Float8,
        _ => {
            let found = format!("{format} of {kind} of {count} bits");
            let known =
                "pack-quantized of int of 4 or 8 bits, int-quantized of int of 2 to 8, float-quantized of float of 8";
            return Err(unsupported(fields, name, &found, known));
        }
    }))
}

fn read_weights(group: &Fields<'_>, weights: &Fields<'_>, global: &str) -> Result<Option<Weights>> {
    let count = weights.count("num_bits", MAX_BITS)?.unwrap_or(8);
    let kind = weights.text("type")?.unwrap_or("int");
    let format = group.text("format")?.unwrap_or(global);
    let Some(format) = stored_format(group, "format", format, kind, count)? else { return Ok(None) };
    let size = group_size(weights, "group_size")?;
    let inferred = match size {
        None => "tensor",
        Some(None) => "channel",
        Some(Some(_)) => "group",
    };
    let strategy = expect(weights, "strategy", inferred, &["tensor", "channel", "group", "block"])?;
    let scales = match (strategy.as_str(), size) {
        ("tensor", _) => ScaleOf::Tensor,
        ("channel", _) | ("group", Some(None)) => ScaleOf::Channel,
        ("group", size) => ScaleOf::Group(weights.required("group_size", size.flatten())?),
        _ => ScaleOf::Block(weights.required("block_structure", block_size(weights, "block_structure")?)?),
    };
    let act_order = match weights.get("actorder") {
        None => false,
        Some(Value::Bool(by_group)) => *by_group,
        Some(_) => {
            let found = expect(weights, "actorder", "", &["group", "dynamic", "weight", "static"])?;
            matches!(found.as_str(), "group" | "dynamic")
        }
    };
    let symmetric = weights.flag("symmetric")?.unwrap_or(true);
    Ok(Some(Weights { format, scales, symmetric, act_order }))
}

/// A weight of integers.
fn integers(
    probe: &Probe<'_>,
    codes: Found<'_>,
    scales: Found<'_>,
    weights: Weights,
    bits: Bits,
    dtype: DType,
) -> Result<StoredModule> {
    let mut others = Vec::new();
    let (shape, layout) = match weights.format {
        Format::Pack(_) => (packed_shape(probe, &codes, bits, &mut others)?, CodesLayout::RowsOfWords(bits)),
        _ => {
            probe.check_dtype(&codes, &[Dtype::I8])?;
            (probe.matrix(&codes)?, CodesLayout::Bytes)
        }
    };
    let (rows, mut groups) = weights.scales.check(probe, &scales, shape)?;
    if let Some(index) = probe.find("weight_g_idx") {
        probe.check_dtype(&index, &[Dtype::I32, Dtype::I64])?;
        // Where it is not in use, it is all -1.
        if !probe.integers(&index, shape[1])?.contains(&-1) {
            let of_columns = probe.group_index(&index, shape[1], groups.size, groups.count)?;
            groups = groups.scattered(of_columns);
        }
        others.push(index.name);
    } else if weights.act_order {
        return Err(probe.problem("`actorder` says that columns are in groups by a `weight_g_idx`, which is missing"));
    }
    let zeros = match probe.find("weight_zero_point") {
        None if weights.symmetric => None,
        _ => {
            let zeros = probe.tensor("weight_zero_point", &[Dtype::I32, Dtype::I8])?;
            let layout = if zeros.dtype == Dtype::I8 {
                probe.check_shape(&zeros, scales.shape)?;
                ZerosLayout::Bytes(rows)
            } else {
                probe.check_shape(&zeros, &[shape[0].div_ceil(bits.per_word()), groups.count])?;
                ZerosLayout::WordsOfRows(bits)
            };
            let zeros = Stored { tensor: zeros.name, layout };
            if weights.symmetric && !zeros.are_middle(probe.tensors)? {
                let name = zeros.tensor.escape_debug();
                return Err(probe.problem(format!("`{name}` has others than 0, and the config says `symmetric`")));
            }
            Some(zeros)
        }
    };
    let parts = Parts {
        shape,
        dtype,
        values: bits.values(),
        codes: Stored { tensor: codes.name, layout },
        scale_dtype: scale_dtype(scales.dtype),
        scales: Stored { tensor: scales.name, layout: ScalesLayout::Rows(rows) },
        zeros,
        groups,
        others,
    };
    StoredModule::new(probe, parts)
}

/// Refuses floats with zero points, which are not read, but for those that change nothing.
fn check_zeros_of_floats(probe: &Probe<'_>, weights: Weights, scales: &Found<'_>) -> Result<()> {
    let zeros = match probe.find("weight_zero_point") {
        None if weights.symmetric => return Ok(()),
        _ => probe.tensor("weight_zero_point", &[&[Dtype::I8, Dtype::F8_E4M3], &SCALES[..]].concat())?,
    };
    probe.check_shape(&zeros, scales.shape)?;
    if probe.tensors.all_slices(&zeros.name, |bytes| bytes.iter().all(|&byte| byte == 0))? {
        return Ok(());
    }
    let name = zeros.name.escape_debug();
    Err(probe.problem(format!("`{name}` has others than 0, with which no floats are read")))
}

/// Refuses floats whose columns are in groups by an index, which is not read, but for one that is not in use.
fn check_order_of_floats(probe: &Probe<'_>, weights: Weights, codes: &Found<'_>) -> Result<()> {
    let index = probe.find("weight_g_idx");
    let in_use = match &index {
        Some(index) => !probe.integers(index, probe.matrix(codes)?[1])?.contains(&-1),
        None => weights.act_order,
    };
    match in_use {
        false => Ok(()),
        true => Err(probe.problem("its columns are in groups by `weight_g_idx`, with which no floats are read")),
    }
}

/// `[out, in]` of packed values: what `weight_shape` says, as the last word of a row may not be full.
fn packed_shape(probe: &Probe<'_>, codes: &Found<'_>, bits: Bits, others: &mut Vec<String>) -> Result<[usize; 2]> {
    probe.check_dtype(codes, &[Dtype::I32])?;
    let [n, words] = probe.matrix(codes)?;
    let k = probe.times(words, bits.per_word())?;
    let Some(shape) = probe.find("weight_shape") else { return Ok([n, k]) };
    probe.check_dtype(&shape, &[Dtype::I32, Dtype::I64])?;
    let said: Vec<usize> = probe.integers(&shape, 2)?.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
    match *said {
        [rows, k] if rows == n && k > 0 && k.div_ceil(bits.per_word()) == words => {
            others.push(shape.name);
            Ok([n, k])
        }
        _ => {
            let name = shape.name.escape_debug();
            Err(probe.problem(format!("`{name}` holds {said:?}, which does not fit [{n}, {words}] words")))
        }
    }
}
