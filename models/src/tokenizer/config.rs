//! Reads what `tokenizer_config.json` and `special_tokens_map.json` declare about a tokenizer. They override
//! `tokenizer.json`, as in transformers.

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::class::{self, Around, Kinds, Settings};
use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::json::{Fields, brief};

const ADDED: &str = "added_tokens_decoder";
const EXTRA: &str = "extra_special_tokens";
/// Named tokens of one model, as transformers 5 writes them.
const MODEL_SPECIFIC: &str = "model_specific_special_tokens";
/// [`EXTRA`] had this name before transformers 5.
const ADDITIONAL: &str = "additional_special_tokens";
const PAD: &str = "pad_token";
/// transformers gives new ids to the tokens of these attributes in this order.
const ATTRIBUTES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", PAD, "cls_token", "mask_token"];

/// Holds the declarations of the files beside a `tokenizer.json`.
#[derive(Default)]
pub(super) struct Declared {
    /// A text that is too long loses its beginning if this is set. `None` leaves the choice to `tokenizer.json`.
    pub cuts_begin: Option<bool>,
    /// Special tokens that are spelled in a text are tokenized as ordinary text if this is set.
    pub splits_special: bool,
    class: Option<Settings>,
    /// These tokens are added to the vocabulary, in the order of their ids.
    pub added: Vec<(u32, AddedToken)>,
    /// Tokens of `added_tokens.json` in the order of their ids. They count where no other file has them.
    pub legacy: Vec<(u32, AddedToken)>,
    /// These special tokens have an attribute, such as `eos_token`, and get new ids in this order.
    pub named: Vec<(String, AddedToken)>,
    /// These special tokens have no attribute and get ids after the named ones.
    pub extra: Vec<AddedToken>,
    /// The files name a token for these attributes, or say with `null` that there is none.
    stated: Vec<&'static str>,
    /// The config may set `add_bos_token` and `add_eos_token`.
    adds: [Option<bool>; 2],
}

impl Declared {
    pub fn read(documents: &Documents) -> Result<Self> {
        let (file, none) = (FileName::TokenizerConfig, Value::Object(Map::new()));
        let config = Fields::of(documents.json_if_present(file)?.unwrap_or(&none), file.as_str(), "")?;
        let cuts_begin = match config.text("truncation_side")? {
            None => None,
            Some("right") => Some(false),
            Some("left") => Some(true),
            Some(other) => {
                let problem = format!("must be right or left, found {}", other.escape_debug());
                return Err(config.problem("truncation_side", &problem));
            }
        };
        let class = class::of(&config, documents)?.map(|class| class.settings(&config)).transpose()?;
        if class.is_none() {
            class::warn_if_built_anew(config.text("tokenizer_class")?);
        }
        let map = special_tokens_map(&config, documents)?;
        let stated = |name: &&str| config.mentions(name) || map.is_some_and(|map| map.mentions(name));
        let stated = ATTRIBUTES.into_iter().filter(stated).collect();
        let special = Special::read(&config, map.as_ref())?;
        Ok(Self {
            cuts_begin,
            splits_special: config.flag("split_special_tokens")?.unwrap_or(false),
            class,
            added: added(&config)?,
            legacy: if config.mentions(ADDED) { Vec::new() } else { legacy(documents, &special)? },
            named: special.named,
            extra: special.extra,
            stated,
            adds: [config.flag("add_bos_token")?, config.flag("add_eos_token")?],
        })
    }

    /// Returns the class that is loaded for a file with these steps.
    fn class(&self, file: &Kinds) -> Option<&Settings> {
        self.class.as_ref().filter(|settings| settings.class.loads(file))
    }

