//! Streams: work in order on a device, and the events that mark a place in it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{Buffer, Device, Result};

/// A queue of work in order: the CPU's thread team, a CUDA stream, a wgpu encoder.
///
/// Work that is enqueued may run later. Errors of such work surface at the next [`Stream::synchronize`] (or
/// [`Stream::download`]), named by the operator that caused them.
pub trait Stream: fmt::Debug + Send + Sync + Any {
    /// The device on which work runs.
    fn device(&self) -> &Arc<dyn Device>;
    /// Copies host bytes to `dst` from byte `offset` on. `src` may be reused when this returns.
    ///
    /// # Errors
    /// [`crate::Error::Shared`] where `dst` is not the only handle to its bytes; so for [`Stream::copy`].
    fn upload(&self, src: &[u8], dst: &mut Buffer, offset: usize) -> Result<()>;
    /// Waits for all earlier work and copies bytes of `src` from byte `offset` on into `dst`.
    fn download(&self, src: &Buffer, offset: usize, dst: &mut [u8]) -> Result<()>;
    /// Enqueues a copy of `len` bytes between two buffers of this device.
    fn copy(&self, src: &Buffer, src_offset: usize, dst: &mut Buffer, dst_offset: usize, len: usize) -> Result<()>;
    /// Marks this place in the queue.
    fn record(&self) -> Result<Arc<dyn Event>>;
    /// Makes later work of this stream wait for an event of another stream.
    fn wait(&self, event: &Arc<dyn Event>) -> Result<()>;
    /// Waits until all work is done, and reports the first error of it.
    fn synchronize(&self) -> Result<()>;
    /// Whether all work on the device's memory, by whatever stream, runs in the order in which it is enqueued, and the
    /// host cannot reach that memory. Bytes may then be used anew as soon as their buffer is dropped.
    fn is_in_device_order(&self) -> bool {
        false
    }
}

/// A place in a stream's queue.
pub trait Event: fmt::Debug + Send + Sync + Any {
    /// Whether all work before it is done.
    fn is_complete(&self) -> bool;
    /// Waits until it is.
    fn synchronize(&self) -> Result<()>;
}

/// The event of a stream that never lags.
#[derive(Debug)]
pub struct Completed;

impl Event for Completed {
    fn is_complete(&self) -> bool {
        true
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
