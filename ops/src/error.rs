//! What can go wrong when operators are described and run.

use sinew_tensor::Tensor;

/// The result of an operator.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the ops crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel, its operands, or the lack of one.
    #[error(transparent)]
    Kernel(#[from] sinew_kernels::Error),
    /// A tensor or view does not fit.
    #[error(transparent)]
    Tensor(#[from] sinew_tensor::Error),
    /// Memory failed.
    #[error(transparent)]
    Memory(#[from] sinew_memory::Error),
    /// A kernel that is preferred by name, and is not there.
    #[error("no kernel is called `{name}`; `sinew explain gemm` lists those of products")]
    NoSuchKernel {
        /// The name.
        name: String,
    },
    /// Operands that the operator cannot take.
    #[error("{operator}: {reason}")]
    Operands {
        /// The operator.
        operator: &'static str,
        /// Shapes, strides, dtypes, devices; what was expected; what would work.
        reason: String,
    },
}

/// An operand as messages name it, without its elements.
pub(crate) fn operand(name: &str, x: &Tensor) -> String {
    format!("{name} is {} {:?} on {}", x.dtype(), x.layout(), x.device().id())
}

/// An [`Error::Operands`].
pub(crate) fn refuse(operator: &'static str, reason: impl Into<String>) -> Error {
    Error::Operands { operator, reason: reason.into() }
}
