//! Reads and writes settings in TOML files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::resolve::{FILE_VARIABLE, Resolved, Source, unknown};
use super::{FIELDS, Field, Settings};
use crate::{Error, Result, files};

impl Resolved {
    /// Reads the settings of a user from `file` or, without one, the file that `SINEW_SETTINGS` names. Without either
    /// it reads `sinew/settings.toml` in `XDG_CONFIG_HOME` or `HOME/.config`, if there is one. Variables of the
    /// environment override the file.
    ///
    /// # Errors
    /// Fails if a named file is missing or is not TOML. Fails if a key is unknown, or a value of the file or a variable
    /// is invalid.
    pub fn of_user(file: Option<&Path>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut resolved = Self::new();
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = file.map(Path::to_owned).or_else(|| set(FILE_VARIABLE));
        let folder = || set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        match named {
            Some(path) => resolved.add_toml(&path, &files::read_text(&path)?)?,
            // A relative path depends on the working directory, so it is ignored.
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

    /// Sets the values of a TOML file, which override earlier ones. Sources name the file `path`, and relative paths in
    /// it start at its folder.
    ///
    /// ```
    /// use std::path::Path;
    /// use sinew_models::settings::Resolved;
    ///
    /// let mut resolved = Resolved::new();
    /// resolved.add_toml(Path::new("settings.toml"), "threads = 4\nkv_dtype = \"int8\"\n")?;
    /// assert_eq!(resolved.source("kv_dtype").to_string(), "settings.toml:2");
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `text` is not TOML, a key is unknown, or a value is invalid. The message names the keys nearest to an
    /// unknown one.
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
                    Err(format!("expected one value ({}), found a list: {}", field.value, field.doc()))
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
}

/// Converts a value to the text that a setting takes.
fn plain(value: &Spanned<DeValue<'_>>) -> std::result::Result<String, String> {
    Ok(match value.get_ref() {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            // The number is too long for any setting; the setting reports what it takes.
            Err(_) => number.to_string(),
        },
        DeValue::Boolean(is) => is.to_string(),
        _ => return Err("a value is a text, a whole number, true, false, or a list of such".to_owned()),
    })
}

impl Settings {
    /// Writes the settings as a TOML file that can be kept in any folder. Defaults and secrets become comments.
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

/// Writes a text as a TOML value; numbers, true and false stay without quotes.
fn literal(text: &str) -> String {
    if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) || text == "true" || text == "false" {
        return text.to_owned();
    }
    toml::Value::String(text.to_owned()).to_string()
}
