//! Python's numbers: integers of any size, floats, and booleans, which are integers.

use std::cmp::Ordering;
use std::rc::Rc;

use dashu_int::ops::BitTest;
use dashu_int::{IBig, Sign};

use super::ast::Operator;
use super::error::{Error, Result, fail};
use super::text::{decimal_digit, is_space};
use super::value::Value;

/// Maximum bits of an integer: far more than templates compute with, and fast to multiply.
const MAX_BITS: usize = 1 << 16;
/// Maximum digits of an integer that Python prints or reads.
pub(super) const MAX_DIGITS: usize = 4300;

/// A number as an operand.
enum Number {
    Int(i64),
    Big(Rc<IBig>),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Bool(flag) => Self::Int(i64::from(*flag)),
            Value::Int(int) => Self::Int(*int),
            Value::Big(big) => Self::Big(big.clone()),
            Value::Float(float) => Self::Float(*float),
            _ => return None,
        })
    }

    fn to_big(&self) -> Option<IBig> {
        match self {
            Self::Int(int) => Some(IBig::from(*int)),
            Self::Big(big) => Some(big.as_ref().clone()),
            Self::Float(float) => big_of(*float).filter(|_| float.fract() == 0.0),
        }
    }

    fn to_float(&self) -> Result<f64> {
        Ok(match self {
            #[expect(clippy::cast_precision_loss, reason = "Python rounds to the nearest float, too")]
            Self::Int(int) => *int as f64,
            Self::Big(big) => {
                let float = big.to_f64().value();
                if float.is_infinite() {
                    fail!("an integer is too large to be converted to a float");
                }
                float
            }
            Self::Float(float) => *float,
        })
    }
}

/// The integer as a value, small if it fits.
pub(super) fn from_big(big: IBig) -> Value {
    match i64::try_from(&big) {
        Ok(int) => Value::Int(int),
        Err(_) => Value::Big(Rc::new(big)),
    }
}

fn checked(big: IBig) -> Result<Value> {
    if big.bit_len() > MAX_BITS {
        fail!("an integer of {} bits is more than the {MAX_BITS} that a template may make", big.bit_len());
    }
    Ok(from_big(big))
}

/// A float without a fraction as an integer.
pub(super) fn whole(float: f64) -> Option<Value> {
    if float.fract() != 0.0 {
        return None;
    }
    big_of(float).map(from_big)
}

/// A finite float without a fraction as an integer.
fn big_of(float: f64) -> Option<IBig> {
    IBig::try_from(float).ok()
}

/// The number as a float, or `None` for what is not a number.
pub(super) fn to_float(value: &Value) -> Option<Result<f64>> {
    Number::of(value).map(|number| number.to_float())
}

/// `int(float)`, which drops the fraction.
pub(super) fn truncate(float: f64) -> Result<Value> {
    match big_of(float.trunc()) {
        Some(big) => Ok(from_big(big)),
        None => fail!("cannot convert float {} to integer", repr(float)),
    }
}

/// An integer or a boolean as a small integer, for indices and counts.
pub(super) fn to_index(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(flag) => Some(i64::from(*flag)),
        Value::Int(int) => Some(*int),
        Value::Big(big) => Some(if big.sign() == Sign::Negative { i64::MIN } else { i64::MAX }),
        _ => None,
    }
}

/// An integer or a boolean as a big integer.
pub(super) fn to_big(value: &Value) -> Option<IBig> {
    match Number::of(value)? {
        Number::Float(_) => None,
        number => number.to_big(),
    }
}

/// The order of two numbers: `None` unless both are numbers, `Some(None)` if one is not a number (NaN).
pub(super) fn compare(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    Some(match (Number::of(left)?, Number::of(right)?) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        (Number::Float(left), Number::Float(right)) => left.partial_cmp(&right),
        (left, Number::Float(right)) => compare_with_float(&left, right),
        (Number::Float(left), right) => compare_with_float(&right, left).map(Ordering::reverse),
        (left, right) => Some(left.to_big()?.cmp(&right.to_big()?)),
    })
}

