//! Arguments of settings, made from the table of settings: a command says which it takes.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use sinew::models::settings::{Field, Resolved, Source, meant_by};
use sinew::models::{Settings, printable};

use super::Outcome;
use super::output::complain;

/// What the ids of such arguments begin with.
const PREFIX: &str = "setting.";

/// Where to run, which every command may be told.
const MACHINE: &[&str] =
    &["device", "threads", "pin", "simd", "kernels", "deterministic", "memory_limit", "tuning", "tuning_cache"];
/// Which of them.
pub const DEVICE: &[&str] = &["device"];
/// What decides nothing on other devices than the CPU: what the host does for those it does with all its threads.
pub const OF_CPU: &[&str] = &["threads", "pin", "simd"];
/// How work is spread over its cores.
pub const TEAM: &[&str] = &["threads", "pin"];
/// How kernels are chosen.
pub const CHOOSING: &[&str] = &["kernels", "deterministic", "tuning", "tuning_cache"];
/// How much memory there is for a model.
pub const MEMORY: &[&str] = &["memory_limit"];
/// In what form weights are kept in memory.
pub const WEIGHTS: &[&str] = &["dtype", "group_size", "zero_points", "keep_head", "activations"];
/// Of one weight alone.
pub const WEIGHT: &[&str] = &["dtype", "group_size", "zero_points"];
/// How weights are quantized.
pub const QUANTIZING: &[&str] = &["group_size", "zero_points", "keep_head"];
/// How a decoder is stepped, which changes no result, and in what form it keeps keys and values.
pub const STEPPING: &[&str] = &["prefill_chunk", "block_size", "kv_dtype", "kv_old", "kv_recent"];
/// How many sequences a model serves at once.
pub const SERVING: &[&str] = &["max_sequences", "cache_tokens", "swap_tokens"];
/// What is for models that generate.
pub const GENERATING: &[&[&str]] = &[&["context"], STEPPING, SERVING];
/// Why what is for them is refused, after its argument.
pub const EMBEDS: &str = "is for models that generate; this one embeds texts";
/// All but where to run.
pub const OF_MODELS: &[&[&str]] = &[WEIGHTS, &["load", "context"], STEPPING, SERVING];
/// Of these what the bundled one goes by, which is in no file.
const OF_BUNDLED: &[&[&str]] = &[WEIGHTS, &["context"], STEPPING];
/// Room for tokens beside that of a batch.
pub const ROOM: &[&str] = &["cache_tokens", "swap_tokens"];

/// The arguments of some settings, for a command that goes by them: `--set` sets no others that have arguments.
pub fn of_settings(names: &[&str]) -> impl Iterator<Item = Arg> {
    names.iter().filter_map(|name| argument(name))
}

/// The same of settings that the command refuses: its help does not show them, which it has as all commands do.
pub fn refused(settings: &[&[&str]]) -> impl Iterator<Item = Arg> {
    settings.iter().copied().flat_map(of_settings).map(|arg| arg.hide(true))
}

/// Where settings come from, besides their own arguments.
#[derive(Debug, Args)]
#[command(args = of_settings(MACHINE).map(|arg| arg.global(true)))]
pub struct Origins {
    /// File of settings in TOML; by default the one that SINEW_SETTINGS names, or ~/.config/sinew/settings.toml.
    #[arg(long, global = true, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Set a setting that the command goes by, as `sinew settings` lists them.
    #[arg(long, global = true, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Origins {
    /// Resolves the settings of this run: file, environment, arguments. `command` is what `matches` are of.
    pub fn resolve(&self, command: &Command, matches: &ArgMatches) -> Outcome<Resolved> {
        warn_of_slips();
        let mut resolved = Resolved::of_user(self.settings.as_deref(), &|name| std::env::var_os(name))?;
        let called = Called::new(command, matches);
        for set in &self.set {
            let (name, value) =
                set.split_once('=').ok_or_else(|| format!("--set {set}: write it as --set name=value"))?;
            let (name, value) = (name.trim(), value.trim());
            resolved.add_argument(name, value, &format!("--set {}", printable(name)))?;
            called.check_concern(name)?;
        }
        add(matches, &mut resolved)?;
        resolved.check_names()?;
        // Of an argument that takes old keys back, those before it are none the worse.
        let takes_back = matches!(resolved.source("kv_old"), Source::Argument(_));
        if let Source::Argument(argument) = resolved.source("kv_recent")
            && resolved.settings().kv_old.0.is_none()
            && !takes_back
        {
            return Err(format!("{argument} is for old tokens that are kept otherwise: --kv-old int8 or fp8").into());
        }
        Ok(resolved)
    }
}

