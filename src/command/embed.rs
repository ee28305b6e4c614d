//! `sinew embed`.

use std::io::Write;

use clap::Args;
use serde_json::json;
use sinew::models::EmbeddingModel;

use super::{LOADING, Machine, Model, Outcome, progress_bar};

/// Turn texts into vectors.
#[derive(Debug, Args)]
pub struct Embed {
    #[command(flatten)]
    model: Model,
    /// The texts.
    #[arg(required = true, value_name = "TEXT")]
    texts: Vec<String>,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

impl Embed {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let ctx = machine.context()?;
        let bar = progress_bar(LOADING);
        let model = EmbeddingModel::load_on(ctx, self.model.folder()?, &self.model.weights(), &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let mut model = model?;
        let vectors = model.embed(&self.texts)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let device = model.context().device().id().to_string();
            let line = json!({ "embeddings": vectors, "max_tokens": model.max_tokens(), "device": device });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        for vector in vectors {
            let values: Vec<String> = vector.iter().map(f32::to_string).collect();
            writeln!(out, "{}", values.join(" "))?;
        }
        Ok(())
    }
}
