//! Buffers: shared handles to a span of a device's memory, freed by ownership.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use crate::{Device, Error, Event, Result, Storage, Stream};

/// Takes a span back when the last handle of a [`Buffer`] is dropped: a pool, an arena.
pub trait Reclaim: Send + Sync {
    /// Takes the span of `ticket`, which the allocator gave with [`Home`], back. It may be used again once all `events`
    /// are complete. Called once for each buffer.
    ///
    /// A `husk` may be kept for the next buffer at the same place.
    fn reclaim(&self, ticket: u64, events: Vec<Arc<dyn Event>>, husk: Option<Husk>);
}

/// Where a span goes when its buffer is dropped.
#[derive(Clone)]
pub struct Home {
    /// The allocator.
    pub allocator: Arc<dyn Reclaim>,
    /// What the allocator knows the span by, so that it need not look it up.
    pub ticket: u64,
}

/// What is left of a buffer when its span went back: the host memory behind the handle, and its shares in device and
/// storage. Making the next buffer of it spares an allocation and four steps of reference counts, a third of what a
/// pool's hit would cost.
pub struct Husk {
    inner: Arc<Inner>,
}

impl Husk {
    /// The storage and the range of it that the buffer was.
    pub fn span(&self) -> &Span {
        &self.inner.span
    }
}

/// A range of bytes in a storage.
#[derive(Debug, Clone)]
pub struct Span {
    /// The storage.
    pub storage: Arc<dyn Storage>,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

struct Inner {
    span: Span,
    device: Arc<dyn Device>,
    home: Option<Home>,
    /// Streams with work on the bytes that nobody has waited for.
    users: Mutex<Vec<Arc<dyn Stream>>>,
}

impl Inner {
    /// The events that mark the last uses by streams, as far as they lie ahead.
    fn last_uses(&mut self) -> Vec<Arc<dyn Event>> {
        let mut events = Vec::new();
        let users = self.users.get_mut().unwrap_or_else(|e| e.into_inner());
        if users.is_empty() {
            return events;
        }
        for stream in users.drain(..) {
            match stream.record() {
                Ok(event) if event.is_complete() => {}
                Ok(event) => events.push(event),
                // A stream that cannot record has failed: wait for it rather than reuse bytes under it.
                Err(_) => drop(stream.synchronize()),
            }
        }
        events
    }
}

/// [`Arc::get_mut`] without its two locked instructions, 10 ns each where this was measured (a virtual Xeon):
/// they are there for `Weak`s, and there are none of an `Inner`.
fn only(inner: &mut Arc<Inner>) -> Option<&mut Inner> {
    if Arc::strong_count(inner) != 1 {
        return None;
    }
    // What other handles did happened before they were dropped.
    fence(Ordering::Acquire);
    debug_assert_eq!(Arc::weak_count(inner), 0);
    // SAFETY: this is the only handle, it is borrowed exclusively, and no `Weak` could make another.
    Some(unsafe { &mut *Arc::as_ptr(inner).cast_mut() })
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a home the storage is freed here; work that is still queued holds it by its own `Arc<dyn Storage>`.
        if let Some(home) = self.home.take() {
            let events = self.last_uses();
            home.allocator.reclaim(home.ticket, events, None);
        }
    }
}

/// A shared handle to a span of device memory.
///
/// Cloning shares the bytes. The bytes can be written only while there is a single handle, so a shared buffer never
/// changes under a reader. When the last handle goes, the span returns to the pool it came from, after the streams
/// that use it have passed their last use.
///
/// ```
/// use sinew_memory::{Buffer, Cpu};
///
/// let mut buffer = Buffer::from_slice(&Cpu::get(), &[1.0f32, 2.0])?;
/// buffer.as_mut_slice::<f32>()?[0] = 5.0;
/// let shared = buffer.clone();
/// assert_eq!(shared.as_slice::<f32>()?, &[5.0, 2.0]);
/// assert!(buffer.as_mut_slice::<f32>().is_err());
/// # Ok::<(), sinew_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct Buffer {
    inner: ManuallyDrop<Arc<Inner>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken here only, and `self` is not used afterwards.
        let mut inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        // Handles that are dropped at the same moment may each see the other: then `Inner::drop` does the same.
        if let Some(last) = only(&mut inner)
            && let Some(home) = last.home.take()
        {
            let events = last.last_uses();
            home.allocator.reclaim(home.ticket, events, Some(Husk { inner }));
        }
    }
}

