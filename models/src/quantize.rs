//! Quantized checkpoints, written: the folder of a model as compressed-tensors, which vLLM, transformers and Sinew read.
//!
//! | file | what |
//! |---|---|
//! | `scheme` | what compressed-tensors can say of a format, and which modules are rounded to it |
//! | `shard` | one safetensors file, written a slice of a weight at a time |
//! | `unfinished` | the folder while it is written, and what is copied into it |
//!
//! The codes, scales and zero points are those of loading with the same [`Quantize`]: the weights of the folder that is
//! written are, bit for bit, those that the original has when it is quantized as it loads. Tensors that are not quantized
//! are copied as they are.
//!
//! | format | tensors of a module `[out, in]` |
//! |---|---|
//! | int4, int8: `pack-quantized` | `weight_packed` I32 `[out, ⌈in / n⌉]` of `n = 32 / bits` codes along `in`, lowest bits first, each with 8 (or 128) added; `weight_scale` `[out, groups]`; `weight_shape` I64 `[2]`; with zero points `weight_zero_point` I32 `[⌈out / n⌉, groups]`, packed along `out` |
//! | fp8: `float-quantized` | `weight` F8_E4M3 `[out, in]`; `weight_scale` `[out, groups]` |
//!
//! `w = (q − zero) · scale`. Scales of int4 without zero points may be negative: the value of the largest magnitude
//! becomes -8, so that all sixteen codes are used.

mod scheme;
mod shard;
mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sinew_ops::Context;

use self::scheme::{Modules, Scheme};
use self::shard::{Job, ShardLayout, Tensor};
use self::unfinished::Unfinished;
use crate::checkpoint::Checkpoint;
use crate::documents::FileName;
use crate::error::{Error, Result};
use crate::files::MAX_CONFIG_BYTES;
use crate::folder::Folder;
use crate::precision::Quantize;
use crate::tensors::{INDEX, Load, MAX_HEADERS_BYTES, MAX_INDEX_BYTES, SINGLE};
use crate::tokenizer::Tokenizer;

/// What [`quantize`] has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantized {
    /// Modules whose weights are quantized.
    pub modules: usize,
    /// Modules whose weights are as they were: `ignore` of the `quantization_config`.
    pub kept: Vec<String>,
    /// Whether the head is one of them though loading with the same `how` rounds it: the config ties it to the embedding.
    pub tied_head_kept: bool,
    /// Bytes of all tensors of the original.
    pub bytes_before: u64,
    /// Bytes of all tensors that were written.
    pub bytes_after: u64,
}

/// Writes the model in `folder` as a quantized checkpoint into the folder `output`, which is a new one or an empty one. A
/// new one appears under its name when it is complete; in one that is there its files do, `config.json` as the last.
///
/// What is rounded is what loading with the same `how` rounds, but for heads that the config ties to the embedding, which
/// stay as they are in the file. Tokenizers, chat templates and other configs are copied. At hand is never more than a
/// slice of a weight, of up to 16 MiB; `progress` is told how many bytes of the original are done, of all, and may end it.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use std::path::Path;
/// use sinew_models::precision::Quantize;
/// use sinew_models::{Folder, Load, quantize};
/// use sinew_ops::Context;
/// use sinew_tensor::{BlockFormat, BlockValues, DType};
///
/// let format = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false)?;
/// let how = Quantize { format, per_channel: false, head: true };
/// let (model, output) = (Folder::new("path/to/model"), Path::new("path/to/model-int4"));
/// let go_on = &mut |_, _| ControlFlow::Continue(());
/// let written = quantize::quantize(&Context::cpu()?, &model, output, how, Load::default(), go_on)?;
/// println!("{} modules, {} bytes", written.modules, written.bytes_after);
/// # Ok::<(), sinew_models::Error>(())
/// ```
///
/// # Errors
/// A model that cannot be loaded, is quantized already, has nothing to quantize or weights that compressed-tensors has no
/// words for; a format that it has none for; an output that is there; more tensors than are read of a checkpoint; a file
/// that cannot be read or written, or is a link that leads out of the model's folder; weights that are no numbers or beyond half of f32's largest; [`Error::Cancelled`] where
/// `progress` ended it. None leaves anything in the output, unless it says so.
pub fn quantize(
    ctx: &Context,
    folder: &Folder,
    output: &Path,
    how: Quantize,
    load: Load,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Quantized> {
    let scheme = Scheme::new(how)?;
    let output = unfinished::place(folder.path(), output)?;
    let config = folder.config()?;
    let others = unfinished::others(folder)?;
    check_texts(folder)?;
    let checkpoint = folder.checkpoint(load)?;
    if let Some(quantization) = checkpoint.quantization() {
        return Err(Error::Unsupported {
            what: format!("{}, which is quantized already ({quantization}),", checkpoint.name()),
            supported: "checkpoints in f32, f16 or bf16".to_owned(),
        });
    }
    let modules = Modules::of(ctx, folder, config, &checkpoint, &scheme)?;
    let config = with_section(&folder.documents().text(FileName::Config)?, &scheme.config(&modules.kept))?;

    // What cannot be read again is not written.
    let files = shard_layouts(&checkpoint, &modules.quantized, &scheme)?;
    let index = (files.len() > 1).then(|| index(&files));
    check_readable(&checkpoint, &files, config.len(), index.as_ref().map_or(0, Vec::len))?;

    let unfinished = Unfinished::create(output)?;
    let inside = PathBuf::from(folder.documents().transformer()?);
    unfinished.write(&inside.join(FileName::Config.as_str()), config.as_bytes())?;
    let mut job = Job::new(ctx, &checkpoint, &scheme, progress)?;
    for file in &files {
        job.write(&unfinished.path_of(inside.join(&file.name)), file)?;
    }
    if let Some(index) = index {
        unfinished.write(&inside.join(INDEX), &index)?;
    }
    others.iter().try_for_each(|(from, name)| unfinished.copy(from, name))?;
    unfinished.complete()?;
    Ok(Quantized {
        modules: modules.quantized.len(),
        kept: modules.kept.into_iter().collect(),
        tied_head_kept: modules.tied_head_kept,
        bytes_before: checkpoint.num_bytes(),
        bytes_after: files.iter().map(ShardLayout::bytes).sum(),
    })
}

/// Refuses what stands beside the weights where loading does: modules behind the model may have weights of their own.
fn check_texts(folder: &Folder) -> Result<()> {
    folder.embedding()?;
    if folder.embeds()? {
        folder.text_limits()?;
    }
    // Not the folder's, which would keep it in memory.
    Tokenizer::read(folder.documents())?;
    Ok(())
}

/// The files to write: as many as the checkpoint has.
fn shard_layouts<'a>(
    checkpoint: &'a Checkpoint,
    quantized: &'a BTreeMap<String, scheme::Module>,
    scheme: &Scheme,
) -> Result<Vec<ShardLayout<'a>>> {
    let mut files: BTreeMap<&Path, Vec<(&str, Tensor<'_>)>> = BTreeMap::new();
    for (name, info) in checkpoint.infos() {
        let module = name.strip_suffix(".weight").and_then(|module| quantized.get_key_value(module));
        let tensor = match module {
            Some((name, module)) => Tensor::Quantized(name, *module),
            None => Tensor::Copied(info),
        };
        files.entry(info.file).or_default().push((name, tensor));
    }
    let count = files.len();
    let name = |at| match count {
        1 => SINGLE.to_owned(),
        _ => format!("model-{at:05}-of-{count:05}.safetensors"),
    };
    (1..).zip(files.into_values()).map(|(at, tensors)| ShardLayout::new(name(at), tensors, scheme)).collect()
}

