//! Values as text: Python's `str` and `repr`.

use std::rc::Rc;

use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::number;
use super::text::is_printable;
use super::value::{Dict, MAX_NESTING, Value, ViewKind};

impl Machine {
    /// `str(value)`, which is what a template prints.
    pub(super) fn to_text(&self, value: &Value) -> Result<Rc<str>> {
        match value {
            Value::Text(text) | Value::Markup(text) => Ok(text.clone()),
            Value::Undefined(_) => Ok("".into()),
            _ => self.repr(value).map(Into::into),
        }
    }

    /// `repr(value)`.
    pub(super) fn repr(&self, value: &Value) -> Result<String> {
        let mut writer = Writer { machine: self, out: String::new(), open_namespaces: Vec::new(), depth: 0 };
        writer.value(value)?;
        self.budget.text(writer.out.len())?;
        Ok(writer.out)
    }
}

struct Writer<'m> {
    machine: &'m Machine,
    out: String,
    /// Addresses of the namespaces being written, as a namespace may lie in itself.
    open_namespaces: Vec<usize>,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<()> {
        self.machine.budget.steps(1)?;
        // Namespaces add to the nesting of the values in them.
        if self.depth > MAX_NESTING {
            fail!("a value with namespaces is deeper than {MAX_NESTING}");
        }
        self.depth += 1;
        self.write(value)?;
        self.depth -= 1;
        check_text(self.out.len())
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(_) => self.out.push_str("Undefined"),
            Value::None => self.out.push_str("None"),
            Value::Bool(flag) => self.out.push_str(if *flag { "True" } else { "False" }),
            Value::Int(int) => self.out.push_str(&int.to_string()),
            Value::Big(big) => self.out.push_str(&number::big_digits(big)?),
            Value::Float(float) => self.out.push_str(&number::repr(*float)),
            Value::Text(text) => self.text(text),
            Value::Markup(text) => {
                self.out.push_str("Markup(");
                self.text(text);
                self.out.push(')');
            }
            Value::List(list) => self.sequence("[", &list.items, "]")?,
            Value::Tuple(list) => {
                self.sequence("(", &list.items, if list.items.len() == 1 { ",)" } else { ")" })?;
            }
            Value::Dict(dict) => self.dict(dict)?,
            Value::View(kind, dict) => self.view(value, *kind, dict)?,
            Value::Range(range) => {
                self.out.push_str(&format!("range({}, {}", range.start, range.stop));
                if range.step != 1 {
                    self.out.push_str(&format!(", {}", range.step));
                }
                self.out.push(')');
            }
            Value::Namespace(namespace) => {
                let values = namespace.values.borrow().clone();
                self.namespace(value.address(), &values)?;
            }
            Value::Macro(called) => self.out.push_str(&format!("<Macro {}>", called.definition.label())),
            Value::Loop(looped) => {
                let length = self.machine.loop_length(looped)?;
                self.out.push_str(&format!("<LoopContext {}/{length}>", looped.index0.get() + 1));
            }
            // Python prints addresses here, which mean nothing.
            Value::Generator(generator) => self.out.push_str(&format!("<{} object>", generator.kind)),
            Value::Function(native) => self.out.push_str(&format!("<function {}>", native.name)),
            Value::Method(method) => {
                let (receiver, native) = method.as_ref();
                self.out.push_str(&format!("<built-in method {} of {} object>", native.name, receiver.type_name()));
            }
            Value::Blocks => self.out.push_str("<TemplateReference None>"),
            Value::Cycler(_) | Value::Joiner(_) | Value::Block(_) => {
                self.out.push_str(&format!("<{} object>", value.type_name()));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, open: &str, items: &[Value], close: &str) -> Result<()> {
        self.out.push_str(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.value(item)?;
        }
        self.out.push_str(close);
        Ok(())
    }

    fn dict(&mut self, dict: &Dict) -> Result<()> {
        self.out.push('{');
        for (at, (key, value)) in dict.entries.values().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.value(key)?;
            self.out.push_str(": ");
            self.value(value)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn view(&mut self, view: &Value, kind: ViewKind, dict: &Dict) -> Result<()> {
        self.out.push_str(view.type_name());
        self.out.push_str("([");
        for (at, (key, value)) in dict.entries.values().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            match kind {
                ViewKind::Keys => self.value(key)?,
                ViewKind::Values => self.value(value)?,
                ViewKind::Items => self.sequence("(", &[key.clone(), value.clone()], ")")?,
            }
        }
        self.out.push_str("])");
        Ok(())
    }

    fn namespace(&mut self, address: usize, values: &[(Rc<str>, Value)]) -> Result<()> {
        self.out.push_str("<Namespace {");
        if self.open_namespaces.contains(&address) {
            self.out.push_str("...}>");
            return Ok(());
        }
        self.open_namespaces.push(address);
        for (at, (name, value)) in values.iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.text(name);
            self.out.push_str(": ");
            self.value(value)?;
        }
        self.open_namespaces.pop();
        self.out.push_str("}>");
        Ok(())
    }

    fn text(&mut self, text: &str) {
        push_quoted(text, &mut self.out);
    }
}

/// Returns a text in quotes, as Python's `repr` writes it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::new();
    push_quoted(text, &mut out);
    out
}

/// Writes a text in quotes, as Python's `repr` does.
pub(super) fn push_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c if is_printable(c) => out.push(c),
            c => push_escape(c, out),
        }
    }
    out.push(quote);
}

/// The escape of a character by its code.
fn push_escape(c: char, out: &mut String) {
    let code = u32::from(c);
    out.push_str(&match code {
        0..=0xff => format!("\\x{code:02x}"),
        0x100..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    });
}

/// The text with everything outside of ASCII escaped, as Python's `ascii` does to a `repr`.
pub(super) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => push_escape(c, &mut out),
        }
    }
    out
}
