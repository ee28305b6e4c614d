//! Kernels: one folder per operator, each with its problem, its f64 reference, its cases and its rows.
//!
//! See [`operator::Operator`] for the one idea that everything here follows: what rows and callers need of it is that
//! trait, and what tests and benches need besides is [`Reference`].
//!
//! | modules | what they are |
//! |---|---|
//! | [`operator`], [`Registry`], [`support`] | the contract, the tables of rows, and what they say that they support |
//! | [`harness`] | what rows are held against: references, cases, accuracy, trials |
//! | [`simd`], [`packed`], [`rates`], `strided`, `cpu`, `cuda`, `wgpu` | what rows share: vectors, weights, costs, strides, and each device's own |
//! | all others | an operator each |

// Iterators of arrays are compiled for each shape of a tile, and are ten times the LLVM IR of an index.
#![allow(clippy::needless_range_loop)]

pub mod activation;
pub mod attention;
pub mod cast;
pub mod combine;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod elementwise;
pub mod embedding;
mod error;
pub mod gather;
pub mod gemm;
pub mod grouped_gemm;
pub mod harness;
pub mod kv_append;
pub mod norm;
pub mod operator;
mod options;
pub mod packed;
pub mod rates;
pub mod reduce;
mod registry;
pub mod rotary;
pub mod route;
pub mod sample;
pub mod simd;
pub mod softmax;
pub(crate) mod strided;
pub mod support;
mod table;
pub mod topk;
#[cfg(feature = "wgpu")]
pub(crate) mod wgpu;

pub use error::{Error, Result};
pub use harness::case::Reference;
pub use operator::{Arithmetic, Bound, Launch, Operands, Operator, Placed, Refusal, Row, Work};
pub use options::{Compute, F32Bits, Factors};
#[cfg(feature = "cuda")]
pub use registry::CUDA_MODULES;
pub use registry::{AnyTable, Preparation, Registry};
pub use table::Table;
