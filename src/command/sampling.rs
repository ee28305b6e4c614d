//! How an answer is drawn: what the checkpoint asks for, and the options that go before it.

use clap::Args;
use sinew::models::{Error, GenerateOptions, GenerationConfig, SamplingParams};

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
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the most probable tokens that together have this probability; 0 keeps one.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens less probable than this times the most probable.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
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
    /// End the answer at this text, which may be a special token, as at those of generation_config.json; may be given
    /// several times.
    #[arg(long)]
    stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    #[arg(long)]
    ignore_eos: bool,
}

impl Sampling {
    /// Checks the options, and the values of `generation_config.json` that they leave in force, before a prompt is known.
    pub fn check(&self, file: &GenerationConfig) -> Result<(), Error> {
        let usual = SamplingParams::default();
        let given = SamplingParams {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            ..usual
        };
        given.validate()?;
        let config = self.in_force(file);
        config.validate()?;
        self.complete(config.options(0, 1)).validate()
    }

    /// How to answer a prompt of `prompt_tokens`: by the options, then by the file; with at most `max_new_tokens` where
    /// neither says how many.
    pub fn options(
        &self,
        file: &GenerationConfig,
        prompt_tokens: usize,
        max_new_tokens: usize,
    ) -> Result<GenerateOptions, Error> {
        let most = self.max_new_tokens.unwrap_or(max_new_tokens);
        self.complete(self.in_force(file).options(prompt_tokens, most)).for_prompt(prompt_tokens)
    }

    /// The file with the values of options in the place of its own, which need not be valid then.
    fn in_force(&self, file: &GenerationConfig) -> GenerationConfig {
        let mut config = file.clone();
        if let Some(temperature) = self.temperature {
            if !file.do_sample {
                // A greedy file does not ask for the 50 that files with `do_sample` have by default.
                config.top_k = file.top_k.or(Some(0));
            }
            (config.do_sample, config.temperature) = (temperature != 0.0, Some(temperature));
        }
        config.top_k = self.top_k.map(|k| i64::try_from(k).unwrap_or(i64::MAX)).or(config.top_k);
        config.top_p = self.top_p.or(config.top_p);
        config.min_p = self.min_p.or(config.min_p);
        config.repetition_penalty = self.repetition_penalty.or(config.repetition_penalty);
        config.no_repeat_ngram_size = self.no_repeat_ngram_size.or(config.no_repeat_ngram_size);
        config.min_new_tokens = self.min_new_tokens.or(config.min_new_tokens);
        if self.max_new_tokens.is_some() {
            (config.max_new_tokens, config.max_length) = (None, None);
        }
        config.stop_strings.extend_from_slice(&self.stop);
        config
    }

    /// `options` with the values that files do not have.
    fn complete(&self, mut options: GenerateOptions) -> GenerateOptions {
        options.ignore_eos = self.ignore_eos;
        let sampling = &mut options.sampling;
        sampling.presence_penalty = self.presence_penalty;
        sampling.frequency_penalty = self.frequency_penalty;
        sampling.logit_bias.extend_from_slice(&self.logit_bias);
        sampling.seed = self.seed;
        options
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
