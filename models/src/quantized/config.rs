//! How configs say that modules are quantized.

use serde_json::{Map, Value};
use sinew_tensor::DType;

use super::awq::Awq;
use super::compressed::{Compressed, Format, Scheme as Group, Weights};
use super::fp8::{Fp8, ScaleOf};
use super::gptq::{BLOCKS, Dynamic, Gptq, Scheme};
use super::module::Bits;
use super::patterns::Pattern;
use super::{Method, Quantization};
use crate::config::fields::{MAX_SIZE, read_dtype};
use crate::error::{Error, Result, shortened};
use crate::files::{Fields, as_count, brief};

const METHODS: &str = "gptq, awq, compressed-tensors, fp8, fbgemm_fp8, modelopt (FP8), mxfp4, bitsandbytes (NF4)";

/// See [`Quantization::parse`].
pub(super) fn parse(config: &Value, file: &str, own: Option<(&Value, &str)>) -> Result<Option<Quantization>> {
    let top = Fields::of(config, file, "")?;
    // Configs of several modalities have the language model's in a section of its own.
    let text = top.section("text_config")?;
    let mut dtype = read_dtype(&top)?;
    if let (None, Some(text)) = (dtype, text) {
        dtype = read_dtype(&text)?;
    }
    let dtype = dtype.map(|dtype| match dtype {
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        _ => DType::F32,
    });
    let is_empty = |fields: &Fields<'_>| fields.is_empty();
    for config in [Some(top), text].into_iter().flatten() {
        for section in ["quantization_config", "compression_config"] {
            if let Some(fields) = config.section(section)?.filter(|fields| !is_empty(fields)) {
                let method = match (fields.text("quant_method")?, section) {
                    (None, "compression_config") => "compressed-tensors",
                    (method, _) => fields.required("quant_method", method)?,
                };
                return Ok(Some(quantization(&fields, method, dtype)?));
            }
        }
    }
    let Some((value, file)) = own else { return Ok(None) };
    let fields = Fields::of(value, file, "")?;
    // Files of one tool each, which need not name it.
    let (fields, method) = match (fields.text("quant_method")?, fields.section("quantization")?) {
        (Some(method), _) => (fields, method),
        (None, Some(quantization)) => (quantization, "modelopt"),
        (None, None) if fields.mentions("w_bit") || fields.mentions("q_group_size") => (fields, "awq"),
        (None, None) if fields.mentions("bits") => (fields, "gptq"),
        (None, None) => return Err(fields.problem("quant_method", &format!("is missing; known: {METHODS}"))),
    };
    Ok(Some(quantization(&fields, method, dtype)?))
}

