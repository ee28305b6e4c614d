//! The command line: arguments, errors in one line, and what the subcommands share.

mod arguments;
mod bench;
mod chat;
mod demo;
mod devices;
mod embed;
mod explain;
mod generate;
mod inspect;
mod logits;
mod plan;
mod quantize;
mod replay;
mod sampling;
mod settings;
mod tune;
mod warnings;

use std::cell::OnceCell;
use std::error::Error as StdError;
use std::io::{self, BufRead, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use sinew::memory::{self, Bytes, Device};
use sinew::models::checkpoint::{Checkpoint, Load};
use sinew::models::{Folder, LanguageModel, LoadOptions, OldKv, Tokenizer, WeightOptions, one_line, printable};
use sinew::ops::Context;
use sinew::tensor::DType;

use self::arguments::{Origins, setting_arguments, settings};

/// What a command returns: an error is printed with its causes, in one line.
type Outcome<T = ()> = Result<T, Box<dyn StdError>>;

/// Tensor operators for transformer inference. Without a command: the bundled model answers a few prompts.
#[derive(Debug, Parser)]
#[command(name = "sinew", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    origins: Origins,
    #[command(flatten)]
    machine: Machine,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate text or tokens.
    Generate(generate::Generate),
    /// Talk with a model.
    Chat(chat::Chat),
    /// Turn texts into vectors.
    Embed(embed::Embed),
    /// Write the logits of given tokens to a safetensors file.
    Logits(logits::Logits),
    /// Measure a model's speed and memory.
    Bench(bench::Bench),
    /// Run a trace of requests as they came, and measure how long each waited.
    Replay(replay::Replay),
    /// Write a trace of requests at random.
    Trace(replay::Trace),
    /// Write a model as a quantized checkpoint.
    Quantize(quantize::Quantize),
    /// Time the kernels that may serve a model's shapes, and keep the times for the choice among them.
    Tune(tune::Tune),
    /// Show what a model's files hold, and what it would need.
    Inspect(inspect::Inspect),
    /// Show the memory that a model takes before it is read, what fits, and what would save how much.
    Plan(plan::Plan),
    /// List every setting, its value, and what decides it.
    Settings(settings::Settings),
    /// List the devices of this machine, or why there are none.
    Devices(devices::Devices),
    Explain(explain::Explain),
}

setting_arguments! {
    /// Where to run.
    Machine, global: true,
    ["device", "threads", "pin", "simd", "kernels", "deterministic", "memory_limit", "tuning", "tuning_cache"]
}

impl Machine {
    fn device(&self) -> Outcome<Arc<dyn Device>> {
        Ok(settings().open_device()?)
    }

    fn context(&self) -> Outcome<Arc<Context>> {
        Ok(settings().open_context()?)
    }

    /// One that chooses by predicted cost alone.
    fn untuned_context(&self) -> Outcome<Context> {
        Ok(settings().untuned_context()?)
    }
}

/// Which model, and how to load it.
#[derive(Debug, Args)]
struct Model {
    /// Folder with config.json and safetensors files, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(long, value_name = "PATH|ID")]
    model: PathBuf,
    /// The folder that `model` turned out to be.
    #[arg(skip)]
    folder: OnceCell<Folder>,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    form: WeightForm,
    #[command(flatten)]
    load: LoadForm,
}

setting_arguments! {
    /// How a decoder is stepped, which changes no result, and in what form it keeps keys and values.
    Stepping, global: false,
    ["prefill_chunk", "block_size", "kv_dtype", "kv_old", "kv_recent"]
}

setting_arguments! {
    /// In what form keys and values are kept.
    CacheForm, global: false,
    ["kv_dtype", "kv_old", "kv_recent"]
}

setting_arguments! {
    /// How many sequences a model serves at once.
    Serving, global: false,
    ["max_sequences", "cache_tokens", "swap_tokens"]
}

setting_arguments! {
    /// Room for tokens beside that of a batch.
    Room, global: false,
    ["cache_tokens", "swap_tokens"]
}

setting_arguments! {
    /// How long a sequence may be.
    Length, global: false,
    ["context"]
}

setting_arguments! {
    /// In what form weights are kept in memory.
    WeightForm, global: false,
    ["dtype", "group_size", "zero_points", "keep_head", "activations"]
}

