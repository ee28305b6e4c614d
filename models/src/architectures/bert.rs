//! BERT (Devlin et al. 2019).

use super::Architecture;
use crate::config::{EncoderConfig, ModelConfig};
use crate::error::Result;
use crate::files::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "BERT", model_types: &["bert"], read };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    EncoderConfig::read(config).map(ModelConfig::Encoder)
}