fn quantization(fields: &Fields<'_>, method: &str, dtype: Option<DType>) -> Result<Quantization> {
    /// What tools call the modules that stay as they are; the last two are modelopt's.
    const LEFT_OUT: [&str; 5] =
        ["modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "ignore", "exclude_modules"];
    let method = read(fields, method)?;
    let mut left_out = Vec::new();
    // In compressed-tensors a name is one module or a class.
    if !matches!(method, Method::Compressed(_)) {
        for list in LEFT_OUT {
            left_out.extend(patterns(fields, list)?.into_iter().map(|pattern| (list, pattern)));
        }
    }
    Ok(Quantization { method, left_out, dtype })
}

fn read(fields: &Fields<'_>, method: &str) -> Result<Method> {
    match method.to_ascii_lowercase().as_str() {
        "gptq" => gptq(fields).map(Method::Gptq),
        "auto-round" | "intel/auto-round" => {
            expect(fields, "packing_format", "auto_round:auto_gptq", &["auto_round:auto_gptq"])?;
            gptq(fields).map(Method::Gptq)
        }
        "awq" => awq(fields).map(Method::Awq),
        "compressed-tensors" | "compressed_tensors" => compressed(fields).map(Method::Compressed),
        "fp8" => fp8(fields).map(Method::Fp8),
        "fbgemm_fp8" => Ok(Method::Fp8(Fp8 { scales: Some(ScaleOf::Channel) })),
        "modelopt" => modelopt(fields).map(Method::Fp8),
        "mxfp4" => Ok(Method::Mxfp4),
        "bitsandbytes" => {
            if fields.flag("load_in_8bit")? == Some(true) {
                return Err(unsupported(fields, "load_in_8bit", "true", "load_in_4bit, with nf4"));
            }
            expect(fields, "bnb_4bit_quant_type", "nf4", &["nf4"])?;
            expect(fields, "bnb_4bit_quant_storage", "uint8", &["uint8"])?;
            Ok(Method::Bitsandbytes)
        }
        _ => Err(unsupported(fields, "quant_method", method, METHODS)),
    }
}

fn unsupported(fields: &Fields<'_>, name: &str, found: &str, supported: &str) -> Error {
    let what = fields.problem(name, &shortened(found)).to_string();
    Error::Unsupported { what, supported: supported.to_owned() }
}

/// The text of a field in lower case, which must be one of those that are `known`; `default` where it is not there.
fn expect(fields: &Fields<'_>, name: &str, default: &str, known: &[&str]) -> Result<String> {
    let found = fields.text(name)?.unwrap_or(default).to_ascii_lowercase();
    match known.contains(&found.as_str()) {
        true => Ok(found),
        false => Err(unsupported(fields, name, &found, &known.join(", "))),
    }
}

/// Refuses another value than `null`, an empty object, or what `is_none` accepts.
fn refuse(fields: &Fields<'_>, name: &str, is_none: impl Fn(&Map<String, Value>) -> bool) -> Result<()> {
    match fields.get(name) {
        None => Ok(()),
        Some(Value::Object(map)) if map.is_empty() || is_none(map) => Ok(()),
        Some(value) => Err(unsupported(fields, name, &brief(value), "checkpoints without")),
    }
}

/// Bits of a value: 4 or 8.
fn bits(fields: &Fields<'_>, name: &str) -> Result<Option<Bits>> {
    /// More than any format has.
    const MAX_BITS: usize = 64;
    let Some(count) = fields.count(name, MAX_BITS)? else { return Ok(None) };
    match Bits::of(count) {
        Some(bits) => Ok(Some(bits)),
        None => Err(unsupported(fields, name, &count.to_string(), "4, 8")),
    }
}

/// Columns of a group: `Some(None)` where -1 says that a row is one.
fn group_size(fields: &Fields<'_>, name: &str) -> Result<Option<Option<usize>>> {
    if fields.get(name).and_then(Value::as_i64) == Some(-1) {
        return Ok(Some(None));
    }
    Ok(fields.size(name, MAX_SIZE)?.map(Some))
}

fn gptq(fields: &Fields<'_>) -> Result<Gptq> {
    if fields.flag("is_marlin_format")? == Some(true) {
        return Err(unsupported(fields, "is_marlin_format", "true", "checkpoint_format gptq, gptq_v2"));
    }
    expect(fields, "pack_dtype", "int32", &["int32", "torch.int32"])?;
    // GPTQModel's newer name of it counts where the older is not there.
    let name = if fields.get("checkpoint_format").is_some() { "checkpoint_format" } else { "format" };
    let format = expect(fields, name, "gptq", &["gptq", "gptq_v2"])?;
    let scheme = Scheme {
        bits: fields.required("bits", bits(fields, "bits")?)?,
        group: fields.required("group_size", group_size(fields, "group_size")?)?,
        act_order: act_order(fields)?.unwrap_or(false),
    };
    let mut dynamic = Vec::new();
    if let Some(section) = fields.section("dynamic")? {
        for key in section.keys() {
            dynamic.push(read_dynamic(&section, key, scheme)?);
        }
    }
    Ok(Gptq { scheme, version_1: format == "gptq", dynamic, of_blocks: of_blocks(fields)? })
}

/// The ends of the names of modules that are quantized, where not all of a block are: a list, or one for each of those
/// that were quantized together.
fn of_blocks(fields: &Fields<'_>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for value in fields.list(BLOCKS)?.unwrap_or_default() {
        let together = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for name in together {
            let problem = || fields.problem(BLOCKS, &format!("must hold strings, has {}", brief(name)));
            names.push(name.as_str().ok_or_else(problem)?.to_owned());
        }
    }
    Ok(names)
}

/// Whether columns are in groups in the order in which they were quantized.
fn act_order(fields: &Fields<'_>) -> Result<Option<bool>> {
    Ok(match fields.flag("static_groups")? {
        Some(true) => Some(false),
        _ => fields.flag("desc_act")?,
    })
}

/// An entry of `dynamic`: an expression, after `-:` for modules that are left out, or after `+:` or nothing for those
/// with other bits or groups.
fn read_dynamic<'a>(section: &Fields<'a>, key: &'a str, scheme: Scheme) -> Result<(Pattern, Dynamic)> {
    let problem = |problem: &str| section.problem(key, problem);
    if let Some(regex) = key.strip_prefix("-:") {
        return Ok((Pattern::expression(regex, problem)?, Dynamic::LeftOut));
    }
    let pattern = Pattern::expression(key.strip_prefix("+:").unwrap_or(key), problem)?;
    let over = section.section(key)?;
    let scheme = match over {
        None => scheme,
        Some(over) => Scheme {
            bits: bits(&over, "bits")?.unwrap_or(scheme.bits),
            group: group_size(&over, "group_size")?.unwrap_or(scheme.group),
            act_order: act_order(&over)?.unwrap_or(scheme.act_order),
        },
    };
    Ok((pattern, Dynamic::As(scheme)))
}

