//! GPTQ, as AutoGPTQ and GPTQModel write it.
//!
//! With `n = 32 / bits` values to a word and `G` groups: `qweight` I32 `[in / n, out]`, packed along `in`; `qzeros` I32
//! `[G, out / n]`, packed along `out`; `scales` `[G, out]`; `g_idx` I32 `[in]`, the group of each input, which is
//! `i / group_size` without act-order, where it may be missing. `w[o, i] = scales[g, o] · (q[i, o] − z[g, o])` in the
//! scales' dtype (GPTQModel's `TorchLinear.dequantize_weight`).
//!
//! Some tools leave a `g_idx` of zeros though there are several groups. Without `desc_act` that counts as none here, with a
//! warning: ExLlamaV2 takes it for none (`ext_make_q_matrix` of AutoGPTQ and GPTQModel), and Marlin and vLLM read no
//! `g_idx` then. With `desc_act` kernels differ, and it says what it says, with a warning: all inputs have the scales of
//! the first group, as in the kernels of torch, Triton and Marlin, where ExLlamaV2 takes it for none there too.
//!
//! Zero points of version 1 are stored less 1. GPTQModel subtracts that from whole words, with borrows from one zero
//! point to the next where one is 0, so that it must be added to whole words again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;
use sinew_tensor::DType;

use super::QuantizedFormat;
use super::bits::Bits;
use super::config::{bits, expect, group_size, refuse, unsupported};
use super::layout::{CodesLayout, ScalesLayout, Stored, ZerosLayout};
use super::module::{Groups, Parts, StoredModule};
use super::patterns::{Budget, Expression};
use super::probe::{Probe, SCALES, scale_dtype};
use crate::error::Result;
use crate::json::{Fields, brief};
use crate::tensors::Tensors;

/// How all modules are quantized, but for those that `dynamic` names.
#[derive(Debug)]
pub(super) struct Gptq {
    scheme: Scheme,
    /// Whether zero points are stored less 1.
    version_1: bool,
    /// What auto-round says of modules by their names.
    extra: BTreeMap<String, Dynamic>,
    /// In the order of the file.
    dynamic: Vec<(Expression, Dynamic)>,
    /// The field that says that the head is quantized, too.
    of_head: Option<&'static str>,
    /// Ends of the names of modules that are quantized; none where all are that layers have.
    of_blocks: Vec<String>,
    warned_of_blank: AtomicBool,
}

/// What has [`Gptq::of_blocks`].
const BLOCKS: &str = "modules_in_block_to_quantize";

/// What has [`Gptq::extra`].
pub(super) const EXTRA: &str = "extra_config";

/// How the modules of a config are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scheme {
    bits: Bits,
    /// `None`: a scale for each row.
    group: Option<usize>,
    /// Whether columns are in groups by `g_idx`: `desc_act` without `static_groups`.
    act_order: bool,
}

/// What `dynamic`, or auto-round's [`EXTRA`], says of the modules that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dynamic {
    LeftOut,
    As(Scheme),
}

impl Scheme {
    /// That with what a module's own fields say.
    pub fn with(self, over: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            bits: bits(over, "bits")?.unwrap_or(self.bits),
            group: group_size(over, "group_size")?.unwrap_or(self.group),
            act_order: act_order(over)?.unwrap_or(self.act_order),
        })
    }
}

impl Gptq {
    /// What a config says.
    pub fn read(fields: &Fields<'_>, budget: &mut Budget) -> Result<Self> {
        if fields.flag("is_marlin_format")? == Some(true) {
            return Err(unsupported(fields, "is_marlin_format", "true", "checkpoint_format gptq, gptq_v2"));
        }
        // GPTQModel's newer name of it is `format`, by which it goes where there are both, and transformers by the older
        // one. Both must be known, then: `marlin` beside `gptq` would have GPTQModel take all zero points for the middle.
        let [older, newer] = ["checkpoint_format", "format"].map(|name| match fields.get(name) {
            None => Ok(None),
            Some(_) => expect(fields, name, "", &["gptq", "gptq_v2"]).map(Some),
        });
        let format = match (older?, newer?) {
            (Some(older), Some(newer)) if older != newer => {
                let problem = format!("is {newer} where `checkpoint_format` is {older}: zero points differ by one");
                return Err(fields.problem("format", &problem));
            }
            (older, newer) => older.or(newer),
        };
        Self::of_version(fields, format.is_none_or(|format| format == "gptq"), budget)
    }

