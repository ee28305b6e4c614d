//! From the vectors of a text's tokens to the vector of the text, as the files of sentence-transformers say.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::files;
use crate::json::{self, Fields, brief};
use crate::modules::{self, Class, MODULES, Module};

/// Maximum number of modules. Published models have three, and some a second Normalize.
const MAX_MODULES: usize = 8;
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
        let modules = documents.json_if_present(FileName::Modules)?.map(modules::read).transpose()?;
        if let Some(fields) = documents.sentence_config()? {
            config.do_lower_case = fields.flag("do_lower_case")?.unwrap_or(false);
            if modules.is_some() {
                check_transformer(&fields)?;
            }
        }
        // Without modules sentence-transformers does not read its config for a whole model either.
        if let Some(modules) = modules {
            config.read_own(documents)?;
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
        // sentence-transformers slices with the value, and Python refuses a float there.
        if let Some(value) = fields.get("truncate_dim").filter(|value| value.is_f64()) {
            return Err(fields.problem("truncate_dim", &format!("must be an integer, found {}", brief(value))));
        }
        self.truncate_dim = fields.size("truncate_dim", MAX_DIMENSIONS)?;
        Ok(())
    }

    fn read_modules(&mut self, documents: &Documents, modules: &[Module]) -> Result<()> {
        let classes = modules.iter().take(MAX_MODULES).map(Module::class).collect::<Result<Vec<_>>>()?;
        for (module, class) in modules.iter().zip(&classes) {
            match class {
                Class::Transformer => {}
                Class::Pooling => self.read_pooling(documents, &module.config())?,
                Class::Normalize => check_normalize(module, documents)?,
            }
        }
        let normalizes = match classes.as_slice() {
            [Class::Transformer, Class::Pooling, rest @ ..] if classes.len() == modules.len() => Some(rest),
            _ => None,
        };
        let Some(normalizes) = normalizes.filter(|rest| rest.iter().all(|class| *class == Class::Normalize)) else {
            let found: Vec<&str> = modules.iter().take(MAX_MODULES).map(Module::name).collect();
            let problem = "expected a Transformer, a Pooling and perhaps a Normalize, found";
            return Err(modules::damaged(format!("{problem} {}", found.join(", "))));
        };
        // Scaling a vector again changes nothing.
        self.normalize = !normalizes.is_empty();
        Ok(())
    }

    fn read_pooling(&mut self, documents: &Documents, file: &str) -> Result<()> {
        let path = files::join_inside(documents.path(), file, MODULES)?;
        let value = json::parse(&files::read_text(&path)?, file)?;
        let fields = Fields::of(&value, file, "")?;
        // Newer files say `"pooling_mode": "mean"`, older ones have a flag for each mode and mean the mean if none is set.
        let named = match fields.get("pooling_mode") {
            Some(Value::Array(modes)) => match modes.iter().map(Value::as_str).collect() {
                Some(modes) => modes,
                None => return Err(fields.problem("pooling_mode", "must be a string or a list of them")),
            },
            Some(_) => fields.text("pooling_mode")?.into_iter().collect(),
            None if fields.mentions("pooling_mode") => Vec::new(),
            None => set_flags(&fields)?,
        };
        self.pooling = Some(match named.as_slice() {
            [] => return Err(fields.problem("pooling_mode", "names no mode")),
            ["mean"] => Pooling::Mean,
            ["max"] => Pooling::Max,
            ["cls"] => Pooling::Cls,
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

/// Returns the modes whose flags a pooling's config sets, by their names in `pooling_mode`.
fn set_flags<'a>(fields: &Fields<'a>) -> Result<Vec<&'a str>> {
    let mut modes = Vec::new();
    for key in fields.keys() {
        if let Some(mode) = key.strip_prefix("pooling_mode_")
            && fields.flag(key)?.unwrap_or(false)
        {
            modes.push(match mode {
                "mean_tokens" => "mean",
                "max_tokens" => "max",
                "cls_token" => "cls",
                // sentence-transformers knows no flag of these names.
                "mean" | "max" | "cls" => key,
                other => other,
            });
        }
    }
    Ok(if modes.is_empty() { vec!["mean"] } else { modes })
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

/// Refuses a module that scales anything but the vector of a text.
fn check_normalize(module: &Module<'_>, documents: &Documents) -> Result<()> {
    if module.is_in_root() {
        return Ok(());
    }
    let file = module.config();
    let path = files::join_inside(documents.path(), &file, MODULES)?;
    let Some(text) = files::if_present(files::read_text(&path))? else { return Ok(()) };
    let value = json::parse(&text, &file)?;
    let fields = Fields::of(&value, &file, "")?;
    expect(&fields, "module_input_name", "sentence_embedding")?;
    expect(&fields, "module_output_name", "sentence_embedding")
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

#[cfg(test)]
mod tests;