fn awq(fields: &Fields<'_>) -> Result<Awq> {
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
    Ok(Awq { group: fields.required(group_name, group_size(fields, group_name)?)? })
}

fn fp8(fields: &Fields<'_>) -> Result<Fp8> {
    expect(fields, "fmt", "e4m3", &["e4m3", "float8_e4m3fn"])?;
    Ok(Fp8 { scales: block_size(fields, "weight_block_size")?.map(ScaleOf::Block) })
}

/// `[rows, columns]` of blocks, or `"128x128"`.
fn block_size(fields: &Fields<'_>, name: &str) -> Result<Option<[usize; 2]>> {
    let sizes: Vec<Option<usize>> = match fields.get(name) {
        None => return Ok(None),
        Some(Value::Array(sizes)) => sizes.iter().take(3).map(as_count).collect(),
        Some(Value::String(text)) => text.split('x').take(3).map(|size| size.parse().ok()).collect(),
        Some(_) => Vec::new(),
    };
    match *sizes {
        [Some(rows), Some(columns)] if (1..=MAX_SIZE).contains(&rows) && (1..=MAX_SIZE).contains(&columns) => {
            Ok(Some([rows, columns]))
        }
        _ => {
            let found = fields.get(name).map(brief).unwrap_or_default();
            Err(fields.problem(name, &format!("must be two sizes, found {found}")))
        }
    }
}

fn modelopt(fields: &Fields<'_>) -> Result<Fp8> {
    let algo = fields.required("quant_algo", fields.text("quant_algo")?)?;
    match algo {
        "FP8" => Ok(Fp8 { scales: Some(ScaleOf::Tensor) }),
        "FP8_PER_CHANNEL_PER_TOKEN" => Ok(Fp8 { scales: Some(ScaleOf::Channel) }),
        _ => Err(unsupported(fields, "quant_algo", algo, "FP8, FP8_PER_CHANNEL_PER_TOKEN")),
    }
}

fn compressed(fields: &Fields<'_>) -> Result<Compressed> {
    refuse(fields, "sparsity_config", |map| map.get("format").and_then(Value::as_str) == Some("dense"))?;
    refuse(fields, "transform_config", |map| {
        map.values().all(|value| value.is_null() || value.as_object().is_some_and(Map::is_empty))
    })?;
    let format = fields.required("format", fields.text("format")?)?;
    let mut schemes = Vec::new();
    if let Some(groups) = fields.section("config_groups")? {
        for name in groups.keys() {
            schemes.push(read_group(&groups, name, format)?);
        }
    }
    let ignore = patterns(fields, "ignore")?;
    Ok(Compressed { format: format.to_owned(), schemes, ignore })
}

fn patterns(fields: &Fields<'_>, name: &str) -> Result<Vec<Pattern>> {
    let problem = |problem: &str| fields.problem(name, problem);
    let target = |value: &Value| match value.as_str() {
        Some(text) => Pattern::target(text, problem),
        None => Err(problem(&format!("must hold strings, has {}", brief(value)))),
    };
    fields.list(name)?.unwrap_or_default().iter().map(target).collect()
}

/// A group of modules that are quantized alike, or a list of them under the name of a preset.
fn read_group<'a>(groups: &Fields<'a>, name: &'a str, global: &str) -> Result<Group> {
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
        return Ok(Group { name: name.to_owned(), targets: patterns(groups, name)?, weights });
    }
    let group = groups.required(name, groups.section(name)?)?;
    let targets = patterns(&group, "targets")?;
    let weights = match group.section("weights")? {
        None => None,
        Some(weights) => read_weights(&group, &weights, global)?,
    };
    Ok(Group { name: name.to_owned(), targets, weights })
}

/// How values of so many bits are stored; `None`: as they are.
fn stored_format(fields: &Fields<'_>, name: &str, format: &str, kind: &str, count: usize) -> Result<Option<Format>> {
    Ok(Some(match (format, kind, count) {
        ("dense" | "fakequant", _, _) => return Ok(None),
        ("pack-quantized", "int", 4) => Format::Pack(Bits::Four),
        ("pack-quantized", "int", 8) => Format::Pack(Bits::Eight),
        ("int-quantized" | "naive-quantized", "int", 8) => Format::Int8,
        ("float-quantized" | "naive-quantized", "float", 8) => Format::Float8,
        _ => {
            let found = format!("{format} of {kind} of {count} bits");
            let known =
                "pack-quantized of int of 4 or 8 bits, int-quantized of int of 8, float-quantized of float of 8";
            return Err(unsupported(fields, name, &found, known));
        }
    }))
}

fn read_weights(group: &Fields<'_>, weights: &Fields<'_>, global: &str) -> Result<Option<Weights>> {
    /// More than any format has.
    const MAX_BITS: usize = 64;
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
