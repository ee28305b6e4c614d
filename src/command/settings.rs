//! `sinew settings`: every setting, its value, and what decided it.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::Args;
use serde_json::json;
use sinew::models::printable;
use sinew::models::settings::{FIELDS, Field, Source};

use super::arguments::{OF_MODELS, of_settings};
use super::{Outcome, Run};

/// List every setting, its value, and what decides it.
#[derive(Debug, Args)]
#[command(args = OF_MODELS.iter().copied().flat_map(of_settings))]
pub struct Settings {
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
    /// Print a file of settings that says the same, with what each setting means.
    #[arg(long, conflicts_with = "json")]
    toml: bool,
}

/// What is printed of one.
struct Line {
    name: &'static str,
    /// That of a secret is only whether there is one.
    value: String,
    source: String,
    /// Everything that may decide, first what goes first.
    from: Vec<String>,
    doc: String,
}

impl Settings {
    pub fn run(&self, run: &Run) -> Outcome {
        self.print(run)?;
        // What cannot be opened is an error here as everywhere; what has set it is in the table all the same.
        run.context().map(drop)
    }

    fn print(&self, run: &Run) -> Outcome {
        let mut out = std::io::stdout().lock();
        if self.toml {
            write!(out, "{}", run.settings().to_toml())?;
            return Ok(());
        }
        let lines: Vec<Line> = FIELDS.iter().map(|field| line(run, field)).collect();
        if self.json {
            let all: Vec<_> = lines
                .iter()
                .map(|line| {
                    let Line { name, value, source, from, doc } = line;
                    json!({ "name": name, "value": value, "source": source, "from": from, "doc": doc })
                })
                .collect();
            writeln!(out, "{}", json!({ "settings": all }))?;
            return Ok(());
        }
        for Line { name, value, source, from, .. } in lines {
            let [value, source] = [value, source].map(|text| printable(&text));
            writeln!(out, "{name:<14} {value}  [{source}; from {}]", from.join(", "))?;
        }
        Ok(())
    }
}

/// What says where the user's caches are.
const CACHES: [&str; 2] = ["XDG_CACHE_HOME", "HOME"];

/// Which of these does: Sinew's own go by absolute paths alone, the hub's by whatever is there.
fn of_caches(is_of_hub: bool) -> String {
    let counts = |value: OsString| if is_of_hub { !value.is_empty() } else { Path::new(&value).is_absolute() };
    let says = |name: &&&str| env::var_os(name).is_some_and(counts);
    CACHES.iter().find(says).map_or("default", |name| name).to_owned()
}

fn line(run: &Run, field: &'static Field) -> Line {
    let (resolved, settings) = (run.resolved(), run.settings());
    let hub = settings.hub();
    let value = match field.name {
        "tuning_cache" => folder(settings.tuning_cache().folder().folder()),
        "device_cache" => folder(settings.device_cache().folder()),
        "kernel_cache" => folder(settings.kernel_cache().folder()),
        "hub_cache" => folder(hub.cache.as_deref()),
        "hub_endpoint" => hub.endpoint,
        "hub_token" => if hub.token.is_some() { "set" } else { "none" }.to_owned(),
        "hub_offline" => hub.offline.to_string(),
        "simd" => settings.simd_level().to_string(),
        _ => field.show(settings),
    };
    let source = resolved.source(field.name);
    let argument = field.argument.map_or_else(|| format!("--set {}", field.name), |name| format!("--{name}"));
    let from = vec![argument, field.variable(), "settings.toml".to_owned()];
    let source = match source {
        Source::Default => match field.name {
            "tuning_cache" | "device_cache" | "kernel_cache" => of_caches(false),
            "hub_cache" => of_caches(true),
            _ => "default".to_owned(),
        },
        source => source.to_string(),
    };
    Line { name: field.name, value, source, from, doc: field.doc() }
}

fn folder(path: Option<&Path>) -> String {
    path.map_or("none".to_owned(), |path| path.display().to_string())
}
