//! Values of templates, which are Python's.
//!
//! Lists, tuples and dicts cannot change, as the sandbox of Jinja refuses all methods that would change them. Only
//! namespaces, loops and cyclers change, so only they can lie in themselves.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;

use dashu_int::IBig;
use indexmap::IndexMap;
use indexmap::map::Entry;

use super::arguments::Native;
use super::ast::{Block, MacroDefinition};
use super::budget::Budget;
use super::error::{Error, Result, fail};
use super::iterate::{Generator, Iter};
use super::number;
use super::scope::{Loop, Scope};

/// Maximum nesting of lists, tuples and dicts. Functions on values recurse no deeper.
pub(super) const MAX_NESTING: usize = 150;

#[derive(Clone)]
pub(super) enum Value {
    Undefined(Rc<Undefined>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit `i64`.
    Big(Rc<IBig>),
    Float(f64),
    Text(Rc<str>),
    /// A text that is escaped for HTML already.
    Markup(Rc<str>),
    List(Rc<List>),
    Tuple(Rc<List>),
    Dict(Rc<Dict>),
    /// `dict.keys()`, `dict.values()` or `dict.items()`.
    View(ViewKind, Rc<Dict>),
    Range(Rc<Range>),
    Generator(Rc<Generator>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    /// A function of the environment.
    Function(&'static Native),
    /// A method and the value that it belongs to.
    Method(Rc<(Value, &'static Native)>),
    /// `self`, whose attributes are the template's blocks.
    Blocks,
    Block(Rc<Block>),
}

/// Why a value is undefined; using it fails with these words.
pub(super) enum Undefined {
    Name(Rc<str>),
    Attribute { of: &'static str, name: Rc<str> },
    Element { of: &'static str, key: String },
    Because(String),
}

/// The items of a list or a tuple.
pub(super) struct List {
    pub items: Vec<Value>,
    nesting: usize,
    /// A pair that `groupby` made, whose items are also called `grouper` and `list`.
    pub is_group: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewKind {
    Keys,
    Values,
    Items,
}

/// A dict keeps the order in which its keys were inserted.
pub(super) struct Dict {
    /// Keys as they were given, and values.
    pub entries: IndexMap<Key, (Value, Value)>,
    nesting: usize,
}

/// A value as the key of a dict: equal numbers are one key, whatever their types.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Undefined,
    Int(i64),
    Big(Rc<IBig>),
    /// The bits of a float that is not whole.
    Float(u64),
    Text(Rc<str>),
    Tuple(Vec<Key>),
    Range(i64, i64, i64),
    /// The address of a value that is only equal to itself.
    Identity(usize),
}

pub(super) struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
    pub len: usize,
}

impl Range {
    pub(super) fn get(&self, index: usize) -> Value {
        let index = i64::try_from(index).unwrap_or(0);
        // Every item fits, but the product on the way to it may not.
        Value::Int(self.start.wrapping_add(self.step.wrapping_mul(index)))
    }
}

#[derive(Default)]
pub(super) struct Namespace {
    pub values: RefCell<Vec<(Rc<str>, Value)>>,
}

pub(super) struct Macro {
    pub definition: Rc<MacroDefinition>,
    pub scope: Rc<Scope>,
}

pub(super) struct Cycler {
    pub items: Rc<List>,
    pub at: Cell<usize>,
}

pub(super) struct Joiner {
    pub separator: Value,
    pub used: Cell<bool>,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl Value {
    pub(super) fn undefined(because: impl Into<String>) -> Self {
        Self::Undefined(Rc::new(Undefined::Because(because.into())))
    }

    /// An attribute that is not there.
    pub(super) fn no_attribute(&self, name: &Rc<str>) -> Self {
        Self::Undefined(Rc::new(Undefined::Attribute { of: self.type_name(), name: name.clone() }))
    }

    /// An item that is not there.
    pub(super) fn no_item(&self, key: &Self) -> Self {
        let key = match key {
            Self::Int(index) => index.to_string(),
            other => format!("of type {}", other.type_name()),
        };
        Self::Undefined(Rc::new(Undefined::Element { of: self.type_name(), key }))
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// A text, escaped or not.
    pub(super) fn as_text(&self) -> Option<&Rc<str>> {
        match self {
            Self::Text(text) | Self::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// The name of the type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Big(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(ViewKind::Keys, _) => "dict_keys",
            Self::View(ViewKind::Values, _) => "dict_values",
            Self::View(ViewKind::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Generator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Function(_) => "function",
            Self::Method(_) => "method",
            Self::Blocks => "TemplateReference",
            Self::Block(_) => "BlockReference",
        }
    }

    /// `bool(value)`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Loop(looped) => !looped.is_empty(),
            _ => self.len() != Some(0),
        }
    }

    /// `len(value)`, for values that have one without iterating.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Undefined(_) => Some(0),
            Self::Text(text) | Self::Markup(text) => Some(super::text::char_count(text)),
            Self::List(list) | Self::Tuple(list) => Some(list.items.len()),
            Self::Dict(dict) | Self::View(_, dict) => Some(dict.entries.len()),
            Self::Range(range) => Some(range.len),
            _ => None,
        }
    }

    /// How deep values lie in this one.
    pub(super) fn nesting(&self) -> usize {
        match self {
            Self::List(list) | Self::Tuple(list) => list.nesting,
            Self::Dict(dict) => dict.nesting,
            Self::View(_, dict) => dict.nesting + 1,
            Self::Generator(generator) => generator.nesting,
            Self::Cycler(cycler) => cycler.items.nesting + 1,
            Self::Joiner(joiner) => joiner.separator.nesting() + 1,
            Self::Method(method) => method.0.nesting() + 1,
            Self::Loop(looped) => looped.nesting(),
            _ => 0,
        }
    }

    /// The value as a key of a dict, as far as it is hashable.
    pub(super) fn key(&self, budget: &Budget) -> Result<Key> {
        budget.steps(1)?;
        Ok(match self {
            Self::None => Key::None,
            Self::Undefined(_) => Key::Undefined,
            Self::Bool(flag) => Key::Int(i64::from(*flag)),
            Self::Int(int) => Key::Int(*int),
            Self::Big(big) => Key::Big(big.clone()),
            Self::Float(float) => match number::whole(*float) {
                Some(Self::Int(int)) => Key::Int(int),
                Some(Self::Big(big)) => Key::Big(big),
                _ => Key::Float(float.to_bits()),
            },
            Self::Text(text) | Self::Markup(text) => {
                budget.reading(text.len())?;
                Key::Text(text.clone())
            }
            Self::Tuple(list) => {
                budget.entries(list.items.len())?;
                Key::Tuple(list.items.iter().map(|item| item.key(budget)).collect::<Result<_>>()?)
            }
            Self::Range(range) => Key::Range(range.start, range.stop, range.step),
            Self::List(_) | Self::Dict(_) | Self::View(..) => fail!("unhashable type: '{}'", self.type_name()),
            _ => Key::Identity(self.address()),
        })
    }

    /// An address that tells values apart which are only equal to themselves.
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Undefined(rc) => Rc::as_ptr(rc).addr(),
            Self::Big(rc) => Rc::as_ptr(rc).addr(),
            Self::Text(rc) | Self::Markup(rc) => Rc::as_ptr(rc).addr(),
            Self::List(rc) | Self::Tuple(rc) => Rc::as_ptr(rc).addr(),
            Self::Dict(rc) | Self::View(_, rc) => Rc::as_ptr(rc).addr(),
            Self::Range(rc) => Rc::as_ptr(rc).addr(),
            Self::Generator(rc) => Rc::as_ptr(rc).addr(),
            Self::Namespace(rc) => Rc::as_ptr(rc).addr(),
            Self::Macro(rc) => Rc::as_ptr(rc).addr(),
            Self::Loop(rc) => Rc::as_ptr(rc).addr(),
            Self::Cycler(rc) => Rc::as_ptr(rc).addr(),
            Self::Joiner(rc) => Rc::as_ptr(rc).addr(),
            Self::Function(native) => std::ptr::from_ref::<Native>(native).addr(),
            Self::Method(rc) => Rc::as_ptr(rc).addr(),
            Self::Block(rc) => Rc::as_ptr(rc).addr(),
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Blocks => 0,
        }
    }

    /// `left == right`.
    pub(super) fn equals(&self, other: &Self, budget: &Budget) -> Result<bool> {
        budget.steps(1)?;
        Ok(match (self, other) {
            (Self::None, Self::None) | (Self::Undefined(_), Self::Undefined(_)) => true,
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => {
                if Rc::ptr_eq(left, right) {
                    return Ok(true);
                }
                if left.items.len() != right.items.len() {
                    return Ok(false);
                }
                for (left, right) in left.items.iter().zip(&right.items) {
                    if !left.equals(right, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(left), Self::Dict(right)) => {
                if left.entries.len() != right.entries.len() {
                    return Ok(false);
                }
                for (key, value) in left.entries.values() {
                    match right.get(key, budget)? {
                        Some(other) if value.equals(other, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::View(left_kind, left), Self::View(right_kind, right)) => {
                if matches!(left_kind, ViewKind::Values) || left_kind != right_kind {
                    return Ok(left_kind == right_kind && Rc::ptr_eq(left, right));
                }
                let items = *left_kind == ViewKind::Items;
                for (key, value) in left.entries.values() {
                    match right.get(key, budget)? {
                        Some(other) if !items || value.equals(other, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                left.entries.len() == right.entries.len()
            }
            (Self::Range(left), Self::Range(right)) => {
                left.len == right.len
                    && (left.len == 0 || left.start == right.start && (left.len == 1 || left.step == right.step))
            }
            _ => match (self.as_text(), other.as_text()) {
                (Some(left), Some(right)) => {
                    budget.reading(left.len().min(right.len()))?;
                    left == right
                }
                (None, None) => match number::compare(self, other) {
                    Some(order) => order == Some(Ordering::Equal),
                    None => self.is_same(other),
                },
                _ => false,
            },
        })
    }

    /// `left is right`. Equal integers of 64 bits are one value, and so are equal strings that Python has once: those of one
    /// Latin-1 letter at most.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) | (Self::Blocks, Self::Blocks) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Int(left), Self::Int(right)) => left == right,
            (Self::Text(left), Self::Text(right)) if left == right && left.chars().all(|c| c <= '\u{ff}') => {
                left.chars().nth(1).is_none() || Rc::ptr_eq(left, right)
            }
            (Self::Function(left), Self::Function(right)) => std::ptr::eq(*left, *right),
            _ => {
                let address = self.address();
                address != 0 && address == other.address() && self.type_name() == other.type_name()
            }
        }
    }

    /// The order of two values for `<`, `>`, `<=` and `>=`; `None` where one is not a number.
    pub(super) fn order(&self, other: &Self, operator: &str, budget: &Budget) -> Result<Option<Ordering>> {
        budget.steps(1)?;
        if let Some(order) = number::compare(self, other) {
            return Ok(order);
        }
        if let (Some(left), Some(right)) = (self.as_text(), other.as_text()) {
            budget.reading(left.len().min(right.len()))?;
            return Ok(Some(left.cmp(right)));
        }
        match (self, other) {
            (Self::Undefined(undefined), _) | (_, Self::Undefined(undefined)) => Err(undefined.error()),
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => {
                for (left, right) in left.items.iter().zip(&right.items) {
                    if !left.equals(right, budget)? {
                        return left.order(right, operator, budget);
                    }
                }
                Ok(Some(left.items.len().cmp(&right.items.len())))
            }
            _ => fail!(
                "'{operator}' not supported between instances of '{}' and '{}'",
                self.type_name(),
                other.type_name()
            ),
        }
    }

    /// `self < other`.
    pub(super) fn is_less(&self, other: &Self, budget: &Budget) -> Result<bool> {
        Ok(self.order(other, "<", budget)? == Some(Ordering::Less))
    }

    /// An iterator over the value.
    pub(super) fn iter(&self) -> Result<Iter> {
        match Iter::over(self) {
            Some(iter) => Ok(iter),
            None => fail!("'{}' object is not iterable", self.type_name()),
        }
    }

    /// All items of the value.
    pub(super) fn collect(&self, budget: &Budget) -> Result<Vec<Value>> {
        // A character takes an allocation of its own beside its place in the list.
        let places = self.as_text().map_or(0, |text| 2 * text.len());
        budget.items(places)?;
        let mut items = Vec::new();
        for item in self.iter()? {
            budget.steps(1)?;
            items.push(item?);
        }
        Ok(items)
    }
}

impl Undefined {
    /// The error of using the value.
    pub(super) fn error(&self) -> Error {
        let of = |of: &str| if of == "NoneType" { "None".to_owned() } else { format!("{of} object") };
        Error::new(match self {
            Self::Name(name) => format!("'{name}' is undefined"),
            Self::Attribute { of: kind, name } => format!("'{}' has no attribute '{name}'", of(kind)),
            Self::Element { of: kind, key } => format!("{} has no element {key}", of(kind)),
            Self::Because(because) => because.clone(),
        })
    }
}

/// The nesting of a value that holds `values`; an error if it is too deep.
pub(super) fn nesting_of<'v>(values: impl Iterator<Item = &'v Value>) -> Result<usize> {
    let nesting = 1 + values.map(Value::nesting).max().unwrap_or(0);
    if nesting > MAX_NESTING {
        fail!("values lie deeper than {MAX_NESTING} in each other");
    }
    Ok(nesting)
}

impl List {
    pub(super) fn new(items: Vec<Value>, budget: &Budget) -> Result<Rc<Self>> {
        budget.items(items.len() + 2)?;
        budget.steps(1 + items.len() / 16)?;
        let nesting = nesting_of(items.iter())?;
        Ok(Rc::new(Self { items, nesting, is_group: false }))
    }

    /// A list of a few texts.
    pub(super) fn of_texts(items: Vec<Value>) -> Rc<Self> {
        Rc::new(Self { items, nesting: 1, is_group: false })
    }

    /// An entry of a dict as a tuple. The dict's own nesting covers it.
    pub(super) fn pair(key: Value, value: Value) -> Value {
        let nesting = 1 + key.nesting().max(value.nesting());
        Value::Tuple(Rc::new(Self { items: vec![key, value], nesting, is_group: false }))
    }

    /// A pair of `groupby`: the key of a group, and the group.
    pub(super) fn group(grouper: Value, items: Value, budget: &Budget) -> Result<Value> {
        let items = vec![grouper, items];
        budget.items(items.len() + 2)?;
        let nesting = nesting_of(items.iter())?;
        Ok(Value::Tuple(Rc::new(Self { items, nesting, is_group: true })))
    }

    pub(super) fn nesting(&self) -> usize {
        self.nesting
    }
}

impl Dict {
    /// A dict of entries, of which later ones replace earlier ones with the same key.
    pub(super) fn new(entries: impl IntoIterator<Item = (Value, Value)>, budget: &Budget) -> Result<Rc<Self>> {
        let mut places: IndexMap<Key, (Value, Value)> = IndexMap::new();
        for (key, value) in entries {
            budget.steps(1)?;
            budget.entries(1)?;
            match places.entry(key.key(budget)?) {
                Entry::Occupied(mut place) => place.get_mut().1 = value,
                Entry::Vacant(place) => {
                    place.insert((key, value));
                }
            }
        }
        let nesting = nesting_of(places.values().flat_map(|(key, value)| [key, value]))?;
        Ok(Rc::new(Self { entries: places, nesting }))
    }

    /// The value of a key; an error for a key that is not hashable.
    pub(super) fn get(&self, key: &Value, budget: &Budget) -> Result<Option<&Value>> {
        Ok(self.entries.get(&key.key(budget)?).map(|(_, value)| value))
    }
}

impl Namespace {
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.values.borrow().iter().find(|(n, _)| n.as_ref() == name).map(|(_, value)| value.clone())
    }

    pub(super) fn set(&self, name: &Rc<str>, value: Value, budget: &Budget) -> Result<()> {
        if name.starts_with('_') {
            fail!("a namespace cannot hold '{name}', which begins with an underscore");
        }
        let mut values = self.values.borrow_mut();
        budget.steps(1 + values.len() / 16)?;
        let old = match values.iter_mut().find(|(n, _)| n == name) {
            Some((_, place)) => Some(std::mem::replace(place, value)),
            None => {
                budget.entries(1)?;
                values.push((name.clone(), value));
                None
            }
        };
        drop(values);
        drop(old);
        Ok(())
    }
}

/// The number of items of a range. `step` is not zero.
pub(super) fn range_len(start: i64, stop: i64, step: i64) -> usize {
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let distance = if step > 0 { stop - start } else { start - stop };
    if distance <= 0 {
        return 0;
    }
    usize::try_from((distance - 1) / step.abs() + 1).unwrap_or(usize::MAX)
}

/// A text of the kind that `like` is: escaped or not.
pub(super) fn same_kind(like: &Value, text: String) -> Value {
    match like {
        Value::Markup(_) => Value::Markup(text.into()),
        _ => Value::from(text),
    }
}
