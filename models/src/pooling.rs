//! From the vectors of a text's tokens to the vector of the text, as the files of sentence-transformers say.

use std::collections::BTreeMap;

use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::files;
use crate::json::{self, Fields, brief};

const MODULES: &str = FileName::Modules.as_str();
/// The class of the module that pools.
const POOLING: &str = "Pooling";

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
        }
    }
}

impl EmbeddingConfig {
    pub(crate) fn read(documents: &Documents) -> Result<Self> {
        let mut config = Self::default();
        if let Some(fields) = documents.sentence_config()? {
            config.do_lower_case = fields.flag("do_lower_case")?.unwrap_or(false);
        }
        config.read_prompts(documents)?;
        config.read_modules(documents)?;
        Ok(config)
    }

    /// The prompt of a name; the default one, or none, where no name is given.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for a name that the model's files do not have.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else { return Ok("") };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
            Error::Input(match known.as_slice() {
                [] => format!("no prompt is called `{name}`: the model has none"),
                known => format!("no prompt is called `{name}`; the model's are {}", known.join(", ")),
            })
        })
    }

    fn read_prompts(&mut self, documents: &Documents) -> Result<()> {
        let file = FileName::SentenceTransformersConfig;
        let Some(value) = documents.json_if_present(file)? else { return Ok(()) };
        let fields = Fields::of(value, file.as_str(), "")?;
        if let Some(prompts) = fields.section("prompts")? {
            for name in prompts.keys() {
                let text = prompts.text(name)?.unwrap_or_default();
                self.prompts.insert(name.to_owned(), text.to_owned());
            }
        }
        self.default_prompt_name = fields.text("default_prompt_name")?.map(str::to_owned);
        if let Some(name) = self.default_prompt_name.as_ref().filter(|&name| !self.prompts.contains_key(name)) {
            return Err(fields.problem("default_prompt_name", &format!("is `{name}`, which `prompts` does not have")));
        }
        Ok(())
    }

    fn read_modules(&mut self, documents: &Documents) -> Result<()> {
        const ALL: [&str; 3] = ["Transformer", POOLING, "Normalize"];
        let Some(modules) = Module::all(documents)? else { return Ok(()) };
        let found: Vec<&str> = modules.iter().map(|module| module.class.as_str()).collect();
        for module in modules.iter().take(ALL.len()) {
            match module.class.as_str() {
                "Transformer" | "Normalize" => {}
                POOLING => self.read_pooling(documents, &module.config())?,
                other => {
                    return Err(Error::Unsupported {
                        what: format!("the module `{}` in {MODULES}", other.escape_debug()),
                        supported: "Transformer, Pooling, Normalize".to_owned(),
                    });
                }
            }
        }
        if found != ALL && found != ALL[..2] {
            let problem = "expected a Transformer, a Pooling and perhaps a Normalize, found";
            return Err(damaged(format!("{problem} {}", found.join(", "))));
        }
        self.normalize = found.len() == ALL.len();
        Ok(())
    }

    fn read_pooling(&mut self, documents: &Documents, file: &str) -> Result<()> {
        let path = files::join_inside(documents.path(), file, MODULES)?;
        let value = json::parse(&files::read_text(&path)?, file)?;
        let fields = Fields::of(&value, file, "")?;
        // Newer files say `"pooling_mode": "mean"`, older ones have a flag for each mode.
        let named = match fields.get("pooling_mode") {
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

/// An entry of `modules.json`.
struct Module {
    /// The last part of its type's name.
    class: String,
    path: Option<String>,
}

impl Module {
    /// `None` in a folder without `modules.json`.
    fn all(documents: &Documents) -> Result<Option<Vec<Self>>> {
        let Some(value) = documents.json_if_present(FileName::Modules)? else { return Ok(None) };
        let modules =
            value.as_array().ok_or_else(|| damaged(format!("expected a list of modules, found {}", brief(value))))?;
        let modules = modules.iter().map(|module| {
            let fields = Fields::of(module, MODULES, "")?;
            let class = fields.required("type", fields.text("type")?)?;
            let class = class.rsplit('.').next().unwrap_or(class).to_owned();
            Ok(Self { class, path: fields.text("path")?.map(str::to_owned) })
        });
        modules.collect::<Result<_>>().map(Some)
    }

    /// The name of its config in the model's folder.
    fn config(&self) -> String {
        format!("{}/config.json", self.path.as_deref().unwrap_or("1_Pooling"))
    }
}

fn damaged(problem: String) -> Error {
    Error::Config { file: MODULES.to_owned(), problem }
}

/// The configs of poolings that `modules.json` names. A `modules.json` that says nothing of use names none: whoever
/// needs it is told.
pub(crate) fn config_files(documents: &Documents) -> Result<Vec<String>> {
    let modules = Module::all(documents).ok().flatten().unwrap_or_default();
    let configs: Vec<String> = modules.iter().filter(|m| m.class == POOLING).map(Module::config).collect();
    for config in &configs {
        files::join_inside(documents.path(), config, MODULES)?;
    }
    Ok(configs)
}

#[cfg(test)]
mod tests;
