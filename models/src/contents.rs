//! Recognises unsupported files, so that an error can say what a folder holds in place of a model or a tokenizer.

use std::fs;
use std::path::Path;

use crate::documents::FileName;
use crate::error::first_names;
use crate::files::{self, INDEX, SINGLE};
use crate::json::{self, brief};

/// Describes a kind of file that Sinew does not read.
struct Kind {
    /// Files of this kind have one of these names; an entry that begins with a dot is the end of a name.
    names: &'static [&'static str],
    /// The message says what the files are and what to do; it follows their names.
    advice: &'static str,
}

/// This file describes a PEFT adapter and names its base model.
const ADAPTER: &str = "adapter_config.json";

/// Lists weights that are not read. The first kind that a folder has describes it.
static WEIGHTS: [Kind; 8] = [
    Kind {
        names: &[ADAPTER, "adapter_model.safetensors", "adapter_model.bin"],
        advice: "a LoRA adapter or another of PEFT, which is not loaded yet; merge it into its base model with PEFT \
                 (merge_and_unload, save_pretrained) and load that",
    },
    Kind {
        names: &[".safetensors"],
        advice: "safetensors files are read under the names model.safetensors and those of its index",
    },
    Kind {
        names: &[".gguf"],
        advice: "GGUF files, which are not read; load the safetensors checkpoint that they were made from",
    },
    Kind { names: &["openvino_model.xml", "openvino_model.bin"], advice: "a model of OpenVINO; load its original" },
    Kind { names: &[".onnx"], advice: "ONNX graphs, which are not read; load the checkpoint that they were made from" },
    Kind {
        names: &[".bin", ".pt", ".pth", ".ckpt"],
        advice: "pickles of PyTorch, which may run code and are not read; AutoModel.from_pretrained and save_pretrained \
                 of transformers write model.safetensors",
    },
    Kind { names: &[".h5", ".msgpack"], advice: "weights of TensorFlow or Flax, which are not read" },
    Kind {
        names: &[".npz"],
        advice: "arrays of NumPy, as MLX once kept weights; load the model that they were made from",
    },
];

/// Lists tokenizers that are not read.
static TOKENIZERS: [Kind; 5] = [
    Kind {
        names: &["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"],
        advice: "a SentencePiece model, which is not read",
    },
    Kind { names: &["tekken.json"], advice: "a Tekken tokenizer, which is not read" },
    Kind { names: &[".tiktoken"], advice: "a vocabulary of tiktoken, which is not read" },
    Kind { names: &["vocab.json", "merges.txt"], advice: "the two files of a slow tokenizer, which are not read" },
    Kind { names: &["vocab.txt"], advice: "the vocabulary of a slow tokenizer, which is not read" },
];

impl Kind {
    fn has(&self, file: &str) -> bool {
        let base = file.rsplit('/').next().unwrap_or(file);
        self.names.iter().any(|name| if name.starts_with('.') { base.ends_with(name) } else { base == *name })
    }
}

/// Returns the first kind among some files, as their names and its message.
fn first_of(kinds: &[Kind], files: &[&str]) -> Option<String> {
    kinds.iter().find_map(|kind| {
        let found: Vec<&str> = files.iter().copied().filter(|file| kind.has(file)).collect();
        (!found.is_empty()).then(|| format!("{}: {}", first_names(&found), kind.advice))
    })
}

/// Describes the files that stand in place of supported weights. Returns `None` if there are supported weights or no
/// known kind.
pub(crate) fn instead_of_weights(files: &[&str]) -> Option<String> {
    if files.iter().any(|file| [SINGLE, INDEX].contains(file)) {
        return None;
    }
    first_of(&WEIGHTS, files)
}

/// Calls [`instead_of_weights`] with the files of a folder, and adds the base model of an adapter.
pub(crate) fn instead_of_weights_in(folder: &Path) -> Option<String> {
    let names = names_in(folder);
    let instead = instead_of_weights(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let base = || {
        let text = files::read_text(&folder.join(ADAPTER)).ok()?;
        let config = json::parse(&text, ADAPTER).ok()?;
        Some(brief(config.get("base_model_name_or_path").filter(|base| base.is_string())?))
    };
    Some(base().map_or_else(|| instead.clone(), |base| format!("{instead}; the base model is {base}")))
}

/// Returns the end of a message about a folder without `tokenizer.json`. It says what the folder has instead, and how
/// to write the file.
pub(crate) fn no_tokenizer(folder: &Path) -> String {
    const TOKENIZER: &str = FileName::Tokenizer.as_str();
    let names = names_in(folder);
    match first_of(&TOKENIZERS, &names.iter().map(String::as_str).collect::<Vec<_>>()) {
        None => format!("has no {TOKENIZER}"),
        Some(instead) => format!(
            "has no {TOKENIZER}, only {instead}; AutoTokenizer.from_pretrained and save_pretrained of transformers write \
             {TOKENIZER}"
        ),
    }
}

/// Returns the sorted names of the files in a folder and in its folder `onnx`, or none if the folder cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    const ONNX: &str = "onnx";
    let names = |folder: &Path, before: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| format!("{before}{}", entry.file_name().to_string_lossy())).collect()
    };
    let mut all = names(folder, "");
    all.extend(names(&folder.join(ONNX), "onnx/"));
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tokenizer::tests::folder_of;

    #[test]
    fn weights_that_are_not_read_are_named() {
        for (files, words) in [
            (&["README.md", "model-q4_0.gguf"][..], "model-q4_0.gguf: GGUF files"),
            (&["pytorch_model-00001-of-00002.bin"], "pickles of PyTorch"),
            (&["onnx/model.onnx"], "ONNX"),
            (&["openvino_model.bin", "openvino_model.xml"], "OpenVINO"),
            (&["tf_model.h5"], "TensorFlow"),
            (&["weights.npz"], "MLX"),
            (&["consolidated.safetensors", "pytorch_model.bin"], "consolidated.safetensors: safetensors"),
            (&["adapter_config.json", "adapter_model.safetensors"], "a LoRA adapter"),
        ] {
            let line = instead_of_weights(files).expect("known");
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(instead_of_weights(&["README.md"]), None);
        assert_eq!(instead_of_weights(&["model.safetensors", "model.gguf", "adapter_config.json"]), None);
    }

    #[test]
    fn an_adapter_names_its_base_model() {
        let base = |config| instead_of_weights_in(folder_of(&[(ADAPTER, config)]).path()).expect("an adapter");
        let line = base(json!({ "base_model_name_or_path": "owner/base", "peft_type": "LORA" }));
        assert!(line.ends_with("; the base model is \"owner/base\""), "{line}");
        for config in [json!({ "base_model_name_or_path": null }), json!([]), json!({ "base_model_name_or_path": 5 })] {
            let line = base(config);
            assert!(line.ends_with("load that"), "{line}");
        }
    }

    #[test]
    fn tokenizers_that_are_not_read_are_named() {
        for (file, words) in [
            ("tokenizer.model", "only tokenizer.model: a SentencePiece model"),
            ("spiece.model", "SentencePiece"),
            ("qwen.tiktoken", "tiktoken"),
            ("vocab.txt", "slow tokenizer"),
        ] {
            let line = no_tokenizer(folder_of(&[(file, json!({}))]).path());
            assert!(line.starts_with("has no tokenizer.json, only ") && line.contains(words), "{line}");
            assert!(line.contains("AutoTokenizer.from_pretrained"), "{line}");
        }
        assert_eq!(no_tokenizer(folder_of(&[]).path()), "has no tokenizer.json");
    }
}