impl Buffer {
    /// Allocates `bytes` bytes on a device, outside any pool. Nothing writes them first: see [`Device::allocate`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn uninitialised(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        Self::of_storage(device, device.allocate(bytes)?, bytes)
    }

    /// [`Buffer::uninitialised`] for what is filled at once: see [`Device::allocate_to_fill`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn uninitialised_to_fill(device: &Arc<dyn Device>, bytes: usize) -> Result<Self> {
        Self::of_storage(device, device.allocate_to_fill(bytes)?, bytes)
    }

    /// The first bytes of a storage that a device just made.
    fn of_storage(device: &Arc<dyn Device>, storage: Arc<dyn Storage>, bytes: usize) -> Result<Self> {
        if storage.len() < bytes {
            let reason = format!("{} bytes where {bytes} were asked", storage.len());
            return Err(Error::Device { device: device.id(), operation: "allocation".into(), reason });
        }
        // SAFETY: the length was checked, and the storage was just made: nothing else knows it.
        Ok(unsafe { Self::from_span(device, Span { storage, offset: 0, len: bytes }, None) })
    }

    /// A buffer that is the whole of a storage, which the caller gives up: a mapped file, a device's own span.
    pub fn from_storage(device: &Arc<dyn Device>, storage: impl Storage) -> Self {
        let len = storage.len();
        let storage: Arc<dyn Storage> = Arc::new(storage);
        // SAFETY: the whole storage, and it was moved in: nothing else knows it.
        unsafe { Self::from_span(device, Span { storage, offset: 0, len }, None) }
    }

    /// A host buffer with a copy of `values`.
    pub fn from_slice<T: Pod>(device: &Arc<dyn Device>, values: &[T]) -> Result<Self> {
        let mut buffer = Self::uninitialised(device, std::mem::size_of_val(values))?;
        buffer.as_mut_slice::<T>()?.copy_from_slice(values);
        Ok(buffer)
    }

    /// Wraps a span; `home` takes it back when the last handle is dropped. For allocators.
    ///
    /// # Safety
    /// The span must lie within its storage, and the caller hands it over: no other buffer, and no work but that of
    /// streams named with [`Buffer::record_use`], may use these bytes until they are reclaimed or, without a home,
    /// as long as this buffer or a clone of it lives. Of a storage that is not [`Storage::writable`], several buffers
    /// may be the same bytes.
    pub unsafe fn from_span(device: &Arc<dyn Device>, span: Span, home: Option<Home>) -> Self {
        debug_assert!(span.offset.checked_add(span.len).is_some_and(|end| end <= span.storage.len()));
        let inner = Arc::new(Inner { span, device: device.clone(), home, users: Mutex::new(Vec::new()) });
        Self { inner: ManuallyDrop::new(inner) }
    }

    /// A buffer at the place of an earlier one, of `len` bytes from the same first byte on.
    ///
    /// # Safety
    /// As for [`Buffer::from_span`].
    pub unsafe fn from_husk(husk: Husk, len: usize, home: Home) -> Self {
        let mut inner = husk.inner;
        let Some(last) = only(&mut inner) else { unreachable!("a husk is the only handle") };
        debug_assert!(last.span.offset.checked_add(len).is_some_and(|end| end <= last.span.storage.len()));
        debug_assert!(last.home.is_none());
        last.span.len = len;
        last.home = Some(home);
        Self { inner: ManuallyDrop::new(inner) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.span.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device that owns the memory.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// The storage and the range of it that this buffer is: for a device's own kernels.
    pub fn span(&self) -> &Span {
        &self.inner.span
    }

    /// The first byte, where the host can reach it. Reading through it is subject to the rules of [`Buffer`], and it
    /// does not wait for streams.
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        let span = &self.inner.span;
        let base = span.storage.host_ptr()?;
        debug_assert!(span.offset <= span.storage.len());
        // SAFETY: `offset <= storage.len()`, so the result stays inside the storage or one past its end.
        Some(unsafe { base.add(span.offset) })
    }

    /// Notes that `stream` uses the bytes: they are not reused, and the host does not see them, before it has passed
    /// its last use.
    pub fn record_use(&self, stream: &Arc<dyn Stream>) {
        if stream.is_in_device_order() {
            return;
        }
        let mut users = self.inner.users.lock().unwrap_or_else(|e| e.into_inner());
        if !users.iter().any(|u| Arc::ptr_eq(u, stream)) {
            users.push(stream.clone());
        }
    }

    /// Waits for the streams that use the bytes, so that the host may.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut users = self.inner.users.lock().unwrap_or_else(|e| e.into_inner());
        while let Some(stream) = users.last() {
            stream.synchronize()?;
            users.pop();
        }
        Ok(())
    }

    /// Whether this is the only handle, so that the bytes may be written.
    ///
    /// # Errors
    /// [`Error::Shared`] or [`Error::ReadOnly`] if they may not.
    pub fn check_writable(&mut self) -> Result<()> {
        if !self.inner.span.storage.writable() {
            return Err(Error::ReadOnly);
        }
        match Arc::get_mut(&mut self.inner) {
            Some(_) => Ok(()),
            None => Err(Error::Shared { handles: Arc::strong_count(&self.inner) }),
        }
    }

    /// The bytes as elements of `T`, without a copy. Waits for streams that were recorded as using them.
    ///
    /// # Errors
    /// [`Error::NotHostVisible`] for device memory, [`Error::Misaligned`] where length or address do not fit `T`, and
    /// the errors of work that was waited for.
    pub fn as_slice<T: Pod>(&self) -> Result<&[T]> {
        let ptr = self.checked_ptr::<T>()?;
        self.settle()?;
        // SAFETY: the storage's contract gives `len` initialised readable bytes; alignment and length were checked;
        // writes need the only handle exclusively, so none can happen while this borrow of a handle lives.
        Ok(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), self.len() / size_of::<T>()) })
    }

    /// The bytes as mutable elements of `T`.
    ///
    /// # Errors
    /// Those of [`Buffer::as_slice`], and [`Error::Shared`] or [`Error::ReadOnly`].
    pub fn as_mut_slice<T: Pod>(&mut self) -> Result<&mut [T]> {
        self.check_writable()?;
        let ptr = self.checked_ptr::<T>()?;
        self.settle()?;
        // SAFETY: as in `as_slice`, and this is the only handle, borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), self.len() / size_of::<T>()) })
    }

    fn checked_ptr<T: Pod>(&self) -> Result<NonNull<T>> {
        let ptr = self.host_ptr().ok_or(Error::NotHostVisible {
            location: self.inner.span.storage.location(),
            device: self.device().id(),
        })?;
        let address = ptr.as_ptr() as usize;
        let size = size_of::<T>();
        if size == 0 || !self.len().is_multiple_of(size) || !address.is_multiple_of(align_of::<T>()) {
            let element = std::any::type_name::<T>();
            return Err(Error::Misaligned { address, len: self.len(), element, size, align: align_of::<T>() });
        }
        Ok(ptr.cast())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {}, {})", self.len(), self.inner.span.storage.location(), self.device().id())
    }
}
