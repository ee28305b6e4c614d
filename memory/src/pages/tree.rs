//! The tree of published words: a node for each block's, behind those of the block before, found by a hash.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use super::PrefixHash;
use super::state::filled;
use crate::Result;

/// The number of no node, and of no block.
pub(super) const NONE: u32 = u32::MAX;

/// A node, and a number that no other has had: its place in the tree may be taken by another one later.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub node: u32,
    serial: u64,
}

/// The words of a block. Where `serial` is 0, it is free and the rest means nothing.
#[derive(Clone, Copy)]
pub(super) struct Node {
    serial: u64,
    salt: u64,
    hash: u64,
    /// That of the block before in the sequence. It is there as long as this one is, so it stands for all before.
    pub parent: u32,
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
    /// Of a free one: the next that is free.
    next_in_bucket: u32,
    /// Where what was computed of these words is, if anywhere.
    pub block: u32,
    pub cached_children: u32,
    /// When its block was cached; 0 while something refers to it, or there is none.
    pub cached_at: u64,
    /// Whether a window has left its cached block behind.
    pub is_left_behind: bool,
    /// Whether its cached block goes before those of which this is not so.
    pub goes_first: bool,
    /// Whether it is of use for finding a prefix: it was found, or would have been with its bytes.
    pub is_wanted: bool,
}

const FREE: Node = Node {
    serial: 0,
    salt: 0,
    hash: 0,
    parent: NONE,
    first_child: NONE,
    next_sibling: NONE,
    previous_sibling: NONE,
    next_in_bucket: NONE,
    block: NONE,
    cached_children: 0,
    cached_at: 0,
    is_left_behind: false,
    goes_first: false,
    is_wanted: false,
};

/// All its memory is taken when it is made.
pub(super) struct Tree {
    nodes: Vec<Node>,
    words: Vec<u32>,
    words_per_node: usize,
    /// The first node of each bucket; the rest hang on it.
    buckets: Vec<u32>,
    /// The first free node.
    free: u32,
    hash: PrefixHash,
    /// Mixed into every hash, so that nobody can prepare words that share a bucket.
    secret: u64,
    /// Counts the nodes that there have been.
    serials: u64,
}

impl Tree {
    pub fn new(nodes: usize, words_per_node: usize, words: usize, hash: PrefixHash) -> Result<Self> {
        let mut free = filled(nodes, FREE)?;
        free.iter_mut().zip(1..nodes as u32).for_each(|(node, next)| node.next_in_bucket = next);
        Ok(Self {
            nodes: free,
            words: filled(words, 0)?,
            words_per_node,
            buckets: filled(nodes.next_power_of_two(), NONE)?,
            free: if nodes > 0 { 0 } else { NONE },
            hash,
            secret: RandomState::new().hash_one(nodes),
            serials: 0,
        })
    }

    pub fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node as usize)
    }

    pub fn node_mut(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes.get_mut(node as usize)
    }

    /// Nodes in all, free ones included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_taken(&self, node: u32) -> bool {
        self.node(node).is_some_and(|node| node.serial != 0)
    }

    pub fn entry(&self, node: u32) -> Option<Entry> {
        Some(Entry { node, serial: self.node(node)?.serial })
    }

    /// Whether a node is still there.
    pub fn has(&self, entry: Entry) -> bool {
        self.node(entry.node).is_some_and(|node| node.serial == entry.serial)
    }

    pub fn has_children(&self, node: u32) -> bool {
        self.node(node).is_some_and(|node| node.first_child != NONE)
    }

    pub fn words_of(&self, node: u32) -> &[u32] {
        &self.words[self.range(node as usize)]
    }

    /// The words of a block in those of its sequence.
    pub fn range(&self, block: usize) -> Range<usize> {
        block * self.words_per_node..(block + 1) * self.words_per_node
    }

    /// The node of these words behind another; behind none, those of a salt.
    pub fn find(&self, before: Option<Entry>, salt: u64, words: &[u32]) -> Option<u32> {
        let (hash, parent) = (self.hash_of(before, salt, words), before.map_or(NONE, |before| before.node));
        let mut at = self.buckets[self.bucket(hash)];
        while let Some(node) = self.node(at) {
            // The hash only finds. The parent says what came before, the salt whose it is, the words what is in it.
            if (node.hash, node.parent, node.salt) == (hash, parent, salt) && self.words_of(at) == words {
                return Some(at);
            }
            at = node.next_in_bucket;
        }
        None
    }

    /// Adds such a node, which is not there yet; [`None`] where all are taken.
    pub fn add(&mut self, before: Option<Entry>, salt: u64, words: &[u32], block: u32) -> Option<u32> {
        let (hash, parent) = (self.hash_of(before, salt, words), before.map_or(NONE, |before| before.node));
        let at = self.free;
        self.free = self.node(at)?.next_in_bucket;
        let bucket = self.bucket(hash);
        let next_in_bucket = std::mem::replace(&mut self.buckets[bucket], at);
        let next_sibling = match self.node_mut(parent) {
            Some(parent) => std::mem::replace(&mut parent.first_child, at),
            None => NONE,
        };
        if let Some(next) = self.node_mut(next_sibling) {
            next.previous_sibling = at;
        }
        self.serials += 1;
        let serial = self.serials;
        self.nodes[at as usize] = Node { serial, salt, hash, parent, next_sibling, next_in_bucket, block, ..FREE };
        let range = self.range(at as usize);
        self.words[range].copy_from_slice(words);
        Some(at)
    }

    /// A node behind this one, or itself, that has no children.
    pub fn end(&self, mut node: u32) -> u32 {
        while let Some(&Node { first_child, .. }) = self.node(node)
            && first_child != NONE
        {
            node = first_child;
        }
        node
    }

    /// Takes out a node that has no children.
    pub fn remove(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        debug_assert!(node.first_child == NONE && node.serial != 0, "behind it are others");
        if let Some(next) = self.node_mut(node.next_sibling) {
            next.previous_sibling = node.previous_sibling;
        }
        if let Some(previous) = self.node_mut(node.previous_sibling) {
            previous.next_sibling = node.next_sibling;
        } else if let Some(parent) = self.node_mut(node.parent) {
            parent.first_child = node.next_sibling;
        }
        let bucket = self.bucket(node.hash);
        let (mut before, mut next) = (NONE, self.buckets[bucket]);
        while next != at {
            (before, next) = (next, self.nodes[next as usize].next_in_bucket);
        }
        match self.node_mut(before) {
            Some(before) => before.next_in_bucket = node.next_in_bucket,
            None => self.buckets[bucket] = node.next_in_bucket,
        }
        self.nodes[at as usize] = Node { next_in_bucket: std::mem::replace(&mut self.free, at), ..FREE };
    }

    fn hash_of(&self, before: Option<Entry>, salt: u64, words: &[u32]) -> u64 {
        (self.hash)(self.secret ^ before.map_or(salt, |before| before.serial), words)
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}
