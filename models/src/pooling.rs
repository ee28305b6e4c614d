//! From the vectors of a text's tokens to the vector of the text, as the files of sentence-transformers say.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde_json::{Value, json};

use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::files;
use crate::json::{self, Fields, brief};

const MODULES: &str = FileName::Modules.as_str();
/// Maximum number of dimensions that a file may ask for.
const MAX_DIMENSIONS: usize = i32::MAX as usize;

/// How the vectors of a text's tokens become the vector of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean over all tokens, special ones included.
    Mean,
    /// The largest of all tokens, value by value.
    Max,
    /// The first token's.
    Cls,
    /// The last token's.
    LastToken,
}

/// What goes before and after the model in an embedding model, from the files of sentence-transformers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingConfig {
    /// From the pooling's `config.json`; `None` in a folder without `modules.json`.
    pub pooling: Option<Pooling>,
    /// Whether the tokens of a prompt are pooled like those of its text.
    pub include_prompt: bool,
    /// Whether vectors are scaled to length 1: whether `modules.json` has a `Normalize`.
    pub normalize: bool,
    /// Whether texts are turned to lower case before they are tokenized (`sentence_bert_config.json`).
    pub do_lower_case: bool,
    /// What may be put before a text, by name (`config_sentence_transformers.json`).
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that is put before a text unless another is asked for.
    pub default_prompt_name: Option<String>,
    /// A vector keeps this many of its first dimensions (`config_sentence_transformers.json`). sentence-transformers
    /// scales a vector before it cuts it, so the length is below 1.
    pub truncate_dim: Option<usize>,
}

impl Default for EmbeddingConfig {
    /// Normalised, without prompts: what most models without these files were made for.
    fn default() -> Self {
        Self {
            pooling: None,
            include_prompt: true,
            normalize: true,
            do_lower_case: false,
            prompts: BTreeMap::new(),
            default_prompt_name: None,
            truncate_dim: None,
        }
    }
}

impl EmbeddingConfig {
    pub(crate) fn read(documents: &Documents) -> Result<Self> {
        let mut config = Self::default();
        let modules = Module::all(documents)?;
        if let Some(fields) = documents.sentence_config()? {
            config.do_lower_case = fields.flag("do_lower_case")?.unwrap_or(false);
            if modules.is_some() {
                check_transformer(&fields)?;
            }
        }
        config.read_own(documents)?;
        if let Some(modules) = modules {
            config.read_modules(documents, &modules)?;
        }
        Ok(config)
    }

    /// The prompt of a name; the default one, or none, where no name is given.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for a name that the model's files do not have.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else { return Ok("") };
        self.known_prompt(name).ok_or_else(|| {
            let known: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
            Error::Input(match known.as_slice() {
                [] => format!("no prompt is called `{name}`: the model has none"),
                known => format!("no prompt is called `{name}`; the model's are {}", known.join(", ")),
            })
        })
    }

    /// sentence-transformers gives every model empty prompts for queries and documents.
    fn known_prompt(&self, name: &str) -> Option<&str> {
        let empty = ["query", "document"].contains(&name).then_some("");
        self.prompts.get(name).map(String::as_str).or(empty)
    }

    /// Reads the settings of sentence-transformers for a whole model.
    fn read_own(&mut self, documents: &Documents) -> Result<()> {
        let file = FileName::SentenceTransformersConfig;
        let Some(value) = documents.json_if_present(file)? else { return Ok(()) };
        let fields = Fields::of(value, file.as_str(), "")?;
        // Other types have classes of their own, which give scores, several vectors or sparse vectors.
        expect(&fields, "model_type", "SentenceTransformer")?;
        if let Some(prompts) = fields.section("prompts")? {
            for name in prompts.keys() {
                let text = prompts.text(name)?.unwrap_or_default();
                self.prompts.insert(name.to_owned(), text.to_owned());
            }
        }
        self.default_prompt_name = fields.text("default_prompt_name")?.map(str::to_owned);
        if let Some(name) = self.default_prompt_name.as_ref().filter(|name| self.known_prompt(name).is_none()) {
            return Err(fields.problem("default_prompt_name", &format!("is `{name}`, which `prompts` does not have")));
        }
        self.truncate_dim = fields.size("truncate_dim", MAX_DIMENSIONS)?;
        Ok(())
    }

    fn read_modules(&mut self, documents: &Documents, modules: &[Module]) -> Result<()> {
        const ALL: [Class; 3] = [Class::Transformer, Class::Pooling, Class::Normalize];
        let classes = modules.iter().take(ALL.len() + 1).map(Module::class).collect::<Result<Vec<_>>>()?;
        for (module, class) in modules.iter().zip(&classes) {
            match class {
                Class::Transformer => {}
                Class::Pooling => self.read_pooling(documents, &module.config())?,
                Class::Normalize => module.check_normalize(documents)?,
            }
        }
        if classes != ALL && classes != ALL[..2] {
            let found: Vec<String> =
                modules.iter().take(ALL.len() + 1).map(|module| module.name().to_owned()).collect();
            let problem = "expected a Transformer, a Pooling and perhaps a Normalize, found";
            return Err(damaged(format!("{problem} {}", found.join(", "))));
        }
        self.normalize = classes.len() == ALL.len();
        Ok(())
    }

    fn read_pooling(&mut self, documents: &Documents, file: &str) -> Result<()> {
        let path = files::join_inside(documents.path(), file, MODULES)?;
        let value = json::parse(&files::read_text(&path)?, file)?;
        let fields = Fields::of(&value, file, "")?;
        // Newer files say `"pooling_mode": "mean"`, older ones have a flag for each mode.
        let named = match fields.get("pooling_mode") {
            Some(Value::Array(modes)) => match modes.iter().map(Value::as_str).collect() {
                Some(modes) => modes,
                None => return Err(fields.problem("pooling_mode", "must be a string or a list of them")),
            },
            Some(_) => fields.text("pooling_mode")?.into_iter().collect(),
            None => {
                let mut set = Vec::new();
                for key in fields.keys() {
                    if let Some(mode) = key.strip_prefix("pooling_mode_")
                        && fields.flag(key)?.unwrap_or(false)
                    {
                        set.push(mode);
                    }
                }
                set
            }
        };
        self.pooling = Some(match named.as_slice() {
            [] | ["mean" | "mean_tokens"] => Pooling::Mean,
            ["max" | "max_tokens"] => Pooling::Max,
            ["cls" | "cls_token"] => Pooling::Cls,
            ["lasttoken"] => Pooling::LastToken,
            other => {
                return Err(Error::Unsupported {
                    what: format!("pooling `{}` in {}", other.join("+").escape_debug(), file.escape_debug()),
                    supported: "mean, max, cls, lasttoken, one at a time".to_owned(),
                });
            }
        });
        self.include_prompt = fields.flag("include_prompt")?.unwrap_or(true);
        Ok(())
    }
}

