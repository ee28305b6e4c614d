//! What can go wrong with tensors, said in one line.

use crate::DType;

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

pub(crate) fn shape_error(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Shape { operation, reason: reason.into() }
}
