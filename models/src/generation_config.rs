//! `generation_config.json`: how the makers of a checkpoint want its answers drawn.

use crate::error::Result;
use crate::files::{self, Fields};
use crate::folder::{FileName, Folder};
use crate::sampling::SamplingParams;

const FILE: &str = FileName::GENERATION_CONFIG.as_str();
/// No context is longer.
const MAX_TOKENS: usize = 1 << 31;

/// What `generation_config.json` says of sampling and lengths. Its end tokens are part of
/// [`DecoderConfig`](crate::DecoderConfig); what is not known is ignored.
///
/// ```
/// use sinew_models::{GenerationConfig, SamplingParams};
///
/// let config = GenerationConfig::from_json(r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9}"#)?;
/// let params = SamplingParams::from(&config);
/// assert_eq!((params.temperature, params.top_p, params.top_k), (0.6, 0.9, 50));
/// assert_eq!(SamplingParams::from(&GenerationConfig::default()).temperature, 0.0);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Whether tokens are drawn; if not, the most probable is taken.
    pub do_sample: bool,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Keep this many tokens.
    pub top_k: Option<usize>,
    /// Keep tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Drop tokens less probable than this times the most probable.
    pub min_p: Option<f32>,
    /// Discourages tokens that the text has.
    pub repetition_penalty: Option<f32>,
    /// The most tokens of an answer.
    pub max_new_tokens: Option<usize>,
    /// The most tokens of prompt and answer; `max_new_tokens` goes before it.
    pub max_length: Option<usize>,
}

impl GenerationConfig {
    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        let text = folder.text_if_present(FileName::GENERATION_CONFIG)?;
        text.map_or_else(|| Ok(Self::default()), |text| Self::from_json(&text))
    }

    /// Reads the text of a `generation_config.json`.
    ///
    /// # Errors
    /// [`Error::Json`](crate::Error::Json), [`Error::Config`](crate::Error::Config) for a field of the wrong type, and
    /// [`Error::Sampling`](crate::Error::Sampling) for one that is out of range.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = files::parse(text, FILE)?;
        let fields = Fields::of(&value, FILE, "")?;
        let number = |name: &str| -> Result<_> { Ok(fields.number(name)?.map(|x| x as f32)) };
        let config = Self {
            do_sample: fields.flag("do_sample")?.unwrap_or(false),
            temperature: number("temperature")?,
            top_k: fields.count("top_k", MAX_TOKENS)?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            max_new_tokens: fields.count("max_new_tokens", MAX_TOKENS)?,
            max_length: fields.count("max_length", MAX_TOKENS)?,
        };
        SamplingParams::from(&config).validate().map_err(|error| match error {
            crate::Error::Sampling { field, found, expected } => {
                fields.problem(field, &format!("must be {expected}, found {found}"))
            }
            other => other,
        })?;
        Ok(config)
    }

    /// The most tokens of an answer to a prompt of `prompt_tokens`, where the file says so.
    pub fn max_new_tokens(&self, prompt_tokens: usize) -> Option<usize> {
        self.max_new_tokens.or_else(|| Some(self.max_length?.saturating_sub(prompt_tokens)))
    }
}

impl From<&GenerationConfig> for SamplingParams {
    /// Greedy unless `do_sample` is set. What is absent is as in transformers, where `top_k` is 50 for what is sampled.
    fn from(config: &GenerationConfig) -> Self {
        /// transformers' own.
        const TOP_K: usize = 50;
        let (temperature, top_k) = match config.do_sample {
            true => (config.temperature.unwrap_or(1.0), config.top_k.unwrap_or(TOP_K)),
            false => (0.0, config.top_k.unwrap_or(0)),
        };
        Self {
            temperature,
            top_k,
            top_p: config.top_p.unwrap_or(1.0),
            min_p: config.min_p.unwrap_or(0.0),
            repetition_penalty: config.repetition_penalty.unwrap_or(1.0),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_is_greedy_unless_the_file_says_otherwise() {
        let params = |text: &str| SamplingParams::from(&GenerationConfig::from_json(text).expect("valid"));
        assert_eq!(params("{}"), SamplingParams::default());
        let settings = r#""temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05"#;
        let expected = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.1,
            repetition_penalty: 1.05,
            ..SamplingParams::default()
        };
        assert_eq!(params(&format!(r#"{{"do_sample": true, "made_up": [1], {settings}}}"#)), expected);
        let greedy = SamplingParams { temperature: 0.0, ..expected };
        assert_eq!(params(&format!(r#"{{"do_sample": false, {settings}}}"#)), greedy);
        assert_eq!(params(&format!("{{{settings}}}")), greedy);
        let bare = params(r#"{"do_sample": true, "temperature": null}"#);
        assert_eq!((bare.temperature, bare.top_k), (1.0, 50));
    }

    #[test]
    fn lengths_count_the_prompt_where_they_should() {
        let most = |text: &str| GenerationConfig::from_json(text).expect("valid").max_new_tokens(10);
        assert_eq!(most("{}"), None);
        assert_eq!(most(r#"{"max_length": 30}"#), Some(20));
        assert_eq!(most(r#"{"max_length": 5}"#), Some(0));
        assert_eq!(most(r#"{"max_length": 30, "max_new_tokens": 7}"#), Some(7));
    }

    #[test]
    fn wrong_fields_are_named() {
        for (text, words) in [
            (r#"{"do_sample": "yes"}"#, "`do_sample` must be true or false, found \"yes\""),
            (r#"{"temperature": "hot"}"#, "`temperature` must be a finite number"),
            (r#"{"do_sample": true, "temperature": -1}"#, "`temperature` must be 0 (greedy) or a positive number"),
            (r#"{"top_k": -5}"#, "`top_k` must be an integer"),
            (r#"{"top_p": 2}"#, "`top_p` must be above 0"),
            (r#"{"max_new_tokens": [1]}"#, "`max_new_tokens` must be an integer"),
            ("[]", "generation_config.json"),
            ("{", "not valid JSON"),
        ] {
            let error = GenerationConfig::from_json(text).expect_err(text).one_line();
            assert!(error.starts_with("generation_config.json") && error.contains(words), "{text}: {error}");
        }
    }
}
