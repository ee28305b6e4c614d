//! Which modules a config means.

use std::fmt;

use fancy_regex::{Expr, Regex, RegexBuilder};

use crate::error::{Error, Result};

/// A module's name, a regular expression, or a class.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// A class, or the whole name of a module: what has no `re:` in front.
    Name(String),
    /// Matched from a name's beginning, not to its end, as Python's `re.match` does.
    Expression { text: String, regex: Regex },
}

/// The class of a module whose weight is quantized. A checkpoint does not say which are tables of embeddings, but by their
/// names, which are those of few architectures.
fn class(name: &str) -> &'static str {
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_table = last.ends_with("_embeddings") || ["embed_tokens", "embed_in", "wte", "wpe"].contains(&last);
    if is_table { "Embedding" } else { "Linear" }
}

/// Letters and classes of an expression, as often as they are repeated; published ones have tens.
const MAX_SIZE: usize = 4096;
/// Steps of matching one name; they are as many as its letters where nothing is tried twice.
const MAX_STEPS: usize = 100_000;
/// Bytes of a compiled automaton.
const MAX_AUTOMATON: usize = 1 << 20;

/// How a pattern came to match: which of several wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Name,
    Expression,
    Class,
}

impl Pattern {
    /// As compressed-tensors writes targets: expressions after `re:`.
    pub fn target(text: &str, problem: impl Fn(&str) -> Error) -> Result<Self> {
        match text.strip_prefix("re:") {
            Some(regex) => Self::expression(regex, problem),
            None => Ok(Self::Name(text.to_owned())),
        }
    }

    /// An expression, whose cost is bounded.
    pub fn expression(text: &str, problem: impl Fn(&str) -> Error) -> Result<Self> {
        let shown = text.escape_debug();
        if text.len() > MAX_SIZE {
            return Err(problem(&format!("has an expression of {} bytes, at most {MAX_SIZE} are read", text.len())));
        }
        let anchored = format!(r"\A(?:{text})");
        let invalid = |error| problem(&format!("has `{shown}`, which is no regular expression: {error}"));
        let tree = Expr::parse_tree(&anchored).map_err(invalid)?;
        if size(&tree.expr) > MAX_SIZE {
            return Err(problem(&format!("has `{shown}`, which repeats too much to be matched")));
        }
        let mut builder = RegexBuilder::new(&anchored);
        builder.backtrack_limit(MAX_STEPS).delegate_size_limit(MAX_AUTOMATON);
        let regex = builder.build().map_err(invalid)?;
        Ok(Self::Expression { text: text.to_owned(), regex })
    }

    /// Whether, and how, it means the module `name`.
    pub fn matched(&self, name: &str) -> Result<Option<Match>> {
        Ok(match self {
            Self::Name(of) if of == name => Some(Match::Name),
            Self::Name(of) => (of == class(name)).then_some(Match::Class),
            Self::Expression { regex, text } => {
                let matches = regex.is_match(name).map_err(|error| Error::Unsupported {
                    what: format!(
                        "the expression `{}` for the module `{}` ({error})",
                        text.escape_debug(),
                        name.escape_debug()
                    ),
                    supported: "expressions that match in few steps".to_owned(),
                })?;
                matches.then_some(Match::Expression)
            }
        })
    }

    pub fn matches(&self, name: &str) -> Result<bool> {
        Ok(self.matched(name)?.is_some())
    }

    /// Whether it leaves out the module `name` where it stands in a list of those that stay as they are: by an
    /// expression, by the name of the module, of one that it is in, or of its end, or by a whole name with anything for `*`.
    ///
    /// Programs that read such lists take names for expressions, or for parts of longer words, too, each in its own way.
    /// This is what all of them take them for.
    pub fn leaves_out(&self, name: &str) -> Result<bool> {
        /// Any one name between two dots.
        const ANY: &str = "*";
        let Self::Name(of) = self else { return self.matches(name) };
        if of.contains(ANY) && glob(of, name) {
            return Ok(true);
        }
        // A dot behind a name says that the name ends there.
        let of = of.strip_suffix('.').unwrap_or(of);
        let (of, name): (Vec<&str>, Vec<&str>) = (of.split('.').collect(), name.split('.').collect());
        let are = |names: &[&str]| names.iter().zip(&of).all(|(name, of)| name == of || *of == ANY);
        Ok(of.len() <= name.len() && (are(&name[..of.len()]) || are(&name[name.len() - of.len()..])))
    }

    /// What patterns of one kind are sorted by.
    pub fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::Expression { text, .. } => text,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.text().escape_debug())
    }
}

/// Whether a name is a pattern's, of which each `*` stands for any text, as shells have it.
fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The parts of an expression, as often as they are repeated. What it cannot have parsed to is too large.
fn size(expr: &Expr) -> usize {
    let sum = |parts: &[Expr]| parts.iter().fold(1usize, |all, part| all.saturating_add(size(part)));
    match expr {
        Expr::Concat(parts) | Expr::Alt(parts) => sum(parts),
        Expr::Group(child) | Expr::LookAround(child, _) | Expr::AtomicGroup(child) => size(child).saturating_add(1),
        Expr::Repeat { child, lo, hi, .. } => {
            let times = if *hi == usize::MAX { lo.saturating_add(1) } else { *hi };
            size(child).saturating_mul(times.max(1)).saturating_add(1)
        }
        Expr::Conditional { condition, true_branch, false_branch } => {
            [condition, true_branch, false_branch].iter().fold(1, |all: usize, part| all.saturating_add(size(part)))
        }
        _ => 1,
    }
}
