//! A pool: keeps freed memory of a device and hands it out again.
//!
//! The pool takes *slabs* from its device and cuts them into *spans*. A request is rounded up to a size class; a free
//! span of that class is reused, else one of the next larger class is split, else a new slab is taken. A freed span
//! merges at once with free neighbours of its slab, so two free spans never touch. All of this is a fixed number of
//! steps, as in the two-level segregated fit of Masmano et al. (2004); only sizes above the last class search a list.
//!
//! Small requests share slabs and larger ones have slabs of their own, so that a long-lived small buffer does not pin
//! a large slab; either kind serves the other before anything is refused.

mod apart;
mod classes;
mod report;
mod shared;
mod spans;
mod state;
mod tags;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::apart::leaks;
pub use self::report::{MemoryReport, PoolConfig, PoolStats, TagUsage};
use self::shared::{Shared, unlock_then_drop};
use crate::{Buffer, Bytes, Device, Result};

/// A pool of a device's memory, by size classes.
///
/// Buffers find their way back when they are dropped; their spans are handed out again once the streams that used them
/// have passed the last use. Dropping the pool while buffers live is safe: their memory goes back to the device with
/// the last of them. All methods may be called from any thread.
///
/// Classes are 1, 2 and 3 granules, then four to each power of two (4, 5, 6, 7, 8, 10, 12, …) up to 512 MiB, so at
/// most a fifth of a span beyond the first few is rounding. A granule is 256 bytes or the device's alignment.
///
/// ```
/// use sinew_memory::{Cpu, Pool, PoolConfig};
///
/// let pool = Pool::new(Cpu::get(), PoolConfig::default());
/// drop(pool.uninitialised(1 << 20)?);
/// let again = pool.uninitialised_tagged(1 << 20, "kv-cache")?;
/// assert_eq!(pool.stats().hits, 1);
/// assert_eq!(pool.report().live[0].tag, "kv-cache");
/// drop(pool);
/// assert_eq!(again.len(), 1 << 20);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool over a device. Takes nothing from it yet.
    pub fn new(device: Arc<dyn Device>, config: PoolConfig) -> Self {
        let shared = Arc::new(Shared::new(device, config));
        apart::remember(&shared);
        Self { shared }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// How it behaves.
    pub fn config(&self) -> PoolConfig {
        self.shared.lock().config
    }

    /// From now on takes no more than so many bytes from its device, live, free and apart together, as a pool that is
    /// [made](PoolConfig::limited) with that limit. What it has counts, and free slabs go back to the device at once. Where
    /// live buffers are more than that, they stay whole, and nothing more is taken until enough of them is given back.
    ///
    /// ```
    /// use sinew_memory::{Cpu, Pool, PoolConfig};
    ///
    /// let pool = Pool::new(Cpu::get(), PoolConfig::default());
    /// let held = pool.uninitialised(8 << 20)?;
    /// pool.limit(12 << 20);
    /// assert!(pool.uninitialised(8 << 20).is_err());
    /// drop(held);
    /// assert!(pool.uninitialised(8 << 20).is_ok());
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    pub fn limit(&self, bytes: usize) {
        self.shared.lock().config = PoolConfig::limited(bytes).in_granules(self.shared.classes.granule());
        self.trim(Duration::ZERO);
    }

    /// The size classes of this pool in bytes, smallest first.
    pub fn size_classes(&self) -> Vec<usize> {
        self.shared.classes.all()
    }

    /// Bytes of the span that a request of `bytes` gets: its size class. [`None`] where that overflows.
    pub fn class_bytes(&self, bytes: usize) -> Option<usize> {
        self.shared.classes.class(bytes)
    }

    /// A buffer of `bytes` bytes, which may be 0. Nothing writes it first: it may hold what an earlier buffer held.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) where neither the pool nor the device has room, after free slabs
    /// were given back to the device and spans that streams still used were waited for; errors of the device.
    pub fn uninitialised(&self, bytes: usize) -> Result<Buffer> {
        self.shared.allocate(bytes, "")
    }

    /// [`Pool::uninitialised`], counted under `tag` in [`Pool::report`] and in errors.
    ///
    /// # Errors
    /// The errors of [`Pool::uninitialised`].
    pub fn uninitialised_tagged(&self, bytes: usize, tag: &str) -> Result<Buffer> {
        self.shared.allocate(bytes, tag)
    }

    /// A buffer with memory of its own, of no more than `bytes`, which goes back to the device with the buffer: for what
    /// is large and lives long, where a size class would be a quarter too large. It counts under `tag` and against the
    /// pool's limit, as much as the [device holds](Device::held_bytes) for it.
    ///
    /// # Errors
    /// The errors of [`Pool::uninitialised`].
    pub fn uninitialised_apart(&self, bytes: usize, tag: &str) -> Result<Buffer> {
        self.shared.allocate_apart(bytes, tag, |device| device.allocate(bytes))
    }

    /// [`Pool::uninitialised_apart`] for what is filled at once: see [`Device::allocate_to_fill`].
    ///
    /// # Errors
    /// The errors of [`Pool::uninitialised`].
    pub fn uninitialised_apart_to_fill(&self, bytes: usize, tag: &str) -> Result<Buffer> {
        self.shared.allocate_apart(bytes, tag, |device| device.allocate_to_fill(bytes))
    }

    /// Counters and sizes now.
    pub fn stats(&self) -> PoolStats {
        self.shared.stats()
    }

    /// Totals and live buffers by tag.
    pub fn report(&self) -> MemoryReport {
        self.shared.report()
    }

    /// Gives slabs back to the device that have been wholly free for at least `older_than`, and returns their bytes.
    ///
    /// Ages are a few milliseconds coarse. [`Duration::ZERO`] gives back every free slab.
    pub fn trim(&self, older_than: Duration) -> usize {
        let mut state = self.shared.lock();
        let events = state.collect_all();
        let (storages, bytes) = state.release_free_slabs(older_than);
        unlock_then_drop(state, (storages, events));
        bytes
    }

    /// Collects spans that streams are done with, merges free neighbours and gives every free slab back to the device.
    /// Returns the bytes given back. Live buffers stay where they are.
    pub fn defragment(&self) -> usize {
        // Neighbours merge as they are freed; what is left to merge are pending spans, which `trim` collects.
        self.trim(Duration::ZERO)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let (storages, _) = state.release_free_slabs(Duration::ZERO);
        unlock_then_drop(state, storages);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        write!(f, "Pool({}, {} active", self.shared.device.id(), Bytes(stats.active_bytes))?;
        write!(f, ", {} pooled)", Bytes(stats.pooled_bytes))
    }
}
