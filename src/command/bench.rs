//! `sinew bench`.

mod embedding;

use std::collections::HashSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use sinew::kernels::rates::Peaks;
use sinew::models::{
    Engine, EngineOptions, GenerateOptions, Happening, LanguageModel, LoadOptions, ModelConfig, Request, one_line,
};
use sinew::ops::Context;

use super::arguments::{STEPPING, of_settings};
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{complain, megabytes, peak_rss_bytes, rate_text, report_memory};
use super::{Model, Outcome, PROMPT_TOKENS, Run};

/// Measure a model's speed and memory on random tokens; end-of-sequence tokens are ignored. Of an embedding model: the speed
/// of embedding --batch texts of --prompt-tokens tokens.
#[derive(Debug, Args)]
#[command(args = of_settings(STEPPING))]
pub struct Bench {
    #[command(flatten)]
    model: Model,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = PROMPT_TOKENS, value_name = "N")]
    prompt_tokens: usize,
    /// Tokens to generate after each prompt [default: 64].
    #[arg(long, value_name = "N")]
    new_tokens: Option<usize>,
    /// Sequences at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    batch: usize,
    /// Runs, of which medians are printed.
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// Run the batch through the scheduler of many requests as well, in turns with the plain batch.
    #[arg(long)]
    engine: bool,
    /// Tokens that all prompts of a batch begin with, which the scheduler runs once: asks for --engine.
    #[arg(long, default_value_t = 0, value_name = "N")]
    shared_prefix: usize,
    /// Say on standard error who holds the device's memory at the end, by what it is for.
    #[arg(long)]
    memory_report: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

/// Tokens that are generated where nothing says how many.
const NEW_TOKENS: usize = 64;

/// Seconds of one run.
struct Measured {
    first_token: f64,
    prefill: f64,
    decode: f64,
    /// Tokens of prompts that others of the batch had run.
    found: u64,
}

impl Bench {
    pub fn run(&self, run: &Run) -> Outcome {
        if self.prompt_tokens == 0 || self.batch == 0 || self.repeat == 0 {
            return Err("prompt tokens, batch and repeat must be at least 1".into());
        }
        let folder = self.model.folder(run)?;
        let config = folder.config()?;
        if folder.embeds()? {
            run.refuse_generating()?;
            if self.through_scheduler() || self.new_tokens.is_some() {
                return Err("--new-tokens, --engine and --shared-prefix are for models that generate".into());
            }
            return self.run_embedding(run, config);
        }
        let (prompt, new) = (self.prompt_tokens, self.new_tokens());
        if self.shared_prefix > prompt {
            return Err(
                format!("--shared-prefix {} is more than the {prompt} prompt tokens", self.shared_prefix).into()
            );
        }
        let (context, longest) = (prompt.saturating_add(new), config.as_decoder()?.longest_context());
        if context > longest {
            return Err(format!("{prompt} prompt tokens and {new} new tokens; the model's context is {longest}").into());
        }
        let start = Instant::now();
        let ctx = run.context()?;
        let options = run.load_options(Some(folder), &ctx)?;
        let options = LoadOptions { max_sequences: self.batch, context: Some(context), ..options };
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let mut model = self.model.load(run, ctx, &checkpoint, &options, None)?;
        let load_s = start.elapsed().as_secs_f64();
        catch_interrupts();

        let (mut runs, mut engine_runs) = (Vec::new(), Vec::new());
        // One run that is not counted: caches, page tables and clock rates settle in it.
        for number in 0..=self.repeat {
            let run = self.once(&mut model)?;
            let mut engine_run = None;
            if self.through_scheduler() {
                let (back, run) = self.through_engine(model, number)?;
                (model, engine_run) = (back, Some(run));
            }
            if interrupted() {
                return Ok(());
            }
            if number > 0 {
                runs.push(run);
                engine_runs.extend(engine_run);
            }
        }
        // Before the limits are measured: their buffers are not the model's.
        let peak_rss = peak_rss_bytes();
        if self.memory_report {
            report_memory(model.context());
        }
        let peaks = limits(model.context());
        self.report(&model, load_s, [&runs, &engine_runs], peak_rss, peaks.as_ref())
    }

    fn new_tokens(&self) -> usize {
        self.new_tokens.unwrap_or(NEW_TOKENS)
    }

    fn through_scheduler(&self) -> bool {
        self.engine || self.shared_prefix > 0
    }

