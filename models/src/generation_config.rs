//! `generation_config.json`: how the makers of a checkpoint want its answers drawn.

use std::collections::HashSet;

use serde_json::Value;

use crate::answering::GenerateOptions;
use crate::config::fields::known_tokens;
use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::json::{self, Fields, as_count, brief};
use crate::sampling::SamplingParams;

const FILE: &str = FileName::GenerationConfig.as_str();
/// No context is longer, and no vocabulary larger.
const MAX_TOKENS: usize = 1 << 31;
/// Each is looked at for each token.
const MAX_BAD_WORDS: usize = 1 << 16;

/// Fields that change what transformers generates and are not implemented, with the number that changes nothing where
/// there is one. Those that choose how fast it generates, or what it tells beside the tokens, are not among them.
const NOT_IMPLEMENTED: [(&str, Option<f64>); 24] = [
    ("constraints", None),
    ("diversity_penalty", Some(0.0)),
    ("dola_layers", None),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("exponential_decay_length_penalty", None),
    ("force_words_ids", None),
    ("forced_bos_token_id", None),
    ("forced_decoder_ids", None),
    ("forced_eos_token_id", None),
    ("guidance_scale", Some(1.0)),
    ("max_time", None),
    ("num_beam_groups", Some(1.0)),
    ("num_beams", Some(1.0)),
    ("num_return_sequences", Some(1.0)),
    ("penalty_alpha", Some(0.0)),
    ("remove_invalid_values", None),
    ("sequence_bias", None),
    ("token_healing", None),
    ("top_h", None),
    ("typical_p", Some(1.0)),
    ("watermarking_config", None),
];

/// What `generation_config.json` says of sampling and lengths. Its end tokens are part of
/// [`DecoderConfig`](crate::DecoderConfig).
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
    /// Keep this many tokens; 0 is all. Files with greedy decoding may have a number below 0, which nobody reads.
    pub top_k: Option<i64>,
    /// Keep tokens that together have this probability; 1 and more is all.
    pub top_p: Option<f32>,
    /// Drop tokens less probable than this times the most probable.
    pub min_p: Option<f32>,
    /// Discourages tokens that the text has.
    pub repetition_penalty: Option<f32>,
    /// The most tokens of an answer.
    pub max_new_tokens: Option<usize>,
    /// The most tokens of prompt and answer; `max_new_tokens` goes before it. A prompt that is as long is refused.
    pub max_length: Option<usize>,
    /// No end token comes before so many others in an answer.
    pub min_new_tokens: Option<usize>,
    /// Likewise in prompt and answer; `min_new_tokens` goes before it.
    pub min_length: Option<usize>,
    /// Texts that end an answer.
    pub stop_strings: Vec<String>,
    /// Tokens that are never drawn.
    pub suppress_tokens: Vec<u32>,
    /// Tokens that are not the first of an answer.
    pub begin_suppress_tokens: Vec<u32>,
    /// No so many tokens in a row come twice.
    pub no_repeat_ngram_size: Option<usize>,
    /// Rows of tokens that are not completed, other than an end token alone.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Fields that would change an answer and are not implemented.
    pub not_implemented: Vec<&'static str>,
    /// Sampling fields with a value of the wrong type, and the problem of each. Only sampling reads these fields, so
    /// greedy decoding does not refuse them.
    pub unreadable: Vec<(&'static str, String)>,
}

impl GenerationConfig {
    pub(crate) fn read(documents: &Documents) -> Result<Self> {
        let value = documents.json_if_present(FileName::GenerationConfig)?;
        let config = value.map_or_else(|| Ok(Self::default()), Self::from_value)?;
        if !config.not_implemented.is_empty() {
            tracing::warn!("{FILE}: not implemented and ignored: {}", config.not_implemented.join(", "));
        }
        Ok(config)
    }

    /// Reads the text of a `generation_config.json`.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::Config`] for a field of the wrong type, and
    /// those of [`validate`](Self::validate).
    pub fn from_json(text: &str) -> Result<Self> {
        let config = Self::from_value(&json::parse(text, FILE)?)?;
        config.validate()?;
        Ok(config)
    }

