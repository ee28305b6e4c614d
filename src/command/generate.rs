//! `sinew generate`.

mod prompts;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sinew::models::{GenerateOptions, LanguageModel, LoadOptions, Logprobs};

use super::arguments::{SERVING, STEPPING, of_settings};
use super::input::{Tokens, parse_tokens};
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{peak_rss_bytes, rate, rate_text, report_memory};
use super::sampling::Sampling;
use super::{Model, Outcome, Run};

/// Generate text or tokens.
#[derive(Debug, Args)]
#[command(args = of_settings(SERVING), args = of_settings(STEPPING))]
pub struct Generate {
    #[command(flatten)]
    model: Model,
    /// The text to continue.
    #[arg(long, required_unless_present_any = ["tokens", "prompts_file"], conflicts_with_all = ["tokens", "prompts_file"])]
    prompt: Option<String>,
    /// A file with a prompt on each line, which are answered together and in order; with --json a line for each.
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    prompts_file: Option<PathBuf>,
    /// The tokens to continue, as 1,2,3; for models without a tokenizer.
    #[arg(long, value_parser = parse_tokens)]
    tokens: Option<Tokens>,
    #[command(flatten)]
    sampling: Sampling,
    /// With --json: for each token its log probability and the N most probable tokens, by the model's own logits,
    /// before bias, penalties and temperature.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Say on standard error who holds the device's memory at the end, by what it is for.
    #[arg(long)]
    memory_report: bool,
    /// Print JSON and nothing else: one object, or one for each line of a file of prompts.
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub fn run(&self, run: &Run) -> Outcome {
        /// Where neither an option nor the checkpoint says how many.
        const MAX_NEW_TOKENS: usize = 128;
        // Before anything is loaded.
        let folder = self.model.folder(run)?;
        let decoder = folder.config()?.as_decoder()?;
        self.sampling.check_vocabulary(decoder.vocab_size)?;
        let config = folder.generation_config_unchecked()?;
        self.sampling.check(config)?;
        if let Some(file) = &self.prompts_file {
            return self.run_file(run, file, MAX_NEW_TOKENS);
        }
        run.refuse(&[SERVING], "is for many prompts, of --prompts-file; there is one")?;
        let ctx = run.context()?;
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let prompt = match (&self.prompt, &self.tokens) {
            (Some(text), _) => self.model.tokenizer(run)?.encode_prompt(text, true, decoder.longest_context())?,
            (None, Some(tokens)) => {
                folder.config()?.check_tokens(&tokens.0)?;
                tokens.0.clone()
            }
            (None, None) => Vec::new(),
        };
        let options = self.sampling.options(config, prompt.len(), MAX_NEW_TOKENS)?;
        let options = GenerateOptions { logprobs: self.logprobs, ..options };
        let context = decoder.context_for(prompt.len(), options.max_new_tokens)?;
        let loading = LoadOptions { context: Some(context), ..run.load_options(Some(folder), &ctx)? };
        let mut model = self.model.load(run, ctx, &checkpoint, &loading, folder.tokenizer()?)?;
        catch_interrupts();
        let stream = !self.json;
        let mut out = std::io::stdout().lock();
        let answer = model.generate(&prompt, &options, &mut |text| {
            let shown = if stream { write!(out, "{text}").and_then(|()| out.flush()) } else { Ok(()) };
            if shown.is_err() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if self.memory_report {
            report_memory(model.context());
        }
        let prefill_rate = rate(answer.prompt_tokens, answer.prefill);
        // The first token is the prompt's.
        let decode_rate = rate(answer.tokens.len().saturating_sub(1), answer.decode);
        if self.json {
            let mut line = json!({
                "text": model.has_tokenizer().then_some(&answer.text),
                "tokens": answer.tokens,
                "finish_reason": answer.finish.to_string(),
                "prompt_tokens": answer.prompt_tokens,
                "prefill_tokens_per_s": prefill_rate,
                "decode_tokens_per_s": decode_rate,
                "peak_rss_bytes": peak_rss_bytes(),
                "device": model.context().device().id().to_string(),
                "seed": options.sampling.seed,
            });
            if self.logprobs.is_some() {
                let each = answer.tokens.iter().zip(&answer.logprobs);
                line["logprobs"] = each.map(|(&token, logprobs)| logprobs_json(&model, token, logprobs)).collect();
            }
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

/// A token as `{"token": 5, "text": "a", "logprob": -0.1, "top": […]}`. Part of a character has U+FFFD for its text.
fn logprobs_json(model: &LanguageModel, token: u32, logprobs: &Logprobs) -> Value {
    let one = |id: u32, logprob: f32| {
        let text = model.tokenizer().ok().and_then(|tokenizer| tokenizer.decode(&[id], false).ok());
        json!({ "token": id, "text": text, "logprob": logprob })
    };
    let mut line = one(token, logprobs.logprob);
    line["top"] = logprobs.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
    line
}
