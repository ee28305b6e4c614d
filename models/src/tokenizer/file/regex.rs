//! What the regular expressions of a tokenizer cost to compile, and to match.

use fancy_regex::{Assertion, Expr};
use serde_json::Value;

/// A class of characters: `\w` takes 80 KB and a quarter of a millisecond. A letter is one.
const CLASS: usize = 64;
/// A thousand classes; the longest published expressions have forty.
pub(super) const MAX_SIZE: usize = CLASS << 10;

/// Letters of a text for which ways of matching are counted.
const TEXT: usize = 256;
/// In how many ways all the expressions may match at a place of such a text: eleven like `\s+(?!\S)`, of which tokenizers
/// have one or two, and none like `(a|aa)+b(?=c)`, which match the shortest text in thousands.
pub(super) const MAX_WAYS: usize = 12 * TEXT;
/// In a decoder, which matches them with every token: nothing that repeats.
pub(super) const MAX_DECODER_WAYS: usize = TEXT / 4;

/// What expressions cost.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    /// Letters and classes, as often as they are repeated.
    pub size: usize,
    /// In how many ways those match that are matched by trying one after another. Automatons match the others.
    pub ways: usize,
    /// What a byte takes where all that follows may be looked at from every byte, as by `a*b` in a text of `a`.
    pub far: usize,
}

impl Cost {
    /// The cost of all the expressions of a part of the file.
    pub fn of(part: &Value) -> Self {
        match part {
            Value::Object(fields) => Self::all(fields.iter().map(|(name, value)| match value {
                // What is no expression is the crate's to refuse.
                Value::String(regex) if name == "Regex" => {
                    Expr::parse_tree(regex).map_or(Self::default(), |tree| Self::of_expression(&tree.expr))
                }
                _ => Self::of(value),
            })),
            Value::Array(values) => Self::all(values.iter().map(Self::of)),
            _ => Self::default(),
        }
    }

    pub fn all(costs: impl Iterator<Item = Self>) -> Self {
        costs.fold(Self::default(), |sum, cost| Self {
            size: sum.size.saturating_add(cost.size),
            ways: sum.ways.saturating_add(cost.ways),
            far: sum.far.saturating_add(cost.far),
        })
    }

    fn of_expression(expr: &Expr) -> Self {
        let (size, tried) = (compiled(expr), is_tried(expr));
        let ways = if tried { ways(expr, false) } else { 0 };
        let far = if tried || looks_far(expr, true) { classes(size).saturating_add(ways) } else { 0 };
        Self { size, ways, far }
    }
}

/// The classes that take as much as `size` letters.
pub(super) fn classes(size: usize) -> usize {
    size.div_ceil(CLASS)
}

/// Whether something follows what repeats without end, so that it may have been read in vain. What is `last` in an
/// expression has nothing after it.
fn looks_far(expr: &Expr, last: bool) -> bool {
    match expr {
        Expr::Concat(parts) => parts.iter().enumerate().any(|(i, part)| looks_far(part, last && i + 1 == parts.len())),
        Expr::Alt(parts) => parts.iter().any(|part| looks_far(part, last)),
        Expr::Group(child) => looks_far(child, last),
        Expr::Repeat { child, hi, .. } => *hi == usize::MAX && !last || looks_far(child, last && *hi == 1),
        _ => false,
    }
}

/// Whether no automaton matches an expression.
fn is_tried(expr: &Expr) -> bool {
    match expr {
        Expr::Empty | Expr::Literal { .. } | Expr::Any { .. } | Expr::Delegate { .. } => false,
        Expr::Assertion(assertion) => !matches!(
            assertion,
            Assertion::StartText | Assertion::EndText | Assertion::StartLine { .. } | Assertion::EndLine { .. }
        ),
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().any(is_tried),
        Expr::Group(child) | Expr::Repeat { child, .. } => is_tried(child),
        _ => true,
    }
}

/// In how many ways an expression matches at a place of a text. What is `followed` by what is tried is tried itself.
fn ways(expr: &Expr, followed: bool) -> usize {
    if !followed && !is_tried(expr) {
        return 1;
    }
    match expr {
        Expr::Concat(parts) => {
            let tried = parts.iter().rposition(is_tried);
            let each = parts.iter().enumerate().map(|(i, part)| ways(part, followed || Some(i) < tried));
            each.fold(1, usize::saturating_mul)
        }
        Expr::Alt(parts) => parts.iter().fold(0, |sum, part| sum.saturating_add(ways(part, followed))),
        Expr::Group(child) => ways(child, followed),
        Expr::LookAround(child, _) | Expr::AtomicGroup(child) => ways(child, false),
        Expr::Repeat { child, lo, hi, .. } => {
            let times = *hi.min(&TEXT);
            match ways(child, true) {
                1 => times.saturating_sub(*lo) + 1,
                // As many at each time, or no other time.
                several => several.saturating_add(1).saturating_pow(times as u32),
            }
        }
        _ => 1,
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
