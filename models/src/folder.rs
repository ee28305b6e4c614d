//! The folder of a model: what stands beside its weights, each file read when it is first asked for, and once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::checkpoint::Checkpoint;
use crate::documents::{Documents, FileName, once};
use crate::error::{Error, Result};
use crate::pooling::EmbeddingConfig;
use crate::quantized::Quantization;
use crate::tensors::{Load, Tensors};
use crate::tokenizer::TextLimits;
use crate::{ChatTemplate, GenerationConfig, ModelConfig, Tokenizer, contents, files};

/// The folder of a model.
///
/// Nothing is read before it is asked for, and nothing twice: a file that changes meanwhile is as it was, whichever of
/// these functions asks for it next. A file that cannot be read, or is no JSON where it should be, is read anew.
///
/// ```no_run
/// use sinew_models::{Conversation, Folder, LanguageModel, LoadOptions};
///
/// let folder = Folder::new("path/to/model");
/// let context = folder.config()?.as_decoder()?.longest_context();
/// if let Some(template) = folder.chat_template()? {
///     println!("{context} tokens; {}", template.render(&Conversation::default().with("user", "Hello!"))?);
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Folder {
    documents: Documents,
    config: OnceLock<ModelConfig>,
    generation_config: OnceLock<GenerationConfig>,
    tokenizer: OnceLock<Option<Arc<Tokenizer>>>,
    chat_template: OnceLock<Option<ChatTemplate>>,
    embedding: OnceLock<EmbeddingConfig>,
    text_limits: OnceLock<TextLimits>,
}

impl Folder {
    /// The folder at `path`, whatever is there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            documents: Documents::new(path),
            config: OnceLock::new(),
            generation_config: OnceLock::new(),
            tokenizer: OnceLock::new(),
            chat_template: OnceLock::new(),
            embedding: OnceLock::new(),
            text_limits: OnceLock::new(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.documents.path()
    }

    /// The description of the model in `config.json`, with the end tokens of `generation_config.json` where there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for a path that is a file, [`Error::Io`] for a file that
    /// cannot be read, and those of [`ModelConfig::from_json`].
    pub fn config(&self) -> Result<&ModelConfig> {
        once(&self.config, || ModelConfig::read(&self.documents))
    }

    /// How the makers of the model want its answers drawn, from `generation_config.json`; everything is absent where
    /// there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], and those of [`GenerationConfig::from_json`].
    pub fn generation_config(&self) -> Result<&GenerationConfig> {
        let config = self.generation_config_unchecked()?;
        config.validate()?;
        Ok(config)
    }

    /// [`generation_config`](Self::generation_config) without [`GenerationConfig::validate`], for callers that replace
    /// some of its values before they check the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Json`], and [`Error::Config`]
    /// for a field of the wrong type.
    pub fn generation_config_unchecked(&self) -> Result<&GenerationConfig> {
        once(&self.generation_config, || GenerationConfig::read(&self.documents))
    }

    /// The tokenizer in `tokenizer.json`; `None` where there is no such file. `tokenizer_config.json` and
    /// `special_tokens_map.json` add special tokens, and say with which options its steps run.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], those of [`Tokenizer::from_bytes`], and [`Error::Config`] or [`Error::Json`] for a config that is not
    /// as it should be.
    pub fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>> {
        once(&self.tokenizer, || Ok(Tokenizer::read(&self.documents)?.map(Arc::new))).cloned()
    }

    /// The [`tokenizer`](Self::tokenizer), for callers that need one.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] where there is no `tokenizer.json`, with the tokenizer of another kind that the
    /// folder has, and those of [`tokenizer`](Self::tokenizer).
    pub fn required_tokenizer(&self) -> Result<Arc<Tokenizer>> {
        self.tokenizer()?.ok_or_else(|| Error::Input(self.no_tokenizer()))
    }

    /// The message for a folder without `tokenizer.json`.
    pub(crate) fn no_tokenizer(&self) -> String {
        let folder = self.documents.weights().unwrap_or_else(|_| self.path().to_owned());
        format!("{} {}", folder.display(), contents::no_tokenizer(&folder))
    }

    /// The chat templates in `chat_template.jinja` and `additional_chat_templates`, else those in `tokenizer_config.json`,
    /// with the special tokens of `tokenizer_config.json` and `special_tokens_map.json`; `None` if there is no template.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Json`] or [`Error::Config`]
    /// for a file that is there and not as it should be.
    pub fn chat_template(&self) -> Result<Option<&ChatTemplate>> {
        once(&self.chat_template, || ChatTemplate::read(&self.documents)).map(Option::as_ref)
    }

