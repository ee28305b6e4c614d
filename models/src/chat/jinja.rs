//! Jinja templates with Python's values: what Jinja2 3.1 gives in the environment that transformers sets up.
//!
//! The environment is Jinja's immutable sandbox with `trim_blocks`, `lstrip_blocks`, `break` and `continue`, the tag
//! `{% generation %}`, the functions `raise_exception` and `strftime_now`, and a `tojson` that escapes nothing for HTML.
//! Templates are parsed to a tree that is run directly. `models/README.md` lists where this differs from Jinja.
//!
//! - `lexer`, `parser`, `ast`: templates as trees
//! - `value`, `number`, `text`, `repr`, `iterate`: Python's values
//! - `eval`, `scope`, `expressions`, `attributes`, `arguments`: running a tree
//! - `filters`, `sequences`, `wrap`, `pretty_print`, `json`, `predicates`, `functions`, `methods`, `str_methods`,
//!   `format`, `printf`: what templates can call
//! - `budget`: limits

mod arguments;
mod ast;
mod attributes;
mod budget;
mod error;
mod eval;
mod expressions;
mod filters;
mod format;
mod functions;
mod iterate;
mod json;
mod lexer;
mod methods;
mod number;
mod parser;
mod predicates;
mod pretty_print;
mod printf;
mod repr;
mod scope;
mod sequences;
mod str_methods;
mod text;
mod value;
mod wrap;

use std::collections::HashMap;
use std::rc::Rc;

use dashu_int::IBig;
use serde_json::Map;

use budget::Budget;
use error::{Error, Result};
use eval::Machine;
use value::{Dict, List, Value};

/// For the deepest recursion that the limits allow, with room to spare in builds without optimization.
const STACK_BYTES: usize = 16 << 20;

/// The text of a template, or why there is none, in one line.
pub(super) fn render(source: &str, variables: &Map<String, serde_json::Value>) -> std::result::Result<String, String> {
    // On a thread of its own, since the caller's stack may be small.
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, || evaluate(source, variables)).map(std::thread::ScopedJoinHandle::join)
    });
    match outcome {
        Ok(Ok(result)) => result.map_err(|error| error.one_line()),
        Ok(Err(_)) => Err("the template engine failed".to_owned()),
        Err(error) => Err(format!("no thread to render it: {error}")),
    }
}

fn evaluate(source: &str, variables: &Map<String, serde_json::Value>) -> Result<String> {
    let template = parser::parse(source)?;
    let budget = Budget::new();
    let mut values = HashMap::new();
    for (name, value) in variables {
        values.insert(Rc::from(name.as_str()), from_json(value, &budget, 0)?);
    }
    Machine::new(budget, values, &template).run(&template)
}

/// A value of JSON as Python reads it.
fn from_json(value: &serde_json::Value, budget: &Budget, depth: usize) -> Result<Value> {
    if depth > value::MAX_NESTING {
        return Err(Error::new(format!("a variable has values deeper than {} in each other", value::MAX_NESTING)));
    }
    Ok(match value {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(flag) => Value::Bool(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(int)) => number::from_big(IBig::from(int)),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => {
            let items = items.iter().map(|item| from_json(item, budget, depth + 1)).collect::<Result<_>>()?;
            Value::List(List::new(items, budget)?)
        }
        serde_json::Value::Object(fields) => {
            let mut entries = Vec::with_capacity(fields.len());
            for (name, value) in fields {
                entries.push((Value::from(name.as_str()), from_json(value, budget, depth + 1)?));
            }
            Value::Dict(Dict::new(entries, budget)?)
        }
    })
}
