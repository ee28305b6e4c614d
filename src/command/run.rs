//! What a command runs with: its settings, and what is opened by them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinew::memory::Device;
use sinew::models::settings::{Resolved, Source, WeightDType};
use sinew::models::{LoadOptions, Settings, WeightOptions};
use sinew::ops::Context;

use super::Outcome;
use super::arguments::{GENERATING, QUANTIZING};
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

    /// Refuses settings that arguments have set and that decide nothing here; `why` goes on from the argument, as it was
    /// written. What files and variables say is for other commands as well.
    pub fn refuse(&self, settings: &[&[&str]], why: &str) -> Outcome {
        let argument = |name: &&str| match self.0.source(name) {
            Source::Argument(argument) => Some(argument.as_str()),
            _ => None,
        };
        match settings.iter().copied().flatten().find_map(argument) {
            Some(argument) => Err(format!("{argument} {why}").into()),
            None => Ok(()),
        }
    }

    /// Refuses what is for models that generate, where one embeds texts.
    pub fn refuse_generating(&self) -> Outcome {
        self.refuse(GENERATING, "is for models that generate; this one embeds texts")
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
        Ok(self.of_weights()?.weight_options()?)
    }

    /// The settings, without those of quantizing where nothing is quantized: then no argument may ask for any.
    fn of_weights(&self) -> Outcome<Cow<'_, Settings>> {
        let settings = self.settings();
        if matches!(settings.dtype, WeightDType::Quantized(_)) {
            return Ok(Cow::Borrowed(settings));
        }
        self.refuse(&[QUANTIZING], "is for weights that are quantized as they are loaded: --dtype int8, int4 or fp8")?;
        Ok(Cow::Owned(Settings { zero_points: false, keep_head: false, ..settings.clone() }))
    }

    /// How a decoder is loaded that runs one sequence.
    pub fn load_options(&self) -> Outcome<LoadOptions> {
        Ok(self.of_weights()?.load_options()?)
    }

    /// How a decoder is loaded that serves many.
    pub fn serving_options(&self) -> Outcome<LoadOptions> {
        Ok(self.of_weights()?.serving_options()?)
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
