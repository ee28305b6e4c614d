//! Storage: a wgpu buffer, and the ranges of it that kernels see.

use std::ptr::NonNull;
use std::sync::Arc;

use super::gpu::{Gpu, Held};
use super::lock;
use crate::{Buffer, Error, Location, Result, Storage};

/// Bytes that a storage is a multiple of, so that kernels may read the last vector of four words whole.
const PADDING: usize = 16;

/// A wgpu buffer.
#[derive(Debug)]
pub(super) struct WgpuStorage {
    /// What the bind groups of this storage are known by.
    pub(super) id: u64,
    pub(super) buffer: Held,
    gpu: Arc<Gpu>,
    len: usize,
}

impl WgpuStorage {
    pub(super) fn allocate(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let largest = usize::try_from(gpu.limits.max_buffer_size).unwrap_or(usize::MAX);
        let size = bytes.max(1).checked_next_multiple_of(PADDING).filter(|&size| size <= largest);
        let size = size.ok_or(Error::TooLarge { device: gpu.id, asked: bytes, largest })?;
        // A driver that cannot say how much it has is asked for it.
        let buffer = gpu.buffer("storage", size, wgpu::BufferUsages::STORAGE, &gpu.storages).ok_or_else(|| {
            let (device, total, available) = (gpu.id, gpu.memory, gpu.available());
            Error::OutOfMemory { device, asked: bytes, available, total, holders: None, fits: 0 }
        })?;
        Ok(Self { id: gpu.storage_id(), buffer, gpu: gpu.clone(), len: bytes })
    }

    /// The storage behind a buffer of this device.
    pub(super) fn of<'a>(buffer: &'a Buffer, gpu: &Arc<Gpu>) -> Result<&'a Self> {
        let storage: &dyn std::any::Any = &*buffer.span().storage;
        storage
            .downcast_ref::<Self>()
            .filter(|storage| Arc::ptr_eq(&storage.gpu, gpu))
            .ok_or_else(|| Error::Invalid(format!("{buffer:?} is not memory of this opened {}", gpu.id)))
    }
}

impl Drop for WgpuStorage {
    fn drop(&mut self) {
        // Bind groups would keep the memory.
        lock(&self.gpu.groups).forget(self.id);
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

    /// The same bytes as several bindings, of `bytes` each but for the last; a multiple of [`Binding::ALIGNMENT`], or
    /// all.
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
