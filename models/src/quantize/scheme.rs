//! What compressed-tensors can say of a format, and which modules are rounded to it.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Value, json};
use sinew_ops::Context;
use sinew_ops::layers::{Encoding, GROUP_SIZES};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::Names;
use crate::checkpoint::Checkpoint;
use crate::checkpoint_names::EmbeddingSource;
use crate::config::{DecoderConfig, EncoderConfig, EncoderNames, FeedForward, LayerConfig, ModelConfig};
use crate::decoder::{Decoder, Head};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::load::Sizes;
use crate::load_options::Limits;
use crate::precision::{Quantize, WeightOptions, float_dtype};
use crate::quantized::{Bits, module_of, rounds_activations};
use crate::safetensors::file_dtype;

/// A format that compressed-tensors has a name for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scheme {
    pub how: Quantize,
    pub codes: CodesAs,
}

/// How a module's codes are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum CodesAs {
    /// In words along the inputs: `pack-quantized`.
    Words(Bits),
    /// One in each byte: `float-quantized`.
    Floats,
}

/// A weight `[n, k]` that is quantized.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module {
    pub n: usize,
    pub k: usize,
    /// That of the original.
    pub dtype: DType,
}

/// The modules of a model.
#[derive(Debug)]
pub(super) struct Modules {
    /// By name, which is that of the weight less `.weight`.
    pub quantized: BTreeMap<String, Module>,
    /// Those that stay as they are.
    pub kept: Names,
    /// Whether a head that would be quantized is one of them, as the config ties it to the embedding.
    pub tied_head_kept: bool,
}

impl Scheme {
    pub fn new(how: Quantize) -> Result<Self> {
        let codes = match (how.format.values(), Bits::of(how.format.values().bits())) {
            (BlockValues::Int4 | BlockValues::Int8, Some(bits)) => CodesAs::Words(bits),
            (BlockValues::F8E4M3, _) => CodesAs::Floats,
            (other, _) => {
                let what = format!("writing {} as compressed-tensors", other.name());
                return Err(Error::Unsupported { what, supported: "int4, int8 and fp8".to_owned() });
            }
        };
        Ok(Self { how, codes })
    }

    fn format(&self) -> BlockFormat {
        self.how.format
    }

    /// Scales of a row of `k`.
    pub fn groups(&self, k: usize) -> usize {
        if self.how.per_channel { 1 } else { k.div_ceil(self.format().group()) }
    }

    /// The tensors that a module's weight becomes: the ends of their names, dtypes and shapes.
    ///
    /// # Errors
    /// Scales in a dtype that files do not have.
    pub fn tensors(&self, Module { n, k, .. }: Module) -> Result<Vec<(&'static str, Dtype, Vec<usize>)>> {
        let groups = self.groups(k);
        let scale = (SCALE, file_dtype(self.format().scale_dtype())?, vec![n, groups]);
        Ok(match self.codes {
            CodesAs::Floats => vec![(CODES, Dtype::F8_E4M3, vec![n, k]), scale],
            CodesAs::Words(bits) => {
                let mut tensors = vec![
                    (PACKED, Dtype::I32, vec![n, k.div_ceil(bits.per_word())]),
                    scale,
                    (SHAPE, Dtype::I64, vec![2]),
                ];
                if self.format().zero_points() {
                    tensors.push((ZERO_POINT, Dtype::I32, vec![n.div_ceil(bits.per_word()), groups]));
                }
                tensors
            }
        })
    }

    /// The `quantization_config` of a model in which these modules are not quantized.
    pub fn config(&self, kept: &Names) -> Value {
        let (name, kind) = match self.codes {
            CodesAs::Words(_) => ("pack-quantized", "int"),
            CodesAs::Floats => ("float-quantized", "float"),
        };
        let (strategy, group_size) = match self.how.per_channel {
            true => ("channel", None),
            false => ("group", Some(self.format().group())),
        };
        json!({
            "quant_method": "compressed-tensors",
            "format": name,
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": self.format().values().bits(),
                        "type": kind,
                        "symmetric": !self.format().zero_points(),
                        "strategy": strategy,
                        "group_size": group_size,
                        "block_structure": null,
                        "dynamic": false,
                        "actorder": null,
                    },
                    "input_activations": null,
                    "output_activations": null,
                },
            },
            "ignore": kept,
            "kv_cache_scheme": null,
        })
    }
}

