//! Vulkan, Metal and DX12 adapters through wgpu.
//!
//! wgpu has one queue per device, and everything here is in its order: streams of a device share one recording of
//! uploads, copies and dispatches, which is encoded and submitted when something waits for it. A decode step that reads
//! its logits is one submission.
//!
//! None of wgpu's types show: kernels give WGSL to [`WgpuDevice::pipeline`], and bytes and parameters to
//! [`WgpuStream::dispatch`].

mod adapters;
mod cache;
mod copy;
mod device;
mod groups;
mod pipeline;
mod queue;
mod storage;
mod stream;

pub(crate) use adapters::found;
pub use device::{WgpuDevice, WgpuOptions};
pub use pipeline::{Pipeline, ShaderText};
pub use queue::{Counters, MAX_BINDINGS, MAX_PARAMS};
pub use storage::Binding;
pub use stream::WgpuStream;

/// An error's text in one line: wgpu draws trees.
fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