/// Compares exactly: an integer may have more digits than a float.
fn compare_with_float(int: &Number, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    let Some(floor) = big_of(float.floor()) else {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    };
    let order = int.to_big()?.cmp(&floor);
    Some(if order == Ordering::Equal && float.fract() != 0.0 { Ordering::Less } else { order })
}

/// The result of an operator on two numbers, or `None` unless both are numbers.
pub(super) fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Option<Result<Value>> {
    let (left, right) = (Number::of(left)?, Number::of(right)?);
    if let (Number::Int(left), Number::Int(right)) = (&left, &right)
        && let Some(result) = small(operator, *left, *right)
    {
        return Some(Ok(Value::Int(result)));
    }
    let is_float = matches!(left, Number::Float(_)) || matches!(right, Number::Float(_));
    Some(match (is_float, left.to_big(), right.to_big()) {
        (false, Some(left), Some(right)) => big(operator, &left, &right),
        _ => left.to_float().and_then(|left| Ok((left, right.to_float()?))).and_then(|(l, r)| float(operator, l, r)),
    })
}

/// The result where it fits; `None` where it does not, is an error, or a float.
fn small(operator: Operator, left: i64, right: i64) -> Option<i64> {
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::FloorDivide => {
            let quotient = left.checked_div(right)?;
            Some(quotient - i64::from(left % right != 0 && (left < 0) != (right < 0)))
        }
        Operator::Remainder => {
            let remainder = left.checked_rem(right)?;
            Some(if remainder != 0 && (remainder < 0) != (right < 0) { remainder + right } else { remainder })
        }
        Operator::Power => left.checked_pow(u32::try_from(right).ok()?),
        Operator::Divide => None,
    }
}

fn big(operator: Operator, left: &IBig, right: &IBig) -> Result<Value> {
    let is_zero = right.is_zero();
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if divides && is_zero {
        return Err(division_by_zero());
    }
    match operator {
        Operator::Add => checked(left + right),
        Operator::Subtract => checked(left - right),
        Operator::Multiply => checked(left * right),
        Operator::FloorDivide => checked(floor_divide(left, right).0),
        Operator::Remainder => checked(floor_divide(left, right).1),
        Operator::Divide => Ok(Value::Float(true_divide(left, right)?)),
        Operator::Power if right.sign() == Sign::Negative => {
            let [left, right] = [left, right].map(|big| Number::Big(Rc::new(big.clone())).to_float());
            float(Operator::Power, left?, right?)
        }
        Operator::Power => {
            // Only the powers of -1, 0 and 1 stay small, and they depend on nothing but whether the exponent is odd.
            let is_unit = left.bit_len() <= 1;
            let exponent = match usize::try_from(right) {
                Ok(exponent) if exponent <= MAX_BITS => exponent,
                _ if is_unit => 2 + usize::from(right.bit(0)),
                _ => MAX_BITS + 1,
            };
            if !is_unit && left.bit_len().saturating_mul(exponent) > MAX_BITS + left.bit_len() {
                fail!("a power is more than the {MAX_BITS} bits that an integer of a template may have");
            }
            checked(left.pow(exponent))
        }
    }
}

/// Quotient and remainder, of which the remainder has the sign of the divisor.
fn floor_divide(left: &IBig, right: &IBig) -> (IBig, IBig) {
    let (quotient, remainder) = (left / right, left % right);
    if !remainder.is_zero() && remainder.sign() != right.sign() {
        return (quotient - 1, remainder + right);
    }
    (quotient, remainder)
}

