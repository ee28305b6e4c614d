//! `sinew settings`: what the environment and the arguments decide.

use std::env;
use std::io::Write;
use std::path::Path;

use clap::Args;
use serde_json::json;
use sinew::memory::{level_from_environment, system};
use sinew::models::Hub;
use sinew::models::hub::variables;

use super::{Machine, Outcome};

/// List every setting, its value, and what decides it.
#[derive(Debug, Args)]
pub struct Settings {
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

/// Something that changes what the command does, beside the arguments of a subcommand.
struct Setting {
    /// What it is called here.
    name: &'static str,
    /// Its value; that of a secret is only whether there is one.
    value: String,
    /// The argument or the variable of the environment that decided, or `default`.
    source: String,
    /// Everything that may decide, first what goes first.
    from: &'static [&'static str],
}

impl Settings {
    pub fn run(&self, machine: &Machine) -> Outcome {
        let settings = all(machine)?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let settings: Vec<_> = settings
                .iter()
                .map(|s| json!({ "name": s.name, "value": s.value, "source": s.source, "from": s.from }))
                .collect();
            writeln!(out, "{}", json!({ "settings": settings }))?;
            return Ok(());
        }
        for Setting { name, value, source, from } in settings {
            writeln!(out, "{name:<13} {value}  [{source}; from {}]", from.join(", "))?;
        }
        Ok(())
    }
}

fn all(machine: &Machine) -> Outcome<Vec<Setting>> {
    // What cannot be opened is an error here as everywhere: so is a level that cannot be read.
    machine.context()?;
    let hub = Hub::from_env();
    let threads = machine.threads.unwrap_or_else(system::available_threads);
    let folder = |path: Option<&Path>| path.map_or("none".to_owned(), |path| path.display().to_string());
    let argument = |given: bool, name: &str| if given { name.to_owned() } else { "default".to_owned() };
    let tuning = sinew::ops::TuningCache::of_user();
    let kernels = folder(sinew::memory::PrivateFolder::of_user("kernels").folder());
    Ok(vec![
        Setting {
            name: "device",
            value: machine.device.clone(),
            source: argument(machine.device != super::DEFAULT_DEVICE, "--device"),
            from: &["--device"],
        },
        Setting {
            name: "threads",
            value: threads.to_string(),
            source: argument(machine.threads.is_some(), "--threads"),
            from: &["--threads"],
        },
        Setting {
            name: "pin",
            value: if machine.pin { "each helper thread to a core" } else { "no" }.to_owned(),
            source: argument(machine.pin, "--pin"),
            from: &["--pin"],
        },
        Setting {
            name: "kernels",
            value: if machine.kernel.is_empty() { "by cost".to_owned() } else { machine.kernel.join(", ") },
            source: argument(!machine.kernel.is_empty(), "--kernel"),
            from: &["--kernel"],
        },
        Setting {
            name: "tuning",
            value: if machine.is_tuned()? { folder(tuning.folder().folder()) } else { "off".to_owned() },
            source: if machine.untuned { "--untuned".to_owned() } else { source(&[super::TUNING]) },
            from: &["--untuned", super::TUNING, "XDG_CACHE_HOME", "HOME"],
        },
        set("simd", level_from_environment()?.to_string(), &["SINEW_SIMD"]),
        set(
            "hub cache",
            folder(hub.cache.as_deref()),
            &[variables::CACHE[0], variables::CACHE[1], variables::HOME, "XDG_CACHE_HOME", "HOME"],
        ),
        set("hub endpoint", hub.endpoint, &[variables::ENDPOINT]),
        set(
            "hub token",
            if hub.token.is_some() { "set" } else { "none" }.to_owned(),
            &[
                variables::TOKEN[0],
                variables::TOKEN[1],
                variables::TOKEN_PATH,
                variables::HOME,
                "XDG_CACHE_HOME",
                "HOME",
            ],
        ),
        set(
            "hub offline",
            if hub.offline { "yes" } else { "no" }.to_owned(),
            &[variables::OFFLINE[0], variables::OFFLINE[1]],
        ),
        set("kernel cache", kernels, &["XDG_CACHE_HOME", "HOME"]),
    ])
}

/// A setting that the environment decides.
fn set(name: &'static str, value: String, from: &'static [&'static str]) -> Setting {
    Setting { name, value, source: source(from), from }
}

/// The first of these variables that is set.
fn source(from: &[&'static str]) -> String {
    let source = from.iter().find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    source.map_or("default", |name| name).to_owned()
}
