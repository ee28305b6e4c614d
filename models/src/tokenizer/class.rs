//! Describes the tokenizer classes of transformers 5 that build a tokenizer's steps themselves.
//!
//! `tokenizer.json` lists the steps, because models were trained with them and transformers 4 ran them. The class in
//! `tokenizer_config.json` sets the options of its own steps and the special tokens around a text.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::normalizers::{BertNormalizer, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, Token, Tokenizer};

use crate::documents::{Documents, FileName};
use crate::error::Result;
use crate::json::{Fields, brief};

/// Describes a tokenizer class of transformers 5.
pub(super) struct Class {
    /// `tokenizer_class` has one of these names, perhaps followed by `Fast`. The first is the class that transformers
    /// loads; the others are aliases.
    names: &'static [&'static str],
    /// The class has these special tokens, by attribute, if the config names none.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The class puts the tokens of these attributes before and after a text. `None` keeps the post-processor of the
    /// file.
    around: Option<[Option<&'static str>; 2]>,
    options: Options,
    /// The steps of the file are compared with these. `None` compares nothing.
    steps: Option<Steps>,
    /// The class takes special tokens by their text alone, so named tokens lose their flags.
    pub forgets_flags: bool,
    /// transformers loads byte-level files unchanged even if they name this class, because it is for SentencePiece.
    pub skips_byte_level_files: bool,
}

/// Lists the options that a config sets in steps of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Options {
    None,
    /// The config sets `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` of a BERT normalizer.
    Bert,
    /// The config sets `add_prefix_space` of a byte-level pre-tokenizer. A pre-tokenizer among other steps keeps the
    /// option of the file: transformers 5 omits the other steps, but the models were trained with them.
    ByteLevel,
}