    /// Ends early, with times of no use, where Ctrl-C was pressed.
    fn once(&self, model: &mut LanguageModel) -> Outcome<Measured> {
        let vocab = model.decoder().config().vocab_size;
        let mut sequences: Vec<_> = (0..self.batch).map(|_| model.sequence()).collect();
        let start = Instant::now();
        let mut first_token = 0.0;
        for (b, sequence) in sequences.iter_mut().enumerate() {
            let mut go_on = || if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            if go_on().is_break() {
                break;
            }
            model.prefill_while(sequence, &tokens(vocab, b, self.prompt_tokens), &mut go_on)?;
            if b == 0 {
                first_token = start.elapsed().as_secs_f64();
            }
        }
        let prefill = start.elapsed().as_secs_f64();
        let steps: Vec<_> = (0..self.batch).map(|b| tokens(vocab, 1000 + 70 * b, self.new_tokens())).collect();
        let mut row = vec![0; self.batch];
        let start = Instant::now();
        for step in 0..self.new_tokens() {
            if interrupted() {
                break;
            }
            row.iter_mut().zip(&steps).for_each(|(token, tokens)| *token = tokens[step]);
            model.decode_greedy(&mut sequences, &row)?;
        }
        Ok(Measured { first_token, prefill, decode: start.elapsed().as_secs_f64(), found: 0 })
    }

    /// One run of the batch as requests of an engine, which come at once. Its prefill ends with the first token of all;
    /// its decode is all tokens at the rate of the steps from there on in which every request has one, or of what is left
    /// where there are none such: long prompts take several steps, and who has begun earlier ends earlier.
    fn through_engine(&self, model: LanguageModel, number: usize) -> Outcome<(LanguageModel, Measured)> {
        let vocab = model.decoder().config().vocab_size;
        let mut engine = Engine::new(model, EngineOptions { max_waiting: self.batch, ..EngineOptions::default() });
        let start = Instant::now();
        for b in 0..self.batch {
            // Of this run alone: what earlier ones left in the cache is of no use.
            let shared = self.shared_prefix;
            let mut prompt = tokens(vocab, 7919 * (number + 1), shared);
            prompt.extend(tokens(vocab, 104_729 * (number * self.batch + b + 1), self.prompt_tokens - shared));
            let max_new_tokens = self.new_tokens() + 1;
            let options = GenerateOptions { max_new_tokens, ignore_eos: true, ..GenerateOptions::default() };
            engine.submit(Request { options, text: false, ..Request::new(prompt) })?;
        }
        let (mut begun, mut left) = (HashSet::new(), self.batch * (self.new_tokens() + 1));
        let (mut first_token, mut prefill) = (0.0, None);
        let (mut whole, mut any_ended) = (None, false);
        while !engine.is_idle() && !interrupted() {
            let (before, all_run) = (left, prefill.is_some() && !any_ended);
            for event in engine.step()? {
                if matches!(event.what, Happening::Token { .. }) {
                    left -= 1;
                    begun.insert(event.request);
                }
                any_ended |= event.is_last();
            }
            if all_run {
                let (_, tokens) = whole.unwrap_or((0.0, 0));
                whole = Some((start.elapsed().as_secs_f64(), tokens + before - left));
            }
            if first_token == 0.0 && !begun.is_empty() {
                first_token = start.elapsed().as_secs_f64();
            }
            if prefill.is_none() && begun.len() == self.batch {
                prefill = Some((start.elapsed().as_secs_f64(), left));
            }
        }
        let end = start.elapsed().as_secs_f64();
        let (prefill, left) = prefill.unwrap_or((end, 0));
        let (end, counted) = whole.unwrap_or((end, left));
        let decode = (end - prefill) * (self.batch * self.new_tokens()) as f64 / counted as f64;
        let found = engine.stats().found;
        Ok((engine.into_model(), Measured { first_token, prefill, decode, found }))
    }