setting_arguments! {
    /// How files are read.
    LoadForm, global: false,
    ["load"]
}

impl Stepping {
    /// How a decoder is loaded that runs one sequence.
    fn options(&self) -> Outcome<LoadOptions> {
        Ok(settings().load_options()?)
    }
}

impl CacheForm {
    /// Dtype of keys and values, and how old ones are kept.
    fn options(&self) -> Outcome<(Option<DType>, Option<OldKv>)> {
        let LoadOptions { kv, old_kv, .. } = settings().load_options()?;
        Ok((kv, old_kv))
    }
}

impl Serving {
    fn options(&self, options: LoadOptions) -> Outcome<LoadOptions> {
        let LoadOptions { max_sequences, cache_tokens, swap_tokens, .. } = settings().serving_options()?;
        Ok(LoadOptions { max_sequences, cache_tokens, swap_tokens, ..options })
    }
}

impl Room {
    fn options(&self, options: LoadOptions) -> Outcome<LoadOptions> {
        let LoadOptions { cache_tokens, swap_tokens, .. } = settings().serving_options()?;
        Ok(LoadOptions { cache_tokens, swap_tokens, ..options })
    }
}

impl WeightForm {
    fn options(&self) -> Outcome<WeightOptions> {
        Ok(settings().weight_options()?)
    }
}

impl Length {
    /// Tokens of a sequence, where anything says how many.
    fn tokens(&self) -> Option<usize> {
        settings().context.map(NonZeroUsize::get)
    }
}

impl LoadForm {
    fn load(&self) -> Load {
        settings().load
    }
}

impl Model {
    fn weights(&self) -> Outcome<WeightOptions> {
        self.form.options()
    }

    fn options(&self, context: usize, stepping: &Stepping) -> Outcome<LoadOptions> {
        Ok(LoadOptions { weights: self.weights()?, context: Some(context), ..stepping.options()? })
    }

    /// The model's folder, fetched where it has to be.
    fn folder(&self) -> Outcome<&Folder> {
        if let Some(folder) = self.folder.get() {
            return Ok(folder);
        }
        let path = locate(&self.model, self.offline)?;
        Ok(self.folder.get_or_init(|| Folder::new(path)))
    }

    /// The weights of a decoder, which can be loaded as far as their headers tell: asked before the tokenizer is read,
    /// which takes longer.
    fn checkpoint(&self, ctx: &Context, stepping: &Stepping) -> Outcome<Checkpoint> {
        let folder = self.folder()?;
        let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(self.load.load())?);
        LanguageModel::plan(config, &checkpoint, &self.options(1, stepping)?, &**ctx.device())?;
        Ok(checkpoint)
    }

    /// The model's own tokenizer, for commands that need it before the model.
    fn tokenizer(&self) -> Outcome<Arc<Tokenizer>> {
        match self.folder()?.tokenizer()? {
            Some(tokenizer) => Ok(tokenizer),
            None => Err(format!("{} has no tokenizer.json; give --tokens instead", self.model.display()).into()),
        }
    }

    fn load(
        &self,
        ctx: Arc<Context>,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Outcome<LanguageModel> {
        let config = self.folder()?.config()?.as_decoder()?;
        let bar = progress_bar(LOADING);
        let model = LanguageModel::from_parts(ctx, config, checkpoint, tokenizer, options, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok(model?)
    }
}

/// The folder of a model: a path, or what the hub and its cache have under an id.
fn locate(name: &Path, offline: bool) -> Outcome<PathBuf> {
    // An id is ASCII.
    let Some(id) = name.to_str() else { return Ok(name.to_owned()) };
    let mut hub = settings().hub();
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

/// Token ids between commas.
fn parse_tokens(text: &str) -> Result<Tokens, String> {
    if text.trim().is_empty() {
        return Ok(Tokens(Vec::new()));
    }
    let parsed = text
        .split(',')
        .map(str::trim)
        .map(|part| part.parse::<u32>().map_err(|_| format!("`{part}` is not a token id")));
    Ok(Tokens(parsed.collect::<Result<_, _>>()?))
}

/// A list of tokens as one argument.
#[derive(Debug, Clone)]
struct Tokens(Vec<u32>);

const LOADING: &str = "loading {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";

/// A bar on standard error, where that is a terminal.
fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Set when Ctrl-C was pressed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a process that SIGINT ended.
const INTERRUPTED_CODE: u8 = 130;

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// From now on Ctrl-C asks the running answer to end; pressed again it ends the process.
fn catch_interrupts() {
    // Without a handler Ctrl-C ends the process at once, which leaves nothing broken either.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED_CODE.into());
        }
    });
}

