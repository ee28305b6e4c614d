//! What a command runs with: its settings, and what is opened by them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinew::memory::Device;
use sinew::models::settings::{Resolved, Source};
use sinew::models::{LoadOptions, Settings, WeightOptions};
use sinew::ops::Context;

use super::Outcome;
use super::output::progress_bar;

/// The settings of one run of the command: of a file, the environment and arguments.
#[derive(Debug)]
pub struct Run(Resolved);

impl Run {
    pub fn new(resolved: Resolved) -> Self {
        Self(resolved)
    }

    /// Every setting with what decided it.
    pub fn resolved(&self) -> &Resolved {
        &self.0
    }

    pub fn settings(&self) -> &Settings {
        self.0.settings()
    }

    /// Which of these settings an argument has set, as it is written.
    pub fn given(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| match self.0.source(name) {
            Source::Argument(argument) => Some(argument.as_str()),
            _ => None,
        })
    }

    pub fn device(&self) -> Outcome<Arc<dyn Device>> {
        Ok(self.settings().open_device()?)
    }

    pub fn context(&self) -> Outcome<Arc<Context>> {
        Ok(self.settings().open_context()?)
    }

    /// One that chooses by predicted cost alone.
    pub fn untuned_context(&self) -> Outcome<Context> {
        Ok(self.settings().untuned_context()?)
    }

    pub fn weight_options(&self) -> Outcome<WeightOptions> {
        Ok(self.settings().weight_options()?)
    }

    /// How a decoder is loaded that runs one sequence.
    pub fn load_options(&self) -> Outcome<LoadOptions> {
        Ok(self.settings().load_options()?)
    }

    /// How a decoder is loaded that serves many.
    pub fn serving_options(&self) -> Outcome<LoadOptions> {
        Ok(self.settings().serving_options()?)
    }

    /// The folder of a model: a path, or what the hub and its cache have under an id.
    pub fn locate(&self, name: &Path, offline: bool) -> Outcome<PathBuf> {
        // An id is ASCII.
        let Some(id) = name.to_str() else { return Ok(name.to_owned()) };
        let mut hub = self.settings().hub();
        hub.offline |= offline;
        let bar = progress_bar("{msg} {bar:32} {bytes}/{total_bytes} {bytes_per_sec}");
        let folder = hub.locate(id, &mut |file, done, total| {
            if bar.message() != file {
                bar.set_message(file.to_owned());
            }
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok(folder?)
    }
}
