//! `sinew generate`.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;
use sinew::models::{GenerateOptions, LoadOptions, SamplingParams};

use super::{Machine, Model, Outcome, Tokens, catch_interrupts, interrupted, parse_tokens, peak_rss_bytes};

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
    /// Tokens of the prompt in one step.
    #[arg(long, default_value_t = 512, value_name = "N")]
    prefill_chunk: usize,
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
        let options = LoadOptions { prefill_chunk: self.prefill_chunk, context: Some(context), ..self.model.options() };
        let mut model = self.model.load(machine, &options)?;
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
        let decoded = answer.tokens.len().saturating_sub(1) as f64;
        let prefill_rate = answer.prompt_tokens as f64 / answer.prefill.as_secs_f64();
        let decode_rate = decoded / answer.decode.as_secs_f64();
        let decode_rate = if decoded > 0.0 { Some(decode_rate) } else { None };
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
            let rate = decode_rate.map_or_else(String::new, |r| format!(", {r:.1} tokens/s"));
            eprintln!("[{} tokens, {}; prompt {prefill_rate:.1} tokens/s{rate}]", answer.tokens.len(), answer.finish);
        }
        Ok(())
    }
}
