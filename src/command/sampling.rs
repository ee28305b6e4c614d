//! How an answer is drawn: what the checkpoint asks for, and the options that go before it.

use clap::Args;
use sinew::models::{GenerateOptions, GenerationConfig, SamplingParams};

use super::Outcome;

/// Options of sampling. Those that are not given are as generation_config.json has them, if there is one.
#[derive(Debug, Clone, Args)]
pub struct Sampling {
    /// The most tokens to generate.
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// No end-of-sequence token before this many others.
    #[arg(long, value_name = "N")]
    min_new_tokens: Option<usize>,
    /// Divides the logits; 0 always takes the most probable token.
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep this many of the most probable tokens; 0 keeps all.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Keep the most probable tokens that together have this probability.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens less probable than this times the most probable.
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Above 1 discourages tokens that the text has.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens that were generated.
    #[arg(long, default_value_t = 0.0, value_name = "F", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtracted from the logits of tokens each time that they were generated.
    #[arg(long, default_value_t = 0.0, value_name = "F", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Let no N tokens in a row come twice in prompt and answer; 0 lets them.
    #[arg(long, value_name = "N")]
    no_repeat_ngram_size: Option<usize>,
    /// Add F to the logit of token ID; -inf bans it. May be given several times.
    #[arg(long, value_name = "ID=F", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the random draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// End the answer at this text, as at those of generation_config.json; may be given several times.
    #[arg(long)]
    stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    #[arg(long)]
    ignore_eos: bool,
}

impl Sampling {
    /// What is generated after a prompt: the options, then the file, then `max_new_tokens`.
    pub fn options(
        &self,
        config: &GenerationConfig,
        prompt_tokens: usize,
        max_new_tokens: usize,
    ) -> Outcome<GenerateOptions> {
        let base = SamplingParams::from(config);
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().chain(&base.logit_bias).copied().collect(),
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(base.no_repeat_ngram_size),
            bad_words: base.bad_words,
            not_before: base.not_before,
            seed: self.seed,
        };
        sampling.validate()?;
        let from_file = || config.max_new_tokens(prompt_tokens);
        let min_from_file = || config.min_new_tokens(prompt_tokens);
        Ok(GenerateOptions {
            max_new_tokens: self.max_new_tokens.or_else(from_file).unwrap_or(max_new_tokens),
            min_new_tokens: self.min_new_tokens.unwrap_or_else(min_from_file),
            sampling,
            stop: self.stop.iter().chain(&config.stop_strings).cloned().collect(),
            ignore_eos: self.ignore_eos,
            logprobs: None,
        })
    }

    /// Refuses a bias for what is no token, which would do nothing.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Outcome {
        match self.logit_bias.iter().find(|&&(id, _)| id as usize >= vocab_size) {
            Some((id, _)) => Err(format!("--logit-bias {id}: the vocabulary has {vocab_size} tokens").into()),
            None => Ok(()),
        }
    }
}

/// `ID=F`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not ID=F, such as 50256=-100"))
}