    /// Returns the special tokens of the class for attributes that the files do not state. `file` has the steps of
    /// `tokenizer.json`.
    pub fn defaults(&self, file: &Kinds) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let defaults = self.class(file).map_or(&[][..], |settings| settings.class.defaults);
        let named = |attribute: &str| self.named.iter().any(|(name, _)| name == attribute);
        defaults.iter().filter(move |(attribute, _)| !self.stated.contains(attribute) && !named(attribute))
    }

    /// Returns whether the token of the padding in `tokenizer.json` is the pad token.
    pub fn takes_pad_token(&self, file: &Kinds) -> bool {
        !self.stated.contains(&PAD) && self.class(file).is_none_or(|settings| settings.class.takes_pad_token())
    }

    /// Returns the named tokens in the order in which they get new ids, with a `pad` token that the files do not name.
    pub fn named_and<'a>(&'a self, pad: Option<&'a AddedToken>) -> impl Iterator<Item = &'a AddedToken> + Clone {
        let mut earlier = ATTRIBUTES.iter().take_while(|attribute| **attribute != PAD);
        let before = self.named.iter().take_while(|(name, _)| earlier.any(|attribute| attribute == name)).count();
        let (before, after) = self.named.split_at(before);
        before.iter().map(|(_, token)| token).chain(pad).chain(after.iter().map(|(_, token)| token))
    }

    /// Returns whether named special tokens lose their flags.
    pub fn forgets_flags(&self, file: &Kinds) -> bool {
        self.class(file).is_some_and(|settings| settings.class.forgets_flags)
    }

    /// Gives a tokenizer the options and special tokens of its class. `file` has the steps of `tokenizer.json`.
    pub fn follow(&self, tokenizer: &mut Tokenizer, file: &Kinds) -> tokenizers::Result<()> {
        tokenizer.set_encode_special_tokens(self.splits_special);
        let mut around = Around::of(tokenizer)?;
        let mut source = FileName::Tokenizer.as_str();
        if let Some(settings) = self.class(file) {
            let class = settings.class;
            settings.set_options(tokenizer);
            class.warn_of_steps(file);
            if let Some(own) = Around::of_class(class, tokenizer, |attribute| self.token(attribute, file))
                && own != around
            {
                tracing::warn!(
                    "tokenizer.json puts {}, and {} of transformers 5 {}: Sinew follows {}",
                    around.spelled(tokenizer),
                    class.name(),
                    own.spelled(tokenizer),
                    class.name(),
                );
                own.put(tokenizer)?;
                (around, source) = (own, class.name());
            }
        }
        let sides = [("add_bos_token", "bos_token", &around.before), ("add_eos_token", "eos_token", &around.after)];
        for ((flag, attribute, ids), stated) in sides.into_iter().zip(self.adds) {
            let id = self.token(attribute, file).and_then(|token| tokenizer.token_to_id(token));
            if let (Some(stated), Some(id)) = (stated, id)
                && stated != ids.contains(&id)
            {
                tracing::warn!(
                    "tokenizer_config.json has {flag} {stated}, and {source} puts {}: Sinew follows {source}, as \
                     transformers 5 does",
                    around.spelled(tokenizer),
                );
            }
        }
        Ok(())
    }

    /// Returns the token that the files name for an attribute, or the default of the class.
    fn token(&self, attribute: &str, file: &Kinds) -> Option<&str> {
        let named = self.named.iter().find(|(name, _)| name == attribute).map(|(_, token)| &*token.content);
        named.or_else(|| self.defaults(file).find(|(name, _)| *name == attribute).map(|(_, token)| *token))
    }
}

/// Returns `special_tokens_map.json`. transformers does not read it beside a config with `added_tokens_decoder`, which
/// repeats it.
fn special_tokens_map<'a>(config: &Fields<'_>, documents: &'a Documents) -> Result<Option<Fields<'a>>> {
    let file = FileName::SpecialTokensMap;
    match config.mentions(ADDED) {
        true => Ok(None),
        false => documents.json_if_present(file)?.map(|value| Fields::of(value, file.as_str(), "")).transpose(),
    }
}

