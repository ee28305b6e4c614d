//! The bundled model: a small decoder that is part of the binary.
//!
//! It is a Llama of about a million parameters, trained by `src/demo/train.py` on tasks whose answers can be checked.

use std::sync::Arc;

use sinew_models::{Checkpoint, LanguageModel, LoadOptions, ModelConfig, Result, Tensors, Tokenizer};
use sinew_ops::Context;

const CONFIG: &str = include_str!("demo/config.json");
const TOKENIZER: &[u8] = include_bytes!("demo/tokenizer.json");
const WEIGHTS: &[u8] = include_bytes!("demo/model.safetensors");

/// Prompts that show what the model can do, one for each task, with their answers.
pub const PROMPTS: &[(&str, &str)] = &[
    ("add 417+85=", "502"),
    ("copy rotary=", "rotary"),
    ("count a in banana=", "3"),
    ("reverse tensor=", "rosnet"),
    ("sort 52918=", "12589"),
];

/// The description of the bundled model.
///
/// # Errors
/// None: it is known to be well formed.
pub fn config() -> Result<ModelConfig> {
    ModelConfig::from_json(CONFIG)
}

/// The bundled model on a context.
///
/// # Errors
/// Out of memory, or a device without the kernels.
pub fn load(ctx: Arc<Context>, options: &LoadOptions) -> Result<LanguageModel> {
    let config = config()?;
    let config = config.as_decoder()?;
    let checkpoint = Checkpoint::new(Tensors::from_bytes(WEIGHTS)?, None);
    let tokenizer = Tokenizer::from_bytes(TOKENIZER)?;
    LanguageModel::from_parts(ctx, config, &checkpoint, Some(Arc::new(tokenizer)), options, &mut |_, _| {})
}
