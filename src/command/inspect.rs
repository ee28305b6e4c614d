//! `sinew inspect`: what a checkpoint holds and would need, from its headers alone.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sinew::models::plan::SequenceBytes;
use sinew::models::precision::Precision;
use sinew::models::tensors::TensorInfo;
use sinew::models::{
    Checkpoint, Folder, Footprint, Load, LoadOptions, ModelConfig, Planner, WeightOptions, one_line, printable,
};
use sinew::ops::layers::Encoding;

use super::arguments::{OF_MODELS, STEPPING, WEIGHTS, of_settings};
use super::output::megabytes;
use super::{Outcome, Run};

/// Show the tensors of a model, its architecture, and the memory that it would need; nothing is read but headers, and the
/// zero points, groups of columns, and biases that the model has not, of a quantized one.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHTS), args = of_settings(&["context"]), args = of_settings(STEPPING))]
pub struct Inspect {
    /// Folder, safetensors file, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(value_name = "PATH|ID")]
    model: PathBuf,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub fn run(&self, run: &Run) -> Outcome {
        let path = run.locate(&self.model, self.offline)?;
        let folder = Folder::new(path);
        let checkpoint = folder.checkpoint(Load::Read)?;
        // A file alone has no config, which is no fault of it.
        let config = (!folder.path().is_file()).then(|| folder.config());
        if config.is_none() {
            run.refuse(OF_MODELS, "is for folders: what a model needs is told by its config.json")?;
        }
        let tensors: Vec<_> = checkpoint.infos().collect();
        let (config, refused) = match config.transpose() {
            Ok(config) => (config, None),
            Err(error) => (None, Some(error)),
        };
        let (needs, refused) = match config {
            None => (None, refused),
            Some(config) => match self.needs(run, &folder, config, &checkpoint)? {
                Ok(needs) => (Some(needs), None),
                Err(error) => (None, Some(error)),
            },
        };
        let findings = Findings { config, refused: refused.as_ref().map(|error| one_line(error)), needs };
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.json {
            true => writeln!(out, "{}", as_json(&checkpoint, &tensors, &findings))?,
            false => print(&mut out, &tensors, &findings)?,
        }
        out.flush()?;
        // The tensors are shown either way; that the model cannot be run is an error still.
        Ok(refused.map_or(Ok(()), Err)?)
    }

    /// What loading it on the machine's device would take, with what `embed` loads of an embedding model, or why it would
    /// be refused; an error is in what was asked for.
    fn needs(
        &self,
        run: &Run,
        folder: &Folder,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
    ) -> Outcome<sinew::models::Result<Needs>> {
        let ctx = &*run.context()?;
        let weights = WeightOptions { load: Load::Read, ..run.weight_options(Some(folder), ctx)? };
        let options = match folder.embeds()? {
            true => {
                run.refuse_generating()?;
                LoadOptions { weights, ..LoadOptions::default() }
            }
            false => {
                let options = LoadOptions { weights, ..run.load_options(Some(folder), ctx)? };
                options.limits(config.as_decoder()?)?;
                options
            }
        };
        Ok(Planner::with(ctx, folder, checkpoint).and_then(|planner| {
            let footprint = planner.footprint(&options)?;
            let precision = Precision { kept: footprint.kept, ..weights.precision(checkpoint, ctx)? };
            Ok(Needs { footprint, encoding: precision.main_encoding() })
        }))
    }
}

type Tensors<'a> = [(&'a str, TensorInfo<'a>)];

/// What comes of a model's config and of what its headers say.
struct Findings<'a> {
    /// None of a single file, and none that cannot be read.
    config: Option<&'a ModelConfig>,
    /// The error that loading would give.
    refused: Option<String>,
    needs: Option<Needs>,
}

/// What a model takes once it is loaded.
struct Needs {
    footprint: Footprint,
    /// What most of its weights are in.
    encoding: Encoding,
}

/// Tensors and bytes for each dtype in the files.
fn totals(tensors: &Tensors<'_>) -> BTreeMap<String, (usize, usize)> {
    let mut totals = BTreeMap::new();
    for (_, info) in tensors {
        let (count, bytes) = totals.entry(info.dtype.to_string()).or_insert((0, 0));
        *count += 1;
        *bytes += info.num_bytes;
    }
    totals
}

