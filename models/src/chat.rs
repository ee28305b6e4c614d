//! Conversations as the text that a model was trained on: chat templates.
//!
//! A template is a Jinja program that comes with a checkpoint, so nobody may have read it. It sees only its input, and
//! its steps, time, memory and text are limited. It writes the same text as transformers' `apply_chat_template`.

mod jinja;

use serde_json::{Map, Value};

use crate::documents::{ADDITIONAL_CHAT_TEMPLATES, Documents, FileName};
use crate::error::{Error, Result};
use crate::json::{Fields, brief};
use crate::tokenizer;

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
    /// Each template has a name. `default` serves every conversation without a template of its own.
    templates: Vec<(String, String)>,
    special_tokens: Map<String, Value>,
    /// The file, for messages.
    file: String,
}

/// Holds the input of a template.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Objects with `role` and `content` and whatever else the template reads.
    pub messages: Vec<Value>,
    /// Descriptions of functions that the model may call.
    pub tools: Option<Vec<Value>>,
    /// The text ends with the beginning of an answer if this is set.
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

    /// Reads the templates and special tokens of a folder.
    ///
    /// Template files replace the templates of `tokenizer_config.json`.
    pub(crate) fn read(documents: &Documents) -> Result<Option<Self>> {
        let mut templates = Vec::new();
        let mut file = FileName::TokenizerConfig.as_str();
        if let Some(value) = documents.json_if_present(FileName::TokenizerConfig)? {
            templates = named_templates(&Fields::of(value, file, "")?)?;
        }
        let own = documents.text_if_present(FileName::ChatTemplate)?;
        let additional = documents.additional_chat_templates()?;
        if own.is_some() || !additional.is_empty() {
            file = if own.is_some() { FileName::ChatTemplate.as_str() } else { ADDITIONAL_CHAT_TEMPLATES };
            templates = own.map(|source| ("default".to_owned(), source)).into_iter().chain(additional).collect();
        }
        if templates.is_empty() {
            return Ok(None);
        }
        let tokens = tokenizer::template_tokens(documents)?.into_iter();
        let special_tokens = tokens.map(|(name, token)| (name, token.into())).collect();
        Ok(Some(Self { templates, special_tokens, file: file.to_owned() }))
    }

    /// Returns the template called `name` for all conversations, with or without tools; `None` if there is none.
    ///
    /// A name comes from a file in `additional_chat_templates`, or from `chat_template` in `tokenizer_config.json`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Self> {
        let source = self.template(name)?.to_owned();
        Some(Self { templates: vec![("default".to_owned(), source)], ..self.clone() })
    }

    /// The template with these special tokens, such as `bos_token`, in place of its own.
    #[must_use]
    pub fn with_special_tokens<'a>(mut self, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.special_tokens = tokens.into_iter().map(|(name, token)| (name.to_owned(), token.into())).collect();
        self
    }

    /// Returns the text of a conversation with its special tokens, so it is tokenized without adding any.
    ///
    /// # Errors
    /// [`Error::Input`] for no message, [`Error::Template`] for a template that is not Jinja, refuses the conversation or
    /// exceeds the limits of a template.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let source = self.source(conversation.tools.is_some())?;
        let failed = |problem| Error::Template { file: self.file.clone(), problem };
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(failed(format!("{} bytes are more than the {MAX_TEMPLATE_BYTES} of a template", source.len())));
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
        jinja::render(source, &variables).map_err(failed)
    }

    /// Returns the last template of this name.
    fn template(&self, name: &str) -> Option<&str> {
        self.templates.iter().rfind(|(other, _)| other == name).map(|(_, source)| source.as_str())
    }

    /// The template for conversations with or without tools.
    fn source(&self, tools: bool) -> Result<&str> {
        let for_tools = if tools { self.template("tool_use") } else { None };
        for_tools.or_else(|| self.template("default")).ok_or_else(|| {
            let names: Vec<&str> = self.templates.iter().map(|(name, _)| name.as_str()).collect();
            Error::Template {
                file: self.file.clone(),
                problem: format!("no chat template is called `default`; there are {}", names.join(", ")),
            }
        })
    }
}

/// Reads `chat_template`, which is a string, a list of `{"name": …, "template": …}`, or an object of templates by name.
fn named_templates(fields: &Fields<'_>) -> Result<Vec<(String, String)>> {
    const FIELD: &str = "chat_template";
    let wrong = |expected: &str, found: &Value| fields.problem(FIELD, &format!("{expected}, found {}", brief(found)));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match fields.get(FIELD) {
        None => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![("default".to_owned(), source.clone())]),
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let template = text(entry.get("name")).zip(text(entry.get("template")));
                template.ok_or_else(|| wrong("must have objects with name and template", entry))
            })
            .collect(),
        Some(Value::Object(templates)) => templates
            .iter()
            .map(|(name, source)| {
                let source = text(Some(source)).ok_or_else(|| wrong("must have strings as templates", source))?;
                Ok((name.clone(), source))
            })
            .collect(),
        Some(other) => Err(wrong("must be a string or a list of named templates", other)),
    }
}

/// Converts a message to the object that transformers gives to templates. It has no null fields, and has its reasoning
/// under every name that templates read.
fn as_given(message: &Value) -> Value {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let Value::Object(fields) = message else { return message.clone() };
    let present = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let reasoning = NAMES.iter().find_map(|name| present(name));
    let mut given = Map::new();
    // Templates may print a message, so the order of its fields counts.
    if let Some(reasoning) = reasoning {
        given.insert("thinking".to_owned(), reasoning.clone());
    }
    given
        .extend(fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())));
    if let Some(reasoning) = reasoning {
        given.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    Value::Object(given)
}

#[cfg(test)]
mod tests;
