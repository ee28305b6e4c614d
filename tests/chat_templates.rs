//! Chat templates, against what transformers' `apply_chat_template` gives for them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use sinew::models::{ChatTemplate, Conversation};

#[derive(Deserialize)]
struct Expected {
    special_tokens: BTreeMap<String, String>,
    conversations: BTreeMap<String, Given>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Given {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    name: String,
    expected: Option<String>,
    error: Option<String>,
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read_to_string(path).expect("the fixture is there")
}

#[test]
fn templates_render_as_transformers_does_byte_for_byte() {
    let read = |name: &str| fixture(&format!("chat_templates/{name}"));
    let expected: Expected = serde_json::from_str(&read("expected.json")).expect("the fixture is valid");
    let (mut templates, mut wrong) = (BTreeMap::new(), Vec::new());
    for case in &expected.cases {
        let template = templates.entry(&case.template).or_insert_with(|| {
            let tokens = expected.special_tokens.iter().map(|(name, token)| (name.as_str(), token.as_str()));
            ChatTemplate::from_source(read(&case.template)).with_special_tokens(tokens)
        });
        let given = &expected.conversations[&case.name];
        let found = template.render(&Conversation {
            messages: given.messages.clone(),
            tools: given.tools.clone(),
            add_generation_prompt: given.add_generation_prompt.unwrap_or(true),
            variables: given.variables.clone(),
        });
        let agrees = match (&found, &case.expected, &case.error) {
            (Ok(found), Some(expected), None) => found == expected,
            // A template's own words are passed on; Python's are not ours to repeat.
            (Err(error), None, Some(expected)) => {
                let raised = read(&case.template).contains(expected);
                !raised || error.to_string().contains(expected)
            }
            _ => false,
        };
        if !agrees {
            let wanted = case.expected.as_ref().or(case.error.as_ref());
            wrong.push(format!("{}, {}:\n  found    {found:?}\n  expected {wanted:?}", case.template, case.name));
        }
    }
    assert!(templates.len() >= 10 && expected.cases.len() >= 150);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.cases.len(), wrong.join("\n"));
}

#[derive(Deserialize)]
struct SmallTemplates {
    variables: Map<String, Value>,
    /// Each template with its text, or `None` if it fails.
    cases: Vec<(String, Option<String>)>,
}

#[test]
fn expressions_and_statements_are_those_of_jinja() {
    let mut expected: SmallTemplates = serde_json::from_str(&fixture("jinja/expected.json")).expect("a valid fixture");
    let mut list = |name: &str| match expected.variables.remove(name) {
        Some(Value::Array(items)) => items,
        other => panic!("{name} must be a list, found {other:?}"),
    };
    let (messages, tools) = (list("messages"), Some(list("tools")));
    let conversation = Conversation { messages, tools, variables: expected.variables, ..Conversation::default() };
    let mut wrong = Vec::new();
    for (template, text) in &expected.cases {
        let found = ChatTemplate::from_source(template.as_str()).render(&conversation);
        if found.as_ref().ok() != text.as_ref() {
            wrong.push(format!("{template:?}:\n  found    {found:?}\n  expected {text:?}"));
        }
    }
    assert!(expected.cases.len() >= 1500);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.cases.len(), wrong.join("\n"));
}
