//! What can go wrong when a kernel is described, chosen or run.

/// The result of kernel work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the kernels crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor or view does not fit.
    #[error(transparent)]
    Tensor(#[from] sinew_tensor::Error),
    /// Memory failed.
    #[error(transparent)]
    Memory(#[from] sinew_memory::Error),
    /// Operands do not fit the problem.
    #[error("{operator}: {reason}")]
    Operands {
        /// The operator.
        operator: &'static str,
        /// Which operand, what it is, and what was expected.
        reason: String,
    },
    /// No row of the table can solve the problem on this device.
    #[error("{operator}: no kernel for {problem} on {device}: {reasons}")]
    NoKernel {
        /// The operator.
        operator: &'static str,
        /// The problem.
        problem: String,
        /// The device.
        device: String,
        /// Why each candidate refused.
        reasons: String,
    },
    /// A launch's workspace is smaller than its kernel needs. Nothing was enqueued.
    #[error("a kernel needs {needed} bytes of workspace and was given {found}")]
    Workspace {
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that the launch has.
        found: usize,
    },
    /// A kernel was asked to run on a stream of another device than its own.
    #[error("{kernel} runs on {expected} and was given a stream of {found}")]
    WrongDevice {
        /// The row's name.
        kernel: &'static str,
        /// Its device kind.
        expected: &'static str,
        /// The stream's device.
        found: String,
    },
}