    fn report(
        &self,
        model: &LanguageModel,
        load_s: f64,
        [runs, engine_runs]: [&[Measured]; 2],
        peak_rss: usize,
        peaks: Option<&Peaks>,
    ) -> Outcome {
        let decoder = model.decoder();
        let config = decoder.config();
        let batch = self.batch as f64;
        let rates = |runs: &[Measured]| {
            let prefill = median(runs.iter().map(|r| batch * self.prompt_tokens as f64 / r.prefill));
            let decode = || median(runs.iter().map(|r| batch * self.new_tokens() as f64 / r.decode));
            (prefill, (self.new_tokens() > 0).then(decode))
        };
        let (prefill_rate, decode_rate) = rates(runs);
        let engine = self.through_scheduler().then(|| rates(engine_runs));
        // Of neighbours in time.
        let ratio = median(runs.iter().zip(engine_runs).map(|(plain, engine)| plain.decode / engine.decode));
        let first_token_s = median(runs.iter().map(|r| r.first_token));

        // Limits: arithmetic for prefill, bytes for decode.
        let flops_per_token = config.flops_per_token(self.prompt_tokens as f64 / 2.0);
        let head = config.head_flops() / self.prompt_tokens as f64;
        let factors = decoder.precision().main_factors();
        let compute = factors.compute;
        let peak = peaks.and_then(|peaks| peaks.flops_per_s(factors));
        let prefill_share = peak.map(|peak| prefill_rate * (flops_per_token + head) / peak);
        let kv_per_token = model.cache().bytes_per_token();
        let length = self.prompt_tokens as f64 + self.new_tokens() as f64 / 2.0;
        let memory = peaks.map(|peaks| peaks.memory_bytes_per_s);
        let step_bytes = decoder.step_bytes(self.batch, length);
        let decode_limit = memory.map(|memory| batch * memory / step_bytes);
        let decode_share = decode_rate.zip(decode_limit).map(|(rate, limit)| rate / limit);
        let device = model.context().device();
        let threads = device.hardware().threads;
        let encoding = decoder.precision().main_encoding();
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut line = json!({
                "prefill_tokens_per_s": prefill_rate,
                "prefill_share_of_limit": prefill_share,
                "decode_tokens_per_s": decode_rate,
                "decode_share_of_limit": decode_share,
                "decode_bytes_per_token": step_bytes / batch,
                "load_s": load_s,
                "time_to_first_token_s": first_token_s,
                "peak_rss_bytes": peak_rss,
                "peak_rss_share_of_weights": peak_rss as f64 / decoder.weight_bytes() as f64,
                "weight_bytes": decoder.weight_bytes(),
                "kv_bytes_per_token": kv_per_token,
                "threads": threads,
                "device": device.id().to_string(),
                "dtype": encoding.to_string(),
                "activations": compute.to_string(),
                "prompt_tokens": self.prompt_tokens,
                "new_tokens": self.new_tokens(),
                "batch": self.batch,
                "repeat": self.repeat,
                "limit_memory_bytes_per_s": memory,
                "limit_flops_per_s": peak,
            });
            if let Some((prefill, decode)) = engine {
                line["engine_prefill_tokens_per_s"] = json!(prefill);
                line["engine_decode_tokens_per_s"] = json!(decode);
                line["engine_decode_share_of_plain"] = json!(decode.map(|_| ratio));
                line["shared_prefix"] = json!(self.shared_prefix);
                line["engine_found_tokens"] = json!(engine_runs.iter().map(|run| run.found).min());
            }
            writeln!(out, "{line}")?;
            return Ok(());
        }
        let hardware = device.hardware();
        writeln!(out, "{}: {hardware}; weights {encoding}, activations {compute}", device.id())?;
        writeln!(
            out,
            "prefill  {prefill_rate:9.1} tokens/s  {:>5} % of {} GFLOP/s",
            rate_text(prefill_share.map(|share| 100.0 * share)),
            rate_text(peak.map(|peak| peak / 1e9))
        )?;
        writeln!(
            out,
            "decode   {:>9} tokens/s  {:>5} % of {} GB/s, {} a token",
            rate_text(decode_rate),
            rate_text(decode_share.map(|share| 100.0 * share)),
            rate_text(memory.map(|memory| memory / 1e9)),
            megabytes((step_bytes / batch) as usize)
        )?;
        if let Some((prefill, decode)) = engine {
            writeln!(
                out,
                "engine   {prefill:9.1} tokens/s of prompts, {} decoded, {} % of the plain batch",
                rate_text(decode),
                rate_text(decode.map(|_| 100.0 * ratio))
            )?;
        }
        writeln!(out, "first    {first_token_s:9.3} s      load {load_s:.2} s")?;
        writeln!(
            out,
            "memory   {:9.1} MB     {:.2} of {:.1} MB packed weights; {kv_per_token} bytes of KV per token",
            peak_rss as f64 / 1e6,
            peak_rss as f64 / decoder.weight_bytes() as f64,
            decoder.weight_bytes() as f64 / 1e6
        )?;
        Ok(())
    }
}

/// The limits that a run is held against. Where they cannot be measured, as where the model leaves no memory for it, that
/// is said, and what was run is printed without them.
fn limits(ctx: &Context) -> Option<Peaks> {
    let failed = |error: &_| {
        let device = ctx.device().id();
        complain(&format!("warning: no shares of limits: those of {device} cannot be measured: {}", one_line(error)));
    };
    Peaks::measure(ctx.device()).inspect_err(|error| failed(error)).ok()
}

/// Any spread of tokens will do: the speed does not depend on them.
pub(super) fn tokens(vocab_size: usize, first: usize, count: usize) -> Vec<u32> {
    let token = |i: usize| ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % vocab_size as u64;
    (first..first + count).map(|i| token(i) as u32).collect()
}

/// Texts, and their tokens, that are embedded at once where that is measured: what is made of more fills a machine.
const MOST_TEXTS: usize = 1 << 16;
const MOST_TEXT_TOKENS: usize = 1 << 24;

/// A batch of texts for an embedding model.
pub(super) fn texts(config: &ModelConfig, batch: usize, tokens_each: usize) -> Outcome<Vec<Vec<u32>>> {
    let longest = config.text_positions();
    if tokens_each > longest {
        return Err(format!("texts of {tokens_each} tokens; the model's positions are {longest}").into());
    }
    let most = MOST_TEXTS.min(MOST_TEXT_TOKENS / tokens_each.max(1)).max(1);
    if batch > most {
        return Err(
            format!("--batch {batch}: at most {most} texts of {tokens_each} tokens are measured at once").into()
        );
    }
    Ok((0..batch).map(|b| tokens(config.vocab_size(), b, tokens_each)).collect())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
