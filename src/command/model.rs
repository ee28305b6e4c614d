//! The model that a command runs.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use sinew::models::{Checkpoint, Error, Folder, LanguageModel, LoadOptions, Tokenizer};
use sinew::ops::Context;

use super::arguments::{WEIGHTS, of_settings};
use super::output::{LOADING, progress_bar};
use super::{Outcome, Run};

/// Which model, and how to load it.
#[derive(Debug, Args)]
#[command(args = of_settings(WEIGHTS), args = of_settings(&["load"]))]
pub struct Model {
    /// Folder with config.json and safetensors files, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(id = "model", long, value_name = "PATH|ID")]
    pub name: PathBuf,
    /// The folder that it turned out to be.
    #[arg(skip)]
    folder: OnceCell<Folder>,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
}

impl Model {
    /// The model's folder, fetched where it has to be.
    pub fn folder(&self, run: &Run) -> Outcome<&Folder> {
        if let Some(folder) = self.folder.get() {
            return Ok(folder);
        }
        let path = run.locate(&self.name, self.offline)?;
        Ok(self.folder.get_or_init(|| Folder::new(path)))
    }

    /// The weights of a decoder, which can be loaded as far as their headers tell: asked before the tokenizer is read,
    /// which takes longer.
    pub fn checkpoint(&self, run: &Run, ctx: &Context) -> Outcome<Checkpoint> {
        let folder = self.folder(run)?;
        let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(run.settings().load)?);
        let options = LoadOptions { context: Some(1), ..run.load_options(Some(folder), ctx)? };
        LanguageModel::plan(config, &checkpoint, &options, ctx)?;
        Ok(checkpoint)
    }

    /// The model's own tokenizer, for commands that need it before the model.
    pub fn tokenizer(&self, run: &Run) -> Outcome<Arc<Tokenizer>> {
        match self.folder(run)?.required_tokenizer() {
            Err(error @ Error::Input(_)) => Err(format!("{error}; or give --tokens instead of text").into()),
            tokenizer => Ok(tokenizer?),
        }
    }

    pub fn load(
        &self,
        run: &Run,
        ctx: Arc<Context>,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Outcome<LanguageModel> {
        let config = self.folder(run)?.config()?.as_decoder()?;
        let bar = progress_bar(LOADING);
        let model = LanguageModel::from_parts(ctx, config, checkpoint, tokenizer, options, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok(model?)
    }
}
