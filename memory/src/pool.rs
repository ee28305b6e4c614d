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
mod handle;
mod report;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::{Buffer, Bytes, Device, Error, Event, Home, Husk, Reclaim, Result, Span, Storage, system};

pub use apart::leaks;
pub use handle::Pool;
pub use report::{MemoryReport, PoolConfig, PoolStats, TagUsage};

/// The smallest class, unless the device's alignment is larger.
const SMALLEST_CLASS: usize = 256;
/// The largest class: 512 MiB. Above it sizes are rounded to [`LARGE_STEP`] and found by best fit.
const LARGEST_CLASS: usize = 512 << 20;
/// Rounding above the largest class: a huge page, so at most 0.4 % is lost.
const LARGE_STEP: usize = 2 << 20;
/// Classes for the finest granule (see `bin`), and so the most bins there can be: 80.
const BINS: usize = bin((LARGEST_CLASS / SMALLEST_CLASS) as u64) + 1;
const _: () = assert!(BINS == 80 && BINS <= u128::BITS as usize);
/// No node, no slab.
const NONE: u32 = u32::MAX;
/// Above this many tags, one without live buffers makes room for a new one.
const TAGS_KEPT: usize = 256;

/// Rounds granules up to a class.
fn class_units(units: usize) -> usize {
    if units <= 4 { units } else { units.next_multiple_of(1 << (units.ilog2() - 2)) }
}

/// The bin of free spans of `units` granules: the largest class that is not larger. 1, 2 and 3 are bins 0 to 2; from
/// there every power of two has four.
const fn bin(units: u64) -> usize {
    if units < 4 {
        return units as usize - 1;
    }
    let power = units.ilog2();
    3 + (power as usize - 2) * 4 + ((units >> (power - 2)) & 3) as usize
}

/// Whether a slab is shared by small requests or was taken for one large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared = 0,
    Own = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Not a span: the node waits to be one.
    Vacant,
    Free,
    Live,
    Pending,
}

/// A span of a slab. Nodes of one slab are a list in the order of addresses; free ones are also in a bin's list.
#[derive(Clone, Copy, Debug)]
struct Node {
    offset: usize,
    len: usize,
    slab: u32,
    before: u32,
    after: u32,
    /// In the bin's list, or the next vacant node.
    next: u32,
    prev: u32,
    tag: u32,
    asked: usize,
    used: Use,
}

struct Slab {
    storage: Arc<dyn Storage>,
    len: usize,
    kind: Kind,
    /// The one node and the moment since when, while all of it is free.
    free_since: Option<(u32, Duration)>,
}

struct Bins {
    heads: [u32; BINS],
    /// Bit `i` says that bin `i` holds something.
    occupied: u128,
}

struct Pending {
    node: u32,
    events: Vec<Arc<dyn Event>>,
}

struct Tag {
    name: Arc<str>,
    buffers: usize,
    bytes: usize,
}

struct State {
    config: PoolConfig,
    granule: usize,
    /// The bin of the largest class, in which spans are searched for the best fit.
    last_bin: usize,
    nodes: Vec<Node>,
    /// What a free node keeps of its last buffer.
    husks: Vec<Option<Husk>>,
    vacant: u32,
    slabs: Vec<Option<Slab>>,
    bins: [Bins; 2],
    pending: VecDeque<Pending>,
    tags: Vec<Tag>,
    tag_ids: HashMap<Arc<str>, u32>,
    closed: bool,
    hits: u64,
    misses: u64,
    active_buffers: usize,
    active_bytes: usize,
    requested_bytes: usize,
    peak_bytes: usize,
    pending_bytes: usize,
    pooled_bytes: usize,
    free_spans: usize,
    reserved_bytes: usize,
    /// Of live buffers with memory of their own.
    apart_bytes: usize,
    /// The most bytes that live buffers, of either kind, have had at once.
    most_used_bytes: usize,
    peak_reserved_bytes: usize,
    released_bytes: u64,
}

impl State {
    fn new(config: PoolConfig, granule: usize) -> Self {
        let bins = || Bins { heads: [NONE; BINS], occupied: 0 };
        Self {
            config,
            granule,
            last_bin: bin((LARGEST_CLASS / granule) as u64),
            nodes: Vec::new(),
            husks: Vec::new(),
            vacant: NONE,
            slabs: Vec::new(),
            bins: [bins(), bins()],
            pending: VecDeque::new(),
            tags: vec![Tag { name: "untagged".into(), buffers: 0, bytes: 0 }],
            tag_ids: HashMap::new(),
            closed: false,
            hits: 0,
            misses: 0,
            active_buffers: 0,
            active_bytes: 0,
            requested_bytes: 0,
            peak_bytes: 0,
            pending_bytes: 0,
            pooled_bytes: 0,
            free_spans: 0,
            reserved_bytes: 0,
            apart_bytes: 0,
            most_used_bytes: 0,
            peak_reserved_bytes: 0,
            released_bytes: 0,
        }
    }

