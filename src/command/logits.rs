//! `sinew logits`: the way to compare with another framework.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use sinew::models::{EmbeddingModel, Error, LoadOptions};
use sinew::tensor::{DType, safetensors};

use super::arguments::{STEPPING, of_settings};
use super::input::{Tokens, parse_tokens};
use super::interrupts::{catch_interrupts, interrupted};
use super::{Model, Outcome, Run};

/// Rows of logits held on the device at once.
const MAX_LOGITS: usize = 64;

/// Write the logits of given tokens to a safetensors file.
///
/// Language models give `logits`, f32 `[1, seq, vocab]`; encoders, and decoders with the `modules.json` of an embedding
/// model, `last_hidden_state`, f32 `[1, seq, hidden]`.
#[derive(Debug, Args)]
#[command(args = of_settings(STEPPING))]
pub struct Logits {
    #[command(flatten)]
    model: Model,
    /// The tokens, as 1,2,3.
    #[arg(long, value_parser = parse_tokens)]
    tokens: Tokens,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Print the kernels that served and the steps that ran.
    #[arg(long)]
    kernels: bool,
}

impl Logits {
    pub fn run(&self, run: &Run) -> Outcome {
        let tokens = &self.tokens.0;
        // Before anything is computed: a rename would put a file in the place of a device.
        if fs::metadata(&self.output).is_ok_and(|kind| !kind.is_file()) {
            return Err(format!("cannot write {}: it is not a regular file", self.output.display()).into());
        }
        let folder = self.model.folder(run)?;
        if folder.embeds()? {
            run.refuse_generating()?;
            folder.config()?.check_text(tokens)?;
            // Where nothing can be written, nothing need be loaded.
            drop(self.create("last_hidden_state", 1)?);
            let ctx = run.context()?;
            let weights = run.weight_options(Some(folder), &ctx)?;
            let mut model = EmbeddingModel::load_on(ctx, folder, &weights, &mut |_, _| {})?;
            catch_interrupts();
            let states = model.hidden_states(tokens)?;
            if interrupted() {
                return Ok(());
            }
            let mut file = self.create("last_hidden_state", model.hidden_size())?;
            file.write(&states)?;
            return Ok(file.finish()?);
        }
        let context = folder.config()?.as_decoder()?.context_for(tokens.len(), 0)?;
        folder.config()?.check_tokens(tokens)?;
        let ctx = run.context()?;
        let options = run.load_options(Some(folder), &ctx)?;
        let options = LoadOptions { max_logits: MAX_LOGITS, context: Some(context), ..options };
        let checkpoint = self.model.checkpoint(run, &ctx)?;
        drop(self.create("logits", 1)?);
        let mut model = self.model.load(run, ctx, &checkpoint, &options, None)?;
        // Before the file: it must not stay behind half written.
        catch_interrupts();
        let mut file = self.create("logits", model.decoder().config().vocab_size)?;
        let written = model.logits(tokens, &mut |rows| {
            if interrupted() {
                return Err(Error::Cancelled);
            }
            file.write(rows)
        });
        match written {
            Err(Error::Cancelled) => return Ok(()),
            written => written?,
        }
        if self.kernels {
            let mut out = std::io::stdout().lock();
            for (place, rows) in model.decoder().kernels() {
                writeln!(out, "{place}: {}", rows.join(", "))?;
            }
            let steps = model.decoder().passes();
            writeln!(out, "steps: {} of at most {} tokens", steps.count, steps.largest)?;
        }
        Ok(file.finish()?)
    }

    /// The file, for a row of `width` values for each token.
    fn create(&self, name: &str, width: usize) -> Outcome<safetensors::Writer> {
        Ok(safetensors::Writer::create(&self.output, name, DType::F32, &[1, self.tokens.0.len(), width])?)
    }
}
