//! What a command runs with: its settings, and what is opened by them.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinew::demo;
use sinew::models::precision::{Activations, Precision, Quantize};
use sinew::models::settings::{Field, Resolved, Source, WeightDType};
use sinew::models::{Error, Folder, LoadOptions, Planner, Settings, WeightOptions, one_line};
use sinew::ops::Context;
use sinew::ops::layers::Encoding;
use sinew::tensor::{BlockValues, DType, PagedLayout};

use super::Outcome;
use super::arguments::{EMBEDS, GENERATING, OF_CPU, QUANTIZING};
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
        self.refuse(GENERATING, EMBEDS)
    }

    /// Takes settings back that decide nothing here: [`refuse`](Self::refuse) is for those that arguments have set.
    fn take_back(&self, settings: &mut Settings, names: &[&str], why: &str) -> Outcome {
        self.refuse(&[names], why)?;
        names.iter().filter_map(|name| Field::named(name)).for_each(|field| field.reset(settings));
        Ok(())
    }

    /// An error that is in what a setting says, with what has set it.
    pub fn by(&self, name: &str, error: &dyn Display) -> String {
        format!("{}: {error}", self.0.source(name))
    }

    /// What a setting is, and what has set it, as `--dtype is int4`.
    pub fn said(&self, name: &str) -> String {
        let value = Field::named(name).map(|field| field.show(self.settings())).unwrap_or_default();
        match self.0.source(name) {
            Source::File(..) => format!("{name} in {} is {value}", self.0.source(name)),
            source => format!("{source} is {value}"),
        }
    }

    pub fn context(&self) -> Outcome<Arc<Context>> {
        self.open(&self.of_machine()?, Settings::open_context)
    }

    /// One that chooses by predicted cost alone.
    pub fn untuned_context(&self) -> Outcome<Context> {
        self.open(&self.of_machine()?, Settings::untuned_context)
    }

    /// Opens what these settings say, which are of this run but for the device that they name. An error says what has set
    /// what cannot be opened.
    pub fn open<T>(&self, settings: &Settings, open: impl FnOnce(&Settings) -> Result<T, Error>) -> Outcome<T> {
        open(settings).map_err(|error| {
            let decide = match settings.device.as_str() {
                device if device.starts_with("cpu") => &["threads", "pin"][..],
                device if device == self.settings().device => &["device"],
                _ => &[],
            };
            match decide.iter().find(|name| *self.0.source(name) != Source::Default) {
                Some(name) => self.by(name, &one_line(&error)).into(),
                None => error.into(),
            }
        })
    }

    /// The settings, without those that decide nothing on the device.
    fn of_machine(&self) -> Outcome<Settings> {
        let mut settings = self.settings().clone();
        if !settings.device.starts_with("cpu") {
            let why = format!("is for the CPU, not for {}", settings.device);
            self.take_back(&mut settings, OF_CPU, &why)?;
        }
        Ok(settings)
    }

    /// How the weights of the model in a folder are loaded for a context; without one they are floats, as those of the
    /// bundled model.
    pub fn weight_options(&self, stored: Option<&Folder>, ctx: &Context) -> Outcome<WeightOptions> {
        let mut settings = self.of_weights(stored, ctx)?;
        self.take_back_head(&mut settings, stored)?;
        Ok(settings.weight_options()?)
    }

    /// How the weights of the model in a folder are quantized to values.
    pub fn quantize(&self, values: BlockValues, stored: &Folder) -> Outcome<Quantize> {
        let mut settings = self.settings().clone();
        self.take_back_zero_points(&mut settings, values)?;
        self.take_back_head(&mut settings, Some(stored))?;
        Ok(settings.group_size.quantize(values, settings.zero_points, settings.keep_head)?)
    }

    /// Zero points are of integers alone.
    fn take_back_zero_points(&self, settings: &mut Settings, values: BlockValues) -> Outcome {
        if settings.zero_points && !values.is_integer() {
            self.take_back(settings, &["zero_points"], "is for --dtype int8 and int4")?;
        }
        Ok(())
    }

    /// A model that embeds texts has no head to keep.
    fn take_back_head(&self, settings: &mut Settings, stored: Option<&Folder>) -> Outcome {
        if settings.keep_head && stored.map_or(Ok(false), Folder::embeds)? {
            self.take_back(settings, &["keep_head"], EMBEDS)?;
        }
        Ok(())
    }

    /// The settings, without those that decide nothing with such weights.
    fn of_weights(&self, stored: Option<&Folder>, ctx: &Context) -> Outcome<Settings> {
        let mut settings = self.settings().clone();
        match settings.dtype {
            WeightDType::Quantized(values) => self.take_back_zero_points(&mut settings, values)?,
            _ => {
                let why = "is for weights that are quantized as they are loaded: --dtype int8";
                self.take_back(&mut settings, &["zero_points"], &format!("{why} or int4"))?;
                self.take_back(&mut settings, QUANTIZING, &format!("{why}, int4 or fp8"))?;
            }
        }
        let weights = settings.weight_options()?;
        if let Some(quantize) = weights.quantize {
            quantize.check_device(ctx).map_err(|error| self.by("dtype", &error))?;
        }
        if let Some((activations, weights)) = self.untaken(&weights, stored, ctx) {
            let [wanted, formats] = match activations {
                Activations::Bf16 => ["quantized", "int8, int4 or fp8"],
                Activations::Int8 => ["quantized to integers", "int8 or int4"],
            };
            let why = format!(
                "in {activations} is for weights that are {wanted}, not for {weights}: --dtype {formats} quantizes them as \
                 they are loaded"
            );
            self.take_back(&mut settings, &["activations"], &why)?;
        }
        Ok(settings)
    }

    /// The activations that are asked for, if none of the weights takes them, and what these are. What cannot be planned is
    /// not loaded either, which says why.
    fn untaken(
        &self,
        weights: &WeightOptions,
        stored: Option<&Folder>,
        ctx: &Context,
    ) -> Option<(Activations, String)> {
        let activations = weights.activations?;
        let untaken = match (weights.quantize, stored) {
            (Some(how), _) if activations.are_taken(Encoding::Blocks(how.format)) => None,
            (Some(how), _) => Some(format!("weights in {}", Encoding::Blocks(how.format))),
            (None, Some(folder)) => {
                let planner = Planner::new(ctx, folder, self.settings().load).ok()?;
                planner.why_untaken(weights).ok()?
            }
            (None, None) => Some("floats".to_owned()),
        };
        untaken.map(|weights| (activations, weights))
    }

    /// How the decoder in a folder is loaded for a context to run one sequence; the bundled one without a folder.
    pub fn load_options(&self, stored: Option<&Folder>, ctx: &Context) -> Outcome<LoadOptions> {
        Ok(self.of_decoder(stored, ctx)?.load_options()?)
    }

    /// How one is loaded that serves many.
    pub fn serving_options(&self, stored: Option<&Folder>, ctx: &Context) -> Outcome<LoadOptions> {
        Ok(self.of_decoder(stored, ctx)?.serving_options()?)
    }

    /// The settings, without those that decide nothing with such a decoder.
    fn of_decoder(&self, stored: Option<&Folder>, ctx: &Context) -> Outcome<Settings> {
        const OLD: &[&str] = &["kv_old", "kv_recent"];
        let mut settings = self.of_weights(stored, ctx)?;
        // Of whatever weights.
        let precision = Precision::of(DType::F32, ctx.device().hardware())?;
        if let Some(old) = settings.old_kv() {
            let kv = settings.kv_dtype.0.unwrap_or(precision.kv);
            if PagedLayout::has_scales(kv) {
                let why = format!("is for a KV cache in f32, f16 or bf16; {}", self.said("kv_dtype"));
                self.take_back(&mut settings, OLD, &why)?;
            } else if !ctx.keeps_kv(kv, Some(old)) {
                let why = format!("is not for {}, which keeps all tokens alike", ctx.device().id());
                self.take_back(&mut settings, OLD, &why)?;
            }
        }
        precision.with_kv(settings.kv_dtype.0, ctx).map_err(|error| self.by("kv_dtype", &error))?;
        let longest = match stored {
            Some(folder) => folder.config()?.as_decoder()?.longest_context(),
            None => demo::config()?.as_decoder()?.longest_context(),
        };
        if let Some(context) = settings.context.filter(|context| context.get() > longest) {
            let why = format!("asks for {context} tokens; the model has {longest} positions");
            self.refuse(&[&["context"]], &why)?;
            // What is for all models is as much as this one has.
            settings.context = NonZeroUsize::new(longest);
        }
        Ok(settings)
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
