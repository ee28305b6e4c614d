//! What a model is for, which decides how it is planned.

use crate::{DecoderConfig, Error, Folder, ModelConfig, Result};

/// What a model is loaded for, and what it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// Generation, by a decoder with a head.
    Generate(&'a DecoderConfig),
    /// Vectors of texts, by an encoder or a decoder without a head. Nothing but the weights is asked of options: passes are
    /// as large as [`passes`](crate::passes) says.
    Embed(&'a ModelConfig),
}

impl<'a> Purpose<'a> {
    /// That of the model in a folder.
    ///
    /// # Errors
    /// Those of [`Folder::embeds`].
    pub fn of(folder: &'a Folder) -> Result<Self> {
        let config = folder.config()?;
        Ok(match folder.embeds()? {
            true => Self::Embed(config),
            false => Self::Generate(config.as_decoder()?),
        })
    }

    /// The decoder of a model that generates.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for one that embeds.
    pub fn generating(self) -> Result<&'a DecoderConfig> {
        match self {
            Self::Generate(config) => Ok(config),
            Self::Embed(config) => Err(Error::Unsupported {
                what: format!("a number or length of sequences of `{}`, which embeds texts", config.model_type()),
                supported: "models that generate; texts share passes of one size, however many they are".to_owned(),
            }),
        }
    }
}
