//! The command line: arguments, errors in one line, and what the subcommands share.

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
use std::io::{BufRead, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use sinew::kernels::Registry;
use sinew::memory::{self, Cpu, Device, level_from_environment, system};
use sinew::models::checkpoint::{Checkpoint, Load};
use sinew::models::load::{Activations, Quantize};
use sinew::models::{Folder, Hub, LanguageModel, LoadOptions, OldKv, Tokenizer, WeightOptions, one_line, printable};
use sinew::ops::{Context, Policy, TuningCache};
use sinew::tensor::{BlockFormat, BlockValues, DType};

/// What a command returns: an error is printed with its causes, in one line.
type Outcome<T = ()> = Result<T, Box<dyn StdError>>;

/// Tensor operators for transformer inference. Without a command: the bundled model answers a few prompts.
#[derive(Debug, Parser)]
#[command(name = "sinew", version, propagate_version = true)]
struct Cli {
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

const DEFAULT_DEVICE: &str = "cpu";

/// Where to run.
#[derive(Debug, Clone, Args)]
struct Machine {
    /// cpu, cuda[:N] or wgpu[:N].
    #[arg(long, global = true, default_value = DEFAULT_DEVICE)]
    device: String,
    /// Threads of the CPU; all by default.
    #[arg(long, global = true)]
    threads: Option<usize>,
    /// Keep each of the CPU's threads but the main one on a logical core of its own: for a machine that no one else uses.
    #[arg(long, global = true)]
    pin: bool,
    /// Prefer these kernels by name wherever they take the problem.
    #[arg(long, global = true, value_name = "NAME")]
    kernel: Vec<String>,
    /// Choose kernels by predicted cost alone, not by what `sinew tune` measured, as SINEW_TUNING=off does.
    #[arg(long, global = true)]
    untuned: bool,
}

/// `off` where tuned times are not to count.
const TUNING: &str = "SINEW_TUNING";

impl Machine {
    /// Whether what `sinew tune` measured counts.
    fn is_tuned(&self) -> Outcome<bool> {
        match std::env::var(TUNING).as_deref() {
            Ok("off") => Ok(false),
            Ok("on") | Err(_) => Ok(!self.untuned),
            Ok(other) => Err(format!("{TUNING} is `{other}`; it can be on or off").into()),
        }
    }

    fn device(&self) -> Outcome<Arc<dyn Device>> {
        if !self.pin {
            return Ok(memory::open(&self.device, self.threads, None)?);
        }
        if !self.device.starts_with("cpu") {
            return Err("--pin is for the CPU".into());
        }
        // A name such as cpu:7 is refused here.
        memory::open(&self.device, Some(1), None)?;
        Ok(Cpu::pinned(self.threads.unwrap_or_else(system::available_threads), level_from_environment()?)?)
    }

    fn context(&self) -> Outcome<Arc<Context>> {
        let (ctx, tuned) = (self.untuned_context()?, self.is_tuned()?);
        Ok(Arc::new(if tuned { ctx.with_tuning(&TuningCache::of_user()) } else { ctx }))
    }

    /// One that chooses by predicted cost alone.
    fn untuned_context(&self) -> Outcome<Context> {
        let device = self.device()?;
        let registry = Registry::standard();
        for name in &self.kernel {
            if !registry.tables().any(|t| t.row_names().iter().any(|(row, ..)| row == name)) {
                return Err(
                    format!("no kernel is called `{name}`; `sinew explain gemm` lists those of products").into()
                );
            }
        }
        let policy = Policy { prefer: self.kernel.clone(), ..Policy::of(device.id().kind) };
        Ok(Context::new(device, Arc::new(registry), policy)?)
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
    /// How files are read: mmap, or read, which survives a file that shrinks under it.
    #[arg(long, default_value = "mmap", value_parser = parse_load)]
    load: Load,
}

/// How a decoder is stepped, which changes no result, and in what form it keeps keys and values.
#[derive(Debug, Clone, Args)]
struct Stepping {
    /// Tokens of a prompt in one step.
    #[arg(long, default_value = "512", value_name = "N")]
    prefill_chunk: NonZeroUsize,
    /// Tokens in a block of the KV cache.
    #[arg(long, default_value = "16", value_name = "N")]
    block_size: NonZeroUsize,
    #[command(flatten)]
    cache: CacheForm,
}

/// In what form keys and values are kept.
#[derive(Debug, Clone, Args)]
struct CacheForm {
    /// Dtype of the KV cache: auto (that of the weights, or bf16 where they are quantized), f32, f16, bf16, or int8 or
    /// fp8 with a scale for each token and head.
    #[arg(long, default_value = "auto", value_parser = parse_kv_dtype)]
    kv_dtype: KvDType,
    /// Keep old tokens in int8 or fp8 with a scale for each token and head, on CPUs; recent ones stay in --kv-dtype.
    #[arg(long, value_name = "int8|fp8", value_parser = parse_old_kv)]
    kv_old: Option<DType>,
    /// How many tokens up to its own each token sees in full at least.
    #[arg(long, default_value = "256", value_name = "N", requires = "kv_old")]
    kv_recent: NonZeroUsize,
}

impl CacheForm {
    /// How old tokens are kept, where otherwise than recent ones.
    fn old(&self) -> Option<OldKv> {
        self.kv_old.map(|dtype| OldKv { dtype, recent: self.kv_recent.get() })
    }
}

/// `--kv-dtype`; `None` is auto.
#[derive(Debug, Clone, Copy)]
struct KvDType(Option<DType>);

/// Dtypes of caches with scales, as arguments call them.
const SCALED_KV: [(&str, DType); 2] = [("int8", DType::I8), ("fp8", DType::F8E4M3)];

fn parse_old_kv(text: &str) -> Result<DType, String> {
    let known = SCALED_KV.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, dtype)| dtype).ok_or_else(|| "supported are int8 and fp8".to_owned())
}

fn parse_kv_dtype(text: &str) -> Result<KvDType, String> {
    let mut all = DType::COMPUTE.into_iter().map(|dtype| (dtype.name(), dtype)).chain(SCALED_KV);
    match (text, all.find(|(name, _)| *name == text)) {
        ("auto", _) => Ok(KvDType(None)),
        (_, Some((_, dtype))) => Ok(KvDType(Some(dtype))),
        (_, None) => Err("supported are auto, f32, f16, bf16, int8 and fp8".to_owned()),
    }
}

/// How many sequences a model serves at once.
#[derive(Debug, Clone, Args)]
struct Serving {
    /// Sequences in one step.
    #[arg(long, default_value = "8", value_name = "N")]
    max_sequences: NonZeroUsize,
    /// Tokens that the KV cache has room for; as many as all sequences can have, if it is not given.
    #[arg(long, value_name = "N")]
    cache_tokens: Option<NonZeroUsize>,
    /// Tokens that there is room for beside it, on the host, of sequences that make room for others.
    #[arg(long, default_value_t = 0, value_name = "N")]
    swap_tokens: usize,
}

impl Serving {
    fn options(&self, options: LoadOptions) -> LoadOptions {
        let cache_tokens = self.cache_tokens.map(NonZeroUsize::get);
        LoadOptions { max_sequences: self.max_sequences.get(), cache_tokens, swap_tokens: self.swap_tokens, ..options }
    }
}

/// In what form weights are kept in memory.
#[derive(Debug, Clone, Args)]
struct WeightForm {
    /// Dtype of the weights in memory: auto (as stored), f32, f16, bf16, or int8, int4 or fp8, to which the weights of
    /// products are quantized as they are loaded.
    #[arg(long, default_value = "auto", value_parser = parse_dtype)]
    dtype: WeightDType,
    /// Values of a row that share a scale where weights are quantized: 32, 64 or 128, or channel, which is the whole row.
    #[arg(long, default_value = "32", value_name = "N", value_parser = parse_group)]
    group_size: GroupSize,
    /// Quantize to int4 or int8 with a zero point for each group.
    #[arg(long)]
    zero_points: bool,
    /// Do not quantize the head, and with it an embedding that is tied to it.
    #[arg(long)]
    keep_head: bool,
    /// What products with quantized weights read: bf16, or int8, which is faster and less exact.
    #[arg(long, value_name = "bf16|int8", value_parser = parse_activations)]
    activations: Option<Activations>,
}

impl WeightForm {
    fn options(&self, load: Load) -> Outcome<WeightOptions> {
        let Self { dtype, group_size, zero_points, keep_head, activations } = self;
        let quantize = match dtype {
            WeightDType::Quantized(values) => Some(group_size.quantize(*values, *zero_points, *keep_head)?),
            _ if *zero_points || *keep_head => {
                return Err("--zero-points and --keep-head are for --dtype int8, int4 and fp8".into());
            }
            _ => None,
        };
        let dtype = if let WeightDType::Float(dtype) = dtype { Some(*dtype) } else { None };
        Ok(WeightOptions { dtype, quantize, activations: *activations, load })
    }
}

/// `--dtype`.
#[derive(Debug, Clone, Copy)]
enum WeightDType {
    AsStored,
    Float(DType),
    Quantized(BlockValues),
}

fn parse_dtype(text: &str) -> Result<WeightDType, String> {
    let quantized = [BlockValues::Int8, BlockValues::Int4, BlockValues::F8E4M3];
    let float = || DType::COMPUTE.into_iter().find(|dtype| dtype.name() == text).map(WeightDType::Float);
    let blocks = || quantized.into_iter().find(|values| values.name() == text).map(WeightDType::Quantized);
    match text {
        "auto" => Ok(WeightDType::AsStored),
        _ => float().or_else(blocks).ok_or_else(|| {
            "supported are auto, f32, f16, bf16, and int8, int4 and fp8, to which weights are quantized".to_owned()
        }),
    }
}

/// `--group-size`.
#[derive(Debug, Clone, Copy)]
enum GroupSize {
    Of(usize),
    Channel,
}

impl GroupSize {
    /// How weights are quantized with it.
    fn quantize(self, values: BlockValues, zero_points: bool, keep_head: bool) -> Outcome<Quantize> {
        /// Of the groups that repeat the scale of a row: the fewest.
        const LARGEST: usize = 128;
        let (group, per_channel) = match self {
            Self::Of(group) => (group, false),
            Self::Channel => (LARGEST, true),
        };
        let format = BlockFormat::new(values, group, DType::BF16, zero_points)?;
        Ok(Quantize { format, per_channel, head: !keep_head })
    }
}

fn parse_group(text: &str) -> Result<GroupSize, String> {
    match text {
        "32" => Ok(GroupSize::Of(32)),
        "64" => Ok(GroupSize::Of(64)),
        "128" => Ok(GroupSize::Of(128)),
        "channel" => Ok(GroupSize::Channel),
        _ => Err("supported are 32, 64, 128 and channel".to_owned()),
    }
}

fn parse_activations(text: &str) -> Result<Activations, String> {
    match text {
        "bf16" => Ok(Activations::Bf16),
        "int8" => Ok(Activations::Int8),
        _ => Err("supported are bf16 and int8".to_owned()),
    }
}

fn parse_load(text: &str) -> Result<Load, String> {
    match text {
        "mmap" => Ok(Load::Mmap),
        "read" => Ok(Load::Read),
        _ => Err("supported are mmap and read".to_owned()),
    }
}

impl Model {
    fn weights(&self) -> Outcome<WeightOptions> {
        self.form.options(self.load)
    }

    fn options(&self, context: usize, stepping: &Stepping) -> Outcome<LoadOptions> {
        let (prefill_chunk, block_size) = (stepping.prefill_chunk.get(), stepping.block_size.get());
        let (weights, context) = (self.weights()?, Some(context));
        let (kv, old_kv) = (stepping.cache.kv_dtype.0, stepping.cache.old());
        Ok(LoadOptions { weights, context, prefill_chunk, block_size, kv, old_kv, ..LoadOptions::default() })
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
        let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(self.load)?);
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
    let mut hub = Hub::from_env();
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
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
    match outcome {
        Ok(()) if interrupted() => ExitCode::from(INTERRUPTED_CODE),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {}", one_line(&*error)));
            ExitCode::FAILURE
        }
    }
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
