//! Blocks in the order in which they were last used.

const NOWHERE: u32 = u32::MAX;

/// A binary heap of blocks, the least recently used first, which knows where each block is: adding one and taking any
/// one out are O(log n). It never grows past its first size.
pub(super) struct Recency {
    heap: Vec<(u64, u32)>,
    /// Where a block is in the heap.
    places: Vec<u32>,
}

impl Recency {
    pub fn new(heap: Vec<(u64, u32)>, mut places: Vec<u32>) -> Self {
        places.fill(NOWHERE);
        Self { heap, places }
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

    /// Takes a block out; one that is not in it makes no difference.
    pub fn remove(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place == NOWHERE {
            return;
        }
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            // What took its place may belong higher, if it comes from another branch, or lower.
            let place = self.rise(place);
            self.sink(place);
        }
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
            let mut recency = Recency::new(Vec::with_capacity(BLOCKS), vec![0; BLOCKS]);
            let mut sorted = BTreeSet::new();
            for (block, time) in steps {
                match sorted.iter().copied().find(|&(_, known)| known == block) {
                    Some(entry) => {
                        recency.remove(block);
                        sorted.remove(&entry);
                    }
                    None => {
                        recency.remove(block);
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
