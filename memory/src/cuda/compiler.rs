//! The seam to the compiler of kernels.

use std::fmt;

/// Turns CUDA C++ into an image that the driver loads.
pub trait Compiler: fmt::Debug + Send + Sync {
    /// Everything besides the source that decides the image: name and version of the compiler, architecture, options.
    /// An image is kept under it.
    ///
    /// # Errors
    /// Why there is no compiler, or why it knows no such architecture.
    fn describe(&self, architecture: &str) -> Result<String, String>;

    /// Compiles a source; `name` is what messages call it.
    ///
    /// # Errors
    /// What the compiler says of the source, or why it compiles none.
    fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>, CompileError>;
}

/// Why there is no image of a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// What the compiler says of a source that it refuses.
    #[error("{0}")]
    Source(String),
    /// Why the compiler can compile no source: it is missing, too old or incomplete. What was compiled before may do.
    #[error("{0}")]
    Compiler(String),
}

/// The architecture that is compiled for: the GPU's own, on Hopper with the instructions that only it has.
pub fn architecture((major, minor): (u32, u32)) -> String {
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}