/// Warns of variables that are named almost as settings are. What else begins as they do may be some other program's.
fn warn_of_slips() {
    let mut names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    names.sort();
    for name in names {
        if let Some(meant) = meant_by(&name) {
            complain(&format!("warning: {} is no setting, and says nothing; the nearest is {meant}", printable(&name)));
        }
    }
}

/// A command that runs.
struct Called<'c> {
    command: &'c Command,
    /// The words that call it.
    words: String,
    is_bare: bool,
}

impl<'c> Called<'c> {
    /// The innermost command of these matches, which are of `command`.
    fn new(mut command: &'c Command, mut matches: &ArgMatches) -> Self {
        let (mut words, mut is_bare) = (command.get_name().to_owned(), true);
        while let Some((name, inner)) = matches.subcommand()
            && let Some(found) = command.find_subcommand(name)
        {
            (command, matches, is_bare) = (found, inner, false);
            words = format!("{words} {name}");
        }
        Self { command, words, is_bare }
    }

    /// Refuses to set what the command does not go by: it has no argument for that. Settings without arguments, and
    /// where to run, are for all.
    fn check_concern(&self, name: &str) -> Outcome {
        let Some(argument) = Field::named(name).and_then(|field| field.argument) else { return Ok(()) };
        let id = id(name);
        let has = |is: &dyn Fn(&Arg) -> bool| self.command.get_arguments().any(is);
        let of_bundled = || OF_BUNDLED.iter().copied().flatten().any(|of| *of == name);
        if MACHINE.contains(&name) || has(&|arg| *arg.get_id() == *id) || self.is_bare && of_bundled() {
            return Ok(());
        }
        let other = INSTEAD.iter().find(|(setting, _)| *setting == name).map(|(_, argument)| *argument);
        let own = [Some(argument), other].into_iter().flatten().find(|own| has(&|arg| arg.get_long() == Some(*own)));
        let instead = own.map(|own| format!(", which has --{own}")).unwrap_or_default();
        Err(format!("--set {name} decides nothing in `{}`{instead}", self.words).into())
    }
}

/// Arguments of commands that say by another name what a setting says elsewhere.
const INSTEAD: &[(&str, &str)] = &[("max_sequences", "batch")];

/// Takes in the arguments of settings that a command and its subcommands were given.
fn add(matches: &ArgMatches, resolved: &mut Resolved) -> Outcome {
    for id in matches.ids() {
        let Some(field) = id.as_str().strip_prefix(PREFIX).and_then(Field::named) else { continue };
        if matches.value_source(id.as_str()) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values: Vec<&str> =
            matches.get_many::<String>(id.as_str()).into_iter().flatten().map(String::as_str).collect();
        resolved.add_argument(field.name, &values.join(","), &format!("--{}", field.argument.unwrap_or(field.name)))?;
    }
    match matches.subcommand() {
        Some((_, matches)) => add(matches, resolved),
        None => Ok(()),
    }
}

/// The id of a setting's argument.
fn id(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Where arguments of settings stand in a command's help.
const AFTER: usize = 500;

/// The argument of a setting.
fn argument(name: &str) -> Option<Arg> {
    let field = Field::named(name)?;
    let usual = Settings::default();
    let (value, doc) = (field.show(&usual), field.doc());
    let help = match value.is_empty() {
        true => doc.trim_end_matches('.').to_owned(),
        false => format!("{} [default: {value}]", doc.trim_end_matches('.')),
    };
    let check = move |text: &str| -> Result<String, String> {
        field.set(&mut Settings::default(), text).map(|()| text.to_owned())
    };
    let arg = Arg::new(id(name))
        .long(field.argument?)
        .value_name(field.value)
        .help(help)
        // Behind the command's own.
        .display_order(AFTER)
        .value_parser(check);
    Some(match value.as_str() {
        // A flag, which may be taken back.
        "true" | "false" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        // A list.
        "" => arg.action(ArgAction::Append),
        _ => arg,
    })
}
