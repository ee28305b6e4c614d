//! The small parts of a `tokenizer.json`, each with a bound on what it holds.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::growth::CHARSMAP;

/// Values in a part, and the bytes of their strings; there are maps of characters of 400 KiB.
const MAX_VALUES: usize = 4096;
const MAX_PART_BYTES: usize = 4 << 20;
/// Bytes of one string there, but for those maps.
const MAX_STRING_BYTES: usize = 4 << 10;

/// Adds a field that may be there once only.
pub(super) fn insert<E: Error>(fields: &mut Map<String, Value>, name: String, value: Value) -> Result<(), E> {
    match fields.contains_key(&name) {
        true => Err(E::custom(format!("there are two {}", name.escape_debug()))),
        false => {
            fields.insert(name, value);
            Ok(())
        }
    }
}

/// How much more a part of the file may hold.
pub(super) struct Part {
    values: Cell<usize>,
    bytes: Cell<usize>,
}

impl Default for Part {
    fn default() -> Self {
        Self { values: Cell::new(MAX_VALUES), bytes: Cell::new(MAX_PART_BYTES) }
    }
}

impl Part {
    pub fn seed(&self, long: bool) -> Bounded<'_> {
        Bounded { part: self, long }
    }

    fn take<E: Error>(&self, values: usize, bytes: usize) -> Result<(), E> {
        let left = |cell: &Cell<usize>, n| cell.get().checked_sub(n).map(|left| cell.set(left));
        match left(&self.values, values).and(left(&self.bytes, bytes)) {
            Some(()) => Ok(()),
            None => Err(E::custom(format!("a part has more than {MAX_VALUES} values or {MAX_PART_BYTES} bytes"))),
        }
    }
}

/// A value in a part.
#[derive(Clone, Copy)]
pub(super) struct Bounded<'a> {
    part: &'a Part,
    /// Whether strings may be long.
    long: bool,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        if !self.long && text.len() > MAX_STRING_BYTES {
            return Err(E::custom(format!("a string of {} bytes", text.len())));
        }
        self.part.take(1, text.len()).map(|()| text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.part.take(1, 0)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.part.take(1, 0)?;
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.part.take(1, key.len())?;
            let value = map.next_value_seed(self.part.seed(key == CHARSMAP))?;
            insert(&mut fields, key, value)?;
        }
        Ok(fields.into())
    }
}