/// [`catch_interrupts`] for a program that answers many times: while an answer runs Ctrl-C ends it, and otherwise the
/// process.
fn await_interrupts(answering: bool) {
    static CAUGHT: Once = Once::new();
    CAUGHT.call_once(catch_interrupts);
    INTERRUPTED.store(!answering, Ordering::Relaxed);
}

/// Peak resident memory of this process, in bytes.
fn peak_rss_bytes() -> usize {
    memory::system::peak_resident_bytes()
}

/// Says on standard error who holds the memory of a context's device.
fn report_memory(ctx: &Context) {
    // Where it cannot be said, nothing is lost but the report.
    let _ = write!(std::io::stderr(), "{}", ctx.memory_report());
}

/// Tokens in a second, where there is anything to divide.
fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// A rate, or a dash where nothing was measured.
fn rate_text(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Runs the command and turns its outcome into an exit code.
pub fn main() -> ExitCode {
    let parsed = Cli::command().try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            if !error.use_stderr() {
                // Help and version are no errors.
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                complain("error: a subcommand is missing; see --help");
                return ExitCode::from(2);
            }
            // The first paragraph says what is wrong; the usage behind it is a `--help` away.
            let text = error.render().to_string();
            let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            complain(&format!("{}; see --help", what.join(" ")));
            return ExitCode::from(2);
        }
    };
    warnings::show();
    if let Err(error) = cli.origins.resolve(&matches) {
        complain(&format!("error: {}", one_line(&*error)));
        return ExitCode::FAILURE;
    }
    let outcome = match &cli.command {
        None => demo::run(&cli.machine),
        Some(Command::Generate(command)) => command.run(&cli.machine),
        Some(Command::Chat(command)) => command.run(&cli.machine),
        Some(Command::Embed(command)) => command.run(&cli.machine),
        Some(Command::Logits(command)) => command.run(&cli.machine),
        Some(Command::Bench(command)) => command.run(&cli.machine),
        Some(Command::Replay(command)) => command.run(&cli.machine),
        Some(Command::Trace(command)) => command.run(),
        Some(Command::Quantize(command)) => command.run(&cli.machine),
        Some(Command::Tune(command)) => command.run(&cli.machine),
        Some(Command::Inspect(command)) => command.run(&cli.machine),
        Some(Command::Plan(command)) => command.run(&cli.machine),
        Some(Command::Settings(command)) => command.run(&cli.machine),
        Some(Command::Devices(command)) => command.run(&cli.machine),
        Some(Command::Explain(command)) => command.run(&cli.machine),
    };
    for report in memory::leaks() {
        let live: Vec<String> =
            report.live.iter().map(|usage| format!("{} {}", usage.tag, Bytes(usage.bytes))).collect();
        complain(&format!("warning: buffers of {} are left: {}", report.device, live.join(", ")));
    }
    match outcome {
        Ok(()) if interrupted() => ExitCode::from(INTERRUPTED_CODE),
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {}", one_line(&*error)));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The next line of `input`, without its end; `None` where there is none. What goes on for more than `max` bytes with no
/// one, as a device may without end, is an error.
fn read_line(input: &mut dyn BufRead, max: u64) -> Outcome<Option<String>> {
    let mut line = Vec::new();
    Read::take(input, max + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > max {
        return Err(format!("a line has more than {} MiB", max >> 20).into());
    }
    let mut line = String::from_utf8(line).map_err(|_| "a line is not UTF-8")?;
    for end in ['\n', '\r'] {
        if line.ends_with(end) {
            line.pop();
        }
    }
    Ok(Some(line))
}

/// Prints one line on standard error.
fn complain(text: &str) {
    // Where it cannot be said, the exit code says it.
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}