    fn from_value(value: &Value) -> Result<Self> {
        let fields = Fields::of(value, FILE, "")?;
        let number = |name: &str| -> Result<_> { Ok(fields.number(name)?.map(|x| x as f32)) };
        // A number below 0 turns these off, as 0 does.
        let or_off = |name: &str| -> Result<_> {
            Ok(fields.integer(name, MAX_TOKENS)?.map(|n| usize::try_from(n).unwrap_or(0)))
        };
        let mut unreadable = Vec::new();
        Ok(Self {
            do_sample: samples(&fields)?,
            temperature: or_unreadable("temperature", number("temperature"), &mut unreadable)?,
            top_k: or_unreadable("top_k", fields.integer("top_k", MAX_TOKENS), &mut unreadable)?,
            top_p: or_unreadable("top_p", number("top_p"), &mut unreadable)?,
            min_p: or_unreadable("min_p", number("min_p"), &mut unreadable)?,
            repetition_penalty: number("repetition_penalty")?,
            max_new_tokens: length(&fields, "max_new_tokens")?,
            max_length: length(&fields, "max_length")?,
            min_new_tokens: or_off("min_new_tokens")?,
            min_length: or_off("min_length")?,
            stop_strings: stop_strings(&fields)?,
            suppress_tokens: token_ids(&fields, "suppress_tokens")?,
            begin_suppress_tokens: token_ids(&fields, "begin_suppress_tokens")?,
            no_repeat_ngram_size: or_off("no_repeat_ngram_size")?,
            bad_words_ids: bad_words(&fields)?,
            not_implemented: not_implemented(&fields),
            unreadable,
        })
    }

    /// Refuses values that transformers refuses when it generates. Greedy decoding reads neither `temperature`, `top_k`,
    /// `top_p` nor `min_p`, so that they may hold anything there.
    ///
    /// ```
    /// use sinew_models::GenerationConfig;
    ///
    /// assert!(GenerationConfig::from_json(r#"{"do_sample": false, "top_k": -1}"#).is_ok());
    /// assert!(GenerationConfig::from_json(r#"{"do_sample": true, "top_k": -1}"#).is_err());
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for the first value that is out of range.
    pub fn validate(&self) -> Result<()> {
        let check = |field: &str, found: Option<f64>, allowed: &dyn Fn(f64) -> bool, expected: &str| match found {
            Some(found) if !allowed(found) => Err(Error::Config {
                file: FILE.to_owned(),
                problem: format!("`{field}` must be {expected}, found {found}"),
            }),
            _ => Ok(()),
        };
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let from_f32 = |x: Option<f32>| x.map(f64::from);
        if self.do_sample {
            let replaced = |field: &str| match field {
                "temperature" => self.temperature.is_some(),
                "top_k" => self.top_k.is_some(),
                "top_p" => self.top_p.is_some(),
                _ => self.min_p.is_some(),
            };
            if let Some((_, problem)) = self.unreadable.iter().find(|(field, _)| !replaced(field)) {
                return Err(Error::Config { file: FILE.to_owned(), problem: problem.clone() });
            }
            let expected = "a positive number where `do_sample` is true (`do_sample` false is greedy)";
            check("temperature", from_f32(self.temperature), &positive, expected)?;
            let top_k = self.top_k.map(|k| k as f64);
            check("top_k", top_k, &|k| k >= 0.0, "0 (all tokens) or a positive number where `do_sample` is true")?;
            // transformers takes 1 and more for all tokens.
            check("top_p", from_f32(self.top_p), &|p| p >= 0.0, "0 or a positive number where `do_sample` is true")?;
            let min_p = from_f32(self.min_p);
            check("min_p", min_p, &|p| (0.0..=1.0).contains(&p), "from 0 to 1 where `do_sample` is true")?;
        }
        check("repetition_penalty", from_f32(self.repetition_penalty), &positive, "a positive number")?;
        check("max_new_tokens", self.max_new_tokens.map(|n| n as f64), &positive, "greater than 0")
    }

