//! What `tokenizer_config.json` says of a tokenizer beside its own file. Where they contradict, transformers goes by the
//! former.

use tokenizers::normalizers::{BertNormalizer, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, Tokenizer};

use crate::error::{Error, Result};
use crate::json::Fields;

const ADDED: &str = "added_tokens_decoder";

/// What a config declares.
#[derive(Default)]
pub(super) struct Declared {
    /// Whether texts that are too long lose their beginning; where it is not said, the tokenizer's own file decides.
    pub cuts_begin: Option<bool>,
    class: Option<Class>,
    /// Tokens beside the vocabulary, in the order of their ids.
    pub added: Vec<(u32, AddedToken)>,
}

impl Declared {
    pub fn read(config: &Fields<'_>) -> Result<Self> {
        let cuts_begin = match config.text("truncation_side")? {
            None => None,
            Some("right") => Some(false),
            Some("left") => Some(true),
            Some(other) => {
                let problem = format!("must be right or left, found {}", other.escape_debug());
                return Err(config.problem("truncation_side", &problem));
            }
        };
        Ok(Self { cuts_begin, class: Class::of(config)?, added: added(config)? })
    }

    /// Changes the steps of a tokenizer to those of its class.
    pub fn follow(&self, tokenizer: &mut Tokenizer) {
        match (&self.class, tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer()) {
            (Some(Class::Bert(bert)), Some(NormalizerWrapper::BertNormalizer(found)), _) => {
                let mut normalizer = *bert;
                normalizer.clean_text = found.clean_text;
                tokenizer.with_normalizer(Some(normalizer));
            }
            (Some(Class::ByteLevel { add_prefix_space }), _, Some(PreTokenizerWrapper::ByteLevel(found))) => {
                let pre_tokenizer = found.add_prefix_space(*add_prefix_space);
                tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
            }
            _ => {}
        }
    }
}

/// A class of transformers that has values of its own for what the tokenizer's file says.
enum Class {
    /// Whether it cleans a text is for the file to say.
    Bert(BertNormalizer),
    /// GPT-2's, RoBERTa's and GPT-NeoX's. A step of bytes among others stays as it is in the file, as it did before
    /// transformers 5 began to leave out those others, with which the models were trained.
    ByteLevel { add_prefix_space: bool },
}

impl Class {
    fn of(config: &Fields<'_>) -> Result<Option<Self>> {
        let Some(name) = config.text("tokenizer_class")? else { return Ok(None) };
        Ok(match name.strip_suffix("Fast").unwrap_or(name) {
            "BertTokenizer" => Some(Self::Bert(BertNormalizer::new(
                true,
                config.flag("tokenize_chinese_chars")?.unwrap_or(true),
                config.flag("strip_accents")?,
                config.flag("do_lower_case")?.unwrap_or(true),
            ))),
            "GPT2Tokenizer" | "RobertaTokenizer" | "GPTNeoXTokenizer" => {
                Some(Self::ByteLevel { add_prefix_space: config.flag("add_prefix_space")?.unwrap_or(false) })
            }
            _ => None,
        })
    }
}

/// The tokens of `added_tokens_decoder`, which has them at their ids.
fn added(config: &Fields<'_>) -> Result<Vec<(u32, AddedToken)>> {
    let Some(tokens) = config.section(ADDED)? else { return Ok(Vec::new()) };
    let token = |key| {
        let Ok(id) = str::parse(key) else {
            return Err(config.problem(ADDED, &format!("has a token at {}, which is no id", key.escape_debug())));
        };
        let fields = tokens.required(key, tokens.section(key)?)?;
        let content = fields.required("content", fields.text("content")?)?;
        let flag = |name| Ok::<_, Error>(fields.flag(name)?.unwrap_or(false));
        let special = flag("special")?;
        let token = AddedToken::from(content, special)
            .single_word(flag("single_word")?)
            .lstrip(flag("lstrip")?)
            .rstrip(flag("rstrip")?)
            .normalized(fields.flag("normalized")?.unwrap_or(!special));
        Ok((id, token))
    };
    let mut tokens = tokens.keys().map(token).collect::<Result<Vec<_>>>()?;
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens)
}
