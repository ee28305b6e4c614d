//! `sinew plan`: the memory that a model takes, before anything but headers is read.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sinew::memory::system::{MemoryBound, memory_and_bound};
use sinew::memory::{Bytes, Device, DeviceKind};
use sinew::models::plan::{Change, Saving, SequenceBytes};
use sinew::models::settings::{GroupSize, KvDType, OldKvDType, Value as _, WeightDType};
use sinew::models::{Folder, Footprint, LoadOptions, Planner};
use sinew::ops::Context;

use super::arguments::{EMBEDS, ROOM, STEPPING, WEIGHTS, of_settings};
use super::{Outcome, Run};

/// Show the memory that a model takes before it is read: weights, keys and values, workspace, and the peak; the largest
/// batch that fits, and what to change where it does not.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHTS), args = of_settings(&["load"]), args = of_settings(&["context"]), args = of_settings(ROOM), args = of_settings(STEPPING))]
pub struct Plan {
    /// Folder with config.json and safetensors files, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(value_name = "PATH|ID")]
    model: PathBuf,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
    /// Sequences at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    batch: usize,
    /// What it has to fit, as 2GiB or 500MB; what is free on the device by default.
    #[arg(long, value_name = "BYTES")]
    budget: Option<Bytes>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

/// What says how much the model has to fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Argument,
    /// What is free on the device, of the host as one of these says.
    Host(MemoryBound),
    Device,
}

impl Origin {
    /// As programs read it.
    fn name(self) -> &'static str {
        match self {
            Self::Argument => "--budget",
            Self::Host(MemoryBound::Machine) => "machine",
            Self::Host(MemoryBound::Cgroup) => "cgroup",
            Self::Device => "device",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Argument => self.name(),
            Self::Host(MemoryBound::Machine) => "what the machine has left",
            Self::Host(MemoryBound::Cgroup) => "what the cgroup's limit leaves",
            Self::Device => "what is free on the device",
        }
    }
}

/// What is printed.
struct Report<'a> {
    device: &'a dyn Device,
    footprint: &'a Footprint,
    budget: usize,
    origin: Origin,
    /// What the model may take of its device's memory, where that is limited, and what says so.
    limit: Option<(usize, String)>,
    fits: bool,
    /// Whether old keys and values have a form of their own.
    old_kv: bool,
    /// Whether weights are quantized with a scale for each row as they are fp8, which other values would not be.
    by_row: bool,
    /// Tokens that the cache has room for, where that is not as many as all sequences can have, and what says so.
    room: Option<(usize, String)>,
    /// How many sequences of how many tokens fit.
    fitting: &'a [(usize, usize)],
    savings: &'a [Saving],
}

impl Plan {
    pub fn run(&self, run: &Run) -> Outcome {
        let folder = Folder::new(run.locate(&self.model, self.offline)?);
        let ctx = run.context()?;
        let planner = Planner::new(&ctx, &folder, run.settings().load)?;
        let options = self.options(run, &planner, &folder, &ctx)?;
        let footprint = planner.footprint(&options)?;
        let (budget, origin) = self.budget(&**ctx.device())?;
        let mut fitting = Vec::new();
        if let Some(SequenceBytes { context, .. }) = footprint.sequences {
            let longest = folder.config()?.as_decoder()?.longest_context();
            let contexts = [context.div_ceil(2), context, context.saturating_mul(2).min(longest)];
            for tokens in contexts {
                if fitting.iter().all(|&(_, known)| known != tokens) {
                    let options = LoadOptions { context: Some(tokens), ..options.clone() };
                    fitting.push((planner.most_sequences(&options, budget)?, tokens));
                }
            }
        }
        let (fits, limit) = (planner.fits(&footprint, budget), ctx.pool().config().limit_bytes);
        let savings = if fits { Vec::new() } else { planner.savings(&options, budget)? };
        let report = Report {
            device: &**ctx.device(),
            footprint: &footprint,
            budget,
            origin,
            limit: (limit < usize::MAX).then(|| (limit, run.resolved().source("memory_limit").to_string())),
            fits,
            old_kv: options.old_kv.is_some(),
            by_row: options.weights.quantize.is_some_and(|how| how.per_channel && !how.format.values().is_integer()),
            room: options.cache_tokens.map(|tokens| (tokens, run.said("cache_tokens"))),
            fitting: &fitting,
            savings: &savings,
        };
        let mut out = io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", report.as_json())?,
            false => report.print(&mut out)?,
        }
        let (peak, pooled) = (footprint.peak(), footprint.pooled());
        match fits {
            true => Ok(()),
            false if peak > budget => {
                let (peak, [budget]) = Bytes(peak).beside([budget]);
                Err(format!("the model takes {peak}, which is more than {budget}").into())
            }
            false => {
                let (device, (pooled, [limit])) = (ctx.device().id(), Bytes(pooled).beside([limit]));
                let taken = format!("the model takes {pooled} of the memory of {device}");
                Err(format!("{taken}, which is more than the limit of {limit}").into())
            }
        }
    }

    /// What the model has to fit, and what says so.
    fn budget(&self, device: &dyn Device) -> Outcome<(usize, Origin)> {
        if let Some(Bytes(budget)) = self.budget {
            return Ok((budget, Origin::Argument));
        }
        if device.id().kind == DeviceKind::CPU {
            let (memory, bound) = memory_and_bound();
            return Ok((memory.available, Origin::Host(bound)));
        }
        Ok((device.memory()?.available, Origin::Device))
    }

    fn options(&self, run: &Run, planner: &Planner<'_>, folder: &Folder, ctx: &Context) -> Outcome<LoadOptions> {
        if planner.embeds() {
            run.refuse_generating()?;
            if self.batch != 1 {
                return Err(format!("--batch {EMBEDS}").into());
            }
            return Ok(LoadOptions { weights: run.weight_options(Some(folder), ctx)?, ..LoadOptions::default() });
        }
        Ok(LoadOptions { max_sequences: self.batch, ..run.serving_options(Some(folder), ctx)? })
    }
}

