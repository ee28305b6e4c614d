//! Running a template: statements, macros and loops.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::arguments::CallArguments;
use super::ast::{Block, Body, Expr, ForLoop, MacroDefinition, Postfix, Statement, StatementKind, Target, Template};
use super::budget::Budget;
use super::error::{Result, fail};
use super::scope::{Clear, Loop, Scope};
use super::text::escape_html;
use super::value::{List, Macro, Namespace, Undefined, Value};

/// Steps of a loop's round beside those of its body, for the scope that it makes.
const STEPS_PER_ROUND: usize = 4;

/// Runs one template once.
pub(super) struct Machine {
    pub budget: Budget,
    /// The variables that the template is given.
    variables: HashMap<Rc<str>, Value>,
    blocks: Vec<Rc<Block>>,
    /// The scope of the template itself, which blocks see, too.
    root: Rc<Scope>,
    /// Output is escaped for HTML, as in `{% autoescape true %}`.
    pub autoescape: Cell<bool>,
    /// All values that may hold themselves, to be emptied at the end. So no cycle leaks, and no long chain of values is
    /// dropped by recursion.
    tracked: RefCell<Vec<Rc<dyn Clear>>>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Normal,
    Break,
    Continue,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.root.clear();
        for tracked in self.tracked.borrow().iter() {
            tracked.clear();
        }
    }
}

impl Machine {
    pub(super) fn new(budget: Budget, variables: HashMap<Rc<str>, Value>, template: &Template) -> Self {
        Self {
            budget,
            variables,
            blocks: template.blocks.clone(),
            root: Rc::default(),
            autoescape: Cell::new(false),
            tracked: RefCell::default(),
        }
    }

    /// The text of the template.
    pub(super) fn run(&self, template: &Template) -> Result<String> {
        let mut out = String::new();
        self.body(&template.body, &self.root, &mut out)?;
        super::budget::check_text(out.len())?;
        Ok(out)
    }

    /// Keeps a namespace until the end.
    pub(super) fn track_namespace(&self, namespace: &Rc<Namespace>) -> Result<()> {
        self.track(namespace.clone())
    }

    /// Keeps a loop until the end, as `changed` gives it values to hold.
    pub(super) fn track_loop(&self, looped: &Rc<Loop>) -> Result<()> {
        self.track(looped.clone())
    }

    fn track(&self, value: Rc<dyn Clear>) -> Result<()> {
        self.budget.entries(1)?;
        self.tracked.borrow_mut().push(value);
        Ok(())
    }

    /// The scope for a value that holds it.
    fn capture(&self, scope: &Rc<Scope>) -> Result<Rc<Scope>> {
        if !scope.is_tracked.replace(true) {
            self.budget.entries(scope.variables.borrow().len())?;
            self.track(scope.clone())?;
        }
        Ok(scope.clone())
    }

    /// The value of a variable.
    pub(super) fn variable(&self, name: &Rc<str>, scope: &Scope) -> Value {
        scope
            .get(name)
            .or_else(|| self.variables.get(name).cloned())
            .or_else(|| self.special_name(name))
            .unwrap_or_else(|| Value::Undefined(Rc::new(Undefined::Name(name.clone()))))
    }

    fn special_name(&self, name: &str) -> Option<Value> {
        match name {
            "self" => Some(Value::Blocks),
            _ => super::functions::GLOBALS.iter().find(|native| native.name == name).map(Value::Function),
        }
    }

    /// The block of this name.
    pub(super) fn block(&self, name: &str) -> Option<&Rc<Block>> {
        self.blocks.iter().find(|block| block.name.as_ref() == name)
    }

    // Statements.

    fn body(&self, body: &Body, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.budget.deeper(|| {
            for statement in body {
                let flow = self.statement(statement, scope, out).map_err(|error| error.at(statement.line))?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
            }
            Ok(Flow::Normal)
        })
    }

