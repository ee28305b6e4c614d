//! Arguments of filters, tests, methods and functions, bound to parameters as Python binds them.

use std::rc::Rc;

use super::error::{Result, fail};
use super::eval::Machine;
use super::number;
use super::value::Value;

/// A function of the environment: a filter, a test, a method or a global function.
pub(super) struct Native {
    pub name: &'static str,
    /// The names of the parameters: `value width? first?`. A name with `?` may be left out. Names that begin with `/` take
    /// no keyword. `*` takes all further arguments.
    pub parameters: &'static str,
    pub run: fn(&Machine, &Bound) -> Result<Value>,
}

/// Arguments as a call gives them.
#[derive(Default, Clone)]
pub(super) struct CallArguments {
    pub positional: Vec<Value>,
    pub named: Vec<(Rc<str>, Value)>,
}

/// Arguments at the places of their parameters.
pub(super) struct Bound {
    values: Vec<Option<Value>>,
    /// Arguments beyond the parameters of a function that takes any.
    pub rest: CallArguments,
}

impl Native {
    /// Calls the function with `receiver`, if there is one, before the other arguments.
    pub(super) fn call(&self, machine: &Machine, receiver: Option<&Value>, mut given: CallArguments) -> Result<Value> {
        if let Some(receiver) = receiver {
            given.positional.insert(0, receiver.clone());
        }
        // A function may read all of each text it is given, such as one of four megabytes that is no number.
        let values = given.positional.iter().chain(given.named.iter().map(|(_, value)| value));
        machine.budget.reading(values.filter_map(Value::as_text).map(|text| text.len()).sum())?;
        (self.run)(machine, &self.bind(given)?)
    }

    fn bind(&self, given: CallArguments) -> Result<Bound> {
        let name = self.name;
        let mut positional = given.positional.into_iter();
        let mut named = given.named;
        let mut bound = Bound { values: Vec::new(), rest: CallArguments::default() };
        let mut takes_any = false;
        for parameter in self.parameters.split_ascii_whitespace() {
            if parameter == "*" {
                takes_any = true;
                continue;
            }
            let required = !parameter.ends_with('?');
            let parameter = parameter.trim_end_matches('?');
            let at = named.iter().position(|(name, _)| name.as_ref() == parameter);
            let value = match (positional.next(), at) {
                (Some(_), Some(_)) => fail!("{name}() got multiple values for argument '{parameter}'"),
                (Some(value), None) => Some(value),
                (None, Some(at)) => Some(named.remove(at).1),
                (None, None) if required => {
                    fail!("{name}() misses its argument '{}'", parameter.trim_start_matches('/'))
                }
                (None, None) => None,
            };
            bound.values.push(value);
        }
        bound.rest = CallArguments { positional: positional.collect(), named };
        if !takes_any {
            if let Some((keyword, _)) = bound.rest.named.first() {
                fail!("{name}() got an unexpected keyword argument '{keyword}'");
            }
            if !bound.rest.positional.is_empty() {
                fail!("{name}() takes at most {} arguments", bound.values.len());
            }
        }
        Ok(bound)
    }
}

impl Bound {
    /// An argument that was given.
    pub(super) fn get(&self, at: usize) -> Option<&Value> {
        self.values.get(at)?.as_ref()
    }

    /// An argument that was given and is not `None`.
    pub(super) fn some(&self, at: usize) -> Option<&Value> {
        self.get(at).filter(|value| !matches!(value, Value::None))
    }

    /// An argument, `None` where it was left out.
    pub(super) fn value(&self, at: usize) -> Value {
        self.get(at).cloned().unwrap_or(Value::None)
    }

    /// A flag, `false` where it was left out.
    pub(super) fn flag(&self, at: usize) -> bool {
        self.get(at).is_some_and(Value::is_true)
    }

    /// An integer, or `default` where it was left out.
    pub(super) fn int(&self, at: usize, default: i64) -> Result<i64> {
        match self.get(at) {
            None => Ok(default),
            Some(value) => index(value),
        }
    }

    /// A text that must have been given.
    pub(super) fn text(&self, at: usize) -> Result<Rc<str>> {
        text(&self.value(at))
    }
}

/// A value that must be an integer.
pub(super) fn index(value: &Value) -> Result<i64> {
    match number::to_index(value) {
        Some(int) => Ok(int),
        None => fail!("'{}' object cannot be interpreted as an integer", value.type_name()),
    }
}

/// A value that must be a text.
pub(super) fn text(value: &Value) -> Result<Rc<str>> {
    match value.as_text() {
        Some(text) => Ok(text.clone()),
        None => fail!("expected a string, found '{}'", value.type_name()),
    }
}
