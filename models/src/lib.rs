//! Transformer models: checkpoints, text, decoders and encoders, their cache, sampling, and the engine for many requests.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | `config.json` as a checked description of the model |
//! | [`folder`] | a model's folder: each of its files is read once |
//! | [`architectures`] | a file for each: what its config says, and what its tensors are called |
//! | [`hub`] | folders of models by path, or by id from the Hugging Face Hub and its cache |
//! | [`safetensors`] | tensors to and from safetensors files |
//! | [`tensors`] | tensors by name, from one safetensors file or many |
//! | [`checkpoint`] | what a model is loaded from: tensors, and which modules are quantized in them |
//! | [`tokenizer`] | text to token ids and back; the lengths that a model takes |
//! | [`chat`] | conversations to text, by the chat templates of checkpoints |
//! | [`stop`] | text while it is generated: whole characters only, and stop strings |
//! | [`sampling`] | the next token from its logits |
//! | [`generation_config`] | how a checkpoint wants its answers drawn |
//! | [`precision`] | dtypes: those that a checkpoint has, and those of a model that is loaded from it |
//! | [`load`] | tensors to packed weights |
//! | [`quantized`] | weights of 4 and 8 bits as GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8 and MXFP4 store them |
//! | [`quantize`] | quantized checkpoints, written |
//! | [`quality`] | what quantizing costs: divergence and agreement of logits, cosines of embeddings |
//! | [`plan`] | the memory that a model takes |
//! | [`settings`] | what decides how models are loaded and run, from a file, the environment and arguments |
//! | [`cache`] | the paged KV cache |
//! | [`decoder`], [`encoder`] | the two families of architectures |
//! | [`pooling`] | what follows the model in an embedding model: pooling, normalisation, prompts |
//! | [`language`], [`embed`] | generation and embeddings |
//! | [`engine`] | many requests at once, in steps that they share |
//!
//! Behind these, for nobody else: `steps` of a decoder (prompts in chunks, a token of each sequence), `answering` (from a token to
//! an event), `activations` and `limits` of steps, `load_options` of what generates, `passes` of what embeds, `documents`
//! (the files beside the weights, of which `files` reads the bytes and `json` the fields), `contents` (files that are not
//! read), `nearest` names.

pub mod architectures;
pub mod cache;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod embed;
pub mod encoder;
pub mod engine;
pub mod error;
pub mod folder;
pub mod generation_config;
pub mod hub;
pub mod language;
pub mod load;
pub mod plan;
pub mod pooling;
pub mod precision;
pub mod quality;
pub mod quantize;
pub mod quantized;
pub mod safetensors;
pub mod sampling;
pub mod settings;
pub mod stop;
pub mod tensors;
pub mod tokenizer;

mod activations;
mod answering;
mod checkpoint_names;
mod contents;
mod documents;
mod files;
mod json;
mod load_options;
mod modules;
mod nearest;
mod passes;
mod steps;

pub use chat::{ChatTemplate, Conversation};
pub use checkpoint::Checkpoint;
pub use config::{DecoderConfig, EncoderConfig, ModelConfig};
pub use embed::EmbeddingModel;
pub use engine::{Engine, EngineHandle, EngineOptions, Event, Happening, Request};
pub use error::{Error, Result, one_line, printable, shortened};
pub use folder::Folder;
pub use generation_config::GenerationConfig;
pub use hub::Hub;
pub use language::{Finish, GenerateOptions, Generation, LanguageModel, Session};
pub use load::DeviceBytes;
pub use load_options::LoadOptions;
pub use plan::{Footprint, Planner};
pub use precision::WeightOptions;
pub use sampling::{Logprobs, Sampler, SamplingParams};
pub use settings::Settings;
pub use sinew_ops::layers::OldKv;
pub use stop::{StopStrings, TextStream};
pub use tensors::{Load, TensorBytes, Tensors};
pub use tokenizer::Tokenizer;
