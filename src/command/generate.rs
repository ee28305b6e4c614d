//! `sinew generate`.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sinew::models::{GenerateOptions, SamplingParams};

use super::{
    Machine, Model, Outcome, Stepping, Tokens, catch_interrupts, interrupted, parse_tokens, peak_rss_bytes, rate_text,
};

/// Generate text or tokens.
#[derive(Debug, Args)]
pub struct Generate {
    #[command(flatten)]
    model: Model,
    /// The text to continue.
    #[arg(long, required_unless_present = "tokens", conflicts_with = "tokens")]
    prompt: Option<String>,
    /// The tokens to continue, as 1,2,3; for models without a tokenizer.
    #[arg(long, value_parser = parse_tokens)]
    tokens: Option<Tokens>,
    /// The most tokens to generate.
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_new_tokens: usize,
    /// Divides the logits; 0 always takes the most probable token.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    top_k: usize,
    /// Keep the most probable tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Drop tokens less probable than this times the most probable.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f32,
    /// Above 1 discourages tokens that the text has.
    #[arg(long, default_value_t = 1.0, value_name = "F", allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Seed of the random draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End the answer at this text; may be given several times.
    #[arg(long)]
    stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    stepping: Stepping,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..SamplingParams::default()
        };
        // Before anything is loaded.
        sampling.validate()?;
        self.model.config()?.as_decoder()?;
        let prompt = match (&self.prompt, &self.tokens) {
            (Some(text), _) => self.model.tokenizer()?.encode(text, true)?,
            (None, Some(tokens)) => tokens.0.clone(),
            (None, None) => Vec::new(),
        };
        let context = self.model.context_for(prompt.len(), self.max_new_tokens)?;
        let mut model = self.model.load(machine, &self.model.options(context, &self.stepping))?;
        catch_interrupts();
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            sampling,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        };
        let stream = !self.json;
        let mut out = std::io::stdout().lock();
        let answer = model.generate(&prompt, &options, &mut |text| {
            let shown = if stream { write!(out, "{text}").and_then(|()| out.flush()) } else { Ok(()) };
            if shown.is_err() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let rate =
            |tokens: usize, time: Duration| (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64());
        let prefill_rate = rate(answer.prompt_tokens, answer.prefill);
        // The first token is the prompt's.
        let decode_rate = rate(answer.tokens.len().saturating_sub(1), answer.decode);
        if self.json {
            let line = json!({
                "text": model.has_tokenizer().then_some(&answer.text),
                "tokens": answer.tokens,
                "finish_reason": answer.finish.to_string(),
                "prompt_tokens": answer.prompt_tokens,
                "prefill_tokens_per_s": prefill_rate,
                "decode_tokens_per_s": decode_rate,
                "peak_rss_bytes": peak_rss_bytes(),
                "device": model.context().device().id().to_string(),
                "seed": self.seed,
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        if !model.has_tokenizer() {
            let ids: Vec<String> = answer.tokens.iter().map(u32::to_string).collect();
            write!(out, "{}", ids.join(","))?;
        }
        writeln!(out)?;
        if std::io::stderr().is_terminal() {
            let (prompt, decode) = (rate_text(prefill_rate), rate_text(decode_rate));
            let (tokens, finish) = (answer.tokens.len(), answer.finish);
            // The answer is out: a remark that cannot be written is no error.
            let _ =
                writeln!(std::io::stderr(), "[{tokens} tokens, {finish}; prompt {prompt} tokens/s, {decode} tokens/s]");
        }
        Ok(())
    }
}
