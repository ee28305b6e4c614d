//! What decides a setting: the default, a file, a variable of the environment, or an argument.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use sinew_memory::check_name;
use sinew_ops::Policy;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{FIELDS, Field, Settings};
use crate::hub::variables;
use crate::nearest::{edit_distance, nearest};
use crate::{Error, Result, files};

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
/// use std::path::Path;
/// use sinew_models::settings::{Resolved, Source};
///
/// let mut resolved = Resolved::new();
/// resolved.add_toml(Path::new("settings.toml"), "threads = 4\nkv_dtype = \"int8\"\n")?;
/// resolved.add_environment(&|name| (name == "SINEW_THREADS").then(|| "2".into()))?;
/// assert_eq!(resolved.settings().threads.map(|threads| threads.get()), Some(2));
/// assert_eq!(resolved.source("threads"), &Source::Variable("SINEW_THREADS".to_owned()));
/// assert_eq!(resolved.source("kv_dtype").to_string(), "settings.toml:2");
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

    /// What a user has: `file`, else the one that `SINEW_SETTINGS` names, else `sinew/settings.toml` in
    /// `XDG_CONFIG_HOME` or `HOME/.config`, if it is there; then the variables of the environment.
    ///
    /// # Errors
    /// A file that is named and not there, that is no TOML, or has a key or a value that there is not; or such a value of
    /// a variable.
    pub fn of_user(file: Option<&Path>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut resolved = Self::new();
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = file.map(Path::to_owned).or_else(|| set(FILE_VARIABLE));
        let folder = || set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        match named {
            Some(path) => resolved.add_toml(&path, &files::read_text(&path)?)?,
            // A path from wherever the process happens to be is nobody's home.
            None => {
                if let Some(path) = folder().filter(|folder| folder.is_absolute()) {
                    let path = path.join("sinew").join("settings.toml");
                    if let Some(text) = files::if_present(files::read_text(&path))? {
                        resolved.add_toml(&path, &text)?;
                    }
                }
            }
        }
        resolved.add_environment(variable)?;
        Ok(resolved)
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

    /// What a file in TOML says goes before what is known; `path` is what sources call it, and from its folder the paths
    /// in it are taken that do not begin at the root.
    ///
    /// # Errors
    /// No TOML, a key that there is not, with the nearest that there are, or a value that the setting cannot have.
    pub fn add_toml(&mut self, path: &Path, text: &str) -> Result<()> {
        let line_of = |at: usize| text.get(..at).map_or(1, |before| 1 + before.matches('\n').count());
        let config =
            |line: usize, problem: String| Error::Config { file: format!("{}:{line}", path.display()), problem };
        let table = DeTable::parse(text)
            .map_err(|error| config(error.span().map_or(1, |span| line_of(span.start)), error.message().to_owned()))?;
        for (key, value) in table.get_ref() {
            let line = line_of(key.span().start);
            let Some(field) = Field::named(key.get_ref()) else {
                return Err(config(line, unknown(key.get_ref())));
            };
            let of_field = |problem: String| config(line, format!("{}: {problem}", field.name));
            let text = match value.get_ref() {
                DeValue::Array(_) if !field.list => {
                    Err(format!("expected is one value, {}, and no list: {}", field.value, field.doc()))
                }
                DeValue::Array(values) => {
                    values.iter().map(plain).collect::<std::result::Result<Vec<_>, _>>().map(|all| all.join(","))
                }
                _ => plain(value),
            };
            let text = text.map_err(of_field)?;
            self.set(field, &text, Source::File(path.to_owned(), line)).map_err(of_field)?;
        }
        Ok(())
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

    fn set(&mut self, field: &Field, text: &str, source: Source) -> std::result::Result<(), String> {
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

fn unknown(name: &str) -> String {
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

/// A value as the text that a setting takes.
fn plain(value: &Spanned<DeValue<'_>>) -> std::result::Result<String, String> {
    Ok(match value.get_ref() {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            // Too long for any setting, which says what it takes instead.
            Err(_) => number.to_string(),
        },
        DeValue::Boolean(is) => is.to_string(),
        _ => return Err("a value is a text, a whole number, true, false, or a list of such".to_owned()),
    })
}

impl Settings {
    /// A file in TOML that says the same, wherever it is kept. Defaults are comments, and so is what is secret.
    pub fn to_toml(&self) -> String {
        let (mut text, mut settings, usual) = (String::new(), self.clone(), Self::default());
        let here = std::env::current_dir().ok();
        for field in FIELDS {
            here.iter().for_each(|here| field.rebase(&mut settings, here));
            let value = field.show(&settings);
            text.push_str(&format!("# {}\n", field.doc()));
            let line = format!("{} = {}\n", field.name, literal(&value));
            match (field.secret && value != field.show(&usual), value == field.show(&usual)) {
                (true, _) => text.push_str(&format!("# {} is set\n", field.name)),
                (false, true) => text.push_str(&format!("# {line}")),
                (false, false) => text.push_str(&line),
            }
            text.push('\n');
        }
        text
    }
}

/// A text as TOML has it: numbers, true and false as they are.
fn literal(text: &str) -> String {
    if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) || text == "true" || text == "false" {
        return text.to_owned();
    }
    toml::Value::String(text.to_owned()).to_string()
}
