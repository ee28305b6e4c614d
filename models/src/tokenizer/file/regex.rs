//! What the regular expressions of a tokenizer cost to compile.

use fancy_regex::Expr;
use serde_json::Value;

/// A class of characters: `\w` takes 80 KB and a quarter of a millisecond. A letter is one.
const CLASS: usize = 64;
/// A thousand classes; the longest published expressions have forty.
pub(super) const MAX_SIZE: usize = CLASS << 10;

/// The letters and classes in the expressions of a part of the file, as often as they are repeated.
pub(super) fn size(part: &Value) -> usize {
    match part {
        Value::Object(fields) => fields.iter().fold(0, |sum, (name, value)| {
            let size = match value {
                // What is no expression is the crate's to refuse.
                Value::String(regex) if name == "Regex" => {
                    Expr::parse_tree(regex).map_or(0, |tree| compiled(&tree.expr))
                }
                _ => size(value),
            };
            sum.saturating_add(size)
        }),
        Value::Array(values) => values.iter().fold(0, |sum, value| sum.saturating_add(size(value))),
        _ => 0,
    }
}

fn compiled(expr: &Expr) -> usize {
    let all = |parts: &[Expr]| parts.iter().fold(0usize, |sum, part| sum.saturating_add(compiled(part)));
    match expr {
        Expr::Empty | Expr::Assertion(_) | Expr::KeepOut | Expr::ContinueFromPreviousMatchEnd => 1,
        Expr::Literal { val, casei } => val.len() * if *casei { 4 } else { 1 },
        Expr::Any { .. } | Expr::Backref(_) | Expr::BackrefExistsCondition(_) => CLASS,
        Expr::Delegate { inner, .. } => inner.len().max(CLASS),
        Expr::Concat(parts) | Expr::Alt(parts) => all(parts),
        Expr::Group(child) => compiled(child),
        // An automaton of its own.
        Expr::LookAround(child, _) | Expr::AtomicGroup(child) => compiled(child).saturating_add(CLASS),
        Expr::Repeat { child, lo, hi, .. } => {
            let times = if *hi == usize::MAX { *lo } else { *hi };
            compiled(child).saturating_mul(times.max(1))
        }
        Expr::Conditional { condition, true_branch, false_branch } => [condition, true_branch, false_branch]
            .into_iter()
            .fold(CLASS, |sum, part| sum.saturating_add(compiled(part))),
    }
}