/// The ends of the names of a module's tensors.
pub(super) const CODES: &str = "weight";
pub(super) const PACKED: &str = "weight_packed";
pub(super) const SCALE: &str = "weight_scale";
pub(super) const ZERO_POINT: &str = "weight_zero_point";
pub(super) const SHAPE: &str = "weight_shape";

impl Modules {
    /// Those of a model: what its architecture asks for is quantized as loading would do it, where compressed-tensors has
    /// words for it.
    pub fn of(
        ctx: &Context,
        folder: &Folder,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        scheme: &Scheme,
    ) -> Result<Self> {
        if scheme.format().zero_points() && has_experts(config) {
            // vLLM and transformers read none.
            return Err(Error::Unsupported {
                what: "writing experts with zero points".to_owned(),
                supported: "experts without; loading quantizes them so with --dtype and --zero-points".to_owned(),
            });
        }
        // An embedding stays as it is, and a head that others would not know if it were quantized.
        let source = embedding_source(config, checkpoint)?;
        let stays = match config {
            ModelConfig::Decoder(config) => !matches!(Head::of(config, checkpoint, &source)?, Head::Own(_)),
            ModelConfig::Encoder(_) => false,
        };
        let how = Quantize { head: scheme.how.head && !stays, ..scheme.how };
        let asked = asked(ctx, folder, config, checkpoint, how)?;
        let mut quantized: BTreeMap<String, Module> = BTreeMap::new();
        for (part, k, encoding) in &asked.weights {
            if !matches!(encoding, Encoding::Blocks(_)) {
                continue;
            }
            let name = part.name();
            if part.transposed {
                return Err(Error::Unsupported {
                    what: format!("writing the weight of {name}, which is stored as [inputs, outputs], quantized"),
                    supported: "weights of Linear modules; loading quantizes this one with --dtype".to_owned(),
                });
            }
            if part.is_stacked() {
                return Err(Error::Unsupported {
                    what: format!("writing {name}, one tensor of several experts, quantized"),
                    supported: "experts with a tensor each; loading quantizes these with --dtype".to_owned(),
                });
            }
            let group = scheme.format().group();
            if !scheme.how.per_channel && !k.is_multiple_of(group) {
                return Err(Error::Unsupported {
                    what: format!("writing {name} in groups of {group}, which do not divide its rows of {k},"),
                    supported: supported_groups(&asked),
                });
            }
            let weight = format!("{name}.weight");
            let dtype = float_dtype(&weight, checkpoint.info(&weight)?.dtype)?;
            quantized.insert(name.to_owned(), Module { n: part.of, k: *k, dtype });
        }
        if quantized.is_empty() {
            let what = format!("{}, in which no weight can be quantized,", checkpoint.name());
            return Err(Error::Unsupported { what, supported: "models with Linear modules".to_owned() });
        }
        // What a module has beside its weight would be read with the codes, or refused.
        for name in checkpoint.names() {
            let is_alone = |end| ["weight", "bias"].contains(&end) || rounds_activations(end);
            match module_of(name, |module| quantized.contains_key(module)) {
                Some((module, end)) if !is_alone(end) => {
                    let [name, module] = [name, module].map(str::escape_debug);
                    return Err(
                        checkpoint.problem(format!("has `{name}`, which would be of `{module}` as it is written"))
                    );
                }
                _ => {}
            }
        }
        let kept = kept(config, checkpoint, &source, &asked, &quantized);
        let tied_head_kept = scheme.how.head && stays && !folder.embeds()?;
        Ok(Self { quantized, kept, tied_head_kept })
    }
}

fn has_experts(config: &ModelConfig) -> bool {
    let is_mixture = |layer: &LayerConfig| matches!(layer.feed_forward, FeedForward::Experts(_));
    matches!(config, ModelConfig::Decoder(config) if config.layers.iter().any(is_mixture))
}

