//! Scopes and loops of a running template, which values may hold.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::ast::ForLoop;
use super::iterate::Iter;
use super::value::{Namespace, Value};

/// A value that may hold itself.
pub(super) trait Clear {
    /// Drops everything that the value holds.
    fn clear(&self);
}

/// Variables of a loop's round, a macro's call, a block or the template.
#[derive(Default)]
pub(super) struct Scope {
    pub variables: RefCell<HashMap<Rc<str>, Value>>,
    parent: Option<Rc<Scope>>,
    pub is_tracked: Cell<bool>,
}

/// The variable `loop`.
pub(super) struct Loop {
    pub node: Rc<ForLoop>,
    /// The scope around the loop.
    pub scope: Rc<Scope>,
    pub items: RefCell<Iter>,
    /// The length of what is iterated over, unless a filter or a generator hides it.
    pub known_length: Cell<Option<usize>>,
    /// Items that have been computed ahead, the last one first.
    pub ahead: RefCell<Vec<Value>>,
    pub index0: Cell<usize>,
    pub depth0: usize,
    pub previous: RefCell<Option<Value>>,
    pub current: RefCell<Option<Value>>,
    pub changed: RefCell<Option<Value>>,
    pub nesting: usize,
}

impl Clear for Scope {
    fn clear(&self) {
        let variables = std::mem::take(&mut *self.variables.borrow_mut());
        drop(variables);
    }
}

impl Clear for Namespace {
    fn clear(&self) {
        let values = std::mem::take(&mut *self.values.borrow_mut());
        drop(values);
    }
}

impl Clear for Loop {
    fn clear(&self) {
        let changed = self.changed.borrow_mut().take();
        drop(changed);
    }
}

impl Scope {
    pub(super) fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { parent: Some(parent.clone()), ..Self::default() })
    }

    pub(super) fn set(&self, name: &Rc<str>, value: Value) {
        let old = self.variables.borrow_mut().insert(name.clone(), value);
        drop(old);
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_ref()?;
        }
    }
}

impl Loop {
    pub(super) fn advance(&self, item: &Value) {
        let last = self.current.replace(Some(item.clone()));
        if last.is_some() {
            self.index0.set(self.index0.get() + 1);
        }
        let before = self.previous.replace(last);
        drop(before);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known_length.get() == Some(0)
    }

    pub(super) fn nesting(&self) -> usize {
        self.nesting
    }
}
