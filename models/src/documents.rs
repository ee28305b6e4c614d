//! The files of a model's folder beside its weights: their names, and what they say, before anything is made of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files;
use crate::json::{self, Fields};
use crate::modules::{self, MODULES};

macro_rules! file_names {
    ($($file:ident = $name:expr,)*) => {
        /// A file that is read of a model besides its weights. The hub is asked for these, and for those that they name:
        /// shards, and the configs of pooling.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FileName {
            $($file,)*
        }

        impl FileName {
            pub(crate) const ALL: &[Self] = &[$(Self::$file),*];

            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$file => $name,)*
                }
            }
        }
    };
}

file_names! {
    Config = "config.json",
    GenerationConfig = "generation_config.json",
    Tokenizer = "tokenizer.json",
    QuantizeConfig = "quantize_config.json",
    QuantConfig = "quant_config.json",
    HfQuantConfig = "hf_quant_config.json",
    TokenizerConfig = "tokenizer_config.json",
    SpecialTokensMap = "special_tokens_map.json",
    AddedTokens = "added_tokens.json",
    ChatTemplate = "chat_template.jinja",
    Modules = MODULES,
    SentenceBertConfig = "sentence_bert_config.json",
    SentenceRobertaConfig = "sentence_roberta_config.json",
    SentenceXlmRobertaConfig = "sentence_xlm-roberta_config.json",
    SentenceTransformersConfig = "config_sentence_transformers.json",
}

impl FileName {
    /// Tells if sentence-transformers keeps the file in the model's folder, even if the transformer has its own.
    fn is_of_all_modules(self) -> bool {
        matches!(self, Self::Modules | Self::SentenceTransformersConfig)
    }
}

/// The folder of chat templates beside the one in [`FileName::ChatTemplate`], each a file named after its template.
pub(crate) const ADDITIONAL_CHAT_TEMPLATES: &str = "additional_chat_templates";

/// How the names of the files in [`ADDITIONAL_CHAT_TEMPLATES`] end.
pub(crate) const TEMPLATE_SUFFIX: &str = ".jinja";

/// The files of a model's folder, as whoever reads one takes them.
#[derive(Debug)]
pub(crate) struct Documents {
    path: PathBuf,
    /// What the files say that several readers share, at the places of [`FileName`].
    json: [OnceLock<Option<Value>>; FileName::ALL.len()],
}

impl Documents {
    /// Those of the folder at `path`, whatever is there.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), json: [const { OnceLock::new() }; FileName::ALL.len()] }
    }

    /// Where they are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the folder inside this one that has the weights and their config, tokenizer and other files, as some
    /// models of sentence-transformers have it; empty where they are in this folder.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a `modules.json` that names a folder outside.
    pub(crate) fn transformer(&self) -> Result<String> {
        modules::transformer_folder(&self.path, self.json_if_present(FileName::Modules).ok().flatten())
    }

    /// The folder of the weights: [`transformer`](Self::transformer).
    pub(crate) fn weights(&self) -> Result<PathBuf> {
        let folder = self.transformer()?;
        // Joined with nothing, the path of a single file would end with a separator.
        Ok(if folder.is_empty() { self.path.clone() } else { self.path.join(folder) })
    }

    /// The name of a file in the model's folder, `/` between the parts.
    ///
    /// # Errors
    /// The errors of [`transformer`](Self::transformer).
    pub(crate) fn name_of(&self, file: FileName) -> Result<String> {
        let folder = if file.is_of_all_modules() { String::new() } else { self.transformer()? };
        Ok(if folder.is_empty() { file.as_str().to_owned() } else { format!("{folder}/{}", file.as_str()) })
    }

    /// Where a file is, or would be.
    ///
    /// # Errors
    /// The errors of [`transformer`](Self::transformer).
    pub(crate) fn path_of(&self, file: FileName) -> Result<PathBuf> {
        Ok(self.path.join(self.name_of(file)?))
    }

    /// The text of a file, which must be there.
    pub(crate) fn text(&self, file: FileName) -> Result<String> {
        let path = self.path_of(file)?;
        match file {
            FileName::Tokenizer => files::read_long(&path),
            _ => files::read_text(&path),
        }
    }

    /// The text of a file; `None` where there is none.
    pub(crate) fn text_if_present(&self, file: FileName) -> Result<Option<String>> {
        files::if_present(self.text(file))
    }

    /// Names and sources of the files in [`ADDITIONAL_CHAT_TEMPLATES`], in the order of their names.
    ///
    /// # Errors
    /// An error for a folder or file that cannot be read, and for more or longer files than there is use for.
    pub(crate) fn additional_chat_templates(&self) -> Result<Vec<(String, String)>> {
        const MAX_TEMPLATES: usize = 64;
        const MAX_BYTES: u64 = 1 << 20;
        let folder = self.path.join(ADDITIONAL_CHAT_TEMPLATES);
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let failed = |e| Error::io("read", &folder, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(TEMPLATE_SUFFIX)) else { continue };
            if names.len() == MAX_TEMPLATES {
                let problem = format!("more than {MAX_TEMPLATES} chat templates");
                return Err(Error::Config { file: ADDITIONAL_CHAT_TEMPLATES.to_owned(), problem });
            }
            names.push(name.to_owned());
        }
        names.sort();
        let read = |name: String| {
            let source = files::read_within(&folder.join(format!("{name}{TEMPLATE_SUFFIX}")), MAX_BYTES)?;
            Ok((name, source))
        };
        names.into_iter().map(read).collect()
    }

    /// What a JSON file says; `None` where there is none.
    pub(crate) fn json_if_present(&self, file: FileName) -> Result<Option<&Value>> {
        let read = || self.text_if_present(file)?.map(|text| json::parse(&text, file.as_str())).transpose();
        once(&self.json[file as usize], read).map(Option::as_ref)
    }

    /// What sentence-transformers has to say of texts, in a file that once had the model's name: the first that is there.
    pub(crate) fn sentence_config(&self) -> Result<Option<Fields<'_>>> {
        for file in [FileName::SentenceBertConfig, FileName::SentenceRobertaConfig, FileName::SentenceXlmRobertaConfig]
        {
            if let Some(value) = self.json_if_present(file)? {
                return Fields::of(value, file.as_str(), "").map(Some);
            }
        }
        Ok(None)
    }
}

/// What `cell` holds, which is read if it holds nothing yet. Of two threads that both read, the first to end is right.
pub(crate) fn once<T>(cell: &OnceLock<T>, read: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(value) => Ok(value),
        None => {
            let value = read()?;
            Ok(cell.get_or_init(|| value))
        }
    }
}
