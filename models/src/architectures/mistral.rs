//! Mistral (Jiang et al. 2023): Llama with a window in every layer; and Ministral, where some have none.

use super::{Architecture, llama};
use crate::config::fields::read_window;
use crate::config::{DecoderConfig, Defaults, ModelConfig};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture =
    Architecture { name: "Mistral", model_types: &["mistral", "ministral"], read };

pub(super) const DEFAULTS: Defaults =
    Defaults { num_key_value_heads: Some(8), max_position_embeddings: 4096 * 32, ..llama::DEFAULTS };

const WINDOW: usize = 4096;

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &llama::NAMES)?;
    let window = read_window(config, Some(WINDOW))?;
    // Files of Ministral often name it `mistral`, and transformers goes by this field, too.
    match config.mentions("layer_types") {
        true => model.read_windows(config, window, |_| window.is_none())?,
        false => model.set_window(window),
    }
    Ok(ModelConfig::Decoder(model))
}