/// Lists the steps of a class in each part, as [`kinds`] does. Several lists may be equivalent.
struct Steps {
    normalizer: &'static [&'static [&'static str]],
    pre_tokenizer: &'static [&'static [&'static str]],
    decoder: &'static [&'static [&'static str]],
}

const CLS_SEP: Option<[Option<&str>; 2]> = Some([Some("cls_token"), Some("sep_token")]);
const BOS_EOS: Option<[Option<&str>; 2]> = Some([Some("bos_token"), Some("eos_token")]);
const BRACKETS: &[(&str, &str)] = &[
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];
const ANGLES: &[(&str, &str)] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("pad_token", "<pad>"),
    ("cls_token", "<s>"),
    ("mask_token", "<mask>"),
];
const SENTENCEPIECE: &[(&str, &str)] = &[
    ("bos_token", "[CLS]"),
    ("eos_token", "[SEP]"),
    ("unk_token", "<unk>"),
    ("sep_token", "[SEP]"),
    ("pad_token", "<pad>"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];
const BERT_STEPS: Option<Steps> = Some(Steps {
    normalizer: &[&["BertNormalizer"]],
    pre_tokenizer: &[&["BertPreTokenizer"]],
    decoder: &[&["WordPiece"]],
});
const BYTE_STEPS: Option<Steps> =
    Some(Steps { normalizer: &[&[]], pre_tokenizer: &[&["ByteLevel"]], decoder: &[&["ByteLevel"]] });
const QWEN2_SPLIT: &str = r"Split((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Lists the classes whose options or special tokens around a text differ from the file, and the classes of the
/// architectures that Sinew runs. Every other class takes the file.
const CLASSES: &[Class] = &[
    Class {
        names: &[
            "BertTokenizer",
            "DistilBertTokenizer",
            "ElectraTokenizer",
            "LayoutLMTokenizer",
            "LxmertTokenizer",
            "MobileBertTokenizer",
            "SqueezeBertTokenizer",
        ],
        defaults: BRACKETS,
        around: CLS_SEP,
        options: Options::Bert,
        steps: BERT_STEPS,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["MPNetTokenizer"],
        defaults: &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "[UNK]"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        around: CLS_SEP,
        options: Options::Bert,
        steps: BERT_STEPS,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"],
        defaults: ANGLES,
        around: CLS_SEP,
        options: Options::ByteLevel,
        steps: BYTE_STEPS,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["XLMRobertaTokenizer"],
        defaults: ANGLES,
        around: BOS_EOS,
        options: Options::None,
        // The class takes the character map of the file.
        steps: Some(Steps {
            normalizer: &[],
            pre_tokenizer: &[&["WhitespaceSplit", "Metaspace"], &["Metaspace"]],
            decoder: &[&["Metaspace"]],
        }),
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["CamembertTokenizer"],
        defaults: ANGLES,
        around: BOS_EOS,
        options: Options::None,
        steps: None,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["AlbertTokenizer", "BigBirdTokenizer"],
        defaults: SENTENCEPIECE,
        around: CLS_SEP,
        options: Options::None,
        steps: None,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["DebertaTokenizer", "DebertaV2Tokenizer"],
        defaults: BRACKETS,
        around: CLS_SEP,
        options: Options::None,
        steps: None,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["HerbertTokenizer"],
        defaults: &[
            ("unk_token", "<unk>"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        around: CLS_SEP,
        options: Options::None,
        steps: None,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["GPTNeoXTokenizer"],
        defaults: &[
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("unk_token", "<|endoftext|>"),
            ("pad_token", "<|padding|>"),
        ],
        around: Some([None, None]),
        options: Options::ByteLevel,
        steps: Some(Steps { normalizer: &[&["NFC"]], pre_tokenizer: &[&["ByteLevel"]], decoder: &[&["ByteLevel"]] }),
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["GPT2Tokenizer"],
        defaults: &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>")],
        around: None,
        options: Options::ByteLevel,
        steps: BYTE_STEPS,
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["Qwen2Tokenizer"],
        defaults: &[("eos_token", "<|endoftext|>"), ("unk_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")],
        around: None,
        options: Options::None,
        steps: Some(Steps {
            normalizer: &[&["NFC"]],
            pre_tokenizer: &[&[QWEN2_SPLIT, "ByteLevel"]],
            decoder: &[&["ByteLevel"]],
        }),
        forgets_flags: true,
        skips_byte_level_files: false,
    },
    Class {
        names: &["GemmaTokenizer"],
        defaults: &[
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("unk_token", "<unk>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        around: None,
        options: Options::None,
        // The normalizer leaves no blank to split at.
        steps: Some(Steps {
            normalizer: &[&["Replace( )"]],
            pre_tokenizer: &[&["Split( )"], &[]],
            decoder: &[&["Replace(▁)", "ByteFallback", "Fuse"]],
        }),
        forgets_flags: false,
        skips_byte_level_files: false,
    },
    Class {
        names: &["LlamaTokenizer", "CodeLlamaTokenizer"],
        defaults: &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
        around: None,
        options: Options::None,
        steps: Some(Steps {
            normalizer: &[&[]],
            pre_tokenizer: &[&["Metaspace"]],
            decoder: &[&["Replace(▁)", "ByteFallback", "Fuse", "Strip"], &["Replace(▁)", "ByteFallback", "Fuse"]],
        }),
        forgets_flags: false,
        skips_byte_level_files: true,
    },
];

/// AutoTokenizer of transformers 5 loads this for a `model_type`, if `tokenizer_class` does not decide alone.
enum Registered {
    /// Loads this class if `tokenizer_class` names none.
    Usually(&'static str),
    /// Loads this class and ignores `tokenizer_class`.
    Always(&'static str),
    /// Loads the file and ignores `tokenizer_class`.
    File,
}

fn registered(model_type: &str) -> Option<Registered> {
    Some(match model_type {
        "bert" => Registered::Usually("BertTokenizer"),
        "roberta" => Registered::Usually("RobertaTokenizer"),
        "xlm-roberta" => Registered::Usually("XLMRobertaTokenizer"),
        "gpt2" => Registered::Usually("GPT2Tokenizer"),
        "gpt_neox" => Registered::Usually("GPTNeoXTokenizer"),
        "gemma2" | "gemma3" | "gemma3_text" => Registered::Usually("GemmaTokenizer"),
        "qwen3" | "qwen3_moe" => Registered::Usually("Qwen2Tokenizer"),
        "qwen2" => Registered::Always("Qwen2Tokenizer"),
        "ministral" | "mistral" | "mixtral" | "modernbert" | "olmo2" | "olmo3" | "phi3" => Registered::File,
        _ => return None,
    })
}

/// Returns the class that AutoTokenizer of transformers 5 loads; it reads the files in the same order. `None` stands
/// for the class that takes `tokenizer.json` unchanged.
pub(super) fn of(config: &Fields<'_>, documents: &Documents) -> Result<Option<&'static Class>> {
    let model = documents.json_if_present(FileName::Config)?;
    let of_model = |name: &str| model.and_then(|model| model.get(name)).and_then(Value::as_str);
    let named = config.text("tokenizer_class")?.or_else(|| of_model("tokenizer_class"));
    let name = match (named, of_model("model_type").and_then(registered)) {
        (_, Some(Registered::File)) | (None, None) => return Ok(None),
        (_, Some(Registered::Always(class))) | (None, Some(Registered::Usually(class))) => class,
        (Some(named), _) => named.strip_suffix("Fast").unwrap_or(named),
    };
    Ok(CLASSES.iter().find(|class| class.names.contains(&name)))
}

/// Lists the classes that transformers 5 builds anew and that [`CLASSES`] does not describe.
const BUILT_ANEW: [&str; 40] = [
    "BarthezTokenizer",
    "BlenderbotTokenizer",
    "CLIPTokenizer",
    "CodeGenTokenizer",
    "CohereTokenizer",
    "ConvBertTokenizer",
    "CpmTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "EsmcTokenizer",
    "FNetTokenizer",
    "FunnelTokenizer",
    "LasrTokenizer",
    "LayoutLMv2Tokenizer",
    "LayoutLMv3Tokenizer",
    "LayoutXLMTokenizer",
    "LukeTokenizer",
    "MBartTokenizer",
    "MBart50Tokenizer",
    "MLukeTokenizer",
    "MarkupLMTokenizer",
    "NllbTokenizer",
    "NougatTokenizer",
    "OpenAIGPTTokenizer",
    "PegasusTokenizer",
    "Qwen3_5Tokenizer",
    "ReformerTokenizer",
    "RemBertTokenizer",
    "RoFormerTokenizer",
    "SeamlessM4TTokenizer",
    "Siglip2Tokenizer",
    "SplinterTokenizer",
    "T5Tokenizer",
    "Tipsv2Tokenizer",
    "UdopTokenizer",
    "VideoPrismTokenizer",
    "WhisperTokenizer",
    "XGLMTokenizer",
    "XLNetTokenizer",
];

/// Warns about a class of [`BUILT_ANEW`].
pub(super) fn warn_if_built_anew(name: Option<&str>) {
    let name = name.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    if let Some(name) = name.filter(|name| BUILT_ANEW.contains(name)) {
        tracing::warn!("transformers 5 builds {name} anew: ids may differ, as Sinew follows tokenizer.json");
    }
}

/// Maps the name of each part of a `tokenizer.json` to the kinds of its steps.
pub(super) type Kinds = HashMap<String, Vec<String>>;

/// Returns the kinds of the steps in a part of a `tokenizer.json`, with their patterns.
pub(super) fn kinds(part: &Value) -> Vec<String> {
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return if part.is_null() { Vec::new() } else { vec![brief(part)] };
    };
    let inner = ["normalizers", "pretokenizers", "decoders"].into_iter().find_map(|list| part.get(list)?.as_array());
    if let Some(inner) = inner {
        return inner.iter().flat_map(kinds).collect();
    }
    let pattern = part.get("pattern").and_then(|pattern| pattern.get("String").or(pattern.get("Regex"))?.as_str());
    vec![pattern.map_or_else(|| kind.to_owned(), |pattern| format!("{kind}({pattern})"))]
}

impl Class {
    /// Returns the name that transformers uses.
    pub fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Returns whether the class has no pad token of its own. GPT2Tokenizer has none and passes that on.
    pub fn takes_pad_token(&self) -> bool {
        self.name() != "GPT2Tokenizer" && !self.defaults.iter().any(|(attribute, _)| *attribute == "pad_token")
    }

    /// Reads the options of a config and refuses those of a wrong type.
    pub fn settings(&'static self, config: &Fields<'_>) -> Result<Settings> {
        let mut settings = Settings { class: self, bert: None, add_prefix_space: None };
        match self.options {
            Options::Bert => {
                settings.bert = Some(BertNormalizer::new(
                    true,
                    config.flag("tokenize_chinese_chars")?.unwrap_or(true),
                    config.flag("strip_accents")?,
                    config.flag("do_lower_case")?.unwrap_or(true),
                ));
            }
            Options::ByteLevel => {
                settings.add_prefix_space = Some(config.flag("add_prefix_space")?.unwrap_or(false));
            }
            Options::None => {}
        }
        Ok(settings)
    }

    /// Returns whether transformers loads this class for a file with these steps.
    pub fn loads(&self, file: &Kinds) -> bool {
        !self.skips_byte_level_files || !file.values().flatten().any(|kind| kind == "ByteLevel")
    }

    /// Warns if the file has other steps than transformers would run.
    pub fn warn_of_steps(&self, file: &Kinds) {
        let Some(steps) = &self.steps else { return };
        let parts =
            [("normalizer", steps.normalizer), ("pre_tokenizer", steps.pre_tokenizer), ("decoder", steps.decoder)];
        let list = |steps: &[String]| match steps {
            [] => "nothing".to_owned(),
            steps => brief(&json!(steps.join(", "))),
        };
        let differing = parts.iter().filter_map(|(part, equivalent)| {
            let found = file.get(*part).map_or(&[][..], Vec::as_slice);
            let own: Vec<String> = equivalent.first()?.iter().map(|&kind| kind.to_owned()).collect();
            let differs = !equivalent.iter().any(|steps| found == *steps);
            differs.then(|| format!("{} as {part} where that class has {}", list(found), list(&own)))
        });
        let differing: Vec<String> = differing.collect();
        if !differing.is_empty() {
            tracing::warn!(
                "tokenizer.json, which Sinew follows, differs from {}, which transformers 5 follows: it has {}",
                self.name(),
                differing.join(", and "),
            );
        }
    }
}

/// Combines a class with the options of a config.
pub(super) struct Settings {
    pub class: &'static Class,
    bert: Option<BertNormalizer>,
    add_prefix_space: Option<bool>,
}

impl Settings {
    /// Sets the options in the steps that the file and the class share. The file decides whether a BERT normalizer
    /// cleans a text, because no config has an option for it.
    pub fn set_options(&self, tokenizer: &mut Tokenizer) {
        if let (Some(mut bert), Some(NormalizerWrapper::BertNormalizer(found))) =
            (self.bert, tokenizer.get_normalizer())
        {
            bert.clean_text = found.clean_text;
            tokenizer.with_normalizer(Some(bert));
        }
        if let (Some(space), Some(PreTokenizerWrapper::ByteLevel(found))) =
            (self.add_prefix_space, tokenizer.get_pre_tokenizer())
        {
            let pre_tokenizer = found.add_prefix_space(space);
            tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
        }
    }
}

/// Holds the special tokens that a tokenizer puts before and after a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

impl Around {
    /// Finds the special tokens of the post-processor by giving it a text of one token.
    pub fn of(tokenizer: &Tokenizer) -> tokenizers::Result<Self> {
        let Some(processor) = tokenizer.get_post_processor() else { return Ok(Self::default()) };
        const TEXT: u32 = u32::MAX;
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let processed = processor.process(text, None, true)?;
        let ids = processed.get_ids();
        let text = ids.iter().position(|&id| id == TEXT).unwrap_or(ids.len());
        Ok(Self { before: ids[..text].to_vec(), after: ids.get(text + 1..).unwrap_or_default().to_vec() })
    }

    /// Returns the special tokens of a class; `named` looks up its attributes. Returns `None` if the class leaves them
    /// to the file, or if the tokenizer lacks one.
    pub fn of_class<'a>(class: &Class, tokenizer: &Tokenizer, named: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let ids = |attribute: Option<&str>| match attribute {
            None => Some(Vec::new()),
            Some(attribute) => Some(vec![tokenizer.token_to_id(named(attribute)?)?]),
        };
        let [before, after] = class.around?;
        Some(Self { before: ids(before)?, after: ids(after)? })
    }

    /// Makes a tokenizer put these tokens around its texts.
    pub fn put(&self, tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
        let piece = |&id: &u32| json!({"SpecialToken": {"id": id.to_string(), "type_id": 0}});
        let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let single: Vec<Value> =
            self.before.iter().map(piece).chain([text("A")]).chain(self.after.iter().map(piece)).collect();
        let token = |id: &u32| {
            let spelled = tokenizer.id_to_token(*id).unwrap_or_default();
            (id.to_string(), json!({"id": id.to_string(), "ids": [id], "tokens": [spelled]}))
        };
        let tokens: serde_json::Map<String, Value> = self.before.iter().chain(&self.after).map(token).collect();
        let template = json!({"type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")],
                              "special_tokens": tokens});
        let processor: PostProcessorWrapper = serde_json::from_value(template)?;
        tokenizer.with_post_processor(Some(processor));
        Ok(())
    }

    /// Spells the tokens for messages.
    pub fn spelled(&self, tokenizer: &Tokenizer) -> String {
        let list = |ids: &[u32]| match ids {
            [] => "nothing".to_owned(),
            ids => {
                let spelled: Vec<String> = ids.iter().filter_map(|&id| tokenizer.id_to_token(id)).collect();
                brief(&json!(spelled.join(" ")))
            }
        };
        format!("{} before a text and {} after it", list(&self.before), list(&self.after))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_class_that_is_built_anew_is_known() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizers.json");
        let all: Value = serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON");
        let built: Vec<&str> = all["built_anew"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let described = |name: &&&str| CLASSES.iter().any(|class| class.names.contains(*name));
        let unknown: Vec<_> = built.iter().filter(|name| !described(name) && !BUILT_ANEW.contains(*name)).collect();
        assert!(built.len() > 50 && unknown.is_empty(), "{unknown:?}");
        for name in BUILT_ANEW {
            assert!(built.contains(&name) && !described(&&name), "{name}");
        }
    }
}
