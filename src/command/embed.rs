//! `sinew embed`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use sinew::models::EmbeddingModel;

use super::{LOADING, Machine, Model, Outcome, catch_interrupts, interrupted, progress_bar};

/// Texts between two looks at whether Ctrl-C was pressed.
const TEXTS_AT_ONCE: usize = 1024;

/// Turn texts into vectors.
///
/// Prompts, pooling, normalisation and the longest text are those of the model's own files.
#[derive(Debug, Args)]
pub struct Embed {
    #[command(flatten)]
    model: Model,
    /// The texts.
    #[arg(required_unless_present = "file", value_name = "TEXT")]
    texts: Vec<String>,
    /// A file with one text on each line, after those given as arguments; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The prompt to put before each text, by its name in the model's files.
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Embed {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let lines = self.file.as_deref().map(read).transpose()?.unwrap_or_default();
        let texts: Vec<&str> = self.texts.iter().map(String::as_str).chain(lines.lines()).collect();
        let ctx = machine.context()?;
        let bar = progress_bar(LOADING);
        let model = EmbeddingModel::load_on(ctx, self.model.folder()?, &self.model.weights(), &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let mut model = model?;
        catch_interrupts();
        let mut out = io::stdout().lock();
        let mut all = Vec::new();
        for some in texts.chunks(TEXTS_AT_ONCE) {
            let vectors = match &self.prompt_name {
                Some(name) => model.embed_as(name, some)?,
                None => model.embed(some)?,
            };
            if interrupted() {
                return Ok(());
            }
            if self.json {
                all.extend(vectors);
                continue;
            }
            for vector in vectors {
                let values: Vec<String> = vector.iter().map(f32::to_string).collect();
                writeln!(out, "{}", values.join(" "))?;
            }
        }
        if self.json {
            let device = model.context().device().id().to_string();
            let line = json!({ "embeddings": all, "max_tokens": model.max_tokens(), "device": device });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

fn read(file: &Path) -> Outcome<String> {
    let text = match file == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => std::fs::read_to_string(file),
    };
    Ok(text.map_err(|error| format!("cannot read {}: {error}", file.display()))?)
}
