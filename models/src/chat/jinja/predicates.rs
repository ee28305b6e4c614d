//! Jinja's built-in tests, such as `is defined`.

use super::arguments::{Bound, Native};
use super::ast::{Comparison, Operator};
use super::error::Result;
use super::eval::Machine;
use super::filters::FILTERS;
use super::str_methods::has_case;
use super::value::Value;

/// A test of the value alone.
macro_rules! is {
    ($name:literal, $value:ident => $test:expr) => {
        Native {
            name: $name,
            parameters: "value",
            run: |_, args| {
                let $value = args.value(0);
                Ok(Value::Bool($test))
            },
        }
    };
}

/// A comparison with another value.
macro_rules! compares {
    ($name:literal, $comparison:ident) => {
        Native {
            name: $name,
            parameters: "/value /other",
            run: |machine, args| {
                machine.compare(Comparison::$comparison, &args.value(0), &args.value(1)).map(Value::Bool)
            },
        }
    };
}

/// Each test with its parameters, of which the first is the value that is tested.
pub(super) static TESTS: &[Native] = &[
    is!("boolean", value => matches!(value, Value::Bool(_))),
    is!("callable", value => is_callable(&value)),
    is!("defined", value => !value.is_undefined()),
    Native { name: "divisibleby", parameters: "value num", run: divisible_by },
    is!("escaped", value => matches!(value, Value::Markup(_))),
    Native { name: "even", parameters: "value", run: |machine, args| has_remainder(machine, args, 0) },
    is!("false", value => matches!(value, Value::Bool(false))),
    Native { name: "filter", parameters: "value", run: |machine, args| is_in_table(machine, args, FILTERS) },
    is!("float", value => matches!(value, Value::Float(_))),
    compares!("in", In),
    is!("integer", value => matches!(value, Value::Int(_) | Value::Big(_))),
    Native { name: "iterable", parameters: "value", run: is_iterable },
    Native { name: "lower", parameters: "value", run: |machine, args| is_in_case(machine, args, char::is_uppercase) },
    is!("mapping", value => matches!(value, Value::Dict(_))),
    is!("none", value => matches!(value, Value::None)),
    is!("number", value => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_))),
    Native { name: "odd", parameters: "value", run: |machine, args| has_remainder(machine, args, 1) },
    Native {
        name: "sameas",
        parameters: "value other",
        run: |_, args| Ok(Value::Bool(args.value(0).is_same(&args.value(1)))),
    },
    is!("sequence", value => is_sequence(&value)),
    is!("string", value => value.as_text().is_some()),
    Native { name: "test", parameters: "value", run: |machine, args| is_in_table(machine, args, TESTS) },
    is!("true", value => matches!(value, Value::Bool(true))),
    is!("undefined", value => value.is_undefined()),
    Native { name: "upper", parameters: "value", run: |machine, args| is_in_case(machine, args, char::is_lowercase) },
    compares!("==", Equal),
    compares!("eq", Equal),
    compares!("equalto", Equal),
    compares!("!=", NotEqual),
    compares!("ne", NotEqual),
    compares!(">", Greater),
    compares!("gt", Greater),
    compares!("greaterthan", Greater),
    compares!(">=", GreaterOrEqual),
    compares!("ge", GreaterOrEqual),
    compares!("<", Less),
    compares!("lt", Less),
    compares!("lessthan", Less),
    compares!("<=", LessOrEqual),
    compares!("le", LessOrEqual),
];

fn is_callable(value: &Value) -> bool {
    matches!(
        value,
        Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_)
            | Value::Joiner(_)
            | Value::Loop(_)
            | Value::Block(_)
            | Value::Undefined(_)
    )
}

fn is_sequence(value: &Value) -> bool {
    let has_items =
        matches!(value, Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Range(_) | Value::Undefined(_));
    has_items || value.as_text().is_some()
}

fn is_iterable(_: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    Ok(Value::Bool(value.iter().is_ok() || matches!(value, Value::Loop(_))))
}

fn divisible_by(machine: &Machine, args: &Bound) -> Result<Value> {
    let rest = machine.arithmetic(Operator::Remainder, &args.value(0), &args.value(1))?;
    Ok(Value::Bool(rest.equals(&Value::Int(0), &machine.budget)?))
}

fn has_remainder(machine: &Machine, args: &Bound, remainder: i64) -> Result<Value> {
    let rest = machine.arithmetic(Operator::Remainder, &args.value(0), &Value::Int(2))?;
    Ok(Value::Bool(rest.equals(&Value::Int(remainder), &machine.budget)?))
}

fn is_in_case(machine: &Machine, args: &Bound, is_other: fn(char) -> bool) -> Result<Value> {
    let text = machine.to_text(&args.value(0))?;
    machine.budget.reading(text.len())?;
    Ok(Value::Bool(has_case(&text, is_other)))
}

fn is_in_table(machine: &Machine, args: &Bound, table: &[Native]) -> Result<Value> {
    let value = args.value(0);
    // A value that is not hashable cannot be looked up.
    value.key(&machine.budget)?;
    Ok(Value::Bool(value.as_text().is_some_and(|name| table.iter().any(|native| native.name == name.as_ref()))))
}
