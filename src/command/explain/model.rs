//! `sinew explain --model`: where the time of a model's steps goes.

use std::io::Write;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};
use sinew::models::{EmbeddingModel, Error, Folder, LoadOptions};
use sinew::ops::{Limits, Profile};

use super::super::bench::{texts, tokens};
use super::json;
use crate::command::arguments::{STEPPING, of_settings};
use crate::command::{Model, Outcome, PROMPT_TOKENS, Run};

/// A model's steps: a prefill and a decode step, or of an embedding model the embedding of texts.
#[derive(Debug, Args)]
#[command(args = of_settings(STEPPING))]
pub(super) struct Steps {
    #[command(flatten)]
    model: Model,
    /// Tokens of each prompt or text; the decode step finds them in the cache [default: 512, or as many as the model has
    /// positions for].
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<usize>,
    /// Sequences or texts at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    batch: usize,
    /// Runs with and as many without a record, in turns, of which medians are printed.
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// Show the candidates for every problem of the steps as well, and why each is chosen or not. --json always has them.
    #[arg(long)]
    candidates: bool,
}

/// [`Steps`] where --model is given. Their other options are for it alone.
#[derive(Debug)]
pub(super) struct OfModel(pub(super) Option<Steps>);

const MODEL: &str = "model";

impl Args for OfModel {
    fn augment_args(command: Command) -> Command {
        let steps = Steps::augment_args(Command::new(MODEL));
        command.args(steps.get_arguments().cloned().map(|arg| match arg.get_id().as_str() {
            MODEL => arg.required(false),
            _ => arg.requires(MODEL),
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OfModel {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let steps = matches.contains_id(MODEL).then(|| Steps::from_arg_matches(matches));
        Ok(Self(steps.transpose()?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A step with its name, the tokens of each prompt or text, and its profile.
struct Profiled {
    name: &'static str,
    prompt_tokens: usize,
    profile: Profile,
}

impl Steps {
    pub(super) fn run(&self, run: &Run, json: bool) -> Outcome {
        if self.prompt_tokens == Some(0) || self.batch == 0 || self.repeat == 0 {
            return Err("prompt tokens, batch and repeat must be at least 1".into());
        }
        let folder = self.model.folder(run)?;
        let steps = match folder.embeds()? {
            true => self.embedding(run, folder)?,
            false => self.decoder(run)?,
        };
        let mut out = std::io::stdout().lock();
        if json {
            let steps: Vec<Value> = steps.iter().map(|step| self.as_json(step)).collect();
            writeln!(out, "{}", json!({ "steps": steps }))?;
            return Ok(());
        }
        for Profiled { name, prompt_tokens, profile } in &steps {
            writeln!(out, "{name}: {} x {prompt_tokens} tokens", self.batch)?;
            writeln!(out, "{profile}")?;
            let parts = if self.candidates { profile.parts() } else { Vec::new() };
            for explanation in parts.iter().filter_map(|part| part.explanation.as_deref()) {
                writeln!(out, "{explanation}")?;
            }
        }
        Ok(())
    }

    /// As many tokens as are asked for, or as are usual where there is room for them.
    fn prompt_tokens(&self, room: usize) -> usize {
        self.prompt_tokens.unwrap_or(PROMPT_TOKENS.min(room))
    }

    fn as_json(&self, Profiled { name, prompt_tokens, profile }: &Profiled) -> Value {
        let mut value = json::profile(profile);
        value["step"] = json!(name);
        value["prompt_tokens"] = json!(prompt_tokens);
        value["batch"] = json!(self.batch);
        value["repeat"] = json!(self.repeat);
        value
    }

    fn decoder(&self, run: &Run) -> Outcome<Vec<Profiled>> {
        // A token for each decode step: recorded and not, and two that are not counted.
        let steps = self.repeat.saturating_add(1).saturating_mul(2);
        let longest = self.model.folder(run)?.config()?.as_decoder()?.longest_context();
        let room = longest.saturating_sub(steps);
        if room == 0 {
            let repeat = self.repeat;
            return Err(format!("--repeat {repeat} takes {steps} steps; the model's context is {longest}").into());
        }
        let prompt_tokens = self.prompt_tokens(room);
        if prompt_tokens > room {
            let what = format!("{prompt_tokens} prompt tokens and {steps} steps");
            return Err(format!("{what}: --prompt-tokens is at most {room}").into());
        }
        let context = prompt_tokens + steps;
        let ctx = run.context()?;
        let options = run.load_options(Some(self.model.folder(run)?), &ctx)?;
        let options = LoadOptions { max_sequences: self.batch, context: Some(context), ..options };
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        let mut model = self.model.load(run, ctx.clone(), &checkpoint, &options, None)?;
        let limits = Limits::measure(ctx.device())?;
        let vocab = model.decoder().config().vocab_size;
        let prompts: Vec<Vec<u32>> = (0..self.batch).map(|b| tokens(vocab, b, prompt_tokens)).collect();
        let mut sequences = Vec::new();
        let prefill = ctx.profile(limits, self.repeat, || -> Result<(), Error> {
            sequences.clear();
            for prompt in &prompts {
                let mut sequence = model.sequence();
                model.prefill(&mut sequence, prompt)?;
                sequences.push(sequence);
            }
            Ok(())
        })?;
        let next = tokens(vocab, prompt_tokens, self.batch);
        let decode = ctx.profile(limits, self.repeat, || -> Result<(), Error> {
            model.decode_greedy(&mut sequences, &next)?;
            Ok(())
        })?;
        let profiled = |(name, profile)| Profiled { name, prompt_tokens, profile };
        Ok([("prefill", prefill), ("decode step", decode)].map(profiled).into())
    }

    fn embedding(&self, run: &Run, folder: &Folder) -> Outcome<Vec<Profiled>> {
        run.refuse_generating()?;
        let config = folder.config()?;
        let prompt_tokens = self.prompt_tokens(config.text_positions());
        let texts = texts(config, self.batch, prompt_tokens)?;
        let ctx = run.context()?;
        let weights = run.weight_options(Some(folder), &ctx)?;
        let mut model = EmbeddingModel::load_on(ctx.clone(), folder, &weights, &mut |_, _| {})?;
        let limits = Limits::measure(ctx.device())?;
        let profile = ctx.profile(limits, self.repeat, || -> Result<(), Error> {
            model.embed_tokens(&texts)?;
            Ok(())
        })?;
        Ok(vec![Profiled { name: "embedding", prompt_tokens, profile }])
    }
}
