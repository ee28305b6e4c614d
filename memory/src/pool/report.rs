//! What a pool is asked to be, and what it says of itself.

use std::fmt;

use super::classes::LARGEST;
use crate::{Bytes, DeviceId};

/// How a [`Pool`](super::Pool) behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Most bytes that the pool takes from its device, live, free and apart together. No limit by default.
    pub limit_bytes: usize,
    /// Size of the slabs that small requests share, those of up to a quarter of it. 4 MiB by default, which is where
    /// host memory comes in huge pages.
    pub slab_bytes: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { limit_bytes: usize::MAX, slab_bytes: 4 << 20 }
    }
}

impl PoolConfig {
    /// A pool that takes no more than so many bytes, in slabs of no more than a 32nd of them: what is free in a slab
    /// that is in use cannot become a buffer with [memory of its own](super::Pool::uninitialised_apart), and is kept small.
    ///
    /// ```
    /// use sinew_memory::PoolConfig;
    ///
    /// assert_eq!(PoolConfig::limited(32 << 20).slab_bytes, 1 << 20);
    /// assert_eq!(PoolConfig::limited(1 << 40).slab_bytes, PoolConfig::default().slab_bytes);
    /// ```
    pub fn limited(bytes: usize) -> Self {
        let usual = Self::default();
        Self { limit_bytes: bytes, slab_bytes: usual.slab_bytes.min(bytes / 32) }
    }

    /// The same with slabs that spans of such a granule fill.
    pub(super) fn in_granules(self, granule: usize) -> Self {
        let slab_bytes = self.slab_bytes.clamp(4 * granule, LARGEST).next_multiple_of(granule);
        Self { slab_bytes, ..self }
    }
}

/// What a [`Pool`](super::Pool) did and holds.
///
/// `active_bytes + pending_bytes + pooled_bytes == reserved_bytes`, whenever no allocation is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolStats {
    /// Requests served.
    pub allocations: u64,
    /// Those served from memory that the pool had.
    pub hits: u64,
    /// Those that took new memory from the device.
    pub misses: u64,
    /// Buffers alive.
    pub active_buffers: usize,
    /// Bytes of spans in live buffers, rounding included.
    pub active_bytes: usize,
    /// Bytes that live buffers asked for.
    pub requested_bytes: usize,
    /// The most that `active_bytes` has been.
    pub peak_bytes: usize,
    /// Spans given back that a stream still uses.
    pub pending_spans: usize,
    /// Bytes of those.
    pub pending_bytes: usize,
    /// Bytes of free spans, ready to be handed out.
    pub pooled_bytes: usize,
    /// Free spans.
    pub free_spans: usize,
    /// The largest free span.
    pub largest_free_block: usize,
    /// Bytes taken from the device.
    pub reserved_bytes: usize,
    /// The most that `reserved_bytes` has been.
    pub peak_reserved_bytes: usize,
    /// Slabs taken from the device.
    pub slabs: usize,
    /// Bytes that the device holds for live buffers that have memory of their own, see
    /// [`Pool::uninitialised_apart`](super::Pool::uninitialised_apart): neither active nor reserved.
    pub apart_bytes: usize,
    /// Bytes given back to the device by trimming, defragmenting or making room.
    pub released_bytes: u64,
}

impl PoolStats {
    /// Hits among allocations, 0 to 1; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { self.hits as f64 / self.allocations as f64 }
    }

    /// How scattered the free bytes are: `1 - largest_free_block / pooled_bytes`, 0 where they are one block or none.
    pub fn fragmentation(&self) -> f64 {
        if self.pooled_bytes == 0 { 0.0 } else { 1.0 - self.largest_free_block as f64 / self.pooled_bytes as f64 }
    }
}

/// Live buffers of one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagUsage {
    /// The tag; `untagged` for [`Pool::uninitialised`](super::Pool::uninitialised).
    pub tag: String,
    /// Live buffers.
    pub buffers: usize,
    /// Bytes of their spans.
    pub bytes: usize,
}

/// Who holds a device's memory, as far as one pool knows. Prints as a small table.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// The device.
    pub device: DeviceId,
    /// Bytes that the device has or the pool may take, whichever is less.
    pub total_bytes: usize,
    /// Bytes in live buffers.
    pub used_bytes: usize,
    /// Bytes that could still be allocated: free ones of the pool, and what it could take from the device.
    pub available_bytes: usize,
    /// The most bytes that have been in live buffers at once.
    pub high_water_bytes: usize,
    /// The counters behind it.
    pub stats: PoolStats,
    /// Live buffers by tag, the largest first. What is here after everything should be gone is a leak.
    pub live: Vec<TagUsage>,
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.stats;
        writeln!(
            f,
            "{}: {} used of {}, {} available, high water {}",
            self.device,
            Bytes(self.used_bytes),
            Bytes(self.total_bytes),
            Bytes(self.available_bytes),
            Bytes(self.high_water_bytes)
        )?;
        writeln!(
            f,
            "  pool: {} reserved, {} free in {} spans (largest {}, fragmentation {:.0} %), {} pending",
            Bytes(stats.reserved_bytes),
            Bytes(stats.pooled_bytes),
            stats.free_spans,
            Bytes(stats.largest_free_block),
            stats.fragmentation() * 100.0,
            Bytes(stats.pending_bytes)
        )?;
        writeln!(f, "  {} allocations, {:.1} % hits", stats.allocations, stats.hit_rate() * 100.0)?;
        for usage in &self.live {
            writeln!(f, "  {:<24} {:>10} in {} buffers", usage.tag, Bytes(usage.bytes).to_string(), usage.buffers)?;
        }
        Ok(())
    }
}
