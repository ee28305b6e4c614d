//! `sinew tune`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sinew::demo;
use sinew::models::{EmbeddingModel, Folder, LanguageModel, LoadOptions};
use sinew::ops::{Budget, Context, Tuned, tune_while};

use super::arguments::{STEPPING, WEIGHTS, of_settings};
use super::interrupts::{catch_interrupts, interrupted};
use super::{Outcome, PROMPT_TOKENS, Run};

/// Time the kernels that may serve a model's shapes on this machine, and keep the times: from then on the fastest are
/// chosen, and no bit of a result changes for it. They are kept as it goes: Ctrl-C ends it after the problem at hand.
/// Without --model: the shapes of the bundled model.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHTS), args = of_settings(&["load"]), args = of_settings(STEPPING))]
pub struct Tune {
    /// Folder with config.json and safetensors files, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(long, value_name = "PATH|ID")]
    model: Option<PathBuf>,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long, requires = "model")]
    offline: bool,
    /// Seconds that may be spent on timing.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = parse_seconds)]
    budget: f64,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86400.0).contains(seconds));
    seconds.ok_or_else(|| "seconds are a number from 0.1 to 86400".to_owned())
}

/// Tokens of the text that shapes are taken from of an embedding model; of others it is a usual prompt.
const TEXT: usize = 128;

impl Tune {
    pub fn run(&self, run: &Run) -> Outcome {
        let cache = run.settings().tuning_cache();
        // Told of what is kept, so that other problems come first.
        let ctx = Arc::new(run.untuned_context()?.with_tuning(&cache));
        self.note(run, &ctx)?;
        let budget = Budget { time: Duration::from_secs_f64(self.budget), ..Budget::default() };
        catch_interrupts();
        // As it goes: what is measured is not lost with what comes after it.
        let mut kept = Ok(());
        let tuned = tune_while(&ctx, &budget, &mut |so_far| {
            if kept.is_ok() {
                kept = cache.save(&ctx, so_far);
            }
            if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let folder = cache.folder().folder();
        // Whatever was in the way may be gone. What was measured is shown in any case.
        let kept = kept.or_else(|_| cache.save(&ctx, &tuned));
        self.report(run, &ctx, &tuned, folder.filter(|_| kept.is_ok()))?;
        kept.map_err(|error| {
            let place = folder.map(|folder| format!(" in {}", folder.display())).unwrap_or_default();
            format!("the times cannot be kept{place}: {error}").into()
        })
    }

    /// Runs the model for a moment, so that the context knows what it is asked for.
    fn note(&self, run: &Run, ctx: &Arc<Context>) -> Outcome {
        let Some(name) = &self.model else {
            run.refuse(&[&["load"]], "is for --model: the bundled model is in no file")?;
            return prompt(demo::load(ctx.clone(), &run.load_options(None, ctx)?)?);
        };
        let folder = Folder::new(run.locate(name, self.offline)?);
        let config = folder.config()?;
        if folder.embeds()? {
            run.refuse_generating()?;
            let weights = run.weight_options(Some(&folder), ctx)?;
            let mut model = EmbeddingModel::load_on(ctx.clone(), &folder, &weights, &mut |_, _| {})?;
            let tokens = TEXT.min(config.text_positions());
            let text: Vec<u32> = (0..tokens).map(|i| (i % config.vocab_size()) as u32).collect();
            model.embed_tokens(&[text])?;
            return Ok(());
        }
        let context = config.as_decoder()?.longest_context().min(2 * PROMPT_TOKENS);
        let options = LoadOptions { context: Some(context), ..run.load_options(Some(&folder), ctx)? };
        prompt(LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {})?)
    }

    /// Prints what was measured, and the folder where it is kept, if it is.
    fn report(&self, run: &Run, ctx: &Context, tuned: &Tuned, folder: Option<&Path>) -> Outcome {
        let mut out = std::io::stdout().lock();
        if self.json {
            let problems: Vec<_> = tuned
                .problems
                .iter()
                .map(|problem| {
                    json!({
                        "operator": problem.operator,
                        "problem": problem.problem,
                        "predicted": problem.predicted,
                        "winner": problem.winner,
                        "times": problem.times.rows(),
                        "rounds": problem.times.rounds(),
                        "failed": problem.failed.iter().map(|(row, _)| row).collect::<Vec<_>>(),
                    })
                })
                .collect();
            let line = json!({
                "hardware": ctx.device().hardware().to_string(),
                "problems": problems,
                "left": tuned.left,
                "interrupted": interrupted(),
                "seconds": tuned.seconds,
                "folder": folder.map(|folder| folder.display().to_string()),
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        writeln!(out, "{}: {}", ctx.device().id(), ctx.device().hardware())?;
        for problem in &tuned.problems {
            let (operator, winner) = (problem.operator, problem.winner);
            let us = problem.times.seconds(winner).map_or_else(|| "-".to_owned(), |s| format!("{:.1} µs", s * 1e6));
            let instead = match problem.predicted {
                predicted if predicted == winner => String::new(),
                predicted => format!(", not {predicted}"),
            };
            writeln!(out, "{operator:<13} {us:>12}  {winner}{instead}  {}", problem.problem)?;
            for (row, failure) in &problem.failed {
                writeln!(out, "{:<13} {:>12}  {row} failed: {failure}", "", "-")?;
            }
        }
        let changed = tuned.problems.iter().filter(|problem| problem.winner != problem.predicted).count();
        let (all, seconds) = (tuned.problems.len(), tuned.seconds);
        write!(out, "{all} problems in {seconds:.1} s; another kernel than predicted for {changed}")?;
        match tuned.left {
            0 => writeln!(out)?,
            left if interrupted() => writeln!(out, "; interrupted, {left} are left: tune again")?,
            left => writeln!(out, "; {left} are left: tune again, or give a larger --budget")?,
        }
        match folder {
            Some(folder) => writeln!(out, "kept in {}", folder.display())?,
            None if run.settings().tuning_cache().folder().folder().is_some() => writeln!(out, "not kept")?,
            None => writeln!(out, "not kept: neither XDG_CACHE_HOME nor HOME is an absolute path")?,
        }
        Ok(())
    }
}

/// A prompt and a step after it.
fn prompt(mut model: LanguageModel) -> Outcome {
    let (vocab, context) = (model.decoder().config().vocab_size, model.decoder().config().longest_context());
    let tokens: Vec<u32> = (0..PROMPT_TOKENS.min(context - 1)).map(|i| (i % vocab) as u32).collect();
    let mut sequences = vec![model.sequence()];
    model.prefill(&mut sequences[0], &tokens)?;
    model.decode_greedy(&mut sequences, &[0])?;
    Ok(())
}
