//! `sinew logits`: the way to compare with another framework.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use sinew::memory::Cpu;
use sinew::models::{EmbeddingModel, LoadOptions, ModelConfig};
use sinew::tensor::{Tensor, safetensors};

use super::{Machine, Model, Outcome, Stepping, Tokens, parse_tokens};

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
    #[command(flatten)]
    stepping: Stepping,
    /// Print the kernels that served and the steps that ran.
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
                EmbeddingModel::load_on(machine.context()?, &self.model.model, &self.model.weights(), &mut |_, _| {})?;
            let states = model.hidden_states(tokens)?;
            let width = model.encoder().config().hidden_size;
            return write(&self.output, "last_hidden_state", &states, [1, tokens.len(), width]);
        }
        let context = self.model.context_for(tokens.len(), 0)?;
        let options = LoadOptions { max_logits: MAX_LOGITS, ..self.model.options(context, &self.stepping) };
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
            let steps = model.decoder().steps();
            writeln!(out, "steps: {} of at most {} tokens", steps.count, steps.largest)?;
        }
        write(&self.output, "logits", &logits, [1, tokens.len(), model.decoder().config().vocab_size])
    }
}

/// Writes one f32 tensor.
fn write(path: &Path, name: &str, values: &[f32], shape: [usize; 3]) -> Outcome {
    let tensor = Tensor::from_slice(&Cpu::get(), values, &shape)?;
    Ok(safetensors::save(path, [(name, &tensor)])?)
}
