//! `sinew logits`: the way to compare with another framework.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use safetensors::tensor::{Dtype, TensorView};
use sinew::models::{EmbeddingModel, LoadOptions, ModelConfig};

use super::{Machine, Model, Outcome, Tokens, parse_tokens};

/// Rows of logits held on the device at once.
const MAX_LOGITS: usize = 64;

/// Write the logits of given tokens to a safetensors file.
///
/// Decoders give `logits`, f32 `[1, seq, vocab]`; encoders `last_hidden_state`, f32 `[1, seq, hidden]`.
#[derive(Debug, Args)]
pub struct Logits {
    #[command(flatten)]
    model: Model,
    /// The tokens, as 1,2,3.
    #[arg(long, value_parser = parse_tokens)]
    tokens: Tokens,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens in one step; the result is the same for any.
    #[arg(long, default_value_t = 512, value_name = "N")]
    prefill_chunk: usize,
    /// Print the kernels that served.
    #[arg(long)]
    kernels: bool,
}

impl Logits {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let tokens = &self.tokens.0;
        // Before anything is computed: a rename would put a file in the place of a device.
        if fs::metadata(&self.output).is_ok_and(|kind| !kind.is_file()) {
            return Err(format!("cannot write {}: it is not a regular file", self.output.display()).into());
        }
        if let ModelConfig::Encoder(_) = self.model.config()? {
            let mut model =
                EmbeddingModel::load_on(machine.context()?, &self.model.model, &self.model.options(), &mut |_, _| {})?;
            let states = model.hidden_states(tokens)?;
            let width = model.encoder().config().hidden_size;
            return write(&self.output, "last_hidden_state", &states, [1, tokens.len(), width]);
        }
        let context = self.model.context_for(tokens.len(), 0)?;
        let options = LoadOptions {
            prefill_chunk: self.prefill_chunk,
            context: Some(context),
            max_logits: MAX_LOGITS.min(tokens.len().max(1)),
            ..self.model.options()
        };
        let mut model = self.model.load(machine, &options)?;
        let mut logits = Vec::new();
        model.logits(tokens, &mut |rows| {
            logits.extend_from_slice(rows);
            Ok(())
        })?;
        if self.kernels {
            let mut out = std::io::stdout().lock();
            for (place, rows) in model.decoder().kernels() {
                writeln!(out, "{place}: {}", rows.join(", "))?;
            }
        }
        write(&self.output, "logits", &logits, [1, tokens.len(), model.decoder().config().vocab_size])
    }
}

/// Writes one f32 tensor: beside the file first, so that an interrupted write leaves no broken file under its name.
fn write(path: &Path, name: &str, values: &[f32], shape: [usize; 3]) -> Outcome {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes)?;
    let file = safetensors::serialize([(name, view)], None)?;
    let partial = path.with_added_extension("partial");
    fs::write(&partial, file).and_then(|()| fs::rename(&partial, path)).map_err(|e| {
        // Nothing half-written stays; that it could not be removed either is no news.
        let _ = fs::remove_file(&partial);
        format!("cannot write {}: {e}", path.display()).into()
    })
}
