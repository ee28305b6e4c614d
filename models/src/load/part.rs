//! Matrices by the names that tensors have.

use std::ops::Range;

/// A matrix `[n, k]` in a checkpoint: all rows of a tensor, or some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What the tensors are called, less `.weight` and `.bias`.
    name: String,
    pub(super) rows: Range<usize>,
    /// Rows of the tensor.
    pub(crate) of: usize,
    /// Whether the tensor is `[k, n]`.
    pub(crate) transposed: bool,
    /// Whether it is never quantized as it is loaded.
    exact: bool,
}

impl Part {
    /// A tensor of `n` rows.
    pub fn whole(name: impl Into<String>, n: usize) -> Self {
        Self { name: name.into(), rows: 0..n, of: n, transposed: false, exact: false }
    }

    /// The parts of so many rows of which a tensor is stacked.
    pub fn split(name: &str, sizes: &[usize]) -> Vec<Self> {
        let of = sizes.iter().sum();
        let mut start = 0;
        let part = |&n: &usize| {
            let rows = start..start + n;
            start = rows.end;
            Self { name: name.to_owned(), rows, of, transposed: false, exact: false }
        };
        sizes.iter().map(part).collect()
    }

    /// The same of a tensor that is `[k, n]` if that is so.
    pub fn transposed(self, transposed: bool) -> Self {
        Self { transposed, ..self }
    }

    /// The same, but never quantized as it is loaded.
    pub fn exact(self, exact: bool) -> Self {
        Self { exact, ..self }
    }

    pub(super) fn may_be_quantized(&self) -> bool {
        !self.exact
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// That of the tensor.
    pub(super) fn shape(&self, k: usize) -> [usize; 2] {
        if self.transposed { [k, self.of] } else { [self.of, k] }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }

    pub(super) fn bias(&self) -> String {
        format!("{}.bias", self.name)
    }
}
