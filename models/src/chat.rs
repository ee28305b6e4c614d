//! Conversations as the text that a model was trained on: chat templates.
//!
//! A template is a Jinja program that comes with a checkpoint, so it is run as one would run any program of a
//! stranger's: it reads nothing but what it is given, and its steps, the sizes of all values that it makes, its time
//! and its text are bounded. What it writes is what transformers' `apply_chat_template` gives for it, byte for byte.

mod environment;
mod json;
mod meter;
mod python;

use serde_json::{Map, Value};

use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::json::{Fields, brief};

/// The largest published templates have some 40 KiB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// The chat templates of a model, and the special tokens that they may name.
///
/// ```
/// use sinew_models::{ChatTemplate, Conversation};
///
/// let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}\
///     {% if add_generation_prompt %}<|assistant|>{% endif %}";
/// let conversation = Conversation::default().with("user", "Hello!");
/// assert_eq!(ChatTemplate::from_source(source).render(&conversation)?, "<|user|>Hello!\n<|assistant|>");
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ChatTemplate {
    /// By name; `default` is the one for everything that has no template of its own.
    templates: Vec<(String, String)>,
    special_tokens: Map<String, Value>,
    /// The file, for messages.
    file: String,
}

/// What a template is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Objects with `role` and `content` and whatever else the template reads.
    pub messages: Vec<Value>,
    /// Descriptions of functions that the model may call.
    pub tools: Option<Vec<Value>>,
    /// Whether the text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`. They win over special tokens of the same name.
    pub variables: Map<String, Value>,
}

impl Default for Conversation {
    /// No message yet, and an answer to begin.
    fn default() -> Self {
        Self { messages: Vec::new(), tools: None, add_generation_prompt: true, variables: Map::new() }
    }
}

impl Conversation {
    /// Adds a message.
    pub fn push(&mut self, role: &str, content: &str) {
        self.messages.push(serde_json::json!({ "role": role, "content": content }));
    }

    /// The conversation with one more message.
    #[must_use]
    pub fn with(mut self, role: &str, content: &str) -> Self {
        self.push(role, content);
        self
    }
}

impl ChatTemplate {
    /// A template of its own, without special tokens.
    pub fn from_source(source: impl Into<String>) -> Self {
        Self {
            templates: vec![("default".to_owned(), source.into())],
            special_tokens: Map::new(),
            file: "the chat template".to_owned(),
        }
    }

    pub(crate) fn read(documents: &Documents) -> Result<Option<Self>> {
        let mut special_tokens = Map::new();
        let mut templates = Vec::new();
        let mut file = FileName::TokenizerConfig;
        if let Some(value) = documents.json_if_present(file)? {
            let fields = Fields::of(value, file.as_str(), "")?;
            templates = named_templates(&fields)?;
            add_special_tokens(&mut special_tokens, &fields)?;
        }
        let map = FileName::SpecialTokensMap;
        if let Some(value) = documents.json_if_present(map)? {
            add_special_tokens(&mut special_tokens, &Fields::of(value, map.as_str(), "")?)?;
        }
        if let Some(source) = documents.text_if_present(FileName::ChatTemplate)? {
            templates = vec![("default".to_owned(), source)];
            file = FileName::ChatTemplate;
        }
        let file = file.as_str().to_owned();
        Ok((!templates.is_empty()).then_some(Self { templates, special_tokens, file }))
    }

    /// The template with these special tokens, such as `bos_token`, in place of its own.
    #[must_use]
    pub fn with_special_tokens<'a>(mut self, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.special_tokens = tokens.into_iter().map(|(name, token)| (name.to_owned(), token.into())).collect();
        self
    }

    /// The text of a conversation. Special tokens are part of it: it is tokenized without adding any.
    ///
    /// # Errors
    /// [`Error::Input`] for no message, [`Error::Template`] for a template that is no Jinja, that refuses the
    /// conversation, or that asks for more than a template may have.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let source = self.source(conversation.tools.is_some())?;
        let failed = |problem| Error::Template { file: self.file.clone(), problem };
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(failed(format!("{} bytes are more than a template may have", source.len())));
        }
        let mut variables = self.special_tokens.clone();
        variables.extend(conversation.variables.clone());
        if conversation.messages.is_empty() {
            return Err(Error::Input("a conversation without a message has no text".to_owned()));
        }
        let messages = conversation.messages.iter().map(as_given).collect();
        variables.insert("messages".to_owned(), Value::Array(messages));
        variables.insert("tools".to_owned(), conversation.tools.clone().map_or(Value::Null, Value::Array));
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into());
        environment::render(source, &variables).map_err(failed)
    }

    /// The template for conversations with or without tools.
    fn source(&self, tools: bool) -> Result<&str> {
        let named = |name: &str| self.templates.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str());
        let chosen = if tools { named("tool_use").or_else(|| named("default")) } else { named("default") };
        chosen.ok_or_else(|| {
            let names: Vec<&str> = self.templates.iter().map(|(name, _)| name.as_str()).collect();
            Error::Template {
                file: self.file.clone(),
                problem: format!("no chat template is called `default`; there are {}", names.join(", ")),
            }
        })
    }
}

/// `chat_template`: a text, or a list of `{"name": …, "template": …}`.
fn named_templates(fields: &Fields<'_>) -> Result<Vec<(String, String)>> {
    const FIELD: &str = "chat_template";
    match fields.get(FIELD) {
        None => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template")).ok_or_else(|| {
                    fields.problem(FIELD, &format!("must have objects with name and template, found {}", brief(entry)))
                })
            })
            .collect(),
        Some(other) => {
            Err(fields
                .problem(FIELD, &format!("must be a string or a list of named templates, found {}", brief(other))))
        }
    }
}

/// The tokens that `fields` names, where they are not known yet: `"eos_token": "</s>"`, or an object with `content`.
fn add_special_tokens(tokens: &mut Map<String, Value>, fields: &Fields<'_>) -> Result<()> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let more = fields.get("extra_special_tokens").and_then(Value::as_object);
    let named = NAMES.into_iter().filter_map(|name| Some((name, fields.get(name)?)));
    for (name, value) in named.chain(more.into_iter().flatten().map(|(name, value)| (name.as_str(), value))) {
        let token = value.as_str().or_else(|| value.get("content")?.as_str());
        let Some(token) = token else {
            return Err(fields.problem(name, &format!("must be a string or a token's object, found {}", brief(value))));
        };
        if !tokens.contains_key(name) {
            tokens.insert(name.to_owned(), token.into());
        }
    }
    Ok(())
}

/// A message as transformers gives it to templates: without what is null, and its reasoning under all the names that
/// templates read it by.
fn as_given(message: &Value) -> Value {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let mut message = message.clone();
    if let Value::Object(fields) = &mut message {
        fields.retain(|_, value| !value.is_null());
        if let Some(reasoning) = NAMES.iter().find_map(|&name| fields.get(name)).cloned() {
            fields.entry("thinking").or_insert_with(|| reasoning.clone());
            fields.insert("reasoning_content".to_owned(), reasoning);
        }
    }
    message
}

#[cfg(test)]
mod tests;
