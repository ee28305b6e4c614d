//! The memory that a model takes, and what would take less, before anything but headers is read.

mod footprint;
mod planner;
pub(crate) mod room;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
pub use crate::load::DeviceBytes;
pub use crate::load_options::Limits;
use crate::{DecoderConfig, Error, Folder, ModelConfig, Result};

/// The use that a model is planned for, with its config.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// Generation, by a decoder with a head.
    Generate(&'a DecoderConfig),
    /// Vectors of texts, by an encoder or a decoder without a head. Only the options of weights apply:
    /// [`passes`](crate::passes) decides how large passes are.
    Embed(&'a ModelConfig),
}

impl<'a> Purpose<'a> {
    /// Reads the purpose of the model in a folder.
    ///
    /// # Errors
    /// Fails where [`Folder::embeds`] does.
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
