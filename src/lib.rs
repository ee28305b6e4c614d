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
//! use std::sync::Arc;
//! use sinew::prelude::*;
//!
//! let folder = Folder::new("path/to/model");
//! let ctx = Arc::new(Context::cpu()?);
//! let mut model = LanguageModel::load_on(ctx, &folder, &LoadOptions::default(), &mut |_, _| {})?;
//! let prompt = model.encode("Once upon a time")?;
//! // As generation_config.json says, and at most 128 tokens where it does not say how many.
//! let options = folder.generation_config()?.options(prompt.len(), 128);
//! model.generate(&prompt, &options, &mut |text| {
//!     print!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), sinew::models::Error>(())
//! ```
//!
//! Turn texts into vectors:
//!
//! ```no_run
//! use sinew::prelude::*;
//!
//! let mut model = EmbeddingModel::load("path/to/model", &WeightOptions::default())?;
//! let vectors = model.embed(&["a text", "another"])?;
//! let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
//! # Ok::<(), sinew::models::Error>(())
//! ```
//!
//! Call operators directly, on tensors of any strides:
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
//!
//! or on what `ndarray` holds:
//!
//! ```
//! # use sinew::prelude::*;
//! # let ctx = Context::cpu()?;
//! # let array = ndarray::array![[1.0f32, 9.0], [1.0, 9.0]];
//! let column = Tensor::copy_of_ndarray(ctx.device(), &array.slice(ndarray::s![.., 0]))?;
//! let softmax = sinew::ops::softmax(&ctx, &column)?;
//! assert_eq!(softmax.as_ndarray::<f32>()?, ndarray::array![0.5, 0.5].into_dyn());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where to go on: a [`Context`](ops::Context) owns a device and the choice of kernels, and is passed to everything
//! that computes; [`ops`] has the operators; [`models::architectures`] the models that load, and [`models`] what they
//! are made of; [`kernels`] is for who writes kernels, and `examples/add_kernel.rs` adds one from outside.
//!
//! # Debug builds
//!
//! Cargo's dev profile does not optimise dependencies. Kernels work unoptimised too, 50 to 100 times slower, and say so
//! once on stderr. Two lines in the application's `Cargo.toml` optimise them:
//!
//! ```toml
//! [profile.dev.package."*"]
//! opt-level = 3
//! ```
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `cuda` (default) | NVIDIA GPUs through the driver, found at run time |
//! | `wgpu` (default) | Vulkan, Metal and DX12 adapters |
//! | `models` (default) | checkpoints, tokenizers, architectures, generation, embeddings: [`models`] |
//! | `hub` (default) | models by their id on the Hugging Face Hub, and `models` |
//! | `cli` (default) | the command `sinew`, settings files, `local-time` and `models` |
//! | `local-time` | `strftime_now` in chat templates |
//!
//! Without default features there are operators on CPUs, from 65 crates where all features take 212.
//!
//! # Threads
//!
//! Tensors, views to read, checkpoints, tokenizers and contexts are `Send` and `Sync`: one context serves many threads,
//! which wait for each other where they share its workspace. A [`LanguageModel`](models::LanguageModel) and an
//! [`EmbeddingModel`](models::EmbeddingModel) are `Send`: they run one step at a time.
//!
//! # Errors
//!
//! Nothing that a user or a file says makes these crates panic. Errors print as one line that names what was asked and
//! what would work; [`models::one_line`] joins one with its causes.

// The text above links to what the feature `models` has.
#![cfg_attr(not(feature = "models"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "models")]
pub mod demo;

pub use sinew_kernels as kernels;
pub use sinew_memory as memory;
#[cfg(feature = "models")]
pub use sinew_models as models;
pub use sinew_ops as ops;
/// Tensors: dtypes, layouts, views without copies; with the feature `models` [`safetensors`](tensor::safetensors) files.
pub mod tensor {
    #[cfg(feature = "models")]
    pub use sinew_models::safetensors;
    pub use sinew_tensor::*;
}

/// What most programs need.
pub mod prelude {
    pub use sinew_memory::{Cpu, Device, SimdLevel, Stream};
    #[cfg(feature = "models")]
    pub use sinew_models::{
        EmbeddingModel, Folder, GenerateOptions, LanguageModel, LoadOptions, SamplingParams, WeightOptions,
    };
    pub use sinew_ops::{Context, Policy};
    pub use sinew_tensor::{DType, Layout, Tensor};
}