fn shard(info: &TensorInfo<'_>) -> String {
    info.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn print(out: &mut impl Write, tensors: &Tensors<'_>, findings: &Findings<'_>) -> io::Result<()> {
    let Findings { config, refused, needs } = findings;
    for (name, info) in tensors {
        let (name, file) = (printable(name), printable(&shard(info)));
        writeln!(out, "{name}  {} {:?}  {} bytes  {file}", info.dtype, info.shape, info.num_bytes)?;
    }
    for (dtype, (count, bytes)) in totals(tensors) {
        writeln!(out, "total         {count} tensors in {dtype}, {}", megabytes(bytes))?;
    }
    match (config, refused) {
        (Some(config), _) => writeln!(out, "architecture  {}", architecture(config))?,
        (None, None) => writeln!(out, "architecture  unknown: a single file has no config.json")?,
        (None, Some(_)) => {}
    }
    if let Some(refused) = refused {
        writeln!(out, "refused       {refused}")?;
    }
    let Some(Needs { footprint, encoding }) = needs else { return Ok(()) };
    let Footprint { plan, sequences, dequantized, .. } = footprint;
    writeln!(out, "weights       {} in {encoding}", megabytes(plan.weights))?;
    for sentence in dequantized {
        writeln!(out, "dequantized   {sentence}")?;
    }
    match sequences {
        Some(SequenceBytes { context, of_token, .. }) => {
            writeln!(out, "KV cache      {of_token} bytes per token, {} for {context} tokens", megabytes(plan.cache))?
        }
        None if plan.cache > 0 => writeln!(out, "KV cache      {}", megabytes(plan.cache))?,
        None => {}
    }
    let step = plan.activations.saturating_add(plan.tables).saturating_add(plan.logits);
    writeln!(out, "step          {} of activations, rotary tables and logits", megabytes(step))?;
    writeln!(out, "needs         {}", megabytes(plan.total()))
}

fn architecture(config: &ModelConfig) -> String {
    let (kind, layers, hidden, vocab) = match config {
        ModelConfig::Decoder(c) => ("a decoder", c.num_hidden_layers(), c.hidden_size, c.vocab_size),
        ModelConfig::Encoder(c) => ("an encoder", c.layers.len(), c.hidden_size, c.vocab_size),
        _ => return config.model_type().to_owned(),
    };
    format!("{}, {kind}: {layers} layers, hidden size {hidden}, {vocab} tokens", config.model_type())
}

fn as_json(checkpoint: &Checkpoint, tensors: &Tensors<'_>, findings: &Findings<'_>) -> Value {
    let Findings { config, refused, needs } = findings;
    let all: Vec<Value> = tensors
        .iter()
        .map(|(name, info)| {
            json!({
                "name": name,
                "dtype": info.dtype.to_string(),
                "shape": info.shape,
                "bytes": info.num_bytes,
                "shard": shard(info),
            })
        })
        .collect();
    let totals: BTreeMap<_, _> = totals(tensors)
        .into_iter()
        .map(|(dtype, (count, bytes))| (dtype, json!({ "tensors": count, "bytes": bytes })))
        .collect();
    json!({
        "model": checkpoint.name(),
        "architecture": config.map(ModelConfig::model_type),
        "refused": refused,
        "tensors": all,
        "totals": totals,
        "needs": needs.as_ref().map(|Needs { footprint: Footprint { plan, sequences, dequantized, .. }, encoding }| json!({
            "dtype": encoding.to_string(),
            "dequantized": dequantized,
            "context": sequences.map(|sequence| sequence.context),
            "kv_bytes_per_token": sequences.map(|sequence| sequence.of_token),
            "weight_bytes": plan.weights,
            "kv_bytes": plan.cache,
            "activation_bytes": plan.activations,
            "table_bytes": plan.tables,
            "logit_bytes": plan.logits,
            "total_bytes": plan.total(),
        })),
    })
}
