//! Slabs cut into spans, and the free spans in bins.
//!
//! A freed span merges at once with free neighbours of its slab, so two free spans never touch.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::classes::{BINS, Classes};
use crate::{Husk, Span, Storage, system};

/// No node, no slab.
const NONE: u32 = u32::MAX;

/// Whether a slab is shared by small requests or was taken for one large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Shared = 0,
    Own = 1,
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// None: its node waits to be one.
    Vacant,
    /// In a bin.
    Free,
    /// A buffer's, of which so many bytes were asked for under a tag.
    Live { asked: usize, tag: u32 },
    /// That of a buffer that is gone, while streams may still use it.
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

/// The slabs of a pool, whose spans have numbers.
pub(super) struct Spans {
    classes: Classes,
    nodes: Vec<Node>,
    /// What a free node keeps of its last buffer.
    husks: Vec<Option<Husk>>,
    vacant: u32,
    slabs: Vec<Option<Slab>>,
    bins: [Bins; 2],
    free_bytes: usize,
    free_spans: usize,
}

/// Bytes of spans by what they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SpanBytes {
    pub free: usize,
    pub live: usize,
    pub pending: usize,
}

impl Spans {
    pub fn new(classes: Classes) -> Self {
        let bins = || Bins { heads: [NONE; BINS], occupied: 0 };
        Self {
            classes,
            nodes: Vec::new(),
            husks: Vec::new(),
            vacant: NONE,
            slabs: Vec::new(),
            bins: [bins(), bins()],
            free_bytes: 0,
            free_spans: 0,
        }
    }

    /// Bytes of free spans.
    pub fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Their number.
    pub fn free_spans(&self) -> usize {
        self.free_spans
    }

    /// The number of slabs.
    pub fn slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// Bytes of a span.
    pub fn len(&self, id: u32) -> usize {
        self.nodes[id as usize].len
    }

    /// What a span is.
    pub fn used(&self, id: u32) -> Use {
        self.nodes[id as usize].used
    }

    /// Makes a span that is in no bin live or pending.
    pub fn set_used(&mut self, id: u32, used: Use) {
        self.node(id).used = used;
    }

    /// Keeps what is left of the last buffer with its span, for as long as that is in one piece. What was kept before.
    pub fn keep(&mut self, id: u32, husk: Option<Husk>) -> Option<Husk> {
        mem::replace(&mut self.husks[id as usize], husk)
    }

    fn node(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    fn slab(&mut self, id: u32) -> Option<&mut Slab> {
        self.slabs.get_mut(id as usize)?.as_mut()
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
    pub fn add_slab(&mut self, kind: Kind, storage: Arc<dyn Storage>, len: usize) -> u32 {
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
            used: Use::Vacant,
        })
    }

    /// Takes a free span of at least `size` bytes out of its bin and cuts it to `size`.
    pub fn take(&mut self, kind: Kind, size: usize) -> Option<u32> {
        let bins = &self.bins[kind as usize];
        let exact = self.classes.bin(size);
        let mut found = NONE;
        if bins.occupied >> exact & 1 == 1 {
            let head = bins.heads[exact];
            // Any span of a bin holds the bin's class. A size that is no class has to look for one that fits.
            if self.nodes[head as usize].len == size {
                found = head;
            } else {
                let mut best = usize::MAX;
                let is_class = self.classes.is_least_of_bin(size);
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
        if found == NONE && !self.classes.is_last(exact) {
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
    pub fn split(&mut self, id: u32, size: usize) {
        let node = self.nodes[id as usize];
        debug_assert!(node.len >= size && size.is_multiple_of(self.classes.granule()));
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
        let bin = self.classes.bin(len);
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
        self.free_bytes += len;
        self.free_spans += 1;
    }

    /// Takes a free span out of its bin.
    fn unlink(&mut self, id: u32) {
        let Node { len, slab, prev, next, .. } = self.nodes[id as usize];
        debug_assert_eq!(self.nodes[id as usize].used, Use::Free);
        let bin = self.classes.bin(len);
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
        self.free_bytes -= len;
        self.free_spans -= 1;
    }

    /// Frees a node that is in no bin, merging it with free neighbours.
    pub fn free(&mut self, id: u32) {
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

    /// The first `asked` bytes of a span.
    pub fn span(&self, id: u32, asked: usize) -> Span {
        let Node { offset, slab, .. } = self.nodes[id as usize];
        let Some(slab) = &self.slabs[slab as usize] else { unreachable!("a node's slab lives as long as the node") };
        debug_assert!(offset + asked <= slab.storage.len());
        Span { storage: slab.storage.clone(), offset, len: asked }
    }

    /// Bytes of the largest free span.
    pub fn largest_free(&self) -> usize {
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

    /// Takes out slabs that have been free for at least `older_than`; and their bytes.
    pub fn release_free_slabs(&mut self, older_than: Duration) -> (Vec<Arc<dyn Storage>>, usize) {
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
        (storages, bytes)
    }

    /// Bytes of spans by what they are, and of slabs; or the first rule of the lists that does not hold. For debug
    /// assertions.
    pub fn check(&self) -> Result<(SpanBytes, usize), String> {
        let (mut bytes, mut held) = (SpanBytes::default(), 0);
        let mut firsts = vec![None; self.slabs.len()];
        for node in self.nodes.iter().filter(|node| node.used != Use::Vacant && node.before == NONE) {
            firsts[node.slab as usize] = Some(node);
        }
        for (index, slab) in self.slabs.iter().enumerate() {
            let Some(slab) = slab else { continue };
            let Some(first) = firsts[index] else { return Err(format!("slab {index} has no first span")) };
            let (mut at, mut node, mut was_free) = (0, first, false);
            loop {
                if node.offset != at || node.slab as usize != index {
                    return Err(format!("slab {index} has a gap or an overlap at {at}"));
                }
                if was_free && node.used == Use::Free {
                    return Err(format!("slab {index} has two free neighbours at {at}"));
                }
                was_free = node.used == Use::Free;
                match node.used {
                    Use::Free => bytes.free += node.len,
                    Use::Live { .. } => bytes.live += node.len,
                    Use::Pending => bytes.pending += node.len,
                    Use::Vacant => return Err(format!("slab {index} has a vacant span at {at}")),
                }
                at += node.len;
                if node.after == NONE {
                    break;
                }
                node = &self.nodes[node.after as usize];
            }
            if at != slab.len {
                return Err(format!("the spans of slab {index} end at {at} of {}", slab.len));
            }
            held += slab.len;
        }
        let listed: usize = self.bins.iter().flat_map(|bins| bins.heads).map(|head| self.list_bytes(head)).sum();
        if (listed, self.free_bytes) != (bytes.free, bytes.free) {
            return Err(format!("{} bytes are free, {listed} in bins, {} counted", bytes.free, self.free_bytes));
        }
        Ok((bytes, held))
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
