//! Which modules a config means.

use std::fmt;

use fancy_regex::{Assertion, CompileError, Expr, Regex, RegexBuilder};

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
/// Steps back that an expression that is no automaton may take in one name: about half the square of its letters where
/// two parts may match any text.
const MAX_STEPS: usize = 4096;
/// Expressions of a config that are no automata. Each may take all of its steps for each module.
const MAX_BACKTRACKING: usize = 16;
/// Bytes of a compiled automaton, tried one after the other: it counts as the first that it fits in.
const AUTOMATA: [usize; 5] = [1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// What the automata of all expressions of a config may count as: of thousands of short ones, or of sixteen of the
/// longest. They take some three times as much.
const MAX_AUTOMATA: usize = 16 << 20;

/// What the expressions of a config may yet take.
pub(super) struct Budget {
    bytes: usize,
    backtracking: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: MAX_AUTOMATA, backtracking: MAX_BACKTRACKING }
    }
}

/// How a pattern came to match: which of several wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Name,
    Expression,
    Class,
}

impl Pattern {
    /// As compressed-tensors writes targets: expressions after `re:`.
    pub fn target(text: &str, budget: &mut Budget, problem: impl Fn(&str) -> Error) -> Result<Self> {
        match text.strip_prefix("re:") {
            Some(regex) => Self::expression(regex, budget, problem),
            None => Ok(Self::Name(text.to_owned())),
        }
    }

    /// An expression. What it may take to compile and to match is bounded, and what all of a config take, in memory and in
    /// steps for a name, is by `budget`.
    pub fn expression(text: &str, budget: &mut Budget, problem: impl Fn(&str) -> Error) -> Result<Self> {
        let shown = text.escape_debug();
        if text.len() > MAX_SIZE {
            return Err(problem(&format!("has an expression of {} bytes, at most {MAX_SIZE} are read", text.len())));
        }
        let anchored = format!(r"\A(?:{})", of_python(text));
        let invalid = |error| problem(&format!("has `{shown}`, which is no regular expression: {error}"));
        let tree = Expr::parse_tree(&anchored).map_err(invalid)?;
        // What it cannot have parsed to is too large.
        if weight(&tree.expr, |_| 1) > MAX_SIZE {
            return Err(problem(&format!("has `{shown}`, which repeats too much to be matched")));
        }
        // Limits are for expressions that are one automaton.
        let estimate = [weight(&tree.expr, bytes)];
        let limits = match is_regular(&tree.expr) {
            true => &AUTOMATA[..],
            false if budget.backtracking == 0 => {
                let most = format!("at most {MAX_BACKTRACKING} with look-around or references are matched");
                return Err(problem(&format!("has `{shown}` after others like it: {most}")));
            }
            false => {
                budget.backtracking -= 1;
                &estimate
            }
        };
        let mut builder = RegexBuilder::new(&anchored);
        builder.backtrack_limit(MAX_STEPS);
        for &limit in limits {
            let Some(left) = budget.bytes.checked_sub(limit) else {
                let most = MAX_AUTOMATA >> 20;
                let beyond =
                    format!("has `{shown}`, with which the expressions of the config take more than {most} MiB");
                return Err(problem(&beyond));
            };
            match builder.delegate_size_limit(limit).build() {
                Err(error) if is_too_large(&error) => continue,
                built => {
                    budget.bytes = left;
                    return Ok(Self::Expression { text: text.to_owned(), regex: built.map_err(invalid)? });
                }
            }
        }
        Err(problem(&format!("has `{shown}`, which is too large to be matched")))
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

/// An expression of Python's in the words of this one: the end of a text is `\Z` there. `$` is it here, as no name has lines.
fn of_python(text: &str) -> String {
    let mut is_escaped = false;
    let letter = |letter| {
        let is_end = is_escaped && letter == 'Z';
        is_escaped = !is_escaped && letter == '\\';
        if is_end { 'z' } else { letter }
    };
    text.chars().map(letter).collect()
}

/// What an expression is made up of.
fn parts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Concat(parts) | Expr::Alt(parts) => parts.iter().collect(),
        Expr::Group(child) | Expr::LookAround(child, _) | Expr::AtomicGroup(child) => vec![child],
        Expr::Repeat { child, .. } => vec![child],
        Expr::Conditional { condition, true_branch, false_branch } => vec![condition, true_branch, false_branch],
        _ => Vec::new(),
    }
}

/// The sum of what the parts of an expression weigh, as often as they are repeated.
fn weight(expr: &Expr, own: fn(&Expr) -> usize) -> usize {
    let of_parts = parts(expr).into_iter().fold(0usize, |all, part| all.saturating_add(weight(part, own)));
    let times = match *expr {
        Expr::Repeat { lo, hi: usize::MAX, .. } => lo.saturating_add(1),
        Expr::Repeat { hi, .. } => hi.max(1),
        _ => 1,
    };
    of_parts.saturating_mul(times).saturating_add(own(expr))
}

/// Whether an expression is compiled to one automaton.
fn is_regular(expr: &Expr) -> bool {
    let by_itself = match expr {
        Expr::Empty | Expr::Any { .. } | Expr::Literal { .. } | Expr::Delegate { .. } => true,
        Expr::Assertion(assertion) => matches!(assertion, Assertion::StartText | Assertion::EndText),
        Expr::Concat(_) | Expr::Alt(_) | Expr::Group(_) | Expr::Repeat { .. } => true,
        _ => false,
    };
    by_itself && parts(expr).into_iter().all(is_regular)
}

/// About the most bytes that a part of an expression takes that is compiled to several automata: a class of letters has
/// hundreds of ranges.
fn bytes(expr: &Expr) -> usize {
    match expr {
        Expr::Delegate { .. } => 1 << 16,
        Expr::Any { .. } => 1 << 10,
        _ => 1 << 7,
    }
}

fn is_too_large(error: &fancy_regex::Error) -> bool {
    matches!(error, fancy_regex::Error::CompileError(CompileError::InnerError(error)) if error.size_limit().is_some())
}
