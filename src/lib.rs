//! Tensor operators for transformer inference: safetensors models through the best kernels that the machine has.
//!
//! This crate is the face of five others and holds no logic of its own.
//!
//! | crate | holds |
//! |---|---|
//! | [`memory`] | devices, streams, buffers, pools, paged blocks |
//! | [`tensor`] | dtypes, layouts, tensors and views |
//! | [`kernels`] | per operator: the problem, its f64 reference, and a table of kernels |
//! | [`ops`] | public operators, the choice of kernels, planned layers |
//! | [`models`] | checkpoints, architectures, generation, embeddings |
//!
//! Load a checkpoint and generate:
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use sinew::prelude::*;
//!
//! let mut model = LanguageModel::load("path/to/model", &LoadOptions::default())?;
//! let prompt = model.encode("Once upon a time")?;
//! model.generate(&prompt, &GenerateOptions::default(), &mut |text| {
//!     print!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), sinew::models::Error>(())
//! ```
//!
//! Call operators directly:
//!
//! ```
//! use sinew::prelude::*;
//!
//! let ctx = Context::cpu()?;
//! let a = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let product = sinew::ops::matmul(&a, &a.transpose(0, 1)?).run(&ctx)?;
//! assert_eq!(product.to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
//! # Ok::<(), sinew::ops::Error>(())
//! ```

pub mod demo;

pub use sinew_kernels as kernels;
pub use sinew_memory as memory;
pub use sinew_models as models;
pub use sinew_ops as ops;
pub use sinew_tensor as tensor;

/// What most programs need.
pub mod prelude {
    pub use sinew_memory::{Cpu, Device, SimdLevel, Stream};
    pub use sinew_models::{
        EmbeddingModel, GenerateOptions, LanguageModel, LoadOptions, SamplingParams, WeightOptions,
    };
    pub use sinew_ops::{Context, Policy};
    pub use sinew_tensor::{DType, Layout, Tensor};
}
