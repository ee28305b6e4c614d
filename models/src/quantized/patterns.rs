//! Which modules a config means.

use std::collections::BTreeSet;
use std::fmt::Display;

use fancy_regex::{Assertion, CompileError, Expr, Regex, RegexBuilder};

use crate::error::{Error, Result};

/// A regular expression, matched from a name's beginning, not to its end, as Python's `re.match` does.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    text: String,
    regex: Regex,
}

/// A list of names and expressions.
///
/// Of thousands of names those that mean a module are looked up, and not compared with it one by one.
#[derive(Debug, Clone, Default)]
pub(super) struct Patterns {
    /// Classes, or whole names of modules: what has no `re:` in front.
    names: BTreeSet<String>,
    /// Those of them that have an [`ANY`].
    with_any: Vec<String>,
    /// In the order of their texts.
    expressions: Vec<Expression>,
}

/// Stands for any text in a name of modules that stay as they are, or for any one name between two dots.
const ANY: char = '*';
/// As many has a name at most.
const MAX_ANY: usize = 16;
/// Names of a config that have one. Each is compared with each module.
const MAX_WITH_ANY: usize = 4096;

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
    with_any: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: MAX_AUTOMATA, backtracking: MAX_BACKTRACKING, with_any: MAX_WITH_ANY }
    }
}

/// How a pattern came to match: which of several wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Name,
    Expression,
    Class,
}

impl Budget {
    /// The bytes that are left behind so many for what is `shown`.
    fn less(&self, bytes: usize, shown: impl Display, problem: impl Fn(&str) -> Error) -> Result<usize> {
        let most = MAX_AUTOMATA >> 20;
        let of = "the automata of the config's expressions";
        let beyond = || problem(&format!("has `{shown}`, with which {of} take more than {most} MiB"));
        self.bytes.checked_sub(bytes).ok_or_else(beyond)
    }
}

impl Expression {
    /// An expression. What it may take to compile and to match is bounded, and what all of a config take, in memory and in
    /// steps for a name, is by `budget`.
    pub fn new(text: &str, budget: &mut Budget, problem: impl Fn(&str) -> Error) -> Result<Self> {
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
                let most =
                    format!("at most {MAX_BACKTRACKING} with look-around, references, `\\b` or the like are matched");
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
            let left = budget.less(limit, &shown, &problem)?;
            match builder.delegate_size_limit(limit).build() {
                Err(error) if is_too_large(&error) => continue,
                built => {
                    budget.bytes = left;
                    return Ok(Self { text: text.to_owned(), regex: built.map_err(invalid)? });
                }
            }
        }
        Err(problem(&format!("has `{shown}`, which is too large to be matched")))
    }

    /// Whether it means the module `name`.
    pub fn matches(&self, name: &str) -> Result<bool> {
        self.regex.is_match(name).map_err(|error| Error::Unsupported {
            what: format!(
                "the expression `{}` for the module `{}` ({error})",
                self.text.escape_debug(),
                name.escape_debug()
            ),
            supported: "expressions that match in few steps".to_owned(),
        })
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Patterns {
    /// What a list says: expressions after `re:`, and names.
    pub fn read<'a>(
        texts: impl Iterator<Item = Result<&'a str>>,
        budget: &mut Budget,
        problem: impl Fn(&str) -> Error,
    ) -> Result<Self> {
        let mut all = Self::default();
        for text in texts {
            let text = text?;
            if let Some(expression) = text.strip_prefix("re:") {
                all.expressions.push(Expression::new(expression, budget, &problem)?);
                continue;
            }
            if text.contains(ANY) {
                let (count, len) = (text.matches(ANY).count(), text.len());
                if count > MAX_ANY || len > MAX_SIZE {
                    let most = format!("at most {MAX_ANY} in {MAX_SIZE} are matched");
                    return Err(problem(&format!("has a name of {len} bytes with {count} `{ANY}`, {most}")));
                }
                let most = format!("the {MAX_WITH_ANY} that a config may have");
                let beyond = || problem(&format!("has a name with `{ANY}` beyond {most}"));
                budget.with_any = budget.with_any.checked_sub(1).ok_or_else(beyond)?;
                all.with_any.push(text.to_owned());
            }
            all.names.insert(text.to_owned());
        }
        all.expressions.sort_by(|a, b| a.text.cmp(&b.text));
        Ok(all)
    }

    /// What of it means the module `name`, and how. A name wins over an expression, and that over a class; of several
    /// expressions the first in order of their texts.
    pub fn matched(&self, name: &str) -> Result<Option<(Match, &str)>> {
        if let Some(name) = self.names.get(name) {
            return Ok(Some((Match::Name, name)));
        }
        for expression in &self.expressions {
            if expression.matches(name)? {
                return Ok(Some((Match::Expression, &expression.text)));
            }
        }
        Ok(self.names.get(class(name)).map(|class| (Match::Class, class.as_str())))
    }

    /// What of it leaves out the module `name` where it is a list of those that stay as they are: an expression, the name
    /// of the module, of one that it is in, or of its end, or a whole name with anything for `*`.
    ///
    /// Programs that read such lists take names for expressions, or for parts of longer words, too, each in its own way.
    /// This is what all of them take them for.
    pub fn leaving_out(&self, name: &str) -> Result<Option<&str>> {
        let dots = || name.match_indices('.').map(|(at, _)| at);
        let parts = dots().map(|at| &name[..at]).chain([name]).chain(dots().map(|at| &name[at + 1..]));
        // A dot behind a name says that the name ends there.
        let named = |part: &str| self.names.get(part).or_else(|| self.names.get(&format!("{part}.")));
        if let Some(found) = parts.filter_map(named).next() {
            return Ok(Some(found));
        }
        if let Some(found) = self.with_any.iter().find(|of| glob(of, name) || names_part(of, name)) {
            return Ok(Some(found));
        }
        for expression in &self.expressions {
            if expression.matches(name)? {
                return Ok(Some(&expression.text));
            }
        }
        Ok(None)
    }
}

/// Whether `of`, between whose dots any one name may be meant, is the name of a module that `name` is in, or of its end.
fn names_part(of: &str, name: &str) -> bool {
    let of = of.strip_suffix('.').unwrap_or(of);
    let are = |(of, name): (&str, &str)| of == name || of.chars().eq([ANY]);
    of.matches('.').count() <= name.matches('.').count()
        && (of.split('.').zip(name.split('.')).all(are) || of.rsplit('.').zip(name.rsplit('.')).all(are))
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
        Expr::Assertion(assertion) => !is_of_words(*assertion),
        Expr::Concat(_) | Expr::Alt(_) | Expr::Group(_) | Expr::Repeat { .. } => true,
        _ => false,
    };
    by_itself && parts(expr).into_iter().all(is_regular)
}

/// Whether it is one of those that ask for the letters around, which fancy-regex matches itself.
fn is_of_words(assertion: Assertion) -> bool {
    use Assertion::{LeftWordBoundary, NotWordBoundary, RightWordBoundary, WordBoundary};
    matches!(assertion, LeftWordBoundary | RightWordBoundary | WordBoundary | NotWordBoundary)
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
