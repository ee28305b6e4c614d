//! Arguments of settings, made from the table of settings: a command says which it takes.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args};
use sinew::models::Settings;
use sinew::models::settings::{Field, Resolved, Source};

use super::Outcome;

/// What the ids of such arguments begin with.
const PREFIX: &str = "setting.";

/// Where to run, which every command may be told.
const MACHINE: &[&str] =
    &["device", "threads", "pin", "simd", "kernels", "deterministic", "memory_limit", "tuning", "tuning_cache"];
/// In what form weights are kept in memory.
pub const WEIGHTS: &[&str] = &["dtype", "group_size", "zero_points", "keep_head", "activations"];
/// How a decoder is stepped, which changes no result, and in what form it keeps keys and values.
pub const STEPPING: &[&str] = &["prefill_chunk", "block_size", "kv_dtype", "kv_old", "kv_recent"];
/// In what form keys and values are kept.
pub const CACHE_FORM: &[&str] = &["kv_dtype", "kv_old", "kv_recent"];
/// How many sequences a model serves at once.
pub const SERVING: &[&str] = &["max_sequences", "cache_tokens", "swap_tokens"];
/// Room for tokens beside that of a batch.
pub const ROOM: &[&str] = &["cache_tokens", "swap_tokens"];

/// The arguments of some settings, for a command that goes by them.
pub fn of_settings(names: &[&str]) -> impl Iterator<Item = Arg> {
    names.iter().filter_map(|name| argument(name))
}

/// Where settings come from, besides their own arguments.
#[derive(Debug, Args)]
#[command(args = of_settings(MACHINE).map(|arg| arg.global(true)))]
pub struct Origins {
    /// File of settings in TOML; by default the one that SINEW_SETTINGS names, or ~/.config/sinew/settings.toml.
    #[arg(long, global = true, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Set any setting, as `sinew settings` lists them.
    #[arg(long, global = true, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Origins {
    /// Resolves the settings of this run: file, environment, arguments.
    pub fn resolve(&self, matches: &ArgMatches) -> Outcome<Resolved> {
        let mut resolved = Resolved::of_user(self.settings.as_deref(), &|name| std::env::var_os(name))?;
        for set in &self.set {
            let (name, value) =
                set.split_once('=').ok_or_else(|| format!("--set {set}: write it as --set name=value"))?;
            resolved.add_argument(name.trim(), value.trim(), "--set")?;
        }
        add(matches, &mut resolved)?;
        let is_argument = |name| matches!(resolved.source(name), Source::Argument(_));
        // Of an argument that takes old keys back, those before it are none the worse.
        let has_none = resolved.settings().kv_old.0.is_none() && !is_argument("kv_old");
        if is_argument("kv_recent") && has_none {
            return Err("--kv-recent is for --kv-old int8 and fp8".into());
        }
        Ok(resolved)
    }
}

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
    let arg = Arg::new(format!("{PREFIX}{name}"))
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
