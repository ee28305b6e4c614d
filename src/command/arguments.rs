//! Arguments of settings, made from the table of settings: a command says which it takes.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args};
use sinew::models::Settings;
use sinew::models::settings::{Field, Resolved, Source};

use super::Outcome;

/// What the ids of such arguments begin with.
const PREFIX: &str = "setting.";

/// What this run of the command goes by: said once, when its arguments are known.
static RESOLVED: OnceLock<Resolved> = OnceLock::new();

/// What was resolved: defaults, before it was.
pub fn resolved() -> &'static Resolved {
    RESOLVED.get_or_init(Resolved::new)
}

/// The settings of this run.
pub fn settings() -> &'static Settings {
    resolved().settings()
}

/// Which of these settings an argument of this run has set, as it is written.
pub fn given(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match resolved().source(name) {
        Source::Argument(argument) => Some(argument.clone()),
        _ => None,
    })
}

/// Where settings come from, besides their own arguments.
#[derive(Debug, Args)]
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
    pub fn resolve(&self, matches: &ArgMatches) -> Outcome {
        let mut resolved = Resolved::of_user(self.settings.as_deref(), &|name| std::env::var_os(name))?;
        for set in &self.set {
            let (name, value) =
                set.split_once('=').ok_or_else(|| format!("--set {set}: write it as --set name=value"))?;
            resolved.add_argument(name.trim(), value.trim(), "--set")?;
        }
        add(matches, &mut resolved)?;
        if matches!(resolved.source("kv_recent"), Source::Argument(_)) && resolved.settings().kv_old.0.is_none() {
            return Err("--kv-recent is for --kv-old int8 and fp8".into());
        }
        // Once in a process.
        let _ = RESOLVED.set(resolved);
        Ok(())
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

/// The argument of a setting.
pub fn argument(name: &str, global: bool) -> Option<Arg> {
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
        .global(global)
        .value_parser(check);
    Some(match value.as_str() {
        // A flag, which may be taken back.
        "true" | "false" => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        // A list.
        "" => arg.action(ArgAction::Append),
        _ => arg,
    })
}

/// Declares what stands for the arguments of some settings among those of a command.
macro_rules! setting_arguments {
    ($(#[doc = $doc:literal])+ $name:ident, global: $global:literal, [$($field:literal),* $(,)?]) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone)]
        struct $name;

        impl clap::Args for $name {
            fn augment_args(command: clap::Command) -> clap::Command {
                command.args([$($field),*].into_iter().filter_map(|name| arguments::argument(name, $global)))
            }
            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(_: &clap::ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self)
            }
            fn update_from_arg_matches(&mut self, _: &clap::ArgMatches) -> Result<(), clap::Error> {
                Ok(())
            }
        }
    };
}

pub(super) use setting_arguments;
