//! How a pool finds memory for a request, from cheap to expensive, and takes it back. Nothing of a device's is allocated,
//! dropped or waited for while the pool is locked.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::classes::Classes;
use super::spans::Kind;
use super::state::State;
use super::{MemoryReport, PoolConfig, PoolStats};
use crate::{Buffer, Bytes, Device, Error, Event, Home, Husk, Reclaim, Result, Span};

/// Storages and events belong to devices, whose `drop` may take long or come back to this pool.
pub(super) fn unlock_then_drop<T>(state: MutexGuard<'_, State>, garbage: T) {
    drop(state);
    drop(garbage);
}

/// What a pool's handle and its buffers share.
pub(super) struct Shared {
    pub(super) device: Arc<dyn Device>,
    pub(super) classes: Classes,
    state: Mutex<State>,
}

/// Where a buffer is: at what is left of the last one there, or at bytes that have had none.
enum Place {
    Husk(Husk),
    Span(Span),
}

impl Shared {
    pub(super) fn new(device: Arc<dyn Device>, config: PoolConfig) -> Self {
        let classes = Classes::new(device.alignment());
        let state = Mutex::new(State::new(config.in_granules(classes.granule()), classes));
        Self { device, classes, state }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing of ours panics between two consistent states; a device's event might.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A buffer in a span of the pool.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize, tag: &str) -> Result<Buffer> {
        let (Some(rounded), Some(class)) = (self.classes.rounded(bytes), self.classes.class(bytes)) else {
            return Err(self.out_of_memory(self.lock(), bytes, true));
        };
        let mut state = self.lock();
        // A limit that was set below what there was: what has come free since is no longer the pool's to hand out.
        if state.reserved_bytes.saturating_add(state.apart_bytes) > state.config.limit_bytes {
            state = self.without_free_slabs(state);
        }
        let kind = if class <= state.config.slab_bytes / 4 { Kind::Shared } else { Kind::Own };
        let events = if state.pending.is_empty() { Vec::new() } else { state.collect_front() };
        let found = state.spans.take(kind, class);
        let (mut state, span) = match found {
            Some(span) => {
                state.hits += 1;
                (state, span)
            }
            None => self.find_slowly(state, kind, rounded, class, bytes)?,
        };
        state.hand_out(span, bytes, tag);
        let place = match state.spans.keep(span, None) {
            Some(husk) => Place::Husk(husk),
            None => Place::Span(state.spans.span(span, bytes)),
        };
        drop(state);
        drop(events);
        let home = Home { allocator: self.clone(), ticket: u64::from(span) };
        // SAFETY: the span just became live, so it lies in its slab and overlaps no other live or pending one; it becomes
        // free again only when `reclaim` gets this ticket and its events are complete. A span that has a number never
        // changes its first byte, and its husk goes with it, so a husk is at the same place.
        Ok(unsafe {
            match place {
                Place::Husk(husk) => Buffer::from_husk(husk, bytes, home),
                Place::Span(span) => Buffer::from_span(&self.device, span, Some(home)),
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
            if let Some(span) = state.spans.take(kind, class) {
                state.hits += 1;
                return Ok((state, span));
            }
            let mut sizes = [state.config.slab_bytes, class];
            if kind == Kind::Own {
                sizes[0] = class;
            }
            for size in sizes {
                let (again, span) = self.take_slab(state, kind, size, class)?;
                state = again;
                if let Some(span) = span {
                    return Ok((state, span));
                }
            }
            // Under pressure: spans of the other kind, then ones that fit the request but not its class.
            let other = if kind == Kind::Own { Kind::Shared } else { Kind::Own };
            for (kind, size) in [(other, class), (kind, rounded), (other, rounded)] {
                if let Some(span) = state.spans.take(kind, size) {
                    state.hits += 1;
                    return Ok((state, span));
                }
            }
            let (storages, _) = state.release_free_slabs(Duration::ZERO);
            state = self.relock_after_dropping(state, storages);
            for size in [class, rounded] {
                let (again, span) = self.take_slab(state, kind, size, size)?;
                state = again;
                if let Some(span) = span {
                    return Ok((state, span));
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
    /// span where the limit or the device has no room.
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
                let span = state.add_slab(kind, storage, slab);
                state.spans.split(span, size);
                Ok((state, Some(span)))
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

    pub(super) fn stats(&self) -> PoolStats {
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
            (state.tags.live(), state.most_used_bytes, state.config.limit_bytes)
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
        let (live, limit) = (state.tags.live(), state.config.limit_bytes);
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
            fits: largest.max(if spans {
                obtainable / self.classes.granule() * self.classes.granule()
            } else {
                obtainable
            }),
        }
    }
}

impl Reclaim for Shared {
    fn reclaim(&self, ticket: u64, events: Vec<Arc<dyn Event>>, husk: Option<Husk>) {
        let Ok(span) = u32::try_from(ticket) else { return };
        let mut state = self.lock();
        let husk = state.give_back(span, events, husk);
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