    /// How an answer to a prompt of `prompt_tokens` is generated: as the file says, and with at most `max_new_tokens` where
    /// it does not say how many. Generating refuses a prompt that leaves no token of `max_length`:
    /// [`GenerateOptions::for_prompt`].
    ///
    /// ```
    /// let config = sinew_models::GenerationConfig::from_json(r#"{"max_length": 30, "stop_strings": "END"}"#)?;
    /// let options = config.options(10, 128);
    /// assert_eq!((options.max_new_tokens, &options.stop[..]), (20, &["END".to_owned()][..]));
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    pub fn options(&self, prompt_tokens: usize, max_new_tokens: usize) -> GenerateOptions {
        GenerateOptions {
            max_new_tokens: self.max_new_tokens(prompt_tokens).unwrap_or(max_new_tokens),
            max_length: self.max_length.filter(|_| self.max_new_tokens.is_none()),
            min_new_tokens: self.min_new_tokens(prompt_tokens),
            sampling: SamplingParams::from(self),
            stop: self.stop_strings.clone(),
            ..GenerateOptions::default()
        }
    }

    /// The most tokens of an answer to a prompt of `prompt_tokens`, where the file says so.
    pub fn max_new_tokens(&self, prompt_tokens: usize) -> Option<usize> {
        self.max_new_tokens.or_else(|| Some(self.max_length?.saturating_sub(prompt_tokens)))
    }

    /// The least tokens of an answer to a prompt of `prompt_tokens`, before an end token.
    pub fn min_new_tokens(&self, prompt_tokens: usize) -> usize {
        let of_length = || self.min_length.map_or(0, |length| length.saturating_sub(prompt_tokens));
        self.min_new_tokens.unwrap_or_else(of_length)
    }
}

/// Reads `do_sample`. A number other than 0 is true, as in Python.
fn samples(fields: &Fields<'_>) -> Result<bool> {
    const NAME: &str = "do_sample";
    match fields.get(NAME).and_then(Value::as_f64) {
        Some(number) => Ok(number != 0.0),
        None => Ok(fields.flag(NAME)?.unwrap_or(false)),
    }
}

/// Reads a number of tokens. Generation ends at the first count that is not below it, so `20.5` is 21 tokens.
fn length(fields: &Fields<'_>, name: &str) -> Result<Option<usize>> {
    match fields.get(name).and_then(Value::as_f64) {
        Some(tokens) if tokens.fract() != 0.0 && (0.0..MAX_TOKENS as f64).contains(&tokens) => {
            Ok(Some(tokens.ceil() as usize))
        }
        _ => fields.count(name, MAX_TOKENS),
    }
}

/// The value of a sampling field. A value of the wrong type counts as none, and its problem is kept.
fn or_unreadable<T>(
    field: &'static str,
    read: Result<Option<T>>,
    unreadable: &mut Vec<(&'static str, String)>,
) -> Result<Option<T>> {
    match read {
        Err(Error::Config { problem, .. }) => {
            unreadable.push((field, problem));
            Ok(None)
        }
        other => other,
    }
}

/// One text or a list of them.
fn stop_strings(fields: &Fields<'_>) -> Result<Vec<String>> {
    const NAME: &str = "stop_strings";
    let text = |value: &Value| match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(fields.problem(NAME, &format!("must be a text or a list of them, none empty, has {}", brief(value)))),
    };
    match fields.get(NAME) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(text).collect(),
        Some(value) => Ok(vec![text(value)?]),
    }
}

fn token_ids(fields: &Fields<'_>, name: &str) -> Result<Vec<u32>> {
    known_tokens(fields, name, fields.list(name)?.unwrap_or(&[]), MAX_TOKENS)
}

fn bad_words(fields: &Fields<'_>) -> Result<Vec<Vec<u32>>> {
    const NAME: &str = "bad_words_ids";
    let words = fields.list(NAME)?.unwrap_or(&[]);
    if words.len() > MAX_BAD_WORDS {
        return Err(
            fields.problem(NAME, &format!("has {} entries; at most {MAX_BAD_WORDS} are supported", words.len()))
        );
    }
    let id = |value: &Value| as_count(value).filter(|&id| id < MAX_TOKENS).map(|id| id as u32);
    let ends: HashSet<u32> = match fields.get("eos_token_id") {
        Some(Value::Array(ends)) => ends.iter().filter_map(id).collect(),
        end => end.and_then(id).into_iter().collect(),
    };
    let mut read = Vec::new();
    for word in words {
        let problem = |value| fields.problem(NAME, &format!("must hold lists of token ids, has {}", brief(value)));
        let tokens = word.as_array().filter(|tokens| !tokens.is_empty()).ok_or_else(|| problem(word))?;
        if let Some(other) = tokens.iter().find(|token| !token.is_number()) {
            return Err(problem(other));
        }
        // A row with a token that is none never comes.
        let Some(row) = tokens.iter().map(id).collect::<Option<Vec<u32>>>() else { continue };
        // transformers lets a text end all the same.
        if !matches!(row.as_slice(), [end] if ends.contains(end)) {
            read.push(row);
        }
    }
    Ok(read)
}