impl Report<'_> {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { device, footprint, budget, origin, limit, fitting, savings, .. } = self;
        let Footprint { plan, weights, sequences, workspace, rounding, staging, tokenizer, process, .. } = footprint;
        let mut in_words = |what: &str, bytes: &str, note: &str| {
            writeln!(out, "{}", format!("{what:<14} {bytes:>10}  {note}").trim_end())
        };
        let mut line = |what: &str, bytes: usize, note: &str| in_words(what, &Bytes(bytes).to_string(), note);
        let encodings: Vec<String> =
            weights.iter().map(|(encoding, bytes)| format!("{} {encoding}", Bytes(*bytes))).collect();
        line("weights", plan.weights, &encodings.join(", "))?;
        if let Some(SequenceBytes { of_token, of_sequence, context, count }) = sequences {
            let note = format!(
                "{} a token, {} a sequence of {context} tokens, {count} at once",
                Bytes(*of_token),
                Bytes(*of_sequence)
            );
            line("KV cache", plan.cache, &note)?;
        } else if plan.cache > 0 {
            line("KV cache", plan.cache, "of one pass")?;
        }
        line("activations", step_bytes(footprint), "of a step, with rotary tables and logits")?;
        line("workspace", *workspace, "of the kernels that are chosen")?;
        line("staging", *staging, "of the checkpoint at once, while it is loaded")?;
        line("rounding", *rounding, "to pages, and to what a pool hands out")?;
        let threads = device.hardware().threads;
        let note = format!("{threads} threads; {} of it the tokenizer", Bytes(*tokenizer));
        line("process", process.saturating_add(*tokenizer), &note)?;
        let (peak, [of]) = Bytes(footprint.peak()).beside([*budget]);
        in_words("peak", &peak, &format!("of {of} on {}", device.id()))?;
        for sentence in &footprint.dequantized {
            in_words("dequantized", "", sentence)?;
        }
        if footprint.host() > 0 {
            in_words("host", &Bytes(footprint.host()).to_string(), "beside it")?;
        }
        in_words("budget", &of, origin.words())?;
        if let Some((limit, source)) = limit {
            let (pooled, [limit]) = Bytes(footprint.pooled()).beside([*limit]);
            in_words("limit", &limit, &format!("{source}; it has to leave {pooled}"))?;
        }
        if !fitting.is_empty() {
            let each = fitting.iter().map(|(count, tokens)| match count {
                0 => format!("none of {tokens} tokens"),
                _ => format!("{count} of {tokens} tokens"),
            });
            // First whether there is room for what was asked for.
            let asked = |of: &&(usize, usize)| sequences.is_some_and(|sequences| sequences.context == of.1);
            let mut contexts = fitting.iter().filter(asked).chain(*fitting);
            let full = contexts.find_map(|&(count, tokens)| self.if_full(count, tokens)).unwrap_or_default();
            writeln!(out, "{:<14} {}{full}", "sequences", each.collect::<Vec<_>>().join(", "))?;
        }
        for &Saving { change, peak, fits } in *savings {
            // Of what is more than can be counted nobody knows how much less it is.
            let less = match footprint.peak() {
                usize::MAX => String::new(),
                now if now <= peak => String::new(),
                now => format!("{} less, ", Bytes(now - peak)),
            };
            let enough = if fits { ", which is enough" } else { "" };
            let full = match (change, sequences) {
                (Change::Sequences(count), Some(of)) => self.if_full(count, of.context).unwrap_or_default(),
                _ => String::new(),
            };
            // What is not enough reads as more than there is.
            let peak = if fits { Bytes(peak).to_string() } else { Bytes(peak).beside([*budget]).0 };
            writeln!(out, "{:<14} {}: {less}a peak of {peak}{enough}{full}", "to save", self.argument(change))?;
        }
        Ok(())
    }

    /// What is said where the cache has room for no more than so many sequences of so many tokens, whatever memory is
    /// left.
    fn if_full(&self, count: usize, tokens: usize) -> Option<String> {
        let (_, said) = self.room.as_ref().filter(|(room, _)| room / tokens.max(1) == count)?;
        Some(match count {
            0 => format!("; {said}, which has room for none of {tokens} tokens: one takes --cache-tokens {tokens}"),
            _ => format!("; {said}, which has room for no more"),
        })
    }

    fn as_json(&self) -> Value {
        let Self { device, footprint, budget, origin, limit, fits, fitting, savings, .. } = self;
        let Footprint { plan, weights, sequences, workspace, rounding, staging, tokenizer, process, .. } = footprint;
        let encodings: serde_json::Map<_, _> =
            weights.iter().map(|(encoding, bytes)| (encoding.to_string(), json!(bytes))).collect();
        json!({
            "device": device.id().to_string(),
            "weight_bytes": plan.weights,
            "weight_bytes_by_dtype": encodings,
            "dequantized": footprint.dequantized,
            "kv_bytes": plan.cache,
            "kv_bytes_per_token": sequences.map(|s| s.of_token),
            "kv_bytes_per_sequence": sequences.map(|s| s.of_sequence),
            "context": sequences.map(|s| s.context),
            "batch": sequences.map(|s| s.count),
            "cache_tokens": self.room.as_ref().map(|(tokens, _)| tokens),
            "activation_bytes": step_bytes(footprint),
            "workspace_bytes": workspace,
            "staging_bytes": staging,
            "rounding_bytes": rounding,
            "tokenizer_bytes": tokenizer,
            "process_bytes": process,
            "peak_bytes": footprint.peak(),
            "host_bytes": footprint.host(),
            "budget_bytes": budget,
            "budget_source": origin.name(),
            "limit_bytes": limit.as_ref().map(|(limit, _)| limit),
            "limit_source": limit.as_ref().map(|(_, source)| source),
            "pooled_bytes": footprint.pooled(),
            "fits": fits,
            "fitting": fitting.iter().map(|(count, tokens)| json!({ "batch": count, "context": tokens })).collect::<Vec<_>>(),
            "to_save": savings
                .iter()
                .map(|saving| json!({
                    "argument": self.argument(saving.change),
                    "peak_bytes": saving.peak,
                    "fits": saving.fits,
                }))
                .collect::<Vec<_>>(),
        })
    }

    /// A change as arguments.
    fn argument(&self, change: Change) -> String {
        match change {
            Change::Sequences(count) => format!("--batch {count}"),
            Change::Context(tokens) => format!("--context {tokens}"),
            Change::Kv(dtype) => {
                let instead =
                    if self.old_kv { format!(" --kv-old {}", OldKvDType(None).show()) } else { String::new() };
                format!("--kv-dtype {}{instead}", KvDType(Some(dtype)).show())
            }
            Change::OldKv(None) => format!("--kv-old {}", OldKvDType(None).show()),
            Change::OldKv(Some(old)) => {
                format!("--kv-old {} --kv-recent {}", OldKvDType(Some(old.dtype)).show(), old.recent)
            }
            Change::Weights(values) => format!("--dtype {} --group-size {}", values.name(), Change::GROUP),
            Change::Dtype(dtype) => {
                format!("--dtype {}", dtype.map_or(WeightDType::AsStored, WeightDType::Float).show())
            }
            Change::Values(values) => {
                let group =
                    if self.by_row { format!(" --group-size {}", GroupSize::Channel.show()) } else { String::new() };
                format!("--dtype {}{group}", values.name())
            }
            Change::PrefillChunk(tokens) => format!("--prefill-chunk {tokens}"),
            Change::CacheTokens(tokens) => format!("--cache-tokens {}", tokens.show()),
            Change::SwapTokens(tokens) => format!("--swap-tokens {tokens}"),
            Change::BlockSize(tokens) => format!("--block-size {tokens}"),
            other => format!("{other:?}"),
        }
    }
}

/// What a step works on and is given.
fn step_bytes(footprint: &Footprint) -> usize {
    let plan = &footprint.plan;
    plan.activations.saturating_add(plan.tables).saturating_add(plan.logits)
}