/// `left / right`, rounded once.
fn true_divide(left: &IBig, right: &IBig) -> Result<f64> {
    /// Floats hold integers exactly up to this many bits.
    const EXACT: usize = 53;
    if left.bit_len() <= EXACT && right.bit_len() <= EXACT {
        let [left, right] = [left, right].map(|big| Number::Big(Rc::new(big.clone())).to_float());
        return Ok(left? / right?);
    }
    // A quotient of more bits than a float has, with the rest of the division in its last one.
    let shift = 66 + right.bit_len().cast_signed() - left.bit_len().cast_signed();
    let amount = shift.unsigned_abs();
    let (left, right) = if shift > 0 { (left << amount, right.clone()) } else { (left.clone(), right << amount) };
    let (quotient, rest) = (&left / &right, &left % &right);
    let sticky = if rest.is_zero() {
        0
    } else if quotient.sign() == Sign::Negative {
        -1
    } else {
        1
    };
    let quotient = (quotient << 1) + sticky;
    let float = Number::Big(Rc::new(quotient)).to_float()?;
    let exponent = i32::try_from(-shift - 1).unwrap_or(0);
    // In two steps, as the scale alone may be no float.
    let result = float * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    if result.is_infinite() {
        fail!("integer division result too large for a float");
    }
    Ok(result)
}

fn float(operator: Operator, left: f64, right: f64) -> Result<Value> {
    if right == 0.0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        return Err(division_by_zero());
    }
    Ok(Value::Float(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::FloorDivide => floor_and_remainder(left, right).0,
        Operator::Remainder => floor_and_remainder(left, right).1,
        Operator::Power => {
            if left == 0.0 && right < 0.0 {
                fail!("0.0 cannot be raised to a negative power");
            }
            let power = left.powf(right);
            if left < 0.0 && left.is_finite() && right.is_finite() && right.fract() != 0.0 {
                fail!("a negative number to a fractional power is complex, which is not supported");
            }
            if power.is_infinite() && left.is_finite() && right.is_finite() {
                fail!("the result of a power is too large for a float");
            }
            power
        }
    }))
}

fn floor_and_remainder(left: f64, right: f64) -> (f64, f64) {
    let mut remainder = left % right;
    let mut quotient = (left - remainder) / right;
    if remainder == 0.0 {
        remainder = 0f64.copysign(right);
    } else if (right < 0.0) != (remainder < 0.0) {
        remainder += right;
        quotient -= 1.0;
    }
    let floor = quotient.floor();
    let floor = if quotient == 0.0 {
        0f64.copysign(left / right)
    } else if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    };
    (floor, remainder)
}

fn division_by_zero() -> Error {
    Error::new("division by zero")
}

/// `-value`, or `None` for what is not a number.
pub(super) fn negative(value: &Value) -> Option<Value> {
    Some(match Number::of(value)? {
        Number::Int(int) => int.checked_neg().map_or_else(|| from_big(-IBig::from(int)), Value::Int),
        Number::Big(big) => from_big(-big.as_ref()),
        Number::Float(float) => Value::Float(-float),
    })
}

/// `+value`, which makes an integer of a boolean.
pub(super) fn positive(value: &Value) -> Option<Value> {
    Some(match Number::of(value)? {
        Number::Int(int) => Value::Int(int),
        Number::Big(big) => Value::Big(big),
        Number::Float(float) => Value::Float(float),
    })
}

/// An integer in decimal digits.
pub(super) fn big_digits(big: &IBig) -> Result<String> {
    let digits = big.to_string();
    if digits.trim_start_matches('-').len() > MAX_DIGITS {
        fail!("an integer has more than the {MAX_DIGITS} digits that can be printed");
    }
    Ok(digits)
}

/// `repr(float)`: the shortest digits that read back as the same float.
pub(super) fn repr(float: f64) -> String {
    if !float.is_finite() {
        return non_finite(float).to_owned();
    }
    let size = float.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{float:?}");
    }
    python_exponent(&format!("{float:e}"))
}

/// `inf`, `-inf` or `nan`.
pub(super) fn non_finite(float: f64) -> &'static str {
    match (float.is_nan(), float > 0.0) {
        (true, _) => "nan",
        (_, true) => "inf",
        _ => "-inf",
    }
}