    /// What goes before and after the model in an embedding model, from `modules.json`, the pooling's `config.json`,
    /// `sentence_bert_config.json` (or its names for other models) and `config_sentence_transformers.json`; the
    /// [default](EmbeddingConfig::default) where there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a module or a pooling that is not implemented, since the
    /// vectors would be others; an error for a file that is there and not as it should be.
    pub fn embedding(&self) -> Result<&EmbeddingConfig> {
        once(&self.embedding, || EmbeddingConfig::read(&self.documents))
    }

    /// Whether its model turns texts into vectors: it is an encoder, or there is what says how hidden states are pooled.
    ///
    /// # Errors
    ///
    /// Those of [`Folder::config`] and of [`Folder::embedding`].
    pub fn embeds(&self) -> Result<bool> {
        Ok(matches!(self.config()?, ModelConfig::Encoder(_)) || self.embedding()?.pooling.is_some())
    }

    /// The lengths of texts in `tokenizer_config.json` and `sentence_bert_config.json`, where they say any.
    ///
    /// # Errors
    ///
    /// An error for a file that is there and not as it should be.
    pub fn text_limits(&self) -> Result<TextLimits> {
        once(&self.text_limits, || TextLimits::read(&self.documents)).copied()
    }

    /// The weights: those of [`Tensors::open`].
    ///
    /// # Errors
    ///
    /// Those of [`Tensors::open`].
    pub fn checkpoint(&self, load: Load) -> Result<Checkpoint> {
        let (root, weights) = (self.path(), self.documents.weights()?);
        if weights.is_dir() {
            files::real_path_inside(root, &weights)?;
        }
        Ok(Checkpoint::new(Tensors::open_inside(root, &weights, load)?, self.quantization()?))
    }

    /// How the checkpoint is quantized, by `config.json` or the file of a tool's own; `None` where it is not.
    fn quantization(&self) -> Result<Option<Quantization>> {
        if self.path().is_file() {
            return Ok(None);
        }
        let Some(config) = self.documents.json_if_present(FileName::Config)? else { return Ok(None) };
        for file in [FileName::QuantizeConfig, FileName::QuantConfig, FileName::HfQuantConfig] {
            if let Some(own) = self.documents.json_if_present(file)? {
                return Quantization::parse(config, FileName::Config.as_str(), Some((own, file.as_str())));
            }
        }
        Quantization::parse(config, FileName::Config.as_str(), None)
    }

    /// Its files as they are.
    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::folder_of;

    #[test]
    fn a_file_is_read_once_and_an_error_is_no_answer() {
        let files = folder_of(&[]);
        let folder = Folder::new(files.path());
        let path = folder.documents.path_of(FileName::GenerationConfig).expect("inside");
        std::fs::write(&path, "{").expect("written");
        assert!(folder.generation_config().is_err());
        std::fs::write(&path, r#"{"max_new_tokens": 3}"#).expect("written");
        assert_eq!(folder.generation_config().expect("repaired").max_new_tokens, Some(3));
        std::fs::remove_file(path).expect("it was there");
        assert_eq!(folder.generation_config().expect("known").max_new_tokens, Some(3));
        assert!(folder.tokenizer().expect("none is no error").is_none());
        assert!(folder.config().expect_err("missing").one_line().contains("config.json"));
    }
    #[test]
    fn a_file_that_two_read_is_read_once() {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 100
        });
        let generation = serde_json::json!({"eos_token_id": 42, "top_k": 7});
        let files = folder_of(&[("config.json", config), ("generation_config.json", generation)]);
        let folder = Folder::new(files.path());
        let ends =
            |folder: &Folder| folder.config().expect("valid").as_decoder().expect("a decoder").eos_token_ids.clone();
        assert!(ends(&folder).contains(&42));
        let path = folder.documents.path_of(FileName::GenerationConfig).expect("inside");
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(folder.generation_config().expect("known").top_k, Some(7));

        // What is wrong for who generates is not for who does not.
        std::fs::write(path, r#"{"eos_token_id": 43, "stop_strings": 7}"#).expect("written");
        let folder = Folder::new(files.path());
        assert!(ends(&folder).contains(&43));
        assert!(folder.generation_config().expect_err("a number").one_line().contains("`stop_strings`"));
    }
}
