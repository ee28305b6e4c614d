//! The pool as its users hold it: a handle, and what takes buffers back.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::*;

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
/// drop(pool.allocate(1 << 20)?);
/// let again = pool.allocate_tagged(1 << 20, "kv-cache")?;
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
        // Devices align to powers of two; a larger granule than the largest class would leave no classes.
        let granule = device.alignment().clamp(SMALLEST_CLASS, 1 << 20).next_power_of_two();
        let state = Mutex::new(State::new(config.in_granules(granule), granule));
        let shared = Arc::new(Shared { device, granule, state });
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
    /// let held = pool.allocate(8 << 20)?;
    /// pool.limit(12 << 20);
    /// assert!(pool.allocate(8 << 20).is_err());
    /// drop(held);
    /// assert!(pool.allocate(8 << 20).is_ok());
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    pub fn limit(&self, bytes: usize) {
        self.shared.lock().config = PoolConfig::limited(bytes).in_granules(self.shared.granule);
        self.trim(Duration::ZERO);
    }

    /// The size classes of this pool in bytes, smallest first.
    pub fn size_classes(&self) -> Vec<usize> {
        let mut classes = Vec::new();
        let mut units = 1;
        while units * self.shared.granule <= LARGEST_CLASS {
            classes.push(units * self.shared.granule);
            units = class_units(units + 1);
        }
        classes
    }

    /// Bytes of the span that a request of `bytes` gets: its size class. [`None`] where that overflows.
    pub fn class_bytes(&self, bytes: usize) -> Option<usize> {
        self.shared.class_bytes(bytes)
    }

    /// A buffer of `bytes` bytes (which may be 0), with unspecified but initialised contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where neither the pool nor the device has room, after free slabs were given back to the
    /// device and spans that streams still used were waited for; errors of the device.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        self.shared.allocate(bytes, "")
    }

    /// [`Pool::allocate`], counted under `tag` in [`Pool::report`] and in errors.
    ///
    /// # Errors
    /// Those of [`Pool::allocate`].
    pub fn allocate_tagged(&self, bytes: usize, tag: &str) -> Result<Buffer> {
        self.shared.allocate(bytes, tag)
    }

    /// A buffer with memory of its own, of no more than `bytes`, which goes back to the device with the buffer: for what
    /// is large and lives long, where a size class would be a quarter too large. It counts under `tag` and against the
    /// pool's limit, as much as the [device holds](Device::held_bytes) for it.
    ///
    /// # Errors
    /// Those of [`Pool::allocate`].
    pub fn allocate_apart(&self, bytes: usize, tag: &str) -> Result<Buffer> {
        self.shared.allocate_apart(bytes, tag, |device| device.allocate(bytes))
    }

    /// [`Pool::allocate_apart`] for what is filled at once: see [`Device::allocate_to_fill`].
    ///
    /// # Errors
    /// Those of [`Pool::allocate`].
    pub fn allocate_apart_to_fill(&self, bytes: usize, tag: &str) -> Result<Buffer> {
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

/// Storages and events belong to devices, whose `drop` may take long or come back to this pool.
pub(super) fn unlock_then_drop<T>(state: MutexGuard<'_, State>, garbage: T) {
    drop(state);
    drop(garbage);
}

pub(super) struct Shared {
    pub(super) device: Arc<dyn Device>,
    /// Every span starts and ends at a multiple of it.
    granule: usize,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing of ours panics between two consistent states; a device's event might.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn rounded(&self, bytes: usize) -> Option<usize> {
        bytes.max(1).checked_next_multiple_of(self.granule)
    }

    fn class_bytes(&self, bytes: usize) -> Option<usize> {
        let rounded = self.rounded(bytes)?;
        if rounded > LARGEST_CLASS {
            return rounded.checked_next_multiple_of(LARGE_STEP);
        }
        Some(class_units(rounded / self.granule) * self.granule)
    }

    fn allocate(self: &Arc<Self>, bytes: usize, tag: &str) -> Result<Buffer> {
        let (Some(rounded), Some(class)) = (self.rounded(bytes), self.class_bytes(bytes)) else {
            return Err(self.out_of_memory(self.lock(), bytes, true));
        };
        let mut state = self.lock();
        // A limit that was set below what there was: what has come free since is no longer the pool's to hand out.
        if state.reserved_bytes.saturating_add(state.apart_bytes) > state.config.limit_bytes {
            state = self.without_free_slabs(state);
        }
        let kind = if class <= state.config.slab_bytes / 4 { Kind::Shared } else { Kind::Own };
        let events = if state.pending.is_empty() { Vec::new() } else { state.collect_front() };
        let found = state.take(kind, class);
        let (mut state, node) = match found {
            Some(node) => {
                state.hits += 1;
                (state, node)
            }
            None => self.find_slowly(state, kind, rounded, class, bytes)?,
        };
        state.hand_out(node, bytes, tag);
        let husk = state.husks[node as usize].take();
        let span = if husk.is_none() { Some(state.span(node, bytes)) } else { None };
        drop(state);
        drop(events);
        let home = Home { allocator: self.clone(), ticket: u64::from(node) };
        // SAFETY: the span is that of a node that just became live, so it lies in its slab and overlaps no other live
        // or pending node; it becomes free again only when `reclaim` gets this ticket and its events are complete. A
        // node never changes its first byte, and its husk goes with it, so a husk is at the same place.
        Ok(unsafe {
            match (husk, span) {
                (Some(husk), _) => Buffer::from_husk(husk, bytes, home),
                (None, Some(span)) => Buffer::from_span(&self.device, span, Some(home)),
                (None, None) => unreachable!("there is a span where there is no husk"),
            }
        })
    }

    /// What to do without a free span of the class, from cheap to expensive.
    fn find_slowly<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        kind: Kind,
        rounded: usize,
        class: usize,
        bytes: usize,
    ) -> Result<(MutexGuard<'a, State>, u32)> {
        loop {
            let events = state.collect_all();
            state = self.relock_after_dropping(state, events);
            if let Some(node) = state.take(kind, class) {
                state.hits += 1;
                return Ok((state, node));
            }
            let mut sizes = [state.config.slab_bytes, class];
            if kind == Kind::Own {
                sizes[0] = class;
            }
            for size in sizes {
                let (again, node) = self.take_slab(state, kind, size, class)?;
                state = again;
                if let Some(node) = node {
                    return Ok((state, node));
                }
            }
            // Under pressure: spans of the other kind, then ones that fit the request but not its class.
            let other = if kind == Kind::Own { Kind::Shared } else { Kind::Own };
            for (kind, size) in [(other, class), (kind, rounded), (other, rounded)] {
                if let Some(node) = state.take(kind, size) {
                    state.hits += 1;
                    return Ok((state, node));
                }
            }
            let (storages, _) = state.release_free_slabs(Duration::ZERO);
            state = self.relock_after_dropping(state, storages);
            for size in [class, rounded] {
                let (again, node) = self.take_slab(state, kind, size, size)?;
                state = again;
                if let Some(node) = node {
                    return Ok((state, node));
                }
            }
            // What streams still use is the last resort, since it waits for them.
            let waiting: Vec<_> = state.pending.iter().map(|pending| pending.events.clone()).collect();
            drop(state);
            let is_over = |event: &Arc<dyn Event>| event.synchronize().is_ok() && event.is_complete();
            // One span at a time, so that no more is waited for than is needed.
            if !waiting.iter().any(|events| events.iter().all(is_over)) {
                return Err(self.out_of_memory(self.lock(), bytes, true));
            }
            drop(waiting);
            state = self.lock();
        }
    }

    /// Gives slabs that are wholly free back to the device.
    pub(super) fn without_free_slabs<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let events = state.collect_all();
        let (storages, _) = state.release_free_slabs(Duration::ZERO);
        unlock_then_drop(state, (storages, events));
        self.lock()
    }

    fn relock_after_dropping<'a, T>(&'a self, state: MutexGuard<'a, State>, garbage: Vec<T>) -> MutexGuard<'a, State> {
        if garbage.is_empty() {
            return state;
        }
        unlock_then_drop(state, garbage);
        self.lock()
    }

    /// Takes a slab of `slab` bytes from the device, unlocked meanwhile, and the first `size` bytes of it. Without a
    /// node where the limit or the device has no room.
    fn take_slab<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        kind: Kind,
        slab: usize,
        size: usize,
    ) -> Result<(MutexGuard<'a, State>, Option<u32>)> {
        let reserved = state.reserved_bytes.checked_add(slab);
        let (apart, limit) = (state.apart_bytes, state.config.limit_bytes);
        let fits = |bytes: &usize| bytes.checked_add(apart).is_some_and(|bytes| bytes <= limit);
        let Some(reserved) = reserved.filter(fits) else {
            return Ok((state, None));
        };
        state.reserved_bytes = reserved;
        drop(state);
        let storage = self.device.allocate(slab).and_then(|storage| {
            if storage.len() >= slab {
                return Ok(storage);
            }
            let reason = format!("{} bytes where {slab} were asked", storage.len());
            Err(Error::Device { device: self.device.id(), operation: "allocation".into(), reason })
        });
        let mut state = self.lock();
        match storage {
            Ok(storage) => {
                state.misses += 1;
                state.peak_reserved_bytes = state.peak_reserved_bytes.max(state.reserved_bytes);
                let node = state.add_slab(kind, storage, slab);
                state.split(node, size);
                Ok((state, Some(node)))
            }
            Err(error) => {
                state.reserved_bytes -= slab;
                match error {
                    Error::OutOfMemory { .. } => Ok((state, None)),
                    error => Err(error),
                }
            }
        }
    }

    fn stats(&self) -> PoolStats {
        let mut state = self.lock();
        let events = state.collect_all();
        debug_assert_eq!(state.inconsistency(), None);
        let stats = state.stats();
        unlock_then_drop(state, events);
        stats
    }

    pub(super) fn report(&self) -> MemoryReport {
        let stats = self.stats();
        let device = self.device.memory();
        let (live, most_used, limit) = {
            let state = self.lock();
            (state.live(), state.most_used_bytes, state.config.limit_bytes)
        };
        let (total, free) = device.map_or((limit, limit), |memory| (memory.total.min(limit), memory.available));
        let obtainable = free.min(limit.saturating_sub(stats.reserved_bytes + stats.apart_bytes));
        MemoryReport {
            device: self.device.id(),
            total_bytes: total,
            used_bytes: stats.active_bytes + stats.apart_bytes,
            available_bytes: stats.pooled_bytes.saturating_add(obtainable),
            high_water_bytes: most_used,
            stats,
            live,
        }
    }

    /// What is told of a request for `asked` bytes, which free `spans` could have served unless it was for memory apart.
    pub(super) fn out_of_memory(&self, state: MutexGuard<'_, State>, asked: usize, spans: bool) -> Error {
        let stats = state.stats();
        let (pooled, largest) = if spans { (stats.pooled_bytes, stats.largest_free_block) } else { (0, 0) };
        let (live, limit) = (state.live(), state.config.limit_bytes);
        drop(state);
        let (total, free) =
            self.device.memory().map_or((limit, limit), |memory| (memory.total.min(limit), memory.available));
        let obtainable = free.min(limit.saturating_sub(stats.reserved_bytes + stats.apart_bytes));
        let mut holders: Vec<String> = live
            .iter()
            .take(5)
            .map(|usage| format!("{} {} in {} buffers", usage.tag, Bytes(usage.bytes), usage.buffers))
            .collect();
        if stats.pending_bytes > 0 {
            holders.push(format!("{} pending on streams", Bytes(stats.pending_bytes)));
        }
        if !spans && stats.pooled_bytes > 0 {
            holders.push(format!("{} free in slabs that are in use", Bytes(stats.pooled_bytes)));
        }
        Error::OutOfMemory {
            device: self.device.id(),
            asked,
            available: pooled.saturating_add(obtainable),
            total,
            holders: (!holders.is_empty()).then(|| holders.join(", ")),
            // Rounded down where the request would be rounded up.
            fits: largest.max(if spans { obtainable / self.granule * self.granule } else { obtainable }),
        }
    }
}

impl Reclaim for Shared {
    fn reclaim(&self, ticket: u64, events: Vec<Arc<dyn Event>>, husk: Option<Husk>) {
        let Ok(node) = u32::try_from(ticket) else { return };
        let mut state = self.lock();
        let husk = state.give_back(node, events, husk);
        if state.closed {
            let events = state.collect_all();
            let (storages, _) = state.release_free_slabs(Duration::ZERO);
            unlock_then_drop(state, (storages, events));
        } else {
            drop(state);
        }
        drop(husk);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        for pending in &state.pending {
            for event in &pending.events {
                // A failed stream is no longer at work; there is nobody left to tell.
                drop(event.synchronize());
            }
        }
    }
}
