//! `sinew embed`.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::slice;

use clap::Args;
use serde_json::json;
use sinew::models::EmbeddingModel;

use super::input::Lines;
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{LOADING, progress_bar};
use super::{Model, Outcome, Run};

/// Texts between two looks at whether Ctrl-C was pressed, and the bytes of them that are no reason to stop early.
const TEXTS_AT_ONCE: usize = 1024;
const BYTES_AT_ONCE: usize = 4 << 20;
/// Texts in one JSON object, whose vectors are in memory until all are there.
const MAX_JSON_TEXTS: usize = 1 << 20;

/// Turn texts into vectors.
///
/// The model's own files set prompts, pooling, normalisation, dimensions and the longest text.
#[derive(Debug, Args)]
pub struct Embed {
    #[command(flatten)]
    model: Model,
    /// The texts.
    #[arg(required_unless_present = "file", value_name = "TEXT")]
    texts: Vec<String>,
    /// A file with one text on each line of up to 1 MiB, after those given as arguments; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The prompt to put before each text, by its name in the model's files.
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Keep this many of the first dimensions of each vector, in place of the number in the model's files.
    #[arg(long, value_name = "N")]
    truncate_dim: Option<NonZeroUsize>,
    /// Print one JSON object and nothing else; for up to 1048576 texts.
    #[arg(long)]
    json: bool,
}

impl Embed {
    pub fn run(&self, run: &Run) -> Outcome {
        let mut texts = Texts { given: self.texts.iter(), lines: self.file.as_deref().map(Lines::open).transpose()? };
        // Before anything is loaded: a file that is damaged is so at its beginning, most of the time.
        let mut some = texts.some()?;
        let ctx = run.context()?;
        let bar = progress_bar(LOADING);
        let folder = self.model.folder(run)?;
        let weights = run.weight_options(Some(folder), &ctx)?;
        let model = EmbeddingModel::load_on(ctx, folder, &weights, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let mut model = model?;
        if let Some(most) = self.truncate_dim {
            model.truncate_to(Some(most.get()))?;
        }
        catch_interrupts();
        let mut out = io::stdout().lock();
        let mut all = Vec::new();
        while !some.is_empty() {
            let vectors = match &self.prompt_name {
                Some(name) => model.embed_as(name, &some)?,
                None => model.embed(&some)?,
            };
            if interrupted() {
                return Ok(());
            }
            if self.json {
                all.extend(vectors);
                if all.len() > MAX_JSON_TEXTS {
                    return Err(format!("more than {MAX_JSON_TEXTS} texts for one JSON object").into());
                }
            } else {
                for vector in vectors {
                    let values: Vec<String> = vector.iter().map(f32::to_string).collect();
                    writeln!(out, "{}", values.join(" "))?;
                }
            }
            some = texts.some()?;
        }
        if self.json {
            let device = model.context().device().id().to_string();
            let line = json!({ "embeddings": all, "max_tokens": model.max_tokens(), "device": device });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// The texts that are yet to be embedded: those of the arguments, then the lines of the file.
struct Texts<'a> {
    given: slice::Iter<'a, String>,
    lines: Option<Lines<'a>>,
}

impl Texts<'_> {
    /// The next ones; none at the end.
    fn some(&mut self) -> Outcome<Vec<String>> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while some.len() < TEXTS_AT_ONCE && bytes < BYTES_AT_ONCE {
            let text = match (self.given.next(), &mut self.lines) {
                (Some(given), _) => given.clone(),
                (None, None) => break,
                (None, Some(lines)) => match lines.next()? {
                    Some(line) => line,
                    None => break,
                },
            };
            bytes += text.len();
            some.push(text);
        }
        Ok(some)
    }
}
