//! Vulkan, Metal and DX12 adapters through wgpu.
//!
//! wgpu has one queue per device, and everything here is in its order: streams of a device share one recording of
//! uploads, copies and dispatches, which is encoded and submitted when something waits for it. A decode step that reads
//! its logits is one submission.
//!
//! None of wgpu's types show: kernels give WGSL to [`WgpuDevice::pipeline`], and bytes and parameters to
//! [`WgpuStream::dispatch`].

mod adapters;
mod device;
mod gpu;
mod pipeline;
mod recording;
mod storage;
mod stream;
mod submission;

pub(crate) use adapters::found;
pub use device::{WgpuDevice, WgpuOptions};
pub use pipeline::{Pipeline, ShaderText};
pub use recording::{MAX_BINDINGS, MAX_PARAMS};
pub use storage::Binding;
pub use stream::WgpuStream;
pub use submission::Counters;

use std::sync::{Mutex, MutexGuard};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// An error's text in one line: wgpu draws trees.
fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
