//! How an answer is drawn: what the checkpoint asks for, and the options that go before it.

use clap::Args;
use sinew::models::{GenerateOptions, GenerationConfig};

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
    /// End the answer at this text, which may be a special token, as at those of generation_config.json; may be given
    /// several times.
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
        let mut options = config.options(prompt_tokens, max_new_tokens);
        set(&mut options.max_new_tokens, self.max_new_tokens);
        set(&mut options.min_new_tokens, self.min_new_tokens);
        options.stop.extend_from_slice(&self.stop);
        options.ignore_eos = self.ignore_eos;
        let sampling = &mut options.sampling;
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_k, self.top_k);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.no_repeat_ngram_size, self.no_repeat_ngram_size);
        sampling.presence_penalty = self.presence_penalty;
        sampling.frequency_penalty = self.frequency_penalty;
        sampling.logit_bias.extend_from_slice(&self.logit_bias);
        sampling.seed = self.seed;
        options.validate()?;
        Ok(options)
    }

    /// Refuses a bias for what is no token, which would do nothing.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Outcome {
        match self.logit_bias.iter().find(|&&(id, _)| id as usize >= vocab_size) {
            Some((id, _)) => Err(format!("--logit-bias {id}: the vocabulary has {vocab_size} tokens").into()),
            None => Ok(()),
        }
    }
}

/// Overwrites what the file says where an option was given.
fn set<T: Copy>(value: &mut T, given: Option<T>) {
    *value = given.unwrap_or(*value);
}

/// `ID=F`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("`{text}` is not ID=F, such as 50256=-100"))
}
