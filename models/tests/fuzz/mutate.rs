//! Inputs that are nearly right: JSON whose values, names and structure are changed, and bytes that are.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Number, Value, json};

/// The random choices of one case.
pub struct Choices(ChaCha8Rng);

impl Choices {
    /// Those of case `case`, which do not depend on the cases before it.
    pub fn of(seed: u64, case: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(case);
        Self(rng)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Changes some values of a document; `others` lend theirs.
pub fn json(choices: &mut Choices, document: &Value, others: &[Value]) -> Value {
    let mut changed = document.clone();
    // Mostly one change: two errors hide each other.
    let changes = 1 + if choices.once_in(3) { choices.below(4) } else { 0 };
    for _ in 0..changes {
        let count = nodes(&changed);
        let mut at = choices.below(count);
        let other = choices.one_of(others).clone();
        if let Some(node) = node(&mut changed, &mut at) {
            change(choices, node, &other);
        }
    }
    changed
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(nodes).sum(),
        _ => 0,
    }
}

/// The node that is `at` places behind this one, depth first.
fn node<'a>(value: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(values) => values.iter_mut().find_map(|value| node(value, at)),
        Value::Object(fields) => fields.values_mut().find_map(|value| node(value, at)),
        _ => None,
    }
}

fn change(choices: &mut Choices, value: &mut Value, other: &Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !choices.once_in(4) => change_fields(choices, fields, other),
        Value::Array(values) if !values.is_empty() && !choices.once_in(4) => {
            let at = choices.below(values.len());
            match choices.below(5) {
                0 => drop(values.remove(at)),
                1 => values.insert(at, scalar(choices)),
                2 => values.push(values[at].clone()),
                3 => values.reverse(),
                _ => *values = vec![values[at].clone(); 1 + choices.below(1000)],
            }
        }
        Value::Number(number) if !choices.once_in(3) => *value = near(choices, number),
        Value::String(text) if !choices.once_in(3) => {
            let at = choices.below(text.len() + 1);
            let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            match choices.below(4) {
                0 => text.truncate(at),
                1 => text.insert(at, *choices.one_of(&['/', '.', '\\', '\0', 'é', '\u{1b}', '0', '-'])),
                2 => *text = text.repeat(1 + choices.below(50)),
                _ => text.insert_str(0, choices.one_of::<&str>(&["../", "/", " ", "-", "model.", "F", "1e"])),
            }
        }
        _ => {
            *value = match choices.below(6) {
                0 => other.clone(),
                1 => json!([value.take()]),
                2 => json!({ "a": value.take() }),
                _ => scalar(choices),
            }
        }
    }
}

fn change_fields(choices: &mut Choices, fields: &mut Map<String, Value>, other: &Value) {
    let at = choices.below(fields.len());
    let Some(name) = fields.keys().nth(at).cloned() else { return };
    match choices.below(6) {
        0 => drop(fields.remove(&name)),
        1 => drop(fields.insert(name, Value::Null)),
        2 => {
            // Under another name: near its own, or the name of another field.
            let value = fields.remove(&name).unwrap_or_default();
            let own: String = name.chars().rev().collect();
            let renamed = other.as_object().and_then(|other| other.keys().next()).unwrap_or(&own);
            fields.insert(renamed.clone(), value);
        }
        3 => {
            let second = choices.below(fields.len());
            let value = fields.values().nth(second).cloned().unwrap_or_default();
            fields.insert(name, value);
        }
        4 => {
            if let Some((name, value)) = other.as_object().and_then(|other| {
                let at = choices.below(other.len().max(1));
                other.iter().nth(at)
            }) {
                fields.insert(name.clone(), value.clone());
            }
        }
        _ => drop(fields.insert(name, scalar(choices))),
    }
}

/// Values that break readers.
fn scalar(choices: &mut Choices) -> Value {
    let all = [
        Value::Null,
        json!(true),
        json!(false),
        json!(0),
        json!(-0.0),
        json!(1),
        json!(-1),
        json!(1.5),
        json!(i32::MAX),
        json!(1u64 << 31),
        json!(u32::MAX),
        json!(1u64 << 32),
        json!((1u64 << 53) + 1),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e-320),
        json!(1e308),
        json!(""),
        json!("1"),
        json!("nan"),
        json!("F32"),
        json!("float16"),
        json!("full_attention"),
        json!("sliding_attention"),
        json!("yarn"),
        json!("longrope"),
        json!([]),
        json!({}),
        json!([0, 0]),
        json!([1e9, 1e9, 1e9]),
    ];
    choices.one_of(&all).clone()
}

fn near(choices: &mut Choices, number: &Number) -> Value {
    match number.as_i64() {
        Some(n) => match choices.below(6) {
            0 => json!(n.wrapping_add(1)),
            1 => json!(n.wrapping_sub(1)),
            2 => json!(n.wrapping_mul(2)),
            3 => json!(n.wrapping_neg()),
            4 => json!(n as f64),
            _ => json!(n.wrapping_shl(choices.below(64) as u32)),
        },
        None => json!(number.as_f64().unwrap_or(0.0) * choices.one_of(&[0.0, -1.0, 0.5, 2.0, 1e300, 1e-300])),
    }
}

/// Changes bytes of a text, which then mostly is none.
pub fn bytes(choices: &mut Choices, bytes: &mut Vec<u8>) {
    for _ in 0..1 + choices.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = choices.below(bytes.len());
        match choices.below(7) {
            0 => bytes[at] ^= 1 << choices.below(8),
            1 => bytes[at] = *choices.one_of(b"\"{}[],:\\0-9eE.\0\x80\xff"),
            2 => bytes.truncate(at),
            3 => drop(bytes.remove(at)),
            4 => {
                // A part of it twice: so come names that are there already.
                let end = (at + 1 + choices.below(200)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(end..end, part);
            }
            5 => {
                let depth = 1 + choices.below(5000);
                bytes.splice(at..at, vec![*choices.one_of(b"[{0 9\""); depth]);
            }
            _ => {
                let end = (at + 1 + choices.below(50)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}
