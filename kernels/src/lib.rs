//! Kernels: one folder per operator, each with its problem, its f64 reference, its cases and its rows.
//!
//! See [`operator::Operator`] for the one idea that everything here follows: what rows and callers need of it is that
//! trait, and what tests and benches need besides is [`Reference`].

pub mod accuracy;
pub mod activation;
pub mod attention;
pub mod case;
pub mod cast;
mod cell;
pub mod combine;
mod cpu_row;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod elementwise;
pub mod embedding;
mod error;
pub mod gather;
pub mod gemm;
pub mod grouped_gemm;
mod kept;
pub mod kv_append;
mod line;
pub mod norm;
pub mod operator;
mod options;
pub mod packed;
pub mod rates;
pub mod reduce;
mod registry;
pub mod rotary;
pub mod route;
mod row_tasks;
pub mod sample;
pub mod simd;
pub mod softmax;
mod standard;
mod stored;
mod strided;
pub mod support;
mod table;
pub mod topk;
pub mod trial;
#[cfg(feature = "wgpu")]
pub(crate) mod wgpu;

pub use case::Reference;
pub use error::{Error, Result};
pub use operator::{Arithmetic, Launch, Operands, Operator, Placed, Refusal, Row, Work};
pub use options::{Compute, F32Bits};
pub use registry::{AnyTable, Preparation, Registry};
#[cfg(feature = "cuda")]
pub use standard::CUDA_MODULES;
pub use table::Table;
