//! The modules of a model of sentence-transformers, from its `modules.json`.

use std::path::{Component, Path};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files;
use crate::json::{Fields, brief};

pub(crate) const MODULES: &str = "modules.json";

/// Lists the module classes of sentence-transformers that Sinew runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Transformer,
    Pooling,
    Normalize,
}

/// Describes a package of sentence-transformers that has classes of modules. The version that saved a model decides the
/// package.
struct Package {
    /// The whole name of a class begins with this.
    prefix: &'static str,
    /// Names of classes in the package. One that is saved by the name of its file has that before it.
    classes: &'static [(Class, &'static [&'static str])],
}

const PACKAGES: [Package; 3] = [
    Package {
        prefix: "sentence_transformers.models.",
        classes: &[
            (Class::Transformer, &["Transformer", "Transformer.Transformer"]),
            (Class::Pooling, &["Pooling", "Pooling.Pooling"]),
            (Class::Normalize, &["Normalize", "Normalize.Normalize"]),
        ],
    },
    Package {
        prefix: "sentence_transformers.base.modules.",
        classes: &[
            (Class::Transformer, &["Transformer", "transformer.Transformer"]),
            (Class::Normalize, &["Normalize", "normalize.Normalize"]),
        ],
    },
    Package {
        prefix: "sentence_transformers.sentence_transformer.modules.",
        classes: &[
            (Class::Transformer, &["Transformer"]),
            (Class::Pooling, &["Pooling", "pooling.Pooling"]),
            (Class::Normalize, &["Normalize", "normalize.Normalize"]),
        ],
    },
];

/// An entry of `modules.json`.
pub(crate) struct Module<'a> {
    /// The class of the module has this name, with the package.
    class: &'a str,
    path: Option<&'a str>,
}

/// Reads the value of `modules.json`.
pub(crate) fn read(value: &Value) -> Result<Vec<Module<'_>>> {
    let modules =
        value.as_array().ok_or_else(|| damaged(format!("expected a list of modules, found {}", brief(value))))?;
    let modules = modules.iter().map(|module| {
        let fields = Fields::of(module, MODULES, "")?;
        Ok(Module { class: fields.required("type", fields.text("type")?)?, path: fields.text("path")? })
    });
    modules.collect()
}

impl<'a> Module<'a> {
    /// Returns the package, and the name without it. `None` stands for other code, whose class may have the same last
    /// part and do something else.
    fn package(&self) -> Option<(&'static Package, &'a str)> {
        PACKAGES.iter().find_map(|package| Some((package, self.class.strip_prefix(package.prefix)?)))
    }

    /// # Errors
    /// [`Error::Unsupported`] for a class that is not implemented, because its vectors would differ.
    pub fn class(&self) -> Result<Class> {
        let known = self.package().and_then(|(package, name)| {
            package.classes.iter().find_map(|(class, names)| names.contains(&name).then_some(*class))
        });
        known.ok_or_else(|| Error::Unsupported {
            what: format!("the module `{}` in {MODULES}", crate::printable(self.name())),
            supported: "Transformer, Pooling and Normalize of sentence_transformers".to_owned(),
        })
    }

    /// Returns the name without the package if the package belongs to sentence-transformers.
    pub fn name(&self) -> &'a str {
        self.package().map_or(self.class, |(_, name)| name)
    }

    /// The name of its config in the model's folder.
    pub fn config(&self) -> String {
        format!("{}/config.json", self.path.unwrap_or("1_Pooling"))
    }

    /// Returns whether the module uses the files of the model's folder.
    pub fn is_in_root(&self) -> bool {
        Path::new(self.path.unwrap_or_default()).components().all(|part| part == Component::CurDir)
    }
}

pub(crate) fn damaged(problem: String) -> Error {
    Error::Config { file: MODULES.to_owned(), problem }
}

/// Returns the configs of modules that `modules.json` names, for the model in `folder`. An unusable `modules.json` names
/// none; the code that needs it reports the error.
pub(crate) fn config_files(folder: &Path, modules: Option<&Value>) -> Result<Vec<String>> {
    let modules = modules.and_then(|modules| read(modules).ok()).unwrap_or_default();
    let configs: Vec<String> = modules.iter().filter(|module| !module.is_in_root()).map(Module::config).collect();
    for config in &configs {
        files::join_inside(folder, config, MODULES)?;
    }
    Ok(configs)
}

/// Returns the folder of the `Transformer` that `modules.json` names, inside the model's `folder` and with `/` between
/// its parts; empty for the model's own folder. An unusable `modules.json` names none; the code that needs it reports
/// the error.
pub(crate) fn transformer_folder(folder: &Path, modules: Option<&Value>) -> Result<String> {
    let modules = modules.and_then(|modules| read(modules).ok()).unwrap_or_default();
    // A class of other code is refused by its name later, once its files are found.
    let transformer = modules.iter().find(|module| module.class.rsplit('.').next() == Some("Transformer"));
    let Some(path) = transformer.and_then(|module| module.path).filter(|path| !path.is_empty()) else {
        return Ok(String::new());
    };
    files::join_inside(folder, path, MODULES)?;
    let parts: Vec<&str> = path.split('/').filter(|part| !["", "."].contains(part)).collect();
    Ok(parts.join("/"))
}
