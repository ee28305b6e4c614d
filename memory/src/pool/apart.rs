//! Buffers with memory of their own, which a pool counts and limits; and what is left of pools when all should be gone.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::MemoryReport;
use super::shared::Shared;
use crate::{Buffer, Device, Error, Event, Home, Husk, Reclaim, Result, Span, Storage};

/// Counts a buffer for as long as it lives.
struct Apart {
    shared: Arc<Shared>,
    /// Its place among the tags, which keep theirs while they have buffers.
    tag: u32,
    /// That the device holds for it.
    bytes: usize,
}

impl Shared {
    /// A buffer of what `make` allocates.
    pub(super) fn allocate_apart(
        self: &Arc<Self>,
        bytes: usize,
        tag: &str,
        make: impl FnOnce(&Arc<dyn Device>) -> Result<Arc<dyn Storage>>,
    ) -> Result<Buffer> {
        let held = self.device.held_bytes(bytes);
        let mut state = self.lock();
        // More than half of all addresses is nowhere, and would overflow the counters.
        let limit = state.config.limit_bytes.min(isize::MAX as usize);
        let taken = |reserved: usize, apart: usize| reserved.saturating_add(apart).saturating_add(held);
        if taken(state.reserved_bytes, state.apart_bytes) > limit {
            // What is free in slabs is of no use here.
            state = self.without_free_slabs(state);
            if taken(state.reserved_bytes, state.apart_bytes) > limit {
                return Err(self.out_of_memory(state, held, false));
            }
        }
        let id = state.add_apart(held, tag);
        drop(state);
        // From here on it is counted until it is dropped, which an error does.
        let apart = Arc::new(Apart { shared: self.clone(), tag: id, bytes: held });
        let storage = match make(&self.device) {
            Ok(storage) if storage.len() >= bytes => storage,
            Ok(storage) => {
                let reason = format!("{} bytes where {bytes} were asked", storage.len());
                return Err(Error::Device { device: self.device.id(), operation: "allocation".into(), reason });
            }
            Err(Error::OutOfMemory { .. }) => {
                drop(apart);
                return Err(self.out_of_memory(self.lock(), held, false));
            }
            Err(error) => return Err(error),
        };
        let home = Home { allocator: apart, ticket: 0 };
        // SAFETY: the length was checked, and the storage was just made: nothing else knows it.
        Ok(unsafe { Buffer::from_span(&self.device, Span { storage, offset: 0, len: bytes }, Some(home)) })
    }
}

impl Reclaim for Apart {
    fn reclaim(&self, _: u64, _: Vec<Arc<dyn Event>>, husk: Option<Husk>) {
        // Work that is still queued holds the storage itself.
        drop(husk);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.shared.lock().remove_apart(self.bytes, self.tag);
    }
}

/// Pools that may still be there, in builds with debug assertions.
static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Keeps track of a pool for [`leaks`].
pub(super) fn remember(shared: &Arc<Shared>) {
    if cfg!(debug_assertions) {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(shared));
    }
}

/// Reports of pools that have live buffers, in builds with debug assertions; in others there are none. At the end of a
/// program, when all should be gone, these are leaks.
///
/// ```
/// use sinew_memory::{Cpu, Pool, PoolConfig, leaks};
///
/// let pool = Pool::new(Cpu::get(), PoolConfig::default());
/// let buffer = pool.uninitialised_tagged(1000, "forgotten")?;
/// drop(pool);
/// let left = || leaks().iter().any(|report| report.live.iter().any(|usage| usage.tag == "forgotten"));
/// assert_eq!(left(), cfg!(debug_assertions));
/// drop(buffer);
/// assert!(!left());
/// # Ok::<(), sinew_memory::Error>(())
/// ```
pub fn leaks() -> Vec<MemoryReport> {
    let pools: Vec<Arc<Shared>> = {
        let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).collect()
    };
    pools.iter().map(|pool| pool.report()).filter(|report| !report.live.is_empty()).collect()
}
