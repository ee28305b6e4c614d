//! `sinew trace` and `sinew replay`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sinew::models::engine::{Percentiles, Replayed, TraceLine, TraceOptions};
use sinew::models::{Engine, EngineOptions, LoadOptions};

use super::arguments::{SERVING, STEPPING, of_settings};
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{peak_rss_bytes, rate_text};
use super::{Model, Outcome, Run};

/// Write a trace of requests at random, a line of JSON for each.
#[derive(Debug, Args)]
pub struct Trace {
    /// How many.
    #[arg(long, default_value_t = 100, value_name = "N")]
    requests: usize,
    /// Requests a second; the gaps between them are distributed exponentially.
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    rate: f64,
    /// The shortest prompt, its prefix apart; lengths are uniform in their logarithm.
    #[arg(long, default_value_t = 16, value_name = "N")]
    min_prompt: usize,
    /// The longest prompt, its prefix apart.
    #[arg(long, default_value_t = 512, value_name = "N")]
    max_prompt: usize,
    /// The shortest answer.
    #[arg(long, default_value_t = 8, value_name = "N")]
    min_new: usize,
    /// The longest answer.
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_new: usize,
    /// Kinds of prompts, of which each has a prefix of its own.
    #[arg(long, default_value_t = 0, value_name = "N")]
    prefixes: u64,
    /// Tokens of each prefix.
    #[arg(long, default_value_t = 256, value_name = "N")]
    prefix_tokens: usize,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Trace {
    pub fn run(&self) -> Outcome {
        let &Self { requests, rate, min_prompt, max_prompt, min_new, max_new, prefixes, prefix_tokens, seed } = self;
        let options = TraceOptions {
            requests,
            rate,
            prompt_tokens: (min_prompt, max_prompt),
            new_tokens: (min_new, max_new),
            prefixes,
            prefix_tokens,
            seed,
        };
        let mut out = std::io::stdout().lock();
        for line in TraceLine::generate(&options)? {
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        }
        Ok(())
    }
}

/// Run a trace of requests as they came, and measure how long each waited.
#[derive(Debug, Args)]
#[command(args = of_settings(STEPPING), args = of_settings(SERVING))]
pub struct Replay {
    /// A file with one request on each line, as `sinew trace` writes it: {"arrival_s": 0.5, "prompt_tokens": 12,
    /// "new_tokens": 4, "prefix": 3, "prefix_tokens": 8}. Requests of one prefix begin with the same tokens.
    trace: PathBuf,
    #[command(flatten)]
    model: Model,
    /// Times as fast as the trace was recorded.
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    speed: f64,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub fn run(&self, run: &Run) -> Outcome {
        let text =
            std::fs::read(&self.trace).map_err(|error| format!("cannot read {}: {error}", self.trace.display()))?;
        let trace = TraceLine::parse_all(&text)?;
        if trace.is_empty() {
            return Err("the trace has no requests".into());
        }
        // Those that are longer fail one by one.
        let most = self.model.folder(run)?.config()?.as_decoder()?.longest_context();
        let lengths = trace.iter().map(|line| line.prompt_tokens.saturating_add(line.new_tokens));
        let Some(longest) = lengths.filter(|&tokens| tokens <= most).max() else {
            return Err(format!("no request of the trace is as short as the model's {most} tokens").into());
        };
        let ctx = run.context()?;
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let options = run.serving_options(Some(self.model.folder(run)?), &ctx)?;
        let options = LoadOptions { context: Some(longest), ..options };
        let model = self.model.load(run, ctx, &checkpoint, &options, None)?;
        let mut engine = Engine::new(model, EngineOptions::default());
        catch_interrupts();
        let mut go_on = || if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let replayed = engine.replay(&trace, self.speed, &mut go_on)?;
        self.report(&replayed, &engine)?;
        match &replayed.failure {
            Some(why) if replayed.answered == 0 => Err(format!("no request was answered: {why}").into()),
            _ => Ok(()),
        }
    }

    fn report(&self, replayed: &Replayed, engine: &Engine) -> Outcome {
        let Replayed { answered, failed, seconds, prompt_tokens, new_tokens, engine: stats, .. } = replayed;
        let rate = |tokens: usize| (*seconds > 0.0).then(|| tokens as f64 / seconds);
        let cache = engine.cache().stats();
        let mut out = std::io::stdout().lock();
        if self.json {
            let times = |p: &Percentiles| json!({ "p50": p.p50, "p95": p.p95, "p99": p.p99 });
            let line = json!({
                "answered": answered,
                "failed": failed,
                "failure": replayed.failure,
                "seconds": seconds,
                "prompt_tokens": prompt_tokens,
                "new_tokens": new_tokens,
                "prompt_tokens_per_s": rate(*prompt_tokens),
                "new_tokens_per_s": rate(*new_tokens),
                "time_to_first_token_s": times(&replayed.first_token),
                "time_between_tokens_s": times(&replayed.between_tokens),
                "steps": stats.steps,
                "found_tokens": stats.found,
                "hit_rate": stats.hit_rate(),
                "evictions": cache.evictions,
                "preemptions": stats.preemptions,
                "swapped": stats.swapped,
                "peak_blocks": cache.peak_used,
                "blocks": cache.total,
                "peak_rss_bytes": peak_rss_bytes(),
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        let milliseconds =
            |p: &Percentiles| format!("{:9.1} ms {:9.1} ms {:9.1} ms", 1e3 * p.p50, 1e3 * p.p95, 1e3 * p.p99);
        writeln!(out, "requests   {answered} answered, {failed} failed, in {seconds:.1} s and {} steps", stats.steps)?;
        writeln!(
            out,
            "tokens     {:9} of prompts a second, {} of answers",
            rate_text(rate(*prompt_tokens)),
            rate_text(rate(*new_tokens))
        )?;
        writeln!(out, "                      p50          p95          p99")?;
        writeln!(out, "first      {}", milliseconds(&replayed.first_token))?;
        writeln!(out, "between    {}", milliseconds(&replayed.between_tokens))?;
        writeln!(
            out,
            "cache      {} of {} blocks at most, {} preemptions, {:.1} % of prompts found",
            cache.peak_used,
            cache.total,
            stats.preemptions,
            100.0 * stats.hit_rate()
        )?;
        if let Some(why) = &replayed.failure {
            writeln!(out, "failed     first: {why}")?;
        }
        Ok(())
    }
}
