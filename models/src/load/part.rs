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
    /// Matrices whose runs of so many rows take turns, where it is several.
    alternating: Option<[usize; 2]>,
}

impl Part {
    /// A tensor of `n` rows.
    pub fn whole(name: impl Into<String>, n: usize) -> Self {
        Self { name: name.into(), rows: 0..n, of: n, transposed: false, exact: false, alternating: None }
    }

    /// The parts of so many rows of which a tensor is stacked.
    pub fn split(name: &str, sizes: &[usize]) -> Vec<Self> {
        let of = sizes.iter().sum();
        let mut start = 0;
        let part = |&n: &usize| {
            let rows = start..start + n;
            start = rows.end;
            Self { name: name.to_owned(), rows, of, transposed: false, exact: false, alternating: None }
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

    /// The same of a whole tensor in which so many matrices have runs of so many rows in turn, but one matrix after the
    /// other.
    pub fn alternating(self, matrices: usize, rows: usize) -> Self {
        Self { alternating: Some([matrices, rows]), ..self }
    }

    /// The parts that it is made of, in their order: it alone, or runs of rows.
    pub(super) fn pieces(&self) -> Vec<Self> {
        let Some([matrices, rows]) = self.alternating else { return vec![self.clone()] };
        let piece = |start| Self { rows: start..start + rows, alternating: None, ..self.clone() };
        let of_matrix = |matrix: usize| (matrix * rows..self.of).step_by(matrices * rows).map(piece);
        (0..matrices).flat_map(of_matrix).collect()
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