    /// What a config says that has zero points of a version.
    pub fn of_version(fields: &Fields<'_>, version_1: bool, budget: &mut Budget) -> Result<Self> {
        expect(fields, "pack_dtype", "int32", &["int32", "torch.int32"])?;
        // GPTQModel's: the weights of each `down_proj` are rotated, for inputs that have to be.
        refuse(fields, "rotation", |_| false)?;
        let scheme = Scheme {
            bits: fields.required("bits", bits(fields, "bits")?)?,
            group: fields.required("group_size", group_size(fields, "group_size")?)?,
            act_order: act_order(fields)?.unwrap_or(false),
        };
        let mut dynamic = Vec::new();
        if let Some(section) = fields.section("dynamic")? {
            for key in section.keys() {
                dynamic.push(read_dynamic(&section, key, scheme, budget)?);
            }
        }
        let mut of_head = None;
        // GPTQModel's, and auto-round's.
        for name in ["lm_head", "quant_lm_head"] {
            if fields.flag(name)? == Some(true) {
                of_head = Some(name);
            }
        }
        let (extra, of_blocks) = (BTreeMap::new(), of_blocks(fields)?);
        let warned_of_blank = AtomicBool::new(false);
        Ok(Self { scheme, version_1, extra, dynamic, of_head, of_blocks, warned_of_blank })
    }

    /// How modules are quantized of which nothing else is said.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The same with what auto-round says of modules: by whole names, and by expressions, which come behind `dynamic`'s.
    pub fn with_extra(self, whole: BTreeMap<String, Dynamic>, expressions: Vec<(Expression, Dynamic)>) -> Self {
        let dynamic = self.dynamic.into_iter().chain(expressions).collect();
        Self { extra: whole, dynamic, ..self }
    }

    /// What `dynamic` says of a module: the first in the file that matches (GPTQModel's `dynamic_get`). Whole names of
    /// auto-round's come before its expressions.
    fn dynamic_of(&self, probe: &Probe<'_>) -> Result<Option<(&str, Dynamic)>> {
        if let Some((name, dynamic)) = self.extra.get_key_value(probe.module) {
            return Ok(Some((name, *dynamic)));
        }
        for (pattern, dynamic) in &self.dynamic {
            if pattern.matches(probe.module)? {
                return Ok(Some((pattern.text(), *dynamic)));
            }
        }
        Ok(None)
    }

    /// Warns, once for a checkpoint, of a `g_idx` of zeros.
    fn warn_of_blank(&self, probe: &Probe<'_>, groups: usize, act_order: bool) {
        if self.warned_of_blank.swap(true, Ordering::Relaxed) {
            return;
        }
        let (name, module) = (probe.tensors.name(), probe.module.escape_debug());
        let taken = match act_order {
            true => "with `desc_act` all of them get the scales of group 0, as GPTQModel's torch kernel has it",
            false => "without `desc_act` groups are taken in order, as ExLlamaV2, Marlin and vLLM take them",
        };
        tracing::warn!("{name}: `{module}.g_idx`, and maybe others, is 0 for all inputs of {groups} groups: {taken}");
    }

    /// The scheme of a module that has a `qweight`.
    fn scheme_of(&self, probe: &Probe<'_>) -> Result<Scheme> {
        let in_blocks = |of: &String| probe.module.contains(of.as_str());
        if !self.of_blocks.is_empty() && probe.is_of_layer() && !self.of_blocks.iter().any(in_blocks) {
            return Err(probe.problem(format!("`{BLOCKS}` does not have it, and it has a qweight")));
        }
        match self.dynamic_of(probe)? {
            None => Ok(self.scheme),
            Some((_, Dynamic::As(scheme))) => Ok(scheme),
            Some((pattern, Dynamic::LeftOut)) => {
                let pattern = pattern.escape_debug();
                Err(probe.problem(format!("the config leaves it out with `{pattern}`, and it has a qweight")))
            }
        }
    }
}

