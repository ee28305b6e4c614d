//! Values of the flags that describe problems.

use std::fmt::Display;

use sinew::tensor::{DType, MAX_RANK};

/// The most that a size may be: larger ones are of no tensor, and their products would not be numbers.
const MOST: usize = 1 << 24;
/// The most elements.
const MOST_ELEMENTS: usize = 1 << 40;

/// A size from 1 to 2^24.
pub(super) fn size(text: &str) -> Result<usize, String> {
    number(text, MOST)
}

/// A number of elements from 1 to 2^40.
pub(super) fn elements(text: &str) -> Result<usize, String> {
    number(text, MOST_ELEMENTS)
}

fn number(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

/// A dimension of a tensor.
pub(super) fn dimension(text: &str) -> Result<usize, String> {
    let most = MAX_RANK - 1;
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("expected a number from 0 to {most}"))
}

/// A factor.
pub(super) fn finite(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| "expected a finite number".to_owned())
}

/// A bound above 0.
pub(super) fn positive(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|number| *number > 0.0).ok_or_else(|| "expected a finite number above 0".to_owned())
}

/// The product of two sizes, which is one too.
pub(super) fn product(what: &str, a: usize, b: usize) -> Result<usize, String> {
    let product = a.saturating_mul(b);
    if product <= MOST { Ok(product) } else { Err(format!("{a} · {b} {what} are more than {MOST}")) }
}

/// Any dtype; int8 and fp8 are those of quantized values.
pub(super) fn dtype(text: &str) -> Result<DType, String> {
    match text {
        "int8" => Ok(DType::I8),
        "fp8" => Ok(DType::F8E4M3),
        _ => one_of(text, DType::ALL, DType::name),
    }
}

/// f32, f16 or bf16.
pub(super) fn float(text: &str) -> Result<DType, String> {
    one_of(text, DType::COMPUTE, DType::name)
}

/// The one of these that is called so.
pub(super) fn one_of<T: Copy, N: Display>(
    text: &str,
    all: impl IntoIterator<Item = T> + Clone,
    name: impl Fn(T) -> N,
) -> Result<T, String> {
    let found = all.clone().into_iter().find(|&one| name(one).to_string() == text);
    found.ok_or_else(|| {
        let names: Vec<String> = all.into_iter().map(|one| name(one).to_string()).collect();
        format!("supported are {}", names.join(", "))
    })
}