/// Returns the special tokens by attribute, as chat templates see them.
pub(crate) fn template_tokens(documents: &Documents) -> Result<Vec<(String, String)>> {
    let (file, none) = (FileName::TokenizerConfig, Value::Object(Map::new()));
    let config = Fields::of(documents.json_if_present(file)?.unwrap_or(&none), file.as_str(), "")?;
    let map = special_tokens_map(&config, documents)?;
    let special = Special::read(&config, map.as_ref())?;
    let stated = |name: &str| config.mentions(name) || map.is_some_and(|map| map.mentions(name));
    let defaults = class_defaults(&config, documents)?.iter();
    let defaults = defaults.filter(|(name, _)| !stated(name) && special.named.iter().all(|(named, _)| named != name));
    let defaults = defaults.map(|(name, token)| ((*name).to_owned(), (*token).to_owned())).collect::<Vec<_>>();
    Ok(special.named.into_iter().map(|(name, token)| (name, token.content)).chain(defaults).collect())
}

/// Returns the special tokens that the class has by attribute if the files name none.
fn class_defaults(config: &Fields<'_>, documents: &Documents) -> Result<&'static [(&'static str, &'static str)]> {
    match class::of(config, documents)? {
        Some(class) if !class.skips_byte_level_files => Ok(class.defaults),
        Some(class) => {
            let text = documents.text_if_present(FileName::Tokenizer)?;
            let byte_level = text.is_some_and(|text| text.contains("\"ByteLevel\""));
            Ok(if byte_level { &[] } else { class.defaults })
        }
        None => Ok(&[]),
    }
}

/// Holds the special tokens that the files name.
#[derive(Default)]
struct Special {
    named: Vec<(String, AddedToken)>,
    extra: Vec<AddedToken>,
    /// The first so many `extra` tokens are special in `added_tokens.json` too. transformers does not look for tokens of
    /// `additional_special_tokens` in `special_tokens_map.json` there.
    extra_of_legacy: usize,
}

impl Special {
    /// Reads the special tokens of `tokenizer_config.json` and of `special_tokens_map.json`.
    ///
    /// The map overrides the config for [`ATTRIBUTES`], and for other tokens that the config has as objects.
    fn read(config: &Fields<'_>, map: Option<&Fields<'_>>) -> Result<Self> {
        let mut special = Self::default();
        let in_map = |name: &str| map.filter(|map| map.mentions(name));
        for name in ATTRIBUTES {
            let fields = in_map(name).unwrap_or(config);
            if let Some(value) = fields.get(name) {
                special.name(name, token(fields, name, value)?);
            }
        }
        // A model may have attributes of its own, such as `image_token`. Flags such as `add_bos_token` end alike but
        // are no strings.
        let own = |fields: &Fields<'_>, text: bool| {
            let values = fields.keys().filter_map(|name| Some((name.to_owned(), fields.get(name)?)));
            let values = values.filter(|(name, value)| {
                name.ends_with("_token")
                    && !ATTRIBUTES.contains(&name.as_str())
                    && match text {
                        true => value.is_string(),
                        false => is_token(fields, value),
                    }
            });
            values.map(|(name, value)| Ok((name.clone(), token(fields, &name, value)?))).collect::<Result<Vec<_>>>()
        };
        let objects = own(config, false)?;
        let of_map = map.map(|map| Ok::<_, Error>([own(map, true)?, own(map, false)?].concat())).transpose()?;
        let texts = own(config, true)?;
        // transformers 5 reads these only if the config names no other token.
        let extra = config.get(EXTRA).and_then(Value::as_object);
        let has_own = !texts.is_empty() || extra.is_some_and(|extra| !extra.is_empty());
        for (name, token) in [objects, of_map.unwrap_or_default(), texts].concat() {
            special.name(&name, token);
        }
        // A list that is not empty overrides the list of the older name; an object of named tokens does not.
        let listed = match config.get(EXTRA) {
            None | Some(Value::Object(_)) => false,
            Some(Value::Array(list)) if list.is_empty() => !config.mentions(ADDITIONAL),
            Some(_) => true,
        };
        special.extend(config, EXTRA)?;
        if !has_own {
            special.extend(config, MODEL_SPECIFIC)?;
        }
        if !listed {
            special.extend(config, ADDITIONAL)?;
        }
        special.extra_of_legacy = special.extra.len();
        if let Some(map) = map {
            special.extend(map, EXTRA)?;
            special.extra_of_legacy = special.extra.len();
            if !listed && !config.mentions(ADDITIONAL) && !map.mentions(EXTRA) {
                special.extend(map, ADDITIONAL)?;
            }
        }
        Ok(special)
    }

    /// Returns whether transformers takes a token of `added_tokens.json` as special.
    fn marks(&self, legacy: &str) -> bool {
        let attributes = self.named.iter().filter(|(name, _)| ATTRIBUTES.contains(&name.as_str()));
        let mut tokens = attributes.map(|(_, token)| token).chain(&self.extra[..self.extra_of_legacy]);
        tokens.any(|token| token.content == legacy)
    }

    /// Sets the token of an attribute.
    fn name(&mut self, attribute: &str, token: AddedToken) {
        let token = token.special(true);
        match self.named.iter_mut().find(|(name, _)| name == attribute) {
            Some((_, known)) => *known = token,
            None => self.named.push((attribute.to_owned(), token)),
        }
    }

    /// Adds the tokens of a list, or the named tokens of an object.
    fn extend(&mut self, fields: &Fields<'_>, name: &str) -> Result<()> {
        match fields.get(name) {
            None => {}
            Some(Value::Array(list)) => {
                for value in list {
                    self.extra.push(token(fields, name, value)?);
                }
            }
            Some(Value::Object(named)) => {
                for (attribute, value) in named {
                    self.name(attribute, token(fields, attribute, value)?);
                }
            }
            Some(other) => {
                let problem = format!("must be a list of tokens or an object of named ones, found {}", brief(other));
                return Err(fields.problem(name, &problem));
            }
        }
        Ok(())
    }
}