impl QuantizedFormat for Gptq {
    fn name(&self) -> Cow<'static, str> {
        format!("GPTQ, {} bits", self.scheme.bits.count()).into()
    }

    fn module(&self, tensors: &Tensors, name: &str, _: Option<DType>) -> Result<Option<StoredModule>> {
        let probe = Probe { tensors, module: name, format: "GPTQ" };
        let Some(codes) = probe.find("qweight") else { return Ok(None) };
        let Scheme { bits, group, act_order } = self.scheme_of(&probe)?;
        let format = format!("GPTQ, {} bits", bits.count());
        let probe = Probe { format: &format, ..probe };
        probe.check_dtype(&codes, &[Dtype::I32])?;
        let [words, n] = probe.matrix(&codes)?;
        let k = probe.times(words, bits.per_word())?;
        if !n.is_multiple_of(bits.per_word()) {
            let problem =
                format!("{n} outputs, which is no multiple of {}, as zero points are packed", bits.per_word());
            return Err(probe.problem(problem));
        }
        let mut groups = group.map_or_else(|| Groups::whole(k), |size| Groups::of(k, size));
        let scales = probe.tensor("scales", &SCALES)?;
        probe.check_shape(&scales, &[groups.count, n])?;
        let zeros = probe.tensor("qzeros", &[Dtype::I32])?;
        probe.check_shape(&zeros, &[groups.count, n / bits.per_word()])?;
        let mut others = Vec::new();
        if let Some(index) = probe.find("g_idx") {
            probe.check_dtype(&index, &[Dtype::I32, Dtype::I64])?;
            let mut of_columns = probe.group_index(&index, k, groups.size, groups.count)?;
            if of_columns.as_deref().is_some_and(|groups| groups.iter().all(|&group| group == 0)) {
                self.warn_of_blank(&probe, groups.count, act_order);
                of_columns = of_columns.filter(|_| act_order);
            }
            groups = groups.scattered(of_columns);
            others.push(index.name);
        } else if act_order && groups.count > 1 {
            let module = name.escape_debug();
            let problem = format!("`desc_act` says that columns are in groups by `{module}.g_idx`, which is missing");
            return Err(probe.problem(problem));
        }
        let scale = scale_dtype(scales.dtype);
        let added = if self.version_1 { bits.ones() } else { 0 };
        let parts = Parts {
            shape: [n, k],
            dtype: scale,
            values: bits.values(),
            codes: Stored { tensor: codes.name, layout: CodesLayout::WordsOfK(bits) },
            scales: Stored { tensor: scales.name, layout: ScalesLayout::Columns },
            scale_dtype: scale,
            zeros: Some(Stored { tensor: zeros.name, layout: ZerosLayout::Words(bits, added) }),
            groups,
            others,
        };
        Ok(Some(StoredModule::new(&probe, parts)?))
    }

    fn check_floats(&self, probe: &Probe<'_>) -> Result<()> {
        let found = self.dynamic_of(probe)?;
        let is_left_out = matches!(found, Some((_, Dynamic::LeftOut)));
        if let Some(Dynamic::As(_)) = self.extra.get(probe.module) {
            return Err(probe.problem(format!("`{EXTRA}` says how it is quantized, and it has no qweight")));
        }
        if let Some(field) = self.of_head.filter(|_| is_head(probe.module) && !is_left_out) {
            return Err(probe.problem(format!("`{field}` says that it is quantized, and it has no qweight")));
        }
        let is_end = |end: &&String| {
            probe.module.strip_suffix(end.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        match self.of_blocks.iter().find(is_end) {
            Some(end) if probe.is_of_layer() && !is_left_out => {
                let end = end.escape_debug();
                Err(probe.problem(format!("`{BLOCKS}` has `{end}`, and it has no qweight")))
            }
            _ => probe.refuse_beside_floats(&["scales", "qzeros", "g_idx"]),
        }
    }
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

/// Whether a module is a model's head, by its name.
fn is_head(module: &str) -> bool {
    module.rsplit('.').next() == Some("lm_head")
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
fn read_dynamic<'a>(
    section: &Fields<'a>,
    key: &'a str,
    scheme: Scheme,
    budget: &mut Budget,
) -> Result<(Expression, Dynamic)> {
    let problem = |problem: &str| section.problem(key, problem);
    if let Some(regex) = key.strip_prefix("-:") {
        return Ok((Expression::new(regex, budget, problem)?, Dynamic::LeftOut));
    }
    let pattern = Expression::new(key.strip_prefix("+:").unwrap_or(key), budget, problem)?;
    let over = section.section(key)?;
    let scheme = match over {
        None => scheme,
        Some(over) => scheme.with(&over)?,
    };
    Ok((pattern, Dynamic::As(scheme)))
}