/// Which file has which tensor.
fn index<'a>(files: &'a [ShardLayout<'_>]) -> Vec<u8> {
    let entries = |file: &'a ShardLayout<'_>| file.names().map(|tensor| (tensor, file.name.as_str()));
    let weight_map: BTreeMap<&str, &str> = files.iter().flat_map(entries).collect();
    let total_size: u64 = files.iter().map(ShardLayout::bytes).sum();
    pretty(&json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map }))
}

/// Refuses what is written and would not be read: a quantized module has more tensors than the original, and all their
/// names are in headers and in the index; a config has those of modules that stay.
fn check_readable(checkpoint: &Checkpoint, files: &[ShardLayout<'_>], config: usize, index: usize) -> Result<()> {
    let tensors: usize = files.iter().map(|file| file.names().len()).sum();
    for (what, bytes, most) in [
        ("headers", files.iter().map(ShardLayout::header_bytes).sum(), MAX_HEADERS_BYTES),
        ("an index", index as u64, MAX_INDEX_BYTES),
        ("a config", config as u64, MAX_CONFIG_BYTES),
    ] {
        if bytes > most {
            let name = checkpoint.name();
            return Err(Error::Unsupported {
                what: format!("writing {name} in {tensors} tensors, with {what} of {bytes} bytes,"),
                supported: format!("up to {most}, the most that are read"),
            });
        }
    }
    Ok(())
}

/// The text of a config with a `quantization_config` behind its other fields, which stay as they are written.
fn with_section(config: &str, section: &Value) -> Result<String> {
    let refuse =
        |problem: &str| Error::Config { file: FileName::Config.as_str().to_owned(), problem: problem.to_owned() };
    let fields: Value = crate::json::parse(config, FileName::Config.as_str())?;
    if fields.get("quantization_config").is_some() {
        return Err(refuse("has a `quantization_config` that says nothing; take it out to quantize the model"));
    }
    let Some(fields) = config.trim_end().strip_suffix('}') else { return Err(refuse("is not a JSON object")) };
    let section = String::from_utf8_lossy(&pretty(section)).replace('\n', "\n  ");
    Ok(format!("{},\n  \"quantization_config\": {}\n}}\n", fields.trim_end(), section.trim_end()))
}

/// JSON on lines.
fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Names of modules.
type Names = BTreeSet<String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_config_stay_as_they_are_written() {
        let text =
            "{\n  \"rms_norm_eps\": 1e-05, \"theta\": 1000000.10,\n  \"big\": 123456789012345678901234567890\n}\n";
        let with = with_section(text, &json!({ "a": [1] })).expect("an object");
        let expected = "{\n  \"rms_norm_eps\": 1e-05, \"theta\": 1000000.10,\n  \"big\": 123456789012345678901234567890,\n  \
                        \"quantization_config\": {\n    \"a\": [\n      1\n    ]\n  }\n}\n";
        assert_eq!(with, expected);
        for wrong in ["[]", "{\"quantization_config\": null}", "{\"quantization_config\": {}}", "{"] {
            assert!(with_section(wrong, &json!({})).is_err(), "{wrong}");
        }
    }
}