impl Pooling {
    /// The vector of a text from those of its tokens, `[tokens, width]`, of which there is one at least. Sums are f64:
    /// they are short, and their error would show in the last digits.
    pub(crate) fn pool(self, states: &[f32], width: usize) -> Vec<f64> {
        let mut rows = states.chunks_exact(width).map(|row| row.iter().map(|&x| f64::from(x)));
        let one = |row: Option<_>| row.map_or_else(Vec::new, Iterator::collect);
        match self {
            Self::Cls => one(rows.next()),
            Self::LastToken => one(rows.next_back()),
            Self::Max => rows.fold(vec![f64::NEG_INFINITY; width], |mut most, row| {
                most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(x));
                most
            }),
            Self::Mean => {
                let weight = 1.0 / rows.len() as f64;
                rows.fold(vec![0.0; width], |mut mean, row| {
                    mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x * weight);
                    mean
                })
            }
        }
    }
}

/// Scales a vector to length 1. sentence-transformers divides by the norm, or by 1e-12 where it is smaller.
pub(crate) fn normalize(vector: &mut [f64]) {
    let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= norm);
}

/// Lists the module classes of sentence-transformers that Sinew runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Transformer,
    Pooling,
    Normalize,
}

/// The name of a module's class begins with one of these packages, depending on the version that saved it.
const PACKAGES: [&str; 3] = [
    "sentence_transformers.models.",
    "sentence_transformers.base.modules.",
    "sentence_transformers.sentence_transformer.modules.",
];

impl Class {
    /// Returns the class of a full name. A class of other code may have the same last part and do something else.
    fn of(name: &str) -> Option<Self> {
        match name.strip_prefix("sentence_transformers.")? {
            "models.Transformer"
            | "models.Transformer.Transformer"
            | "base.modules.Transformer"
            | "base.modules.transformer.Transformer"
            | "sentence_transformer.modules.Transformer" => Some(Self::Transformer),
            "models.Pooling"
            | "models.Pooling.Pooling"
            | "sentence_transformer.modules.Pooling"
            | "sentence_transformer.modules.pooling.Pooling" => Some(Self::Pooling),
            "models.Normalize"
            | "models.Normalize.Normalize"
            | "base.modules.Normalize"
            | "base.modules.normalize.Normalize"
            | "sentence_transformer.modules.Normalize"
            | "sentence_transformer.modules.normalize.Normalize" => Some(Self::Normalize),
            _ => None,
        }
    }
}

/// An entry of `modules.json`.
struct Module<'a> {
    /// The class of the module has this name, with the package.
    class: &'a str,
    path: Option<&'a str>,
}

impl<'a> Module<'a> {
    /// `None` in a folder without `modules.json`.
    fn all(documents: &'a Documents) -> Result<Option<Vec<Self>>> {
        let Some(value) = documents.json_if_present(FileName::Modules)? else { return Ok(None) };
        let modules =
            value.as_array().ok_or_else(|| damaged(format!("expected a list of modules, found {}", brief(value))))?;
        let modules = modules.iter().map(|module| {
            let fields = Fields::of(module, MODULES, "")?;
            Ok(Self { class: fields.required("type", fields.text("type")?)?, path: fields.text("path")? })
        });
        modules.collect::<Result<_>>().map(Some)
    }

