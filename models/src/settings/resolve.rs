//! What decides a setting: the default, a file, a variable of the environment, or an argument.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use sinew_memory::check_name;
use sinew_ops::Policy;

use super::{FIELDS, Field, Settings};
use crate::hub::variables;
use crate::nearest::{edit_distance, nearest};
use crate::{Error, Result};

/// The variable of the environment that names the file of settings.
pub const FILE_VARIABLE: &str = "SINEW_SETTINGS";

/// Where the value of a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nothing decided.
    Default,
    /// A line of a file, counted from 1.
    File(PathBuf, usize),
    /// A variable of the environment.
    Variable(String),
    /// An argument, with its dashes.
    Argument(String),
}

/// Settings, and what decided each.
///
/// ```
/// use sinew_models::settings::{Resolved, Source};
///
/// let mut resolved = Resolved::new();
/// resolved.add_environment(&|name| (name == "SINEW_THREADS").then(|| "2".into()))?;
/// resolved.add_argument("kv_dtype", "int8", "--kv-dtype")?;
/// assert_eq!(resolved.settings().threads.map(|threads| threads.get()), Some(2));
/// assert_eq!(resolved.source("threads"), &Source::Variable("SINEW_THREADS".to_owned()));
/// assert_eq!(resolved.source("kv_dtype").to_string(), "--kv-dtype");
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Resolved {
    settings: Settings,
    /// At the places of [`FIELDS`].
    sources: Vec<Source>,
}

impl Default for Resolved {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) | Self::Argument(name) => f.write_str(name),
        }
    }
}

impl Resolved {
    /// Defaults.
    pub fn new() -> Self {
        Self { settings: Settings::default(), sources: vec![Source::Default; FIELDS.len()] }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What decided the setting of this name; the default, where there is none.
    pub fn source(&self, name: &str) -> &Source {
        let at = FIELDS.iter().position(|field| field.name == name);
        at.map_or(&Source::Default, |at| &self.sources[at])
    }

    /// Refuses names of devices and kernels that there are not, whatever they come from, before any device is opened.
    ///
    /// # Errors
    /// Such a name, with what decided it and what there is.
    pub fn check_names(&self) -> Result<()> {
        let by = |name: &str, error: &dyn fmt::Display| Error::Input(format!("{}: {error}", self.source(name)));
        check_name(&self.settings.device).map_err(|error| by("device", &error))?;
        Policy::check_names(&self.settings.kernels).map_err(|error| by("kernels", &error))
    }

    /// What variables of the environment say goes before what is known. Empty ones say nothing.
    ///
    /// # Errors
    /// A value that the setting cannot have.
    pub fn add_environment(&mut self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<()> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        for field in FIELDS {
            // What the variables of the hub say is read where the hub is: before a file that says something else.
            let others = hub_variables(field.name);
            if let Some(name) = others.iter().find(|name| value(name).is_some()) {
                self.set(field, "auto", Source::Variable((*name).to_owned())).map_err(Error::Input)?;
            }
            let name = field.variable();
            if let Some(text) = value(&name) {
                let text = text.into_string().map_err(|_| Error::Input(format!("{name} is not UTF-8")))?;
                let set = self.set(field, &text, Source::Variable(name.clone()));
                set.map_err(|problem| Error::Input(format!("{name}: `{text}`: {problem}")))?;
            }
        }
        Ok(())
    }

    /// What an argument says of the setting of this name goes before what is known. `argument` is what sources call it.
    ///
    /// # Errors
    /// A name that there is not, with the nearest that there are, or a value that the setting cannot have.
    pub fn add_argument(&mut self, name: &str, text: &str, argument: &str) -> Result<()> {
        let field = Field::named(name).ok_or_else(|| Error::Input(format!("{argument}: {}", unknown(name))))?;
        let set = self.set(field, text, Source::Argument(argument.to_owned()));
        set.map_err(|problem| Error::Input(format!("{argument}: `{text}`: {problem}")))
    }

    pub(super) fn set(&mut self, field: &Field, text: &str, source: Source) -> std::result::Result<(), String> {
        field.set(&mut self.settings, text)?;
        // A path in a file is seen from there, wherever the process happens to be.
        if let Source::File(file, _) = &source
            && let Ok(file) = std::path::absolute(file)
            && let Some(folder) = file.parent()
        {
            field.rebase(&mut self.settings, folder);
        }
        let at = FIELDS.iter().position(|known| known.name == field.name);
        if let Some(source_of) = at.and_then(|at| self.sources.get_mut(at)) {
            *source_of = source;
        }
        Ok(())
    }
}

/// The variables of other programs that decide a setting of the hub.
fn hub_variables(name: &str) -> &'static [&'static str] {
    const CACHE: [&str; 3] = [variables::CACHE[0], variables::CACHE[1], variables::HOME];
    const TOKEN: [&str; 4] = [variables::TOKEN[0], variables::TOKEN[1], variables::TOKEN_PATH, variables::HOME];
    match name {
        "hub_cache" => &CACHE,
        "hub_endpoint" => &[variables::ENDPOINT],
        "hub_token" => &TOKEN,
        "hub_offline" => &variables::OFFLINE,
        _ => &[],
    }
}

pub(super) fn unknown(name: &str) -> String {
    let names: Vec<String> = FIELDS.iter().map(|field| field.name.to_owned()).collect();
    let nearest = nearest(name, names.iter());
    format!("there is no setting `{}`; the nearest are {}", crate::printable(name), nearest.join(", "))
}

/// The setting's variable that a variable of such a name was meant to be, if it is but a slip away from one: others
/// that begin with `SINEW_` may be some other program's.
///
/// ```
/// use sinew_models::settings::meant_by;
///
/// assert_eq!(meant_by("SINEW_THREAD").as_deref(), Some("SINEW_THREADS"));
/// assert_eq!(meant_by("SINEW_THREADS"), None);
/// assert_eq!(meant_by("SINEW_SOMETHING"), None);
/// ```
pub fn meant_by(variable: &str) -> Option<String> {
    /// Letters that may be wrong; in short names, half of which they would be, one.
    const SLIP: usize = 2;
    const PREFIX: &str = "SINEW_";
    let name = variable.strip_prefix(PREFIX)?;
    let known: Vec<String> = FIELDS.iter().map(Field::variable).chain([FILE_VARIABLE.to_owned()]).collect();
    if known.iter().any(|known| known == variable) {
        return None;
    }
    let slip = if name.len() < 2 * SLIP + 1 { 1 } else { SLIP };
    let (edits, known) = known.into_iter().map(|known| (edit_distance(variable, &known), known)).min()?;
    (edits <= slip).then_some(known)
}