fn not_implemented(fields: &Fields<'_>) -> Vec<&'static str> {
    let changes = |name: &str, neutral: Option<f64>| match fields.get(name) {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Array(values)) => !values.is_empty(),
        Some(Value::Object(values)) => !values.is_empty(),
        Some(value) => value.as_f64().is_none() || value.as_f64() != neutral,
    };
    NOT_IMPLEMENTED.iter().filter(|(name, neutral)| changes(name, *neutral)).map(|(name, _)| *name).collect()
}

impl From<&GenerationConfig> for SamplingParams {
    /// Greedy unless `do_sample` is set. What is absent is as in transformers, where `top_k` is 50 for what is sampled.
    /// A filter whose value [`GenerationConfig::validate`] refuses for sampling is off.
    fn from(config: &GenerationConfig) -> Self {
        /// The default of transformers.
        const TOP_K: i64 = 50;
        let (temperature, top_k) = match config.do_sample {
            true => (config.temperature.unwrap_or(1.0), config.top_k.unwrap_or(TOP_K)),
            false => (0.0, config.top_k.unwrap_or(0)),
        };
        let probability = |given: Option<f32>| given.filter(|p| (0.0..=1.0).contains(p));
        Self {
            temperature,
            top_k: usize::try_from(top_k).unwrap_or(0),
            top_p: probability(config.top_p).unwrap_or(1.0),
            min_p: probability(config.min_p).unwrap_or(0.0),
            repetition_penalty: config.repetition_penalty.unwrap_or(1.0),
            logit_bias: config.suppress_tokens.iter().map(|&id| (id, f32::NEG_INFINITY)).collect(),
            no_repeat_ngram_size: config.no_repeat_ngram_size.unwrap_or(0),
            bad_words: config.bad_words_ids.clone(),
            not_before: config.begin_suppress_tokens.iter().map(|&id| (id, 1)).collect(),
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
        assert_eq!(params(&format!(r#"{{"do_sample": 0, {settings}}}"#)), greedy);
        assert_eq!(params(r#"{"do_sample": 1}"#), params(r#"{"do_sample": true}"#));
        let bare = params(r#"{"do_sample": true, "temperature": null}"#);
        assert_eq!((bare.temperature, bare.top_k), (1.0, 50));
    }

    #[test]
    fn greedy_files_may_hold_any_number_for_sampling() {
        // transformers 5.24 generates with each: its warpers are made where `do_sample` is true.
        for field in [
            r#""top_k": -1"#,
            r#""min_p": 2"#,
            r#""top_p": 5"#,
            r#""top_p": -1"#,
            r#""temperature": 0"#,
            r#""temperature": -1"#,
            r#""min_p": -3"#,
        ] {
            for do_sample in ["", r#""do_sample": false, "#, r#""do_sample": null, "#] {
                let text = format!("{{{do_sample}{field}}}");
                let config = GenerationConfig::from_json(&text).expect(&text);
                let params = config.options(3, 7).sampling;
                assert_eq!(params, SamplingParams::default(), "{text}");
                params.validate().expect(&text);
            }
        }
        let kept = GenerationConfig::from_json(r#"{"top_p": 0, "top_k": 7}"#).expect("valid");
        let params = SamplingParams::from(&kept);
        assert_eq!((params.temperature, params.top_p, params.top_k), (0.0, 0.0, 7));
    }

    #[test]
    fn sampling_takes_what_transformers_takes() {
        let params = |fields: &str| {
            let text = format!(r#"{{"do_sample": true, {fields}}}"#);
            let params = SamplingParams::from(&GenerationConfig::from_json(&text).expect(&text));
            params.validate().expect(&text);
            params
        };
        let usual = SamplingParams { temperature: 1.0, top_k: 50, ..SamplingParams::default() };
        assert_eq!(params(r#""top_p": 0"#), SamplingParams { top_p: 0.0, ..usual.clone() });
        assert_eq!(params(r#""top_k": 0"#), SamplingParams { top_k: 0, ..usual.clone() });
        // `top_p < 1.0` decides whether there is a warper.
        assert_eq!(params(r#""top_p": 5"#), usual);
        assert_eq!(params(r#""min_p": 1"#), SamplingParams { min_p: 1.0, ..usual });
    }

    #[test]
    fn a_prompt_of_max_length_is_refused() {
        // transformers 5.24: "Input length of input_ids is 12, but `max_length` is set to 12".
        let options = |text: &str, prompt| {
            let config = GenerationConfig::from_json(text).expect("valid");
            config.options(prompt, 128).for_prompt(prompt).map(|options| options.max_new_tokens)
        };
        assert_eq!(options(r#"{"max_length": 12}"#, 11).expect("one token is left"), 1);
        for prompt in [12, 13, 1 << 20] {
            let line = options(r#"{"max_length": 12}"#, prompt).expect_err("none is left").one_line();
            for words in ["generation_config.json", "`max_length` is 12 ", &prompt.to_string(), "--max-new-tokens"] {
                assert!(line.contains(words), "{words}: {line}");
            }
            assert_eq!(options(r#"{"max_length": 12, "max_new_tokens": 3}"#, prompt).expect("it goes before"), 3);
        }
    }

    #[test]
    fn lengths_count_the_prompt_where_they_should() {
        let most = |text: &str| GenerationConfig::from_json(text).expect("valid").max_new_tokens(10);
        assert_eq!(most("{}"), None);
        assert_eq!(most(r#"{"max_length": 30}"#), Some(20));
        assert_eq!(most(r#"{"max_length": 5}"#), Some(0));
        // transformers 5.24 compares counts with the number.
        assert_eq!(most(r#"{"max_length": 20.5}"#), Some(11));
        assert_eq!(most(r#"{"max_new_tokens": 6.5}"#), Some(7));
        assert_eq!(most(r#"{"max_length": 30, "max_new_tokens": 7}"#), Some(7));
    }

    #[test]
    fn the_least_tokens_are_those_of_the_answer_first() {
        let least = |text: &str| GenerationConfig::from_json(text).expect("valid").min_new_tokens(10);
        assert_eq!(least("{}"), 0);
        assert_eq!(least(r#"{"min_length": 30}"#), 20);
        assert_eq!(least(r#"{"min_length": 5}"#), 0);
        assert_eq!(least(r#"{"min_length": 30, "min_new_tokens": 7}"#), 7);
        // transformers takes numbers below 0 for none.
        let below = r#"{"min_length": -30, "min_new_tokens": -7, "no_repeat_ngram_size": -1}"#;
        assert_eq!(least(below), 0);
        let below = GenerationConfig::from_json(below).expect("valid");
        assert_eq!(SamplingParams::from(&below).no_repeat_ngram_size, 0);
    }

    #[test]
    fn tokens_that_no_vocabulary_has_are_left_out() {
        let text = r#"{"suppress_tokens": [-1, 5, 4294967296], "begin_suppress_tokens": [2], "eos_token_id": [3, 8],
            "bad_words_ids": [[8], [9], [8, 8], [1, -1]], "no_repeat_ngram_size": 4, "stop_strings": "end"}"#;
        let config = GenerationConfig::from_json(text).expect("valid");
        assert_eq!((config.stop_strings.as_slice(), config.not_implemented.len()), (&["end".to_owned()][..], 0));
        let params = SamplingParams::from(&config);
        assert_eq!(params.logit_bias, [(5, f32::NEG_INFINITY)]);
        assert_eq!(params.not_before, [(2, 1)]);
        assert_eq!(params.bad_words, [vec![9], vec![8, 8]]);
        assert_eq!(params.no_repeat_ngram_size, 4);
        let options = config.options(10, 7);
        assert_eq!((options.sampling, options.stop, options.max_new_tokens), (params, config.stop_strings, 7));
        let many = format!(r#"{{"bad_words_ids": [{}[1]]}}"#, "[1],".repeat(MAX_BAD_WORDS));
        assert!(GenerationConfig::from_json(&many).expect_err("too many").one_line().contains("65537 entries"));
    }

    #[test]
    fn greedy_decoding_refuses_no_sampling_field() {
        for field in [r#""temperature": Infinity"#, r#""top_p": NaN"#, r#""top_p": "x""#, r#""top_k": 1.5"#] {
            for flag in ["", r#""do_sample": false, "#] {
                let config = GenerationConfig::from_json(&format!("{{{flag}{field}}}")).expect(field);
                assert_eq!(SamplingParams::from(&config), SamplingParams::default(), "{field}");
            }
        }
        // An option of the caller takes the place of a value that cannot be read.
        let mut config = GenerationConfig::from_json(r#"{"top_p": "x"}"#).expect("greedy");
        config.do_sample = true;
        assert!(config.validate().expect_err("sampled").one_line().contains("`top_p`"));
        config.top_p = Some(0.5);
        assert!(config.validate().is_ok());
    }

    #[test]
    fn wrong_fields_are_named() {
        for (text, words) in [
            (r#"{"do_sample": "yes"}"#, "`do_sample` must be true or false, found \"yes\""),
            (r#"{"do_sample": true, "temperature": "hot"}"#, "`temperature` must be a finite number"),
            (r#"{"do_sample": true, "temperature": -1}"#, "`temperature` must be a positive number"),
            (r#"{"do_sample": true, "temperature": 0}"#, "`temperature` must be a positive number"),
            (r#"{"do_sample": true, "top_k": -5}"#, "`top_k` must be 0 (all tokens) or a positive number"),
            (r#"{"do_sample": true, "top_p": -0.5}"#, "`top_p` must be 0 or a positive number"),
            (r#"{"do_sample": true, "min_p": 2}"#, "`min_p` must be from 0 to 1"),
            (r#"{"do_sample": true, "min_p": -1}"#, "found -1"),
            (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` must be a positive number, found 0"),
            (r#"{"repetition_penalty": -1.5}"#, "found -1.5"),
            (r#"{"max_new_tokens": 0}"#, "`max_new_tokens` must be greater than 0"),
            (r#"{"do_sample": true, "top_k": 1.5}"#, "`top_k` must be an integer"),
            (r#"{"do_sample": true, "top_k": "all"}"#, "`top_k` must be an integer"),
            (r#"{"stop_strings": ["a", ""]}"#, "`stop_strings` must be a text or a list of them, none empty, has \"\""),
            (r#"{"stop_strings": 7}"#, "`stop_strings` must be a text"),
            (r#"{"suppress_tokens": [1, "a"]}"#, "`suppress_tokens` must hold token ids, has \"a\""),
            (r#"{"begin_suppress_tokens": 1}"#, "`begin_suppress_tokens` must be a list, found 1"),
            (r#"{"bad_words_ids": [1]}"#, "`bad_words_ids` must hold lists of token ids, has 1"),
            (r#"{"bad_words_ids": [[]]}"#, "`bad_words_ids` must hold lists of token ids, has []"),
            (r#"{"bad_words_ids": [[1, "a"]]}"#, "`bad_words_ids` must hold lists of token ids, has \"a\""),
            (r#"{"no_repeat_ngram_size": 1.5}"#, "`no_repeat_ngram_size` must be an integer"),
            (r#"{"max_length": -1.5}"#, "`max_length` must be an integer from 0"),
            (r#"{"max_length": -1}"#, "`max_length` must be an integer from 0"),
            (r#"{"max_new_tokens": [1]}"#, "`max_new_tokens` must be an integer"),
            (
                r#"{"do_sample": true, "temperature": Infinity}"#,
                "`temperature` must be a finite number, found Infinity",
            ),
            (r#"{"do_sample": true, "top_p": NaN}"#, "`top_p` must be a finite number, found NaN"),
            (r#"{"max_length": 1e400}"#, "`max_length` must be an integer from 0 to 2147483648, found 1e400"),
            (r#"{"suppress_tokens": [1, -Infinity]}"#, "`suppress_tokens` must hold token ids, has -Infinity"),
            (r#"{"stop_strings": ["a", "\ud800"]}"#, "has \"\\ud800\", which has half of a surrogate pair"),
            ("[]", "generation_config.json"),
            ("{", "not valid JSON"),
        ] {
            let error = GenerationConfig::from_json(text).expect_err(text).one_line();
            assert!(error.starts_with("generation_config.json") && error.contains(words), "{text}: {error}");
        }
    }
}
