//! What a pool has handed out, what streams still use of what came back, and its counters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::classes::Classes;
use super::spans::{Kind, SpanBytes, Spans, Use};
use super::tags::Tags;
use super::{PoolConfig, PoolStats};
use crate::{Event, Husk, Storage};

/// All of a pool that is behind its lock.
pub(super) struct State {
    pub config: PoolConfig,
    pub spans: Spans,
    pub tags: Tags,
    /// Spans that came back while streams used them, from the oldest on.
    pub pending: VecDeque<Pending>,
    /// Whether the pool is gone, and only its buffers are left.
    pub closed: bool,
    pub hits: u64,
    pub misses: u64,
    active_buffers: usize,
    active_bytes: usize,
    requested_bytes: usize,
    peak_bytes: usize,
    pending_bytes: usize,
    /// Of slabs, those that another thread is just taking from the device among them.
    pub reserved_bytes: usize,
    peak_reserved_bytes: usize,
    released_bytes: u64,
    /// Of live buffers with memory of their own.
    pub apart_bytes: usize,
    /// The most bytes that live buffers, of either kind, have had at once.
    pub most_used_bytes: usize,
}

/// A span that came back while streams used it.
pub(super) struct Pending {
    span: u32,
    pub events: Vec<Arc<dyn Event>>,
}

impl State {
    pub fn new(config: PoolConfig, classes: Classes) -> Self {
        Self {
            config,
            spans: Spans::new(classes),
            tags: Tags::new(),
            pending: VecDeque::new(),
            closed: false,
            hits: 0,
            misses: 0,
            active_buffers: 0,
            active_bytes: 0,
            requested_bytes: 0,
            peak_bytes: 0,
            pending_bytes: 0,
            reserved_bytes: 0,
            peak_reserved_bytes: 0,
            released_bytes: 0,
            apart_bytes: 0,
            most_used_bytes: 0,
        }
    }

    /// A slab that was reserved is there: one span of it.
    pub fn add_slab(&mut self, kind: Kind, storage: Arc<dyn Storage>, len: usize) -> u32 {
        self.misses += 1;
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.reserved_bytes);
        self.spans.add_slab(kind, storage, len)
    }

    /// Makes a span that was taken live.
    pub fn hand_out(&mut self, span: u32, asked: usize, tag: &str) {
        let len = self.spans.len(span);
        debug_assert!(matches!(self.spans.used(span), Use::Free | Use::Vacant) && asked <= len);
        let tag = self.tags.add(tag, len);
        self.spans.set_used(span, Use::Live { asked, tag });
        self.active_buffers += 1;
        self.active_bytes += len;
        self.requested_bytes += asked;
        self.peak_bytes = self.peak_bytes.max(self.active_bytes);
        self.count_used();
    }

    /// Takes a live span back: free, or pending until the events are complete. Returns a husk that is not kept.
    pub fn give_back(&mut self, span: u32, events: Vec<Arc<dyn Event>>, husk: Option<Husk>) -> Option<Husk> {
        let Use::Live { asked, tag } = self.spans.used(span) else {
            debug_assert!(false, "a span came back twice");
            return husk;
        };
        let len = self.spans.len(span);
        // Kept before freeing: if the span merges into another, its husk goes.
        let unkept = if self.closed { husk } else { self.spans.keep(span, husk) };
        self.active_buffers -= 1;
        self.active_bytes -= len;
        self.requested_bytes -= asked;
        self.tags.remove(tag, len);
        if events.is_empty() {
            self.spans.free(span);
        } else {
            self.spans.set_used(span, Use::Pending);
            self.pending_bytes += len;
            self.pending.push_back(Pending { span, events });
        }
        unkept
    }

    /// Counts a buffer with memory of its own, and gives the number of its tag.
    pub fn add_apart(&mut self, bytes: usize, tag: &str) -> u32 {
        self.apart_bytes += bytes;
        self.count_used();
        self.tags.add(tag, bytes)
    }

    /// A buffer with memory of its own is gone.
    pub fn remove_apart(&mut self, bytes: usize, tag: u32) {
        self.apart_bytes -= bytes;
        self.tags.remove(tag, bytes);
    }

    fn count_used(&mut self) {
        self.most_used_bytes = self.most_used_bytes.max(self.active_bytes + self.apart_bytes);
    }

    /// Frees pending spans from the oldest on, up to the first that is still in use.
    pub fn collect_front(&mut self) -> Vec<Arc<dyn Event>> {
        let mut events = Vec::new();
        while let Some(front) = self.pending.front() {
            if !front.events.iter().all(|event| event.is_complete()) {
                break;
            }
            let Some(front) = self.pending.pop_front() else { break };
            self.collect(front, &mut events);
        }
        events
    }

    /// Frees every pending span that is no longer in use.
    pub fn collect_all(&mut self) -> Vec<Arc<dyn Event>> {
        let mut events = Vec::new();
        for _ in 0..self.pending.len() {
            let Some(pending) = self.pending.pop_front() else { break };
            if pending.events.iter().all(|event| event.is_complete()) {
                self.collect(pending, &mut events);
            } else {
                self.pending.push_back(pending);
            }
        }
        events
    }

    fn collect(&mut self, pending: Pending, events: &mut Vec<Arc<dyn Event>>) {
        self.pending_bytes -= self.spans.len(pending.span);
        self.spans.free(pending.span);
        events.extend(pending.events);
    }

    /// Takes out slabs that have been free for at least `older_than`. The caller drops them after unlocking.
    pub fn release_free_slabs(&mut self, older_than: Duration) -> (Vec<Arc<dyn Storage>>, usize) {
        let (storages, bytes) = self.spans.release_free_slabs(older_than);
        self.reserved_bytes -= bytes;
        self.released_bytes += bytes as u64;
        (storages, bytes)
    }

    pub fn stats(&self) -> PoolStats {
        PoolStats {
            allocations: self.hits + self.misses,
            hits: self.hits,
            misses: self.misses,
            active_buffers: self.active_buffers,
            active_bytes: self.active_bytes,
            requested_bytes: self.requested_bytes,
            peak_bytes: self.peak_bytes,
            pending_spans: self.pending.len(),
            pending_bytes: self.pending_bytes,
            pooled_bytes: self.spans.free_bytes(),
            free_spans: self.spans.free_spans(),
            largest_free_block: self.spans.largest_free(),
            reserved_bytes: self.reserved_bytes,
            peak_reserved_bytes: self.peak_reserved_bytes,
            slabs: self.spans.slabs(),
            apart_bytes: self.apart_bytes,
            released_bytes: self.released_bytes,
        }
    }

    /// The first rule of the lists and counters that does not hold: for debug assertions.
    pub fn inconsistency(&self) -> Option<String> {
        let (bytes, held) = match self.spans.check() {
            Ok(found) => found,
            Err(broken) => return Some(broken),
        };
        let counted = SpanBytes { free: bytes.free, live: self.active_bytes, pending: self.pending_bytes };
        // While another thread is at the device, more is reserved than held.
        (bytes != counted || held > self.reserved_bytes).then(|| format!("{bytes:?} but counted {counted:?}"))
    }
}
