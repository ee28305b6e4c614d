//! Checkpoints whose weights are quantized: which modules are, and how their values, scales and zero points are stored.
//!
//! | file | formats |
//! |---|---|
//! | `format` | what each format is to a checkpoint that is in it |
//! | `formats` | the table of them: what configs call each, how it is read and what is known of it |
//! | `config` | fields that the configs of several formats have |
//! | `patterns` | which modules a config means: names, regular expressions, classes |
//! | `gptq` | GPTQ, v1 and v2, of 4 or 8 bits, with or without act-order |
//! | `awq` | AWQ as AutoAWQ's `gemm` packs it |
//! | `auto_round` | GPTQ and AWQ under the config of auto-round |
//! | `compressed` | compressed-tensors: `pack-quantized`, `int-quantized`, `float-quantized`, and mixtures |
//! | `fp8` | FP8 of DeepSeek and Qwen (by blocks), AutoFP8, modelopt, FBGEMM |
//! | `mxfp4` | the experts of gpt-oss |
//! | `bitsandbytes` | NF4, with scales that are quantized again or not |
//! | `probe`, `module` | what the tensors of a module are, checked |
//! | `layout` | how codes, scales and zero points lie in their tensors, and how rows of each are read; below all formats |
//! | `bits` | words of the integers that it has |
//! | `columns` | columns of a module, and rows of them as they are packed |
//!
//! To add a format is to write its file, what its config says and which tensors it has, and its place in `formats`, and to
//! add to `layout` what lies in no way that is there.
//!
//! All of them are `w[o, i] = scale · (q[o, i] − zero)`, where a scale, and a zero point if there is one, belongs to a
//! group of values of a row, to a block of rows and columns, to a row, or to the whole tensor. The result is rounded
//! once, to [`StoredModule::dtype`]. As `q` and `zero` are integers of 8 bits, or `q` a float of 8, the product is
//! exact in f32 where scales have 16 bits.
//!
//! The config decides how a module is quantized, and the tensors must bear it out: what is missing or of another shape
//! is an error. It decides which are, too, where it says so: a module that it leaves out and that is quantized is
//! refused, and so is one of a layer that it names as quantized and that has floats. transformers fills either with random
//! values, vLLM does not load them. About the rest the tensors tell, as vLLM has it: lists of modules that stay as they
//! are are matched in another way by each tool that reads them, and counted here as far as all of them agree; what is a
//! `Linear` depends on the tool's classes, which have experts and heads that are none.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use sinew_tensor::DType;

pub(crate) use self::bits::Bits;
pub(crate) use self::columns::ModuleColumns;
use self::config::patterns;
use self::formats::Method;
pub(crate) use self::formats::is_of_codes;
pub(crate) use self::layout::{words_of_codes, words_of_zeros};
pub use self::module::StoredModule;
pub(crate) use self::module::common_multiple;
use self::patterns::{Budget, Patterns};
use self::probe::Probe;
use crate::config::fields::read_dtype;
use crate::error::{Error, Result};
use crate::json::{Fields, brief};
use crate::tensors::Tensors;
use crate::tensors::floats::{are_zeros, float, packed_as};

mod auto_round;
mod awq;
mod bits;
mod bitsandbytes;
mod columns;
mod compressed;
mod config;
mod formats;
mod fp8;
mod gptq;
mod layout;
mod module;
mod mxfp4;
mod patterns;
mod probe;
#[cfg(test)]
mod tests;

/// How the modules of a checkpoint are quantized, as its config says.
trait QuantizedFormat: fmt::Debug + Send + Sync {
    /// The name of the format in messages.
    fn name(&self) -> Cow<'static, str>;

    /// How a module is stored; `None` where it is not quantized. `dtype` is the dtype that the config names for the model.
    fn module(&self, tensors: &Tensors, name: &str, dtype: Option<DType>) -> Result<Option<StoredModule>>;

    /// Refuses a module of floats in a layer that the config names as quantized, or next to parts of a quantized weight.
    fn check_floats(&self, probe: &Probe<'_>) -> Result<()>;

    /// The module of a tensor that divides the weights of later modules, where no quantized module has that tensor.
    fn scaled_before<'t>(&self, _tensors: &Tensors, _name: &'t str) -> Option<&'t str> {
        None
    }
}