    /// # Errors
    /// [`Error::Unsupported`] for a class that is not implemented, because its vectors would differ.
    fn class(&self) -> Result<Class> {
        Class::of(self.class).ok_or_else(|| Error::Unsupported {
            what: format!("the module `{}` in {MODULES}", crate::printable(self.name())),
            supported: "Transformer, Pooling and Normalize of sentence_transformers".to_owned(),
        })
    }

    /// Returns the name without the package if the package belongs to sentence-transformers.
    fn name(&self) -> &'a str {
        PACKAGES.iter().find_map(|package| self.class.strip_prefix(package)).unwrap_or(self.class)
    }

    /// The name of its config in the model's folder.
    fn config(&self) -> String {
        format!("{}/config.json", self.path.unwrap_or("1_Pooling"))
    }

    /// Returns whether the module uses the files of the model's folder.
    fn is_in_root(&self) -> bool {
        Path::new(self.path.unwrap_or_default()).components().all(|part| part == Component::CurDir)
    }

    /// Refuses a module that scales anything but the vector of a text.
    fn check_normalize(&self, documents: &Documents) -> Result<()> {
        if self.is_in_root() {
            return Ok(());
        }
        let file = self.config();
        let path = files::join_inside(documents.path(), &file, MODULES)?;
        let Some(text) = files::if_present(files::read_text(&path))? else { return Ok(()) };
        let value = json::parse(&text, &file)?;
        let fields = Fields::of(&value, &file, "")?;
        expect(&fields, "module_input_name", "sentence_embedding")?;
        expect(&fields, "module_output_name", "sentence_embedding")
    }
}

/// Refuses settings of `sentence_bert_config.json` for models whose last hidden states are not pooled.
fn check_transformer(fields: &Fields<'_>) -> Result<()> {
    expect(fields, "transformer_task", "feature-extraction")?;
    expect(fields, "module_output_name", "token_embeddings")?;
    let unsupported = |name: &str, value: &Value, supported: &str| Error::Unsupported {
        what: format!("{name} {} in {}", brief(value), fields.file()),
        supported: supported.to_owned(),
    };
    if let Some(modalities) = fields.section("modality_config")? {
        // sentence-transformers makes a text a message for the chat template if the model takes messages.
        let messages = modalities.get("message");
        let plain = modalities
            .get("text")
            .is_some_and(|text| text["method"] == "forward" && text["method_output_name"] == "last_hidden_state");
        if let Some(value) = messages.or_else(|| fields.get("modality_config").filter(|_| !plain)) {
            return Err(unsupported("modality_config", value, "the last hidden states of plain texts"));
        }
    }
    match fields.get("processing_kwargs") {
        Some(Value::Object(kwargs)) if kwargs.is_empty() => Ok(()),
        Some(value) => Err(unsupported("processing_kwargs", value, "none")),
        None => Ok(()),
    }
}

/// Refuses a field whose value is not `supported`.
fn expect(fields: &Fields<'_>, name: &str, supported: &str) -> Result<()> {
    match fields.text(name)? {
        Some(found) if found != supported => Err(Error::Unsupported {
            what: format!("{name} {} in {}", brief(&json!(found)), fields.file()),
            supported: supported.to_owned(),
        }),
        _ => Ok(()),
    }
}

fn damaged(problem: String) -> Error {
    Error::Config { file: MODULES.to_owned(), problem }
}

/// Returns the configs of modules that `modules.json` names. An unusable `modules.json` names none; the code that needs
/// it reports the error.
pub(crate) fn config_files(documents: &Documents) -> Result<Vec<String>> {
    let modules = Module::all(documents).ok().flatten().unwrap_or_default();
    let configs: Vec<String> = modules.iter().filter(|module| !module.is_in_root()).map(Module::config).collect();
    for config in &configs {
        files::join_inside(documents.path(), config, MODULES)?;
    }
    Ok(configs)
}

/// Returns the folder of the `Transformer` that `modules.json` names, with `/` between its parts; empty for the model's
/// own folder. An unusable `modules.json` names none; the code that needs it reports the error.
pub(crate) fn transformer_folder(documents: &Documents) -> Result<String> {
    let modules = Module::all(documents).ok().flatten().unwrap_or_default();
    // A class of other code is refused by its name later, once its files are found.
    let transformer = modules.iter().find(|module| module.class.rsplit('.').next() == Some("Transformer"));
    let Some(path) = transformer.and_then(|module| module.path).filter(|path| !path.is_empty()) else {
        return Ok(String::new());
    };
    files::join_inside(documents.path(), path, MODULES)?;
    let parts: Vec<&str> = path.split('/').filter(|part| !["", "."].contains(part)).collect();
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests;