/// Returns whether an object in a file stands for a token. In `tokenizer_config.json` only one with `__type` does, which
/// transformers writes there.
fn is_token(fields: &Fields<'_>, value: &Value) -> bool {
    let typed = value.get("__type").is_some_and(|name| name == "AddedToken");
    value.get("content").is_some_and(Value::is_string) && (typed || fields.file() != FileName::TokenizerConfig.as_str())
}

/// Reads a special token from its text, or from an object with its flags. In an object with `__type` a missing `special`
/// means false.
fn token(fields: &Fields<'_>, name: &str, value: &Value) -> Result<AddedToken> {
    let problem = |problem: &str| fields.problem(name, &format!("{problem}, found {}", brief(value)));
    let object = match value {
        Value::String(content) => return Ok(AddedToken::from(content.as_str(), true)),
        Value::Object(object) if is_token(fields, value) => object,
        Value::Object(_) if fields.file() == FileName::TokenizerConfig.as_str() => {
            return Err(problem("must be a string or a token's object with `__type`"));
        }
        _ => return Err(problem("must be a string or a token's object")),
    };
    let flag = |flag: &str, default: bool| match object.get(flag) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(problem(&format!("must have true or false as {flag}"))),
    };
    let special = flag("special", !object.contains_key("__type"))?;
    let content = object.get("content").and_then(Value::as_str).unwrap_or_default();
    Ok(AddedToken::from(content, special)
        .single_word(flag("single_word", false)?)
        .lstrip(flag("lstrip", false)?)
        .rstrip(flag("rstrip", false)?)
        .normalized(flag("normalized", !special)?))
}

/// Reads `added_tokens.json`, which files before `added_tokens_decoder` have: ids by token.
fn legacy(documents: &Documents, special: &Special) -> Result<Vec<(u32, AddedToken)>> {
    let file = FileName::AddedTokens;
    let Some(value) = documents.json_if_present(file)? else { return Ok(Vec::new()) };
    let fields = Fields::of(value, file.as_str(), "")?;
    let mut tokens = Vec::new();
    for token in fields.keys() {
        if let Some(id) = fields.count(token, u32::MAX as usize)? {
            tokens.push((id as u32, AddedToken::from(token, special.marks(token))));
        }
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens)
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
