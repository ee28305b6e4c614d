//! The environment that a template runs in: that of transformers, with nothing outside it.

use std::sync::Arc;

use minijinja::machinery::{self, CodeGenerator, Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::Map;

use super::json::tojson;
use super::meter::{self, Meter, refused};
use super::python;
use crate::tokenizer::quietly;

/// Steps of one rendering. Long conversations take some ten thousand.
const FUEL: u64 = 2_000_000;
/// Pieces of one expression or tag. Of `1+1+1+…` each lies in the one after it, and all passes over the tree recurse.
const MAX_TAG_TOKENS: usize = 4096;
/// Alternatives in a template: each lies in the one before it.
const MAX_ALTERNATIVES: usize = 1024;
/// For the deepest tree that these limits allow; what is not used of it is never touched.
const STACK_BYTES: usize = 128 << 20;

/// The text of a template, or why there is none, in one line.
pub(super) fn render(source: &str, variables: &Map<String, serde_json::Value>) -> Result<String, String> {
    // As Jinja reads all line ends.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = without_generation_tags(&source);
    let run = || quietly(|| evaluate(&source, variables));
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, run).map(|running| running.join().ok().flatten())
    });
    match outcome {
        Ok(Some(Ok(text))) => Ok(text),
        Ok(Some(Err(error))) => Err(one_line(&error)),
        Ok(None) => Err("the template engine panicked".to_owned()),
        Err(error) => Err(format!("no thread to render it: {error}")),
    }
}

fn one_line(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => format!("the template takes more than {FUEL} steps"),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

fn evaluate(source: &str, variables: &Map<String, serde_json::Value>) -> Result<String, Error> {
    const NAME: &str = "chat template";
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    check_depth(source, NAME, &syntax)?;
    let meter = Arc::new(Meter::new());
    let env = environment(&meter);
    let tree = meter::metered(&machinery::parse(source, NAME, syntax)?)?;
    let mut code = CodeGenerator::new(NAME, source);
    code.compile_stmt(&tree);
    let (instructions, blocks) = code.finish();
    let mut text = String::new();
    let root = Value::from(Serde(variables));
    machinery::eval(
        &env,
        &instructions,
        root,
        &blocks,
        &mut machinery::make_string_output(&mut text),
        AutoEscape::None,
    )?;
    meter::check_text(text.len())?;
    Ok(text)
}

/// The local time, as `strftime` formats it.
#[cfg(feature = "local-time")]
fn time_now(format: &str) -> Result<String, String> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|error| format!("`{format}`: {error}"))
}

#[cfg(not(feature = "local-time"))]
fn time_now(_: &str) -> Result<String, String> {
    Err("strftime_now needs the local time: build sinew-models with the feature `local-time`".to_owned())
}

fn environment<'s>(meter: &Arc<Meter>) -> Environment<'s> {
    let mut env = Environment::new();
    env.set_fuel(Some(FUEL));
    python::add(&mut env);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |message: &Value| -> Result<(), Error> { Err(refused(message.to_string())) });
    env.add_function("strftime_now", |format: &str| time_now(format).map_err(refused));
    meter::add_filters(&mut env, meter);
    let account = meter.clone();
    env.set_formatter(move |out, _, value| {
        if value.is_undefined() {
            return Ok(());
        }
        match value.as_str() {
            Some(text) => {
                account.written(text.len())?;
                out.write_str(text)?;
            }
            None => {
                account.made(value)?;
                let text = value.to_string();
                account.written(text.len())?;
                out.write_str(&text)?;
            }
        }
        Ok(())
    });
    env
}

/// Refuses templates whose syntax tree would be too deep, before there is a tree.
fn check_depth(source: &str, name: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let mut tokenizer = Tokenizer::new(source, name, false, syntax.clone());
    let (mut in_tag, mut alternatives) = (0, 0);
    while let Some((token, _)) = tokenizer.next_token()? {
        match token {
            Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") => alternatives += 1,
            _ => in_tag += 1,
        }
        if in_tag > MAX_TAG_TOKENS || alternatives > MAX_ALTERNATIVES {
            return Err(Error::new(ErrorKind::SyntaxError, "an expression or a chain of alternatives is too long"));
        }
    }
    Ok(())
}

/// `{% generation %}` marks what is trained on, and is a scope of its own without any effect on the text: `{% with %}`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[..end];
        let name = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let plain = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&inner.replace(name, plain));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