/// What would do where a group does not.
fn supported_groups(asked: &Sizes<'_>) -> String {
    let divides = |group: &usize| asked.weights.iter().all(|(_, k, _)| k.is_multiple_of(*group));
    match GROUP_SIZES.into_iter().rfind(divides) {
        Some(group) => format!("a group size of {group}, or `channel`"),
        None => "a group size of `channel`, or loading with --dtype".to_owned(),
    }
}

/// What a model asks the checkpoint for when it is loaded and quantized.
fn asked<'a>(
    ctx: &'a Context,
    folder: &Folder,
    config: &ModelConfig,
    checkpoint: &'a Checkpoint,
    how: Quantize,
) -> Result<Sizes<'a>> {
    let weights = WeightOptions { quantize: Some(how), ..WeightOptions::default() };
    let precision = weights.precision(checkpoint, ctx)?;
    let mut sizes = Sizes::new(ctx, checkpoint, precision);
    match config {
        ModelConfig::Encoder(config) => Encoder::count(&mut sizes, config, 1, 1)?,
        ModelConfig::Decoder(config) => {
            // An embedding model has no use for a head.
            let max_logits = (!folder.embeds()?).then_some(1);
            let limits = Limits { max_rows: 1, max_sequences: 1, context: 1, block_size: 1, max_logits };
            Decoder::count(&mut sizes, config, &limits)?;
        }
    }
    Ok(sizes)
}

/// The modules that are not quantized: the matrices of the checkpoint that are no embedding tables, and heads that are
/// one.
///
/// Names are those that the classes of transformers give modules. These differ from the checkpoint's by what stands
/// before a model in a larger one, so what may have another name there is meant by an expression.
fn kept(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    source: &EmbeddingSource,
    asked: &Sizes<'_>,
    quantized: &BTreeMap<String, Module>,
) -> Names {
    let prefix = source.prefix;
    let is_kept = |module: &&str| {
        !quantized.contains_key(*module)
            && *module != source.module
            && !asked.tables.iter().any(|table| table == module)
    };
    let matrices = checkpoint.infos().filter(|(_, info)| info.shape.len() == 2);
    let modules = matrices.filter_map(|(name, _)| name.strip_suffix(".weight")).filter(is_kept);
    let heads: &[&str] = match config {
        ModelConfig::Decoder(config) => config.names.heads,
        ModelConfig::Encoder(_) => &[],
    };
    let mut kept = Names::new();
    for module in modules {
        let rest = module.strip_prefix(prefix);
        let as_it_is = match config {
            _ if prefix.is_empty() || heads.contains(&module) => true,
            ModelConfig::Decoder(_) => rest.is_some(),
            ModelConfig::Encoder(_) => false,
        };
        kept.insert(match as_it_is {
            true => module.to_owned(),
            false => format!(r"re:(.*\.)?{}$", fancy_regex::escape(rest.unwrap_or(module))),
        });
    }
    match config {
        ModelConfig::Decoder(_) if !heads.iter().any(|head| quantized.contains_key(*head)) => {
            kept.extend(heads.first().map(|head| (*head).to_owned()));
        }
        ModelConfig::Encoder(EncoderConfig { names: EncoderNames { masked_head: [bias, head], .. }, .. })
            if checkpoint.contains(bias) =>
        {
            kept.insert((*head).to_owned());
        }
        _ => {}
    }
    kept
}

/// Finds the embedding, which is not quantized.
fn embedding_source(config: &ModelConfig, checkpoint: &Checkpoint) -> Result<EmbeddingSource> {
    match config {
        ModelConfig::Decoder(DecoderConfig { names, tie_word_embeddings, .. }) => {
            names.embedding_source(*tie_word_embeddings, checkpoint)
        }
        ModelConfig::Encoder(EncoderConfig { names, tie_word_embeddings, .. }) => {
            names.embedding_source(*tie_word_embeddings, checkpoint)
        }
    }
}
