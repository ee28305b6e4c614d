//! Iterating over values.

use std::cell::RefCell;
use std::rc::Rc;
use std::vec;

use super::budget::Budget;
use super::error::{Error, Result};
use super::value::{Dict, List, Range, Value, ViewKind};

/// An iterator over a value. It holds the value, so it may outlive the expression that made it.
pub(super) enum Iter {
    Empty,
    Items(Rc<List>, usize),
    /// A text and the byte at which the rest begins.
    Text(Rc<str>, usize),
    View(ViewKind, Rc<Dict>, usize),
    Range(Rc<Range>, usize),
    Generator(Rc<Generator>),
}

/// The result of a filter such as `map`: its items can be read once.
///
/// Python computes the items when they are read. They are computed at once here, and an error among them is kept until
/// it is read.
pub(super) struct Generator {
    /// The type of the iterator in Python.
    pub kind: &'static str,
    items: RefCell<vec::IntoIter<Value>>,
    failure: RefCell<Option<Error>>,
    pub nesting: usize,
}

impl Generator {
    /// A generator of the items up to the first error.
    pub(super) fn value(
        kind: &'static str,
        items: impl Iterator<Item = Result<Value>>,
        budget: &Budget,
    ) -> Result<Value> {
        let (mut taken, mut failure) = (Vec::new(), None);
        for item in items {
            budget.steps(1)?;
            budget.items(1)?;
            match item {
                Ok(item) => taken.push(item),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let list = List::new(taken, budget)?;
        let nesting = list.nesting();
        let items = Rc::into_inner(list).map(|list| list.items).unwrap_or_default();
        Ok(Value::Generator(Rc::new(Self {
            kind,
            items: RefCell::new(items.into_iter()),
            failure: RefCell::new(failure),
            nesting,
        })))
    }

    fn next(&self) -> Option<Result<Value>> {
        let item = self.items.borrow_mut().next();
        item.map(Ok).or_else(|| self.failure.borrow_mut().take().map(Err))
    }
}

impl Iter {
    /// An iterator over `value`, unless it cannot be iterated over.
    pub(super) fn over(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Undefined(_) => Self::Empty,
            Value::Text(text) | Value::Markup(text) => Self::Text(text.clone(), 0),
            Value::List(list) | Value::Tuple(list) => Self::Items(list.clone(), 0),
            Value::Dict(dict) => Self::View(ViewKind::Keys, dict.clone(), 0),
            Value::View(kind, dict) => Self::View(*kind, dict.clone(), 0),
            Value::Range(range) => Self::Range(range.clone(), 0),
            Value::Generator(generator) => Self::Generator(generator.clone()),
            _ => return None,
        })
    }
}

impl Iterator for Iter {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Result<Value>> {
        match self {
            Self::Empty => None,
            Self::Items(list, at) => {
                let item = list.items.get(*at)?;
                *at += 1;
                Some(Ok(item.clone()))
            }
            Self::Text(text, at) => {
                let c = text[*at..].chars().next()?;
                let end = *at + c.len_utf8();
                let item = Value::from(&text[*at..end]);
                *at = end;
                Some(Ok(item))
            }
            Self::View(kind, dict, at) => {
                let (_, (key, value)) = dict.entries.get_index(*at)?;
                *at += 1;
                Some(match kind {
                    ViewKind::Keys => Ok(key.clone()),
                    ViewKind::Values => Ok(value.clone()),
                    ViewKind::Items => Ok(List::pair(key.clone(), value.clone())),
                })
            }
            Self::Range(range, at) => {
                if *at >= range.len {
                    return None;
                }
                *at += 1;
                Some(Ok(range.get(*at - 1)))
            }
            Self::Generator(generator) => generator.next(),
        }
    }
}
