//! Evaluating expressions.

use std::rc::Rc;

use super::arguments::{CallArguments, Native};
use super::ast::{Arguments, Comparison, Expr, ExprKind, Operator, Postfix, PostfixKind};
use super::error::{Result, fail};
use super::eval::Machine;
use super::filters::FILTERS;
use super::number;
use super::predicates::TESTS;
use super::scope::Scope;
use super::text::escape_html;
use super::value::{Dict, List, Value};

impl Machine {
    pub(super) fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.budget.steps(1)?;
        match &expr.kind {
            ExprKind::Constant(value) => Ok(value.clone()),
            ExprKind::Name(name) => Ok(self.variable(name, scope)),
            _ => self.budget.deeper(|| self.eval_inner(expr, scope)).map_err(|error| error.at(expr.line)),
        }
    }

    fn eval_inner(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        match &expr.kind {
            ExprKind::Constant(value) => Ok(value.clone()),
            ExprKind::Name(name) => Ok(self.variable(name, scope)),
            ExprKind::Tuple(items) => Ok(Value::Tuple(List::new(self.eval_all(items, scope)?, &self.budget)?)),
            ExprKind::List(items) => Ok(Value::List(List::new(self.eval_all(items, scope)?, &self.budget)?)),
            ExprKind::Dict(entries) => self.dict(entries, scope),
            ExprKind::Not(inner) => Ok(Value::Bool(!self.eval(inner, scope)?.is_true())),
            ExprKind::Negative(inner) => sign(&self.eval(inner, scope)?, "-", number::negative),
            ExprKind::Positive(inner) => sign(&self.eval(inner, scope)?, "+", number::positive),
            ExprKind::Arithmetic(first, rest) => {
                let mut value = self.eval(first, scope)?;
                for (operator, operand) in rest {
                    value = self.arithmetic(*operator, &value, &self.eval(operand, scope)?)?;
                }
                Ok(value)
            }
            ExprKind::Concat(items) => self.concat(&self.eval_all(items, scope)?),
            ExprKind::And(items) => self.first_with_truth(items, false, scope),
            ExprKind::Or(items) => self.first_with_truth(items, true, scope),
            ExprKind::Compare(first, rest) => self.compare_chain(first, rest, scope),
            ExprKind::If { test, then, otherwise } => match (self.eval(test, scope)?.is_true(), otherwise) {
                (true, _) => self.eval(then, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => {
                    Ok(Value::undefined("the inline if-expression evaluated to false and no else section was defined"))
                }
            },
            ExprKind::Postfix(base, postfixes) => {
                let mut value = self.eval(base, scope)?;
                for postfix in postfixes {
                    value = self.postfix(value, postfix, scope)?;
                }
                Ok(value)
            }
        }
    }

    fn eval_all(&self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn dict(&self, entries: &[(Expr, Expr)], scope: &Rc<Scope>) -> Result<Value> {
        let mut values = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            values.push((self.eval(key, scope)?, self.eval(value, scope)?));
        }
        Ok(Value::Dict(Dict::new(values, &self.budget)?))
    }

    /// The first value with this truth, or the last one: `or` and `and`.
    fn first_with_truth(&self, exprs: &[Expr], truth: bool, scope: &Rc<Scope>) -> Result<Value> {
        let mut value = Value::None;
        for expr in exprs {
            value = self.eval(expr, scope)?;
            if value.is_true() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn compare_chain(&self, first: &Expr, rest: &[(Comparison, Expr)], scope: &Rc<Scope>) -> Result<Value> {
        let mut left = self.eval(first, scope)?;
        for (comparison, right) in rest {
            let right = self.eval(right, scope)?;
            if !self.compare(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn compare(&self, comparison: Comparison, left: &Value, right: &Value) -> Result<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let budget = &self.budget;
        Ok(match comparison {
            Comparison::Equal => left.equals(right, budget)?,
            Comparison::NotEqual => !left.equals(right, budget)?,
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
            Comparison::Less => left.order(right, "<", budget)? == Some(Less),
            Comparison::LessOrEqual => matches!(left.order(right, "<=", budget)?, Some(Less | Equal)),
            Comparison::Greater => left.order(right, ">", budget)? == Some(Greater),
            Comparison::GreaterOrEqual => matches!(left.order(right, ">=", budget)?, Some(Greater | Equal)),
        })
    }

    /// `item in container`.
    pub(super) fn contains(&self, container: &Value, item: &Value) -> Result<bool> {
        use super::value::ViewKind;
        match container {
            Value::Text(text) | Value::Markup(text) => {
                self.budget.reading(text.len())?;
                match item.as_text() {
                    Some(part) => Ok(text.contains(part.as_ref())),
                    None => fail!("'in <string>' requires string as left operand, not {}", item.type_name()),
                }
            }
            Value::Dict(dict) | Value::View(ViewKind::Keys, dict) => Ok(dict.get(item, &self.budget)?.is_some()),
            _ => {
                let Ok(items) = container.iter() else {
                    fail!("argument of type '{}' is not iterable", container.type_name())
                };
                for found in items {
                    if found?.equals(item, &self.budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// `a ~ b ~ c`.
    fn concat(&self, values: &[Value]) -> Result<Value> {
        let mut text = String::new();
        let is_markup = self.autoescape.get() && values.iter().any(|value| matches!(value, Value::Markup(_)));
        for value in values {
            let piece = self.to_text(value)?;
            super::budget::check_text(text.len().saturating_add(piece.len()))?;
            match is_markup && !matches!(value, Value::Markup(_)) {
                true => text.push_str(&escape_html(&piece)),
                false => text.push_str(&piece),
            }
        }
        self.budget.text(text.len())?;
        Ok(if is_markup { Value::Markup(text.into()) } else { Value::from(text) })
    }

    /// An operator of arithmetic on any two values.
    pub(super) fn arithmetic(&self, operator: Operator, left: &Value, right: &Value) -> Result<Value> {
        self.budget.steps(1)?;
        if let Some(result) = number::arithmetic(operator, left, right) {
            return result;
        }
        if operator == Operator::Remainder && left.as_text().is_some() {
            return self.printf(left, right);
        }
        if let Value::Undefined(undefined) = left {
            return Err(undefined.error());
        }
        match (operator, left, right) {
            (_, _, Value::Undefined(undefined)) => return Err(undefined.error()),
            (Operator::Add, Value::List(left), Value::List(right)) => {
                return Ok(Value::List(self.joined(left, right)?));
            }
            (Operator::Add, Value::Tuple(left), Value::Tuple(right)) => {
                return Ok(Value::Tuple(self.joined(left, right)?));
            }
            (Operator::Multiply, _, _) => {
                if let Some(result) = self.repeated(left, right)? {
                    return Ok(result);
                }
            }
            _ => {}
        }
        if let (Operator::Add, Some(first), Some(second)) = (operator, left.as_text(), right.as_text()) {
            self.budget.text(first.len().saturating_add(second.len()))?;
            return Ok(match (left, right) {
                (Value::Text(_), Value::Text(_)) => Value::from(format!("{first}{second}")),
                _ => {
                    let [first, second] = [left, right].map(escaped);
                    self.budget.text(first.len().saturating_add(second.len()))?;
                    Value::Markup(format!("{first}{second}").into())
                }
            });
        }
        fail!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            operator.symbol(),
            left.type_name(),
            right.type_name()
        )
    }

    fn joined(&self, left: &List, right: &List) -> Result<Rc<List>> {
        self.budget.items(left.items.len() + right.items.len())?;
        List::new(left.items.iter().chain(&right.items).cloned().collect(), &self.budget)
    }

    /// A text, list or tuple, repeated by an integer on either side.
    fn repeated(&self, left: &Value, right: &Value) -> Result<Option<Value>> {
        let (value, count) = match (number::to_index(left), number::to_index(right)) {
            (None, Some(count)) => (left, count),
            (Some(count), None) => (right, count),
            _ => return Ok(None),
        };
        if matches!(left, Value::Big(_)) || matches!(right, Value::Big(_)) {
            fail!("cannot fit 'int' into an index-sized integer");
        }
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Some(match value {
            Value::Text(text) | Value::Markup(text) => {
                self.budget.text(text.len().saturating_mul(count))?;
                let repeated = if text.is_empty() { String::new() } else { text.repeat(count) };
                if matches!(value, Value::Markup(_)) { Value::Markup(repeated.into()) } else { Value::from(repeated) }
            }
            Value::List(list) | Value::Tuple(list) => {
                let len = list.items.len().saturating_mul(count);
                self.budget.items(len)?;
                let items = List::new(list.items.iter().cycle().take(len).cloned().collect(), &self.budget)?;
                if matches!(value, Value::List(_)) { Value::List(items) } else { Value::Tuple(items) }
            }
            _ => return Ok(None),
        }))
    }

    /// Applies an attribute, an item, a call, a filter or a test to the value before it.
    pub(super) fn postfix(&self, value: Value, postfix: &Postfix, scope: &Rc<Scope>) -> Result<Value> {
        self.budget.steps(1)?;
        self.postfix_inner(value, &postfix.kind, scope).map_err(|error| error.at(postfix.line))
    }

    fn postfix_inner(&self, value: Value, kind: &PostfixKind, scope: &Rc<Scope>) -> Result<Value> {
        match kind {
            PostfixKind::Attribute(name) => self.attribute(&value, name),
            PostfixKind::Item(index) => {
                let index = self.eval(index, scope)?;
                self.item(&value, &index)
            }
            PostfixKind::Slice(parts) => {
                let part = |part: &Option<Expr>| part.as_ref().map(|part| self.eval(part, scope)).transpose();
                let parts = [part(&parts[0])?, part(&parts[1])?, part(&parts[2])?];
                self.slice(&value, &parts)
            }
            PostfixKind::Call(arguments) => {
                let arguments = self.arguments(arguments, scope)?;
                self.call(&value, arguments)
            }
            PostfixKind::Filter(name, arguments) => {
                let arguments = self.arguments(arguments, scope)?;
                self.filter(name, &value, arguments)
            }
            PostfixKind::Test { name, arguments, negated } => {
                let arguments = self.arguments(arguments, scope)?;
                Ok(Value::Bool(self.test(name, &value, arguments)? != *negated))
            }
        }
    }

    /// The values of a call's arguments.
    pub(super) fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<CallArguments> {
        let mut given = CallArguments { positional: self.eval_all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, expr) in &arguments.named {
            given.named.push((name.clone(), self.eval(expr, scope)?));
        }
        if let Some(spread) = &arguments.spread {
            given.positional.extend(self.eval(spread, scope)?.collect(&self.budget)?);
        }
        if let Some(spread) = &arguments.spread_named {
            let Value::Dict(dict) = self.eval(spread, scope)? else { fail!("the argument after ** must be a mapping") };
            for (name, value) in dict.entries.values() {
                let Some(name) = name.as_text() else { fail!("keywords must be strings") };
                if given.named.iter().any(|(other, _)| other == name) {
                    fail!("got multiple values for keyword argument '{name}'");
                }
                given.named.push((name.clone(), value.clone()));
            }
        }
        self.budget.items(given.positional.len() + 2 * given.named.len())?;
        Ok(given)
    }

    /// `callee(arguments)`.
    pub(super) fn call(&self, callee: &Value, arguments: CallArguments) -> Result<Value> {
        match callee {
            Value::Macro(called) => self.call_macro(called, arguments),
            Value::Function(native) => native.call(self, None, arguments),
            Value::Method(method) => self.call_method(&method.0, method.1, arguments),
            Value::Loop(looped) => self.call_loop(looped, &arguments),
            Value::Block(block) => self.block_text(block),
            Value::Joiner(joiner) => Ok(match joiner.used.replace(true) {
                true => joiner.separator.clone(),
                false => Value::from(""),
            }),
            Value::Undefined(undefined) => Err(undefined.error()),
            _ => fail!("'{}' object is not callable", callee.type_name()),
        }
    }

    /// `value | name(arguments)`.
    pub(super) fn filter(&self, name: &str, value: &Value, arguments: CallArguments) -> Result<Value> {
        find("filter", FILTERS, name)?.call(self, Some(value), arguments)
    }

    /// `value is name(arguments)`.
    pub(super) fn test(&self, name: &str, value: &Value, arguments: CallArguments) -> Result<bool> {
        Ok(find("test", TESTS, name)?.call(self, Some(value), arguments)?.is_true())
    }
}

fn find(kind: &str, table: &'static [Native], name: &str) -> Result<&'static Native> {
    match table.iter().find(|native| native.name == name) {
        Some(native) => Ok(native),
        None => fail!("no {kind} named '{name}'"),
    }
}

fn sign(value: &Value, symbol: &str, apply: fn(&Value) -> Option<Value>) -> Result<Value> {
    match (apply(value), value) {
        (Some(result), _) => Ok(result),
        (None, Value::Undefined(undefined)) => Err(undefined.error()),
        (None, _) => fail!("bad operand type for unary {symbol}: '{}'", value.type_name()),
    }
}

/// A text, escaped for HTML unless it is already.
fn escaped(value: &Value) -> Rc<str> {
    match value {
        Value::Text(text) => escape_html(text).into(),
        Value::Markup(text) => text.clone(),
        _ => "".into(),
    }
}

impl Operator {
    /// The operator as templates write it.
    fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::FloorDivide => "//",
            Self::Remainder => "%",
            Self::Power => "**",
        }
    }
}
