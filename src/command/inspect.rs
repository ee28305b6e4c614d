//! `sinew inspect`: what a checkpoint holds and would need, from its headers alone.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sinew::models::checkpoint::TensorInfo;
use sinew::models::load::main_dtype;
use sinew::models::{Checkpoint, DecoderConfig, Folder, Load, ModelConfig, one_line, printable};
use sinew::tensor::DType;

use super::{Outcome, WeightDType, locate, megabytes, parse_dtype};

/// Show the tensors of a model, its architecture, and the memory that it would need; nothing but headers is read.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Folder, safetensors file, or id of the Hugging Face Hub: owner/name[@revision].
    #[arg(value_name = "PATH|ID")]
    model: PathBuf,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
    /// Dtype of the weights in memory: auto (as stored), f32, f16 or bf16.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    dtype: WeightDType,
    /// Tokens of one sequence; the model's context by default.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub fn run(&self) -> Outcome {
        let path = locate(&self.model, self.offline)?;
        let folder = Folder::new(path);
        let checkpoint = folder.checkpoint(Load::Read)?;
        // A file alone has no config, which is no fault of it.
        let config = (!folder.path().is_file()).then(|| folder.config());
        let tensors = checkpoint.names().map(|name| Ok((name, checkpoint.info(name)?))).collect::<Outcome<Vec<_>>>()?;
        let config = config.transpose();
        let needs = match &config {
            Ok(Some(config)) => Some(Needs::of(config, &checkpoint, &tensors, self.dtype.0, self.context)?),
            _ => None,
        };
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.json {
            true => writeln!(out, "{}", as_json(&checkpoint, &config, &tensors, needs.as_ref()))?,
            false => print(&mut out, &config, &tensors, needs.as_ref())?,
        }
        out.flush()?;
        // The tensors are shown either way; that the model cannot be run is an error still.
        Ok(config.map(drop)?)
    }
}

type Tensors<'a> = [(&'a str, TensorInfo<'a>)];

/// Bytes that a model takes once it is loaded.
struct Needs {
    dtype: DType,
    /// Matrices in the dtype, vectors in f32.
    weights: u64,
    /// Per token of one sequence, of a decoder: keys and values of all layers.
    kv_per_token: Option<u64>,
    context: usize,
}

impl Needs {
    fn of(
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        tensors: &Tensors<'_>,
        dtype: Option<DType>,
        context: Option<usize>,
    ) -> Outcome<Self> {
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => main_dtype(checkpoint)?,
        };
        let weights = tensors.iter().map(|(_, info)| {
            let elements = info.shape.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64));
            elements.saturating_mul(if info.shape.len() > 1 { dtype.size() } else { DType::F32.size() } as u64)
        });
        let (kv_per_token, longest) = match config {
            ModelConfig::Decoder(config) => (Some(kv_bytes_per_token(config, dtype)), config.longest_context()),
            ModelConfig::Encoder(config) => (None, config.max_position_embeddings),
            _ => (None, 0),
        };
        let context = context.unwrap_or(longest);
        if context > longest {
            return Err(format!("a context of {context} tokens; the model's is {longest}").into());
        }
        Ok(Self { dtype, weights: weights.fold(0, u64::saturating_add), kv_per_token, context })
    }

    fn kv(&self) -> Option<u64> {
        self.kv_per_token.map(|bytes| bytes.saturating_mul(self.context as u64))
    }
}

fn kv_bytes_per_token(config: &DecoderConfig, dtype: DType) -> u64 {
    let factors = [config.num_hidden_layers(), config.num_key_value_heads, config.head_dim, dtype.size()];
    // Keys and values.
    factors.iter().fold(2, |bytes: u64, &n| bytes.saturating_mul(n as u64))
}

/// Tensors and bytes for each dtype in the files.
fn totals(tensors: &Tensors<'_>) -> BTreeMap<String, (usize, u64)> {
    let mut totals = BTreeMap::new();
    for (_, info) in tensors {
        let (count, bytes) = totals.entry(info.dtype.to_string()).or_insert((0, 0));
        *count += 1;
        *bytes += info.num_bytes as u64;
    }
    totals
}

fn shard(info: &TensorInfo<'_>) -> String {
    info.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

type Config<'a> = sinew::models::Result<Option<&'a ModelConfig>>;

fn print(out: &mut impl Write, config: &Config<'_>, tensors: &Tensors<'_>, needs: Option<&Needs>) -> io::Result<()> {
    for (name, info) in tensors {
        let (name, file) = (printable(name), printable(&shard(info)));
        writeln!(out, "{name}  {} {:?}  {} bytes  {file}", info.dtype, info.shape, info.num_bytes)?;
    }
    for (dtype, (count, bytes)) in totals(tensors) {
        writeln!(out, "total         {count} tensors in {dtype}, {}", megabytes_of(bytes))?;
    }
    match config {
        Ok(Some(config)) => writeln!(out, "architecture  {}", architecture(config))?,
        Ok(None) => writeln!(out, "architecture  unknown: a single file has no config.json")?,
        Err(error) => writeln!(out, "architecture  refused: {}", one_line(error))?,
    }
    let Some(needs) = needs else { return Ok(()) };
    writeln!(out, "weights       {} in {}", megabytes_of(needs.weights), needs.dtype)?;
    if let (Some(token), Some(all)) = (needs.kv_per_token, needs.kv()) {
        writeln!(out, "KV cache      {token} bytes per token, {} for {} tokens", megabytes_of(all), needs.context)?;
    }
    Ok(())
}

fn megabytes_of(bytes: u64) -> String {
    megabytes(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn architecture(config: &ModelConfig) -> String {
    let (kind, layers, hidden, vocab) = match config {
        ModelConfig::Decoder(c) => ("decoder", c.num_hidden_layers(), c.hidden_size, c.vocab_size),
        ModelConfig::Encoder(c) => ("encoder", c.num_hidden_layers, c.hidden_size, c.vocab_size),
        _ => return config.model_type().to_owned(),
    };
    format!("{}, a {kind}: {layers} layers, hidden size {hidden}, {vocab} tokens", config.model_type())
}

fn as_json(checkpoint: &Checkpoint, config: &Config<'_>, tensors: &Tensors<'_>, needs: Option<&Needs>) -> Value {
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
        "architecture": config.as_ref().ok().copied().flatten().map(ModelConfig::model_type),
        "refused": config.as_ref().err().map(|error| one_line(error)),
        "tensors": all,
        "totals": totals,
        "needs": needs.map(|needs| json!({
            "dtype": needs.dtype.name(),
            "weight_bytes": needs.weights,
            "kv_bytes_per_token": needs.kv_per_token,
            "context": needs.context,
            "kv_bytes": needs.kv(),
        })),
    })
}