    fn statement(&self, statement: &Statement, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.budget.steps(1)?;
        match &statement.kind {
            StatementKind::Text(text) => self.write(text, out)?,
            StatementKind::Output(expr) => {
                let value = self.eval(expr, scope)?;
                self.output(&value, out)?;
            }
            StatementKind::If { branches, otherwise } => return self.if_statement(branches, otherwise, scope, out),
            StatementKind::For(node) => return self.for_statement(node, scope, out),
            StatementKind::Set(target, expr) => {
                let value = self.eval(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock { target, filters, body } => {
                return self.captured(body, filters, &Scope::inside(scope), |value| self.assign(target, value, scope));
            }
            StatementKind::FilterBlock { filters, body } => {
                let write = |value: Value| self.write_text("filter block", &value, out);
                return self.captured(body, filters, &Scope::inside(scope), write);
            }
            StatementKind::Macro(name, definition) => {
                self.budget.entries(1)?;
                let scope_of_macro = self.capture(scope)?;
                let value = Macro { definition: definition.clone(), scope: scope_of_macro };
                scope.set(name, Value::Macro(Rc::new(value)));
            }
            StatementKind::CallBlock { callee, arguments, caller } => {
                self.call_block(callee, arguments, caller, scope, out)?;
            }
            StatementKind::With { bindings, body } => {
                let inner = Scope::inside(scope);
                for (target, expr) in bindings {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            StatementKind::Block(block) => self.block_statement(block, scope, out)?,
            StatementKind::Autoescape(flag, body) => {
                let flag = self.eval(flag, scope)?.is_true();
                let outer = self.autoescape.replace(flag);
                let result = self.body(body, &Scope::inside(scope), out);
                self.autoescape.set(outer);
                return result;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
            StatementKind::NeedsLoader(tag) => fail!("'{tag}' needs other templates, which chat templates do not have"),
        }
        Ok(Flow::Normal)
    }

    fn write(&self, text: &str, out: &mut String) -> Result<()> {
        self.budget.written(text.len())?;
        self.budget.reading(text.len())?;
        out.push_str(text);
        Ok(())
    }

    /// Writes a value as `{{ value }}` does.
    fn output(&self, value: &Value, out: &mut String) -> Result<()> {
        match value {
            Value::Text(text) if !self.autoescape.get() => self.write(text, out),
            Value::Markup(text) => self.write(text, out),
            _ => {
                let text = self.to_text(value)?;
                match self.autoescape.get() {
                    true => self.write(&escape_html(&text), out),
                    false => self.write(&text, out),
                }
            }
        }
    }

    /// Writes the result of a block, which must be a text.
    fn write_text(&self, block: &str, value: &Value, out: &mut String) -> Result<()> {
        match value.as_text() {
            Some(text) => self.write(text, out),
            None => fail!("the result of a {block} must be a string, found '{}'", value.type_name()),
        }
    }

    /// Makes a new text.
    pub(super) fn new_text(&self, text: impl AsRef<str> + Into<String>) -> Result<Value> {
        self.budget.text(text.as_ref().len())?;
        Ok(Value::from(text.into()))
    }

    /// A text that Jinja makes of a body: it is escaped already where output is escaped.
    fn made_text(&self, text: String) -> Result<Value> {
        self.budget.text(text.len())?;
        Ok(if self.autoescape.get() { Value::Markup(text.into()) } else { Value::from(text) })
    }

    fn if_statement(
        &self,
        branches: &[(Expr, Body)],
        otherwise: &Body,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<Flow> {
        for (test, body) in branches {
            if self.eval(test, scope)?.is_true() {
                return self.body(body, scope, out);
            }
        }
        self.body(otherwise, scope, out)
    }

    /// Captures the text of a body, filters it, and hands it on unless a loop is left from within.
    fn captured(
        &self,
        body: &Body,
        filters: &[Postfix],
        inner: &Rc<Scope>,
        then: impl FnOnce(Value) -> Result<()>,
    ) -> Result<Flow> {
        let mut text = String::new();
        let flow = self.body(body, inner, &mut text)?;
        if flow == Flow::Normal {
            let mut value = self.made_text(text)?;
            for filter in filters {
                value = self.postfix(value, filter, inner)?;
            }
            then(value)?;
        }
        Ok(flow)
    }

    fn block_statement(&self, block: &Rc<Block>, scope: &Rc<Scope>, out: &mut String) -> Result<()> {
        if block.required {
            fail!("required block '{}' is not filled", block.name);
        }
        // Blocks see the variables of the template itself, and those around them only if they are scoped.
        let outer = if block.scoped { scope } else { &self.root };
        self.body(&block.body, &Scope::inside(outer), out)?;
        Ok(())
    }

    /// The text of a block, as `self.name()` gives it.
    pub(super) fn block_text(&self, block: &Rc<Block>) -> Result<Value> {
        let mut text = String::new();
        self.block_statement(block, &self.root, &mut text)?;
        self.made_text(text)
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => {
                // Other scopes end soon; what they hold is charged where it is made.
                if scope.is_tracked.get() {
                    self.budget.entries(1)?;
                }
                scope.set(name, value);
                Ok(())
            }
            Target::Attribute(name, attribute) => match self.variable(name, scope) {
                Value::Namespace(namespace) => namespace.set(attribute, value, &self.budget),
                _ => fail!("cannot assign attribute '{attribute}' on '{name}', which is not a namespace"),
            },
            Target::Tuple(targets) => {
                let items: Vec<Value> = value.iter()?.take(targets.len() + 1).collect::<Result<_>>()?;
                if items.len() != targets.len() {
                    let few = if items.len() < targets.len() { "not enough" } else { "too many" };
                    fail!("{few} values to unpack (expected {})", targets.len());
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
                Ok(())
            }
        }
    }

    // Loops.

    fn for_statement(&self, node: &Rc<ForLoop>, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        let items = self.eval(&node.items, scope)?;
        self.for_loop(node, scope, &items, 0, out)
    }

    fn for_loop(
        &self,
        node: &Rc<ForLoop>,
        scope: &Rc<Scope>,
        items: &Value,
        depth0: usize,
        out: &mut String,
    ) -> Result<Flow> {
        // A recursive loop, or one with a filter, may be used after the round of an outer loop that it ran in.
        let scope = if node.recursive || node.test.is_some() { self.capture(scope)? } else { scope.clone() };
        let looped = Rc::new(Loop {
            node: node.clone(),
            scope: scope.clone(),
            items: RefCell::new(items.iter()?),
            known_length: Cell::new(if node.test.is_none() { items.len() } else { None }),
            ahead: RefCell::default(),
            index0: Cell::new(0),
            depth0,
            previous: RefCell::default(),
            current: RefCell::default(),
            changed: RefCell::default(),
            nesting: items.nesting() + 1,
        });
        self.budget.entries(3)?;
        let name: Rc<str> = "loop".into();
        let mut completed = false;
        while let Some(item) = self.next_item(&looped)? {
            self.budget.steps(STEPS_PER_ROUND)?;
            looped.advance(&item);
            let inner = Scope::inside(&scope);
            inner.set(&name, Value::Loop(looped.clone()));
            self.assign(&node.target, item, &inner)?;
            match self.body(&node.body, &inner, out)? {
                Flow::Normal => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        // Jinja does not count a round that `continue` or `break` cut short.
        if completed {
            return Ok(Flow::Normal);
        }
        self.body(&node.otherwise, &Scope::inside(&scope), out)
    }

    /// Takes the next item of a loop.
    fn next_item(&self, looped: &Loop) -> Result<Option<Value>> {
        let ahead = looped.ahead.borrow_mut().pop();
        match ahead {
            Some(item) => Ok(Some(item)),
            None => self.compute_item(looped),
        }
    }

    /// The next item that passes the loop's filter.
    fn compute_item(&self, looped: &Loop) -> Result<Option<Value>> {
        loop {
            self.budget.steps(1)?;
            let item = looped.items.try_borrow_mut().ok().and_then(|mut items| items.next());
            let Some(item) = item.transpose()? else { return Ok(None) };
            let Some(test) = &looped.node.test else { return Ok(Some(item)) };
            let inner = Scope::inside(&looped.scope);
            self.assign(&looped.node.target, item.clone(), &inner)?;
            if self.eval(test, &inner)?.is_true() {
                return Ok(Some(item));
            }
        }
    }

    /// The item after the current one.
    pub(super) fn peek(&self, looped: &Loop) -> Result<Option<Value>> {
        let item = self.next_item(looped)?;
        looped.ahead.borrow_mut().extend(item.clone());
        Ok(item)
    }

    /// The number of rounds of a loop, for which all items are computed if nothing else tells it.
    pub(super) fn loop_length(&self, looped: &Loop) -> Result<usize> {
        if let Some(length) = looped.known_length.get() {
            return Ok(length);
        }
        let mut rest: Vec<Value> = Vec::new();
        while let Some(item) = self.next_item(looped)? {
            self.budget.items(1)?;
            rest.push(item);
        }
        let length = looped.index0.get() + 1 + rest.len();
        rest.reverse();
        *looped.ahead.borrow_mut() = rest;
        looped.known_length.set(Some(length));
        Ok(length)
    }

    /// `loop(items)` in a recursive loop.
    pub(super) fn call_loop(&self, looped: &Loop, arguments: &CallArguments) -> Result<Value> {
        if !looped.node.recursive {
            fail!("the loop must have the 'recursive' marker to be called recursively");
        }
        let [items] = arguments.positional.as_slice() else { fail!("a recursive loop takes one argument") };
        let mut text = String::new();
        self.for_loop(&looped.node, &looped.scope, items, looped.depth0 + 1, &mut text)?;
        self.made_text(text)
    }

    // Macros.

    fn call_block(
        &self,
        callee: &Expr,
        arguments: &super::ast::Arguments,
        caller: &Rc<MacroDefinition>,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<()> {
        self.budget.entries(1)?;
        let caller = Macro { definition: caller.clone(), scope: self.capture(scope)? };
        let callee = self.eval(callee, scope)?;
        let mut arguments = self.arguments(arguments, scope)?;
        arguments.named.push(("caller".into(), Value::Macro(Rc::new(caller))));
        let result = self.call(&callee, arguments)?;
        self.write_text("call block", &result, out)
    }

    /// The text of a macro.
    pub(super) fn call_macro(&self, called: &Macro, given: CallArguments) -> Result<Value> {
        let definition = &called.definition;
        let scope = Scope::inside(&called.scope);
        self.budget.entries(1 + given.positional.len() + given.named.len())?;
        self.bind_macro(definition, given, &scope)?;
        let mut text = String::new();
        self.body(&definition.body, &scope, &mut text)?;
        self.made_text(text)
    }

    /// Binds the arguments of a macro to its parameters, in the order in which Jinja does.
    fn bind_macro(&self, definition: &MacroDefinition, mut given: CallArguments, scope: &Rc<Scope>) -> Result<()> {
        let (name, uses) = (definition.label(), definition.uses);
        let count = definition.parameters.len();
        let extra = given.positional.split_off(given.positional.len().min(count));
        let has_caller = definition.parameters.iter().any(|(name, _)| name.as_ref() == "caller");
        let mut take = |name: &str| {
            let at = given.named.iter().position(|(other, _)| other.as_ref() == name)?;
            Some(given.named.remove(at).1)
        };
        let mut positional = given.positional.into_iter();
        let mut missing = Vec::new();
        for (parameter, default) in &definition.parameters {
            match positional.next().or_else(|| take(parameter)) {
                Some(value) => scope.set(parameter, value),
                None => missing.push((parameter, default)),
            }
        }
        if uses.caller && !has_caller {
            let caller = take("caller").filter(|caller| !matches!(caller, Value::None));
            scope.set(&"caller".into(), caller.unwrap_or_else(|| Value::undefined("No caller defined")));
        }
        if uses.kwargs {
            let named = given.named.into_iter().map(|(name, value)| (Value::Text(name), value));
            scope.set(&"kwargs".into(), Value::Dict(super::value::Dict::new(named, &self.budget)?));
        } else if let Some((keyword, _)) = given.named.first() {
            fail!("macro {name} takes no keyword argument '{keyword}'");
        }
        if uses.varargs {
            scope.set(&"varargs".into(), Value::Tuple(List::new(extra, &self.budget)?));
        } else if !extra.is_empty() {
            fail!("macro {name} takes not more than {count} argument(s)");
        }
        for (parameter, default) in missing {
            let value = match default {
                Some(default) => self.eval(default, scope)?,
                None => Value::undefined(format!("parameter '{parameter}' was not provided")),
            };
            scope.set(parameter, value);
        }
        Ok(())
    }
}
