//! Public tensor operators: choice of kernel, planning and fusion.
//!
//! Every operator takes every strided view (transposed, stepped, broadcast, padded, empty) as it is; nothing is copied
//! first. Each has a form that returns a tensor, one that writes into a tensor of the caller (`…_into`), and, where
//! models need it, a planned one in [`layers`]. Those with options are completed by name before they run:
//!
//! ```
//! use sinew_ops::{Context, add, matmul, rms_norm, sum};
//!
//! let ctx = Context::cpu()?;
//! let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let y = add(&ctx, &x, &x.t()?)?;
//! let y = matmul(&y, &x).relu().run(&ctx)?;
//! let y = rms_norm(&y).eps(1e-5).run(&ctx)?;
//! let rows = sum(&y).dim(1).keepdim().run(&ctx)?;
//! assert_eq!(rows.shape(), [2, 1]);
//! # Ok::<(), sinew_ops::Error>(())
//! ```

mod activation;
mod attention;
mod choice;
mod context;
mod copy;
mod elementwise;
mod error;
mod explain;
mod index;
mod kept;
mod launch;
pub mod layers;
mod matmul;
mod norm;
mod profile;
mod record;
mod reduce;
mod roofline;
mod rotary;
mod shape;
mod softmax;
mod trust;
mod tune;

pub use activation::{
    activation, activation_into, gated, gated_halves, gated_halves_into, gated_into, gelu, gelu_into, gelu_tanh,
    gelu_tanh_into, quick_gelu, quick_gelu_into, relu, relu_into, relu2, relu2_into, silu, silu_into,
};
pub use attention::{Attend, attention, kv_append};
pub use choice::Policy;
pub use context::Context;
pub use copy::{cast, cast_into, to_contiguous};
pub use elementwise::*;
pub use error::{Error, Result};
pub use explain::{Candidate, Explanation};
pub use index::{embedding, embedding_into, gather, gather_into, index_select, index_select_into, topk, topk_into};
pub use launch::Planned;
pub use matmul::{Matmul, linear, matmul};
pub use norm::{Normalize, layer_norm, rms_norm};
pub use profile::{Part, Profile};
pub use record::{Launched, Record};
pub use reduce::{Reduce, argmax, argmin, max, mean, min, sum};
pub use roofline::{Bound, Limits};
pub use rotary::{RotaryTable, Rotate, rotary};
pub use softmax::{log_softmax, log_softmax_into, softmax, softmax_into};
pub use tune::{Budget, Times, Tuned, TunedProblem, TuningCache, tune, tune_while};
