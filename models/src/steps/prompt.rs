//! Prompts that fit a context, be they texts or tokens. Those that do not are refused early, and in the same words.

use crate::{DecoderConfig, Error, Result, Tokenizer};

/// Refuses no token, and more than a context has.
pub(crate) fn check_length(tokens: usize, context: usize) -> Result<()> {
    match tokens {
        0 => Err(Error::Input("the prompt has no token".to_owned())),
        _ if tokens > context => Err(Error::TooLong { context }),
        _ => Ok(()),
    }
}

impl Tokenizer {
    /// The tokens of a prompt for a context of so many. Of a longer text no more is looked at than shows that it is one.
    ///
    /// # Errors
    ///
    /// Those of [`encode`](Self::encode), and [`Error::TooLong`].
    pub fn encode_prompt(&self, text: &str, add_special: bool, context: usize) -> Result<Vec<u32>> {
        self.encode_fitting(text, add_special, context)?.ok_or(Error::TooLong { context })
    }
}

impl DecoderConfig {
    /// A context for a prompt and its answer: as long as they need, and no longer than the model's positions.
    ///
    /// # Errors
    ///
    /// A prompt of no token, or of more than the model has positions.
    pub fn context_for(&self, prompt_tokens: usize, new_tokens: usize) -> Result<usize> {
        let longest = self.longest_context();
        check_length(prompt_tokens, longest)?;
        Ok(prompt_tokens.saturating_add(new_tokens).min(longest))
    }
}
