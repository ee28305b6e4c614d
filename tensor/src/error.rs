//! What can go wrong with tensors, said in one line.

use crate::{DType, MAX_RANK};

/// The result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the tensor crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory could not be allocated, reached or written.
    #[error(transparent)]
    Memory(#[from] sinew_memory::Error),
    /// A shape or index that does not fit.
    #[error("{operation}: {reason}")]
    Shape {
        /// What was asked.
        operation: &'static str,
        /// Shapes, strides and what was expected.
        reason: String,
    },
    /// Elements of another type than the tensor's.
    #[error("{operation}: tensor is {found}, asked as {asked}")]
    DType {
        /// What was asked.
        operation: &'static str,
        /// The tensor's dtype.
        found: DType,
        /// The dtype asked for.
        asked: DType,
    },
}

/// Sizes that a caller chose in any number: the first few, and how many there are.
pub(crate) fn short(sizes: &[usize]) -> String {
    match sizes.get(..MAX_RANK) {
        Some(first) if sizes.len() > MAX_RANK => format!("{first:?} and {} more", sizes.len() - MAX_RANK),
        _ => format!("{sizes:?}"),
    }
}

pub(crate) fn shape_error(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Shape { operation, reason: reason.into() }
}