/// An exponent as Python writes it, with a sign and at least two digits.
pub(super) fn python_exponent(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once('e') else { return text.to_owned() };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `round(value, digits)` to the nearest, and to even in the middle.
pub(super) fn round(value: &Value, digits: i64) -> Result<Value> {
    match Number::of(value) {
        Some(Number::Float(float)) => Ok(Value::Float(round_float(float, digits))),
        Some(number) if digits >= 0 => Ok(number.to_big().map_or(Value::None, from_big)),
        Some(number) => {
            let power = digits.unsigned_abs();
            let int = number.to_big().unwrap_or_default();
            // Beyond its own digits an integer rounds to zero.
            if power > int.bit_len() as u64 + 1 {
                return Ok(Value::Int(0));
            }
            let unit = IBig::from(10).pow(usize::try_from(power).unwrap_or(0));
            Ok(from_big(round_to_unit(&int, &unit)))
        }
        None => fail!("type {} doesn't define __round__ method", value.type_name()),
    }
}

fn round_to_unit(int: &IBig, unit: &IBig) -> IBig {
    let (quotient, rest) = floor_divide(int, unit);
    let doubled: IBig = rest * 2;
    let up = match doubled.cmp(unit) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => quotient.bit(0),
    };
    (quotient + IBig::from(up)) * unit
}

fn round_float(float: f64, digits: i64) -> f64 {
    /// No float has digits beyond these.
    const MOST: i64 = 330;
    if !float.is_finite() || digits > MOST {
        return float;
    }
    if digits < -MOST {
        return 0f64.copysign(float);
    }
    match usize::try_from(digits) {
        // Writing decimals rounds as Python does: exactly, and to even in the middle.
        Ok(digits) => format!("{float:.digits$}").parse().unwrap_or(float),
        Err(_) => {
            let unit = IBig::from(10).pow(usize::try_from(-digits).unwrap_or(0));
            let below = big_of(float.floor()).unwrap_or_default();
            // A fraction breaks ties upwards.
            let doubled: IBig = below * 2 + IBig::from(float.fract() != 0.0);
            let rounded: IBig = round_to_unit(&doubled, &(unit * 2)) / 2;
            rounded.to_string().parse::<f64>().unwrap_or(float).copysign(float)
        }
    }
}

/// `int(text, base)`, or `None` for what is no integer.
pub(super) fn parse_int(text: &str, base: i64) -> Option<IBig> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, prefixed) = match (base, lower.as_deref()) {
        (0 | 2, Some("0b")) => (2, true),
        (0 | 8, Some("0o")) => (8, true),
        (0 | 16, Some("0x")) => (16, true),
        (0, _) => (10, false),
        (2..=36, _) => (u32::try_from(base).ok()?, false),
        _ => return None,
    };
    let digits = if prefixed { digits[2..].strip_prefix('_').unwrap_or(&digits[2..]) } else { digits };
    let digits = plain_digits(digits)?;
    let is_number = !digits.is_empty() && digits.len() <= MAX_DIGITS && digits.chars().all(|c| c.is_digit(radix));
    if !is_number || base == 0 && !prefixed && digits.starts_with('0') && digits.bytes().any(|b| b != b'0') {
        return None;
    }
    let int = IBig::from_str_radix(&digits, radix).ok()?;
    Some(if negative { -int } else { int })
}

/// Digits of any script as ASCII, without the single underscores between them.
fn plain_digits(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut after_digit = false;
    for c in text.chars() {
        if c == '_' {
            if !after_digit {
                return None;
            }
            after_digit = false;
            continue;
        }
        out.push(decimal_digit(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c));
        after_digit = true;
    }
    (after_digit || text.is_empty()).then_some(out)
}

/// `float(text)`, or `None` for what is no float.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let bytes = text.as_bytes();
    // An underscore stands between two digits.
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let misplaced = |at: usize| bytes[at] == b'_' && !(at > 0 && is_digit(at - 1) && is_digit(at + 1));
    if (0..bytes.len()).any(misplaced) {
        return None;
    }
    let plain: String = text.chars().filter(|&c| c != '_').collect();
    let plain: String =
        plain.chars().map(|c| decimal_digit(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)).collect();
    plain.parse().ok()
}

/// Tells if an integer is below zero.
pub(super) fn is_negative(value: &Value) -> bool {
    to_big(value).is_some_and(|big| big.sign() == Sign::Negative)
}
