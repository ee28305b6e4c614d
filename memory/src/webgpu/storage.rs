//! Storage: a wgpu buffer, and the ranges of it that kernels see.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::queue::Queue;
use crate::{Buffer, Error, Location, Result, Storage};

/// Bytes that a storage is a multiple of, so that kernels may read the last vector of four words whole.
const PADDING: usize = 16;

/// A wgpu buffer.
#[derive(Debug)]
pub(super) struct WgpuStorage {
    /// What the bind groups of this storage are known by.
    pub(super) id: u64,
    pub(super) buffer: wgpu::Buffer,
    pub(super) queue: Arc<Queue>,
    len: usize,
}

impl WgpuStorage {
    pub(super) fn allocate(queue: &Arc<Queue>, bytes: usize) -> Result<Self> {
        let largest = usize::try_from(queue.limits.max_buffer_size).unwrap_or(usize::MAX);
        let size = bytes.max(1).checked_next_multiple_of(PADDING).filter(|&size| size <= largest);
        let size = size.ok_or(Error::TooLarge { device: queue.id, asked: bytes, largest })?;
        // A driver that cannot say how much it has is asked for it.
        let buffer = queue.buffer("storage", size, wgpu::BufferUsages::STORAGE).ok_or_else(|| {
            let available = queue.memory.saturating_sub(queue.allocated.load(Ordering::Relaxed));
            let (device, total) = (queue.id, queue.memory);
            Error::OutOfMemory { device, asked: bytes, available, total, holders: None, fits: 0 }
        })?;
        queue.allocated.fetch_add(size, Ordering::Relaxed);
        let id = queue.next_storage.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, buffer, queue: queue.clone(), len: bytes })
    }

    /// The storage behind a buffer of this device.
    pub(super) fn of<'a>(buffer: &'a Buffer, queue: &Arc<Queue>) -> Result<&'a Self> {
        let storage: &dyn std::any::Any = &*buffer.span().storage;
        storage
            .downcast_ref::<Self>()
            .filter(|storage| Arc::ptr_eq(&storage.queue, queue))
            .ok_or_else(|| Error::Invalid(format!("{buffer:?} is not memory of this opened {}", queue.id)))
    }
}

impl Drop for WgpuStorage {
    fn drop(&mut self) {
        self.queue.allocated.fetch_sub(self.buffer.size() as usize, Ordering::Relaxed);
        // Bind groups would keep the memory.
        self.queue.forget(self.id);
    }
}

// SAFETY: there is no host pointer for which anything would have to hold.
unsafe impl Storage for WgpuStorage {
    fn len(&self) -> usize {
        self.len
    }
    fn location(&self) -> Location {
        Location::Device
    }
    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }
}

/// A range of a buffer as a kernel sees it, in whole words.
///
/// Bindings begin at multiples of 256 bytes of the storage, so that a range may stand [`Binding::skip`] bytes behind
/// the beginning of what the kernel sees.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    pub(super) buffer: &'a Buffer,
    /// First byte in the storage.
    pub(super) start: usize,
    /// Bytes, a multiple of 16.
    pub(super) len: usize,
    skip: usize,
}

impl<'a> Binding<'a> {
    /// Alignment of a binding's first byte.
    pub const ALIGNMENT: usize = 256;

    /// The bytes `start..start + len` of a buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn new(buffer: &'a Buffer, start: usize, len: usize) -> Result<Self> {
        let end = start.checked_add(len).filter(|&end| end <= buffer.len());
        let end = end.ok_or(Error::OutOfRange { start, end: start.saturating_add(len), len: buffer.len() })?;
        let offset = buffer.span().offset;
        let first = (offset + start) / Self::ALIGNMENT * Self::ALIGNMENT;
        // A storage is padded, so that this stays inside. A binding of nothing cannot be made.
        let len = (offset + end - first).max(1).next_multiple_of(PADDING);
        Ok(Self { buffer, start: first, len, skip: offset + start - first })
    }

    /// Whether two are the same bytes of one buffer.
    pub fn is_same(&self, other: &Self) -> bool {
        let storage = |binding: &Self| Arc::as_ptr(&binding.buffer.span().storage).cast::<u8>();
        storage(self) == storage(other) && (self.start, self.len) == (other.start, other.len)
    }

    /// The same bytes as several bindings, of `bytes` each but for the last; a multiple of [`Binding::ALIGNMENT`], or all.
    pub fn pieces(self, bytes: usize) -> impl Iterator<Item = Self> {
        let end = self.start + self.len;
        (self.start..end).step_by(bytes.max(1)).map(move |start| Self {
            start,
            len: bytes.min(end - start),
            skip: if start == self.start { self.skip } else { 0 },
            ..self
        })
    }

    /// Bytes of the binding.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the binding before the range.
    pub fn skip(&self) -> usize {
        self.skip
    }
}
