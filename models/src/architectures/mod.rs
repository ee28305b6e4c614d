//! What each architecture's config means, and what it calls its tensors: a file for each.

mod bert;
mod modernbert;
mod roberta;

use crate::EncoderConfig;
use crate::error::Result;
use crate::files::Fields;

/// The description of an encoder; `None` for a `model_type` that is none.
pub(crate) fn encoder(model_type: &str, config: &Fields<'_>) -> Option<Result<EncoderConfig>> {
    match model_type {
        "bert" => Some(bert::read(config)),
        "roberta" | "xlm-roberta" => Some(roberta::read(config, model_type)),
        "modernbert" => Some(modernbert::read(config)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