/// How a checkpoint says that its modules are quantized.
///
/// ```
/// use sinew_models::quantized::Quantization;
/// let config = serde_json::json!({
///     "torch_dtype": "float16",
///     "quantization_config": { "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm" },
/// });
/// let quantization = Quantization::parse(&config, "config.json", None)?.expect("quantized");
/// assert_eq!(quantization.to_string(), "AWQ, 4 bits");
/// assert!(Quantization::parse(&serde_json::json!({}), "config.json", None)?.is_none());
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Quantization {
    method: &'static Method,
    format: Arc<dyn QuantizedFormat>,
    /// Modules that stay as they are, by the field that has them.
    left_out: Vec<(&'static str, Patterns)>,
    /// That of the model, where the config names one.
    dtype: Option<DType>,
}

impl Quantization {
    /// What `config`, the contents of the file `file`, says in `quantization_config` or `compression_config`; or else
    /// what `own` says, which is the contents and the name of a `quantize_config.json`, `quant_config.json` or
    /// `hf_quant_config.json`. `None` where neither says anything: the model is not quantized.
    ///
    /// # Errors
    /// [`Error::Config`] for a field of another type or out of range, and
    /// [`Error::Unsupported`] for a method, a packing or a number of bits that cannot be
    /// read.
    pub fn parse(config: &Value, file: &str, own: Option<(&Value, &str)>) -> Result<Option<Self>> {
        let top = Fields::of(config, file, "")?;
        // Configs of several modalities have the language model's in a section of its own.
        let text = top.section("text_config")?;
        let mut dtype = read_dtype(&top)?;
        if let (None, Some(text)) = (dtype, text) {
            dtype = read_dtype(&text)?;
        }
        let dtype = dtype.and_then(float).map(packed_as);
        for config in [Some(top), text].into_iter().flatten() {
            for section in ["quantization_config", "compression_config"] {
                if let Some(fields) = config.section(section)?.filter(|fields| !fields.is_empty()) {
                    let method = match (named_method(&fields)?, section) {
                        (Some(method), _) => method,
                        (None, "compression_config") => "compressed-tensors",
                        (None, _) => {
                            refuse_mlx(&fields, file, section)?;
                            return Err(without_method(&fields));
                        }
                    };
                    let ordered = own.and_then(|(own, _)| in_own_order(config.get(section)?, own));
                    let fields = ordered.as_ref().map_or(Ok(fields), |value| Fields::of(value, file, section))?;
                    // As in modelopt's own file.
                    let nested = match method.eq_ignore_ascii_case("modelopt") {
                        true => fields.section("quantization")?,
                        false => None,
                    };
                    return Ok(Some(Self::read(&nested.unwrap_or(fields), method, dtype)?));
                }
            }
            const OF_MLX: &str = "quantization";
            if let Some(fields) = config.get(OF_MLX).and_then(|value| Fields::of(value, file, OF_MLX).ok()) {
                refuse_mlx(&fields, file, OF_MLX)?;
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
            (None, None) if fields.mentions("quant_algo") => (fields, "modelopt"),
            (None, None) => return Err(without_method(&fields)),
        };
        Ok(Some(Self::read(&fields, method, dtype)?))
    }

    fn read(fields: &Fields<'_>, method: &str, dtype: Option<DType>) -> Result<Self> {
        /// What tools call the modules that stay as they are; the last two are modelopt's.
        const LEFT_OUT: [&str; 5] =
            ["modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "ignore", "exclude_modules"];
        let budget = &mut Budget::default();
        let method = Method::named(fields, method)?;
        let format = (method.read)(fields, budget)?;
        let mut left_out = Vec::new();
        if method.lists_left_out {
            for list in LEFT_OUT {
                left_out.push((list, patterns(fields, list, budget)?));
            }
        }
        Ok(Self { method, format, left_out, dtype })
    }

    /// How the module `name` is stored, which is the name of its weight less `.weight`: quantized, or, where it is
    /// `None`, as a plain tensor of floats or not at all.
    ///
    /// The experts of MXFP4, `[experts, out, in]`, are one module of `experts · out` rows.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a tensor that is missing, or has another dtype or shape than
    /// the config says, and for a module that the config leaves out.
    pub fn module(&self, tensors: &Tensors, name: &str) -> Result<Option<StoredModule>> {
        let module = self.format.module(tensors, name, self.dtype)?;
        if module.is_some() {
            for (list, patterns) in &self.left_out {
                if let Some(found) = patterns.leaving_out(name)? {
                    let (probe, found) =
                        (Probe { tensors, module: name, format: &self.to_string() }, found.escape_debug());
                    return Err(probe.problem(format!("`{list}` leaves it out with `{found}`, and it is quantized")));
                }
            }
        }
        Ok(module)
    }

    /// Refuses floats of a module that the config says is quantized: see [`module`](Self::module).
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a module that the config names, or that has scales.
    pub(crate) fn check_floats(&self, tensors: &Tensors, name: &str) -> Result<()> {
        self.format.check_floats(&Probe { tensors, module: name, format: &self.to_string() })
    }

    /// Refuses a module whose floats would be `[in, out]`, as GPT-2 has them, in a format that says of no such module how
    /// its codes lie: a square one would be taken for its transpose.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for all but GPTQ, AWQ and bitsandbytes, which have codes of `[out, in]`.
    pub(crate) fn check_transposed(&self, name: &str) -> Result<()> {
        match self.method.of_transposed {
            true => Ok(()),
            false => Err(Error::Unsupported {
                what: format!("the module {}, whose weight is [inputs, outputs], in {self}", name.escape_debug()),
                supported: format!("{}, of it", Method::known_of_transposed()),
            }),
        }
    }

    /// Whether a tensor that is not read changes nothing, so that nobody need be told: what rounds activations and caches,
    /// which are not rounded so here; the shape of codes that have it; biases of zeros, as AutoGPTQ wrote for each module.
    pub fn is_spare(&self, tensors: &Tensors, name: &str) -> bool {
        let end = name.rsplit_once('.').map_or("", |(_, end)| end);
        let is_zero = || {
            let dtype = tensors.find(name).and_then(|info| float(info.dtype));
            dtype.is_some_and(|dtype| tensors.all_slices_unused(name, |bytes| are_zeros(bytes, dtype)).unwrap_or(false))
        };
        rounds_activations(end) || end == "weight_shape" || end == "bias" && is_zero()
    }

    /// Refuses tensors that nobody has read of modules whose others were, and of which it is not known that they
    /// [change nothing](Self::is_spare): scales of scales or of inputs, rotations, or what an adapter adds.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for the first.
    pub(crate) fn check_unread(
        &self,
        tensors: &Tensors,
        modules: &BTreeMap<String, StoredModule>,
        unread: &BTreeSet<&str>,
    ) -> Result<()> {
        let is_read =
            |module: &str| modules.get(module).is_some_and(|of| of.tensors().all(|name| !unread.contains(name)));
        for name in unread {
            let of = match module_of(name, is_read) {
                Some((module, _)) => module,
                None => match self.format.scaled_before(tensors, name) {
                    Some(module) => module,
                    None => continue,
                },
            };
            if self.is_spare(tensors, name) {
                continue;
            }
            let probe = Probe { tensors, module: of, format: &self.to_string() };
            let name = name.escape_debug();
            return Err(probe.problem(format!("there is `{name}`, which is not read and may change what it gives")));
        }
        Ok(())
    }
}

/// The method that a section says its weights are quantized by. Without a `quant_method`, `load_in_4bit` and
/// `load_in_8bit` say bitsandbytes, as in transformers, and a `quant_algo` beside or inside `quantization` modelopt, as in
/// vLLM.
fn named_method<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>> {
    if let Some(method) = fields.text("quant_method")? {
        return Ok(Some(method));
    }
    for flag in ["load_in_4bit", "load_in_8bit"] {
        if fields.flag(flag)? == Some(true) {
            return Ok(Some("bitsandbytes"));
        }
    }
    let nested = fields.get("quantization").and_then(|nested| nested.get("quant_algo"));
    Ok(fields.get("quant_algo").or(nested).map(|_| "modelopt"))
}

fn without_method(fields: &Fields<'_>) -> Error {
    fields.problem("quant_method", &format!("is missing; known: {}", Method::known()))
}

/// Refuses what MLX writes of a model that it has quantized: `group_size`, `bits` and `mode`, the same for single modules,
/// and no `quant_method`.
fn refuse_mlx(fields: &Fields<'_>, file: &str, section: &str) -> Result<()> {
    let (Some(group_size), Some(bits)) = (fields.get("group_size"), fields.get("bits")) else { return Ok(()) };
    let of_mlx = |name: &str| {
        let of_module = || name.contains('.') || fields.get(name).is_some_and(Value::is_object);
        ["group_size", "bits", "mode"].contains(&name) || of_module()
    };
    if !fields.keys().all(of_mlx) {
        return Ok(());
    }
    let (group_size, bits) = (brief(group_size), brief(bits));
    let what = format!("{file}: `{section}` of MLX (group_size {group_size}, bits {bits})");
    Err(Error::Unsupported { what, supported: format!("the model that it was made from, and {}", Method::known()) })
}

/// A config's section with GPTQModel's `dynamic`, of which the first entry that matches counts, in the order of its own
/// file: transformers sorts what it writes to `config.json`. `None` where the two do not say the same.
fn in_own_order(section: &Value, own: &Value) -> Option<Value> {
    let dynamic = own.get("dynamic").filter(|dynamic| section.get("dynamic") == Some(*dynamic))?;
    let mut ordered = section.clone();
    ordered["dynamic"] = dynamic.clone();
    Some(ordered)
}

/// The module, of those that are meant, that a tensor is of, and the rest of the tensor's name.
pub(crate) fn module_of(tensor: &str, is_meant: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    let modules = tensor.match_indices('.').map(|(dot, _)| (&tensor[..dot], &tensor[dot + 1..]));
    modules.filter(|(module, _)| is_meant(module)).last()
}

/// Whether a module's tensor with this end of its name says how activations, or keys and values in a cache, are rounded:
/// without it they are nearer to what they were.
pub(crate) fn rounds_activations(end: &str) -> bool {
    // `act_scale` is AutoFP8's first name of `input_scale`.
    const ENDS: [&str; 13] = [
        "act_scale",
        "input_scale",
        "input_zero_point",
        "input_scale_ub",
        "activation_scale",
        "output_scale",
        "output_zero_point",
        "q_scale",
        "k_scale",
        "k_zero_point",
        "v_scale",
        "v_zero_point",
        "kv_scale",
    ];
    ENDS.contains(&end)
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format.name())
    }
}
