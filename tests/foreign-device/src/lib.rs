//! A device that Sinew knows nothing of, and what it takes to add one.
//!
//! [`Lagging`] keeps its bytes where the host cannot reach them, and its stream runs every piece of work late, on a
//! thread of its own. [`register`] gives it kernels for four of Sinew's operators, and [`CausalSum`] is an operator of
//! this crate's own. None of it needs a change in Sinew's crates: that is what the tests here show.

mod causal_sum;
mod device;
mod operand;
mod rows;
mod stream;

pub use causal_sum::{CausalSum, CausalSumCall, CausalSumStatic};
pub use device::{KIND, Lagging};
pub use rows::{activation_rows, binary_rows, gather_rows, gemm_rows, register};
pub use stream::{Hold, LaggingStream};
