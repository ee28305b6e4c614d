//! Blocks in the order in which they were last used.

use super::state::{filled, no_memory};
use crate::Result;

const NOWHERE: u32 = u32::MAX;

/// A binary heap of blocks, the least recently used first, which knows where each block is: adding one and taking any
/// one out are O(log n). It never grows past its first size.
pub(super) struct Recency {
    heap: Vec<(u64, u32)>,
    /// Where a block is in the heap.
    places: Vec<u32>,
}

impl Recency {
    pub fn new(num_blocks: usize) -> Result<Self> {
        let mut heap = Vec::new();
        heap.try_reserve_exact(num_blocks).map_err(|_| no_memory(num_blocks))?;
        Ok(Self { heap, places: filled(num_blocks, NOWHERE)? })
    }

    /// The block that was used least recently.
    pub fn first(&self) -> Option<u32> {
        self.heap.first().map(|&(_, block)| block)
    }

    /// Adds a block that is not in it, last used at a time.
    pub fn insert(&mut self, time: u64, block: u32) {
        debug_assert_eq!(self.places[block as usize], NOWHERE);
        debug_assert!(self.heap.len() < self.heap.capacity(), "an allocation");
        self.heap.push((time, block));
        self.rise(self.heap.len() - 1);
    }

    /// Takes a block out, and says whether it was in it.
    pub fn remove(&mut self, block: u32) -> bool {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place == NOWHERE {
            return false;
        }
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            // What took its place may belong higher, if it comes from another branch, or lower.
            let place = self.rise(place);
            self.sink(place);
        }
        true
    }

    fn rise(&mut self, mut place: usize) -> usize {
        let moving = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above] <= moving {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, moving);
        place
    }

    fn sink(&mut self, mut place: usize) {
        let moving = self.heap[place];
        loop {
            let below = 2 * place + 1;
            let Some(&left) = self.heap.get(below) else { break };
            let (below, least) = match self.heap.get(below + 1) {
                Some(&right) if right < left => (below + 1, right),
                _ => (below, left),
            };
            if moving <= least {
                break;
            }
            self.put(place, least);
            place = below;
        }
        self.put(place, moving);
    }

    fn put(&mut self, place: usize, entry: (u64, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BLOCKS: usize = 64;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Each step adds a block at a time of its own, or takes it out where it is in.
        #[test]
        fn the_first_is_the_least_recent_whatever_came_and_went(steps in prop::collection::vec((0..BLOCKS as u32, 0..99u64), 0..400)) {
            let mut recency = Recency::new(BLOCKS).expect("a small one");
            let mut sorted = BTreeSet::new();
            for (block, time) in steps {
                match sorted.iter().copied().find(|&(_, known)| known == block) {
                    Some(entry) => {
                        prop_assert!(recency.remove(block));
                        sorted.remove(&entry);
                    }
                    None => {
                        prop_assert!(!recency.remove(block));
                        recency.insert(time, block);
                        sorted.insert((time, block));
                    }
                }
                prop_assert_eq!(recency.first(), sorted.first().map(|&(_, block)| block));
            }
            for (_, block) in sorted {
                prop_assert_eq!(recency.first(), Some(block));
                recency.remove(block);
            }
            prop_assert_eq!(recency.first(), None);
        }
    }
}
