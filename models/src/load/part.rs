//! Matrices by the names that tensors have.

use std::ops::Range;

/// A matrix `[n, k]` in a checkpoint: all rows of a tensor, or some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What the tensors are called, less `.weight` and `.bias`.
    name: String,
    /// Its rows in the tensor, or in the tensor's matrix: from the first to the last every so many.
    rows: Range<usize>,
    step: usize,
    /// Rows of the tensor, or of each matrix in it.
    pub(crate) of: usize,
    /// Which matrix of a tensor of several it is, and how many there are.
    stacked: Option<[usize; 2]>,
    /// Whether the tensor, if it is one of floats, is `[k, n]`.
    pub(crate) transposed: bool,
    /// Whether it is never quantized as it is loaded.
    exact: bool,
    /// Matrices whose runs of so many rows take turns, where it is several.
    alternating: Option<[usize; 2]>,
}

impl Part {
    /// A tensor of `n` rows.
    pub fn whole(name: impl Into<String>, n: usize) -> Self {
        Self {
            name: name.into(),
            rows: 0..n,
            step: 1,
            of: n,
            stacked: None,
            transposed: false,
            exact: false,
            alternating: None,
        }
    }

    /// The parts of so many rows of which a tensor is stacked.
    pub fn split(name: &str, sizes: &[usize]) -> Vec<Self> {
        let of = sizes.iter().sum();
        let mut start = 0;
        let part = |&n: &usize| {
            let rows = start..start + n;
            start = rows.end;
            Self { rows, ..Self::whole(name, of) }
        };
        sizes.iter().map(part).collect()
    }

    /// The same of a tensor of floats that is `[k, n]` if that is so; quantized ones are `[n, k]` all the same.
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

    /// The same of the matrix `index` of `count` that are one tensor: a parameter, not a module's weight, so that it is
    /// called by the name alone and its biases by the name and `_bias`.
    pub fn stacked(self, index: usize, count: usize) -> Self {
        Self { stacked: Some([index, count]), ..self }
    }

    /// The same of so many matrices whose rows take turns, one row each, but the matrix `index` alone.
    pub fn every(self, matrices: usize, index: usize) -> Self {
        Self { rows: index..self.of, step: matrices, ..self }
    }

    /// The parts that it is made of, in their order: it alone, or runs of rows.
    pub(super) fn pieces(&self) -> Vec<Self> {
        let Some([matrices, rows]) = self.alternating else { return vec![self.clone()] };
        let piece = |start| Self { rows: start..start + rows, alternating: None, ..self.clone() };
        let of_matrix = |matrix: usize| (matrix * rows..self.of).step_by(matrices * rows).map(piece);
        (0..matrices).flat_map(of_matrix).collect()
    }

    /// All rows of the tensor, or of its matrix in it, in their order there. Parts of which this is the same share what is
    /// read of it.
    pub(super) fn all_rows(&self) -> Self {
        Self { rows: 0..self.of, step: 1, alternating: None, ..self.clone() }
    }

    /// Tells if this is one matrix of several in a tensor.
    pub(crate) fn is_stacked(&self) -> bool {
        self.stacked.is_some()
    }

    /// Whether it is the weight of a module that has it as `[k, n]`; experts that are one tensor are none's.
    pub(super) fn is_of_conv1d(&self) -> bool {
        self.transposed && self.stacked.is_none()
    }

    pub(super) fn may_be_quantized(&self) -> bool {
        !self.exact
    }

    /// Its rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len().div_ceil(self.step)
    }

    /// Where rows of it are in the matrix of the tensor: every [`step`](Self::step)th of these.
    pub(super) fn in_matrix(&self, rows: Range<usize>) -> Range<usize> {
        let at = |row: usize| self.rows.start + row * self.step;
        if rows.is_empty() { at(rows.start)..at(rows.start) } else { at(rows.start)..at(rows.end - 1) + 1 }
    }

    /// The same among all rows of the tensor.
    pub(super) fn in_tensor(&self, rows: Range<usize>) -> Range<usize> {
        let (before, rows) = (self.rows_before(), self.in_matrix(rows));
        before + rows.start..before + rows.end
    }

    /// From one of its rows to the next in the tensor.
    pub(super) fn step(&self) -> usize {
        self.step
    }

    /// Rows of the tensor before those of its matrix.
    pub(super) fn rows_before(&self) -> usize {
        self.stacked.map_or(0, |[index, _]| index * self.of)
    }

    /// The shape of a tensor of floats.
    pub(super) fn shape(&self, k: usize) -> Vec<usize> {
        let matrix = if self.transposed { [k, self.of] } else { [self.of, k] };
        self.stacked.map(|[_, count]| count).into_iter().chain(matrix).collect()
    }

    /// That of a quantized module: matrices, and the rows and columns of each.
    pub(super) fn module_shape(&self, k: usize) -> [usize; 3] {
        [self.stacked.map_or(1, |[_, count]| count), self.of, k]
    }

    /// The shape of its biases.
    pub(super) fn bias_shape(&self) -> Vec<usize> {
        self.stacked.map(|[_, count]| count).into_iter().chain([self.of]).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn weight(&self) -> String {
        match self.stacked {
            Some(_) => self.name.clone(),
            None => format!("{}.weight", self.name),
        }
    }

    pub(super) fn bias(&self) -> String {
        match self.stacked {
            Some(_) => format!("{}_bias", self.name),
            None => format!("{}.bias", self.name),
        }
    }
}