    fn node(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    fn slab(&mut self, id: u32) -> Option<&mut Slab> {
        self.slabs.get_mut(id as usize)?.as_mut()
    }

    fn bin_of(&self, len: usize) -> usize {
        bin((len / self.granule) as u64).min(self.last_bin)
    }

    fn add_node(&mut self, node: Node) -> u32 {
        if self.vacant != NONE {
            let id = self.vacant;
            self.vacant = self.node(id).next;
            *self.node(id) = node;
            return id;
        }
        // A node is 256 bytes of the device or more, so 2^32 of them are beyond any device there is.
        let id = self.nodes.len() as u32;
        self.nodes.push(node);
        self.husks.push(None);
        id
    }

    fn remove_node(&mut self, id: u32) {
        let vacant = self.vacant;
        // Not the last share of device and storage, so nothing of theirs is dropped under the lock.
        self.husks[id as usize] = None;
        let node = self.node(id);
        node.used = Use::Vacant;
        node.next = vacant;
        self.vacant = id;
    }

    /// A new slab as one span that is in no bin.
    fn add_slab(&mut self, kind: Kind, storage: Arc<dyn Storage>, len: usize) -> u32 {
        let place = self.slabs.iter().position(Option::is_none).unwrap_or(self.slabs.len());
        if place == self.slabs.len() {
            self.slabs.push(None);
        }
        self.slabs[place] = Some(Slab { storage, len, kind, free_since: None });
        self.add_node(Node {
            offset: 0,
            len,
            slab: place as u32,
            before: NONE,
            after: NONE,
            next: NONE,
            prev: NONE,
            tag: 0,
            asked: 0,
            used: Use::Vacant,
        })
    }

    /// Takes a free span of at least `size` bytes out of its bin and cuts it to `size`.
    fn take(&mut self, kind: Kind, size: usize) -> Option<u32> {
        let bins = &self.bins[kind as usize];
        let exact = self.bin_of(size);
        let mut found = NONE;
        if bins.occupied >> exact & 1 == 1 {
            let head = bins.heads[exact];
            // Any span of a bin holds the bin's class. A size that is no class has to look for one that fits.
            if self.nodes[head as usize].len == size {
                found = head;
            } else {
                let mut best = usize::MAX;
                let is_class = exact < self.last_bin && class_units(size / self.granule) * self.granule == size;
                let mut id = head;
                while id != NONE {
                    let node = &self.nodes[id as usize];
                    if node.len >= size && node.len < best {
                        (found, best) = (id, node.len);
                        if is_class || best == size {
                            break;
                        }
                    }
                    id = node.next;
                }
            }
        }
        if found == NONE && exact < self.last_bin {
            let larger = bins.occupied >> (exact + 1);
            if larger != 0 {
                found = bins.heads[exact + 1 + larger.trailing_zeros() as usize];
            }
        }
        if found == NONE {
            return None;
        }
        self.unlink(found);
        self.split(found, size);
        Some(found)
    }

    /// Cuts a node that is in no bin to `size` bytes; the rest becomes a free span.
    fn split(&mut self, id: u32, size: usize) {
        let node = self.nodes[id as usize];
        debug_assert!(node.len >= size && size.is_multiple_of(self.granule));
        if node.len == size {
            return;
        }
        let rest = self.add_node(Node { offset: node.offset + size, len: node.len - size, before: id, ..node });
        if node.after != NONE {
            self.node(node.after).before = rest;
        }
        let node = self.node(id);
        node.after = rest;
        node.len = size;
        self.link(rest);
    }

    /// Puts a span in its bin.
    fn link(&mut self, id: u32) {
        let Node { len, slab, .. } = self.nodes[id as usize];
        let bin = self.bin_of(len);
        let Some(kind) = self.slab(slab).map(|slab| slab.kind) else { return };
        let bins = &mut self.bins[kind as usize];
        let head = mem::replace(&mut bins.heads[bin], id);
        bins.occupied |= 1 << bin;
        if head != NONE {
            self.node(head).prev = id;
        }
        let node = self.node(id);
        node.used = Use::Free;
        node.prev = NONE;
        node.next = head;
        self.pooled_bytes += len;
        self.free_spans += 1;
    }

    /// Takes a free span out of its bin.
    fn unlink(&mut self, id: u32) {
        let Node { len, slab, prev, next, .. } = self.nodes[id as usize];
        debug_assert_eq!(self.nodes[id as usize].used, Use::Free);
        let bin = self.bin_of(len);
        let Some(slab) = self.slab(slab) else { return };
        slab.free_since = None;
        let bins = &mut self.bins[slab.kind as usize];
        if prev == NONE {
            bins.heads[bin] = next;
            if next == NONE {
                bins.occupied &= !(1 << bin);
            }
        } else {
            self.node(prev).next = next;
        }
        if next != NONE {
            self.node(next).prev = prev;
        }
        self.pooled_bytes -= len;
        self.free_spans -= 1;
    }

    /// Makes a node live.
    fn hand_out(&mut self, id: u32, asked: usize, tag: &str) {
        let tag = if tag.is_empty() { 0 } else { self.tag(tag) };
        let node = self.node(id);
        debug_assert!(node.used != Use::Live && node.used != Use::Pending && asked <= node.len);
        node.used = Use::Live;
        node.asked = asked;
        node.tag = tag;
        let len = node.len;
        self.active_buffers += 1;
        self.active_bytes += len;
        self.requested_bytes += asked;
        self.peak_bytes = self.peak_bytes.max(self.active_bytes);
        self.most_used_bytes = self.most_used_bytes.max(self.active_bytes + self.apart_bytes);
        let tag = &mut self.tags[tag as usize];
        tag.buffers += 1;
        tag.bytes += len;
    }

    /// The first `asked` bytes of a node.
    fn span(&self, id: u32, asked: usize) -> Span {
        let Node { offset, slab, .. } = self.nodes[id as usize];
        let Some(slab) = &self.slabs[slab as usize] else { unreachable!("a node's slab lives as long as the node") };
        debug_assert!(offset + asked <= slab.storage.len());
        Span { storage: slab.storage.clone(), offset, len: asked }
    }

    fn tag(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.tag_ids.get(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let mut id = self.tags.len();
        if id >= TAGS_KEPT
            && let Some(unused) = (1..id).find(|&i| self.tags[i].buffers == 0)
        {
            self.tag_ids.remove(&self.tags[unused].name);
            self.tags[unused].name = name.clone();
            id = unused;
        } else {
            self.tags.push(Tag { name: name.clone(), buffers: 0, bytes: 0 });
        }
        self.tag_ids.insert(name, id as u32);
        id as u32
    }

    /// Takes a live node back: free, or pending until the events are complete. Returns a husk that is not kept.
    fn give_back(&mut self, id: u32, events: Vec<Arc<dyn Event>>, husk: Option<Husk>) -> Option<Husk> {
        let Node { len, asked, tag, used, .. } = self.nodes[id as usize];
        debug_assert_eq!(used, Use::Live, "a span came back twice");
        if used != Use::Live {
            return husk;
        }
        // Kept before freeing: if the node merges into another, its husk goes.
        let unkept = if self.closed { husk } else { mem::replace(&mut self.husks[id as usize], husk) };
        self.active_buffers -= 1;
        self.active_bytes -= len;
        self.requested_bytes -= asked;
        let tag = &mut self.tags[tag as usize];
        tag.buffers -= 1;
        tag.bytes -= len;
        if events.is_empty() {
            self.free(id);
        } else {
            self.node(id).used = Use::Pending;
            self.pending_bytes += len;
            self.pending.push_back(Pending { node: id, events });
        }
        unkept
    }

    /// Frees a node that is in no bin, merging it with free neighbours.
    fn free(&mut self, id: u32) {
        let mut id = id;
        let Node { before, after, .. } = self.nodes[id as usize];
        if after != NONE && self.nodes[after as usize].used == Use::Free {
            self.unlink(after);
            self.join(id, after);
        }
        if before != NONE && self.nodes[before as usize].used == Use::Free {
            self.unlink(before);
            self.join(before, id);
            id = before;
        }
        self.link(id);
        let Node { before, after, slab, .. } = self.nodes[id as usize];
        if before == NONE
            && after == NONE
            && let Some(slab) = self.slab(slab)
        {
            slab.free_since = Some((id, system::coarse_time()));
        }
    }

    /// Makes two neighbouring nodes that are in no bin one.
    fn join(&mut self, first: u32, second: u32) {
        let Node { len, after, .. } = self.nodes[second as usize];
        debug_assert_eq!(self.nodes[first as usize].after, second);
        self.node(first).len += len;
        self.node(first).after = after;
        if after != NONE {
            self.node(after).before = first;
        }
        self.remove_node(second);
    }

    /// Frees pending spans from the oldest on, up to the first that is still in use.
    fn collect_front(&mut self) -> Vec<Arc<dyn Event>> {
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
    fn collect_all(&mut self) -> Vec<Arc<dyn Event>> {
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
        self.pending_bytes -= self.nodes[pending.node as usize].len;
        self.free(pending.node);
        events.extend(pending.events);
    }

    /// Takes out slabs that have been free for at least `older_than`. The caller drops them after unlocking.
    fn release_free_slabs(&mut self, older_than: Duration) -> (Vec<Arc<dyn Storage>>, usize) {
        let mut storages = Vec::new();
        let mut bytes = 0;
        let now = system::coarse_time();
        for place in 0..self.slabs.len() {
            let Some((node, since)) = self.slabs[place].as_ref().and_then(|slab| slab.free_since) else { continue };
            if now.saturating_sub(since) < older_than {
                continue;
            }
            self.unlink(node);
            self.remove_node(node);
            if let Some(slab) = self.slabs[place].take() {
                bytes += slab.len;
                storages.push(slab.storage);
            }
        }
        self.reserved_bytes -= bytes;
        self.released_bytes += bytes as u64;
        (storages, bytes)
    }

    fn live(&self) -> Vec<TagUsage> {
        let mut live: Vec<_> = self
            .tags
            .iter()
            .filter(|tag| tag.buffers > 0)
            .map(|tag| TagUsage { tag: tag.name.to_string(), buffers: tag.buffers, bytes: tag.bytes })
            .collect();
        live.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
        live
    }

    fn largest_free(&self) -> usize {
        let mut largest = 0;
        for bins in &self.bins {
            if bins.occupied == 0 {
                continue;
            }
            let mut id = bins.heads[bins.occupied.ilog2() as usize];
            while id != NONE {
                let node = &self.nodes[id as usize];
                largest = largest.max(node.len);
                id = node.next;
            }
        }
        largest
    }

    fn stats(&self) -> PoolStats {
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
            pooled_bytes: self.pooled_bytes,
            free_spans: self.free_spans,
            largest_free_block: self.largest_free(),
            reserved_bytes: self.reserved_bytes,
            peak_reserved_bytes: self.peak_reserved_bytes,
            slabs: self.slabs.iter().flatten().count(),
            apart_bytes: self.apart_bytes,
            released_bytes: self.released_bytes,
        }
    }

    /// The first rule of the lists and counters that does not hold: for debug assertions.
    fn inconsistency(&self) -> Option<String> {
        let (mut free, mut live, mut pending, mut held) = (0, 0, 0, 0);
        let mut firsts = vec![None; self.slabs.len()];
        for node in self.nodes.iter().filter(|node| node.used != Use::Vacant && node.before == NONE) {
            firsts[node.slab as usize] = Some(node);
        }
        for (index, slab) in self.slabs.iter().enumerate() {
            let Some(slab) = slab else { continue };
            let Some(first) = firsts[index] else { return Some(format!("slab {index} has no first span")) };
            let (mut at, mut node, mut was_free) = (0, first, false);
            loop {
                if node.offset != at || node.slab as usize != index {
                    return Some(format!("slab {index} has a gap or an overlap at {at}"));
                }
                if was_free && node.used == Use::Free {
                    return Some(format!("slab {index} has two free neighbours at {at}"));
                }
                was_free = node.used == Use::Free;
                match node.used {
                    Use::Free => free += node.len,
                    Use::Live => live += node.len,
                    Use::Pending => pending += node.len,
                    Use::Vacant => return Some(format!("slab {index} has a vacant span at {at}")),
                }
                at += node.len;
                if node.after == NONE {
                    break;
                }
                node = &self.nodes[node.after as usize];
            }
            if at != slab.len {
                return Some(format!("the spans of slab {index} end at {at} of {}", slab.len));
            }
            held += slab.len;
        }
        let listed: usize = self.bins.iter().flat_map(|bins| bins.heads).map(|head| self.list_bytes(head)).sum();
        let counted = (self.pooled_bytes, self.active_bytes, self.pending_bytes);
        // While another thread is at the device, more is reserved than held.
        if (free, live, pending) != counted || listed != free || held > self.reserved_bytes {
            return Some(format!("free, live, pending {free}, {live}, {pending} but counted {counted:?}"));
        }
        None
    }

    fn list_bytes(&self, head: u32) -> usize {
        let (mut id, mut bytes) = (head, 0);
        while id != NONE {
            let node = &self.nodes[id as usize];
            bytes += node.len;
            id = node.next;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_the_bottom_of_its_bin() {
        let mut units = 1;
        let mut expected = 0;
        while units * SMALLEST_CLASS <= LARGEST_CLASS {
            assert_eq!(bin(units as u64), expected);
            assert_eq!(class_units(units), units);
            let next = class_units(units + 1);
            assert_eq!(bin(next as u64 - 1), expected, "sizes below the next class stay in the bin");
            assert!(next <= 4 || (next - units) * 4 <= next, "steps of at most a quarter");
            (units, expected) = (next, expected + 1);
        }
        assert_eq!(expected, BINS);
    }
}
