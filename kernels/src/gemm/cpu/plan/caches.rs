//! The parts of the caches that a call is cut up for.

use sinew_memory::Caches;

/// Bytes of the second-level cache where the system does not tell.
const L2: usize = 1 << 20;
/// The part of it that a slab of A takes. A block of panels takes half as much beside it, and the rest is left to the
/// output and what else passes through.
const SLAB_SHARE_OF_L2: usize = 2;
/// The part of the third-level cache that A's packed rows may take: the weights pass through it as well.
const ROWS_SHARE_OF_L3: usize = 4;

/// How many bytes of A and of its panels are to be in a cache at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// For a slab, in a thread's own cache.
    pub slab: usize,
    /// For a block of panels, beside it.
    pub block: usize,
    /// For packed rows, in the cache that threads share.
    pub shared: usize,
    /// For packed rows of all threads: in the caches of their own, or in the shared one where that has more.
    pub together: usize,
}

impl Room {
    /// In these caches of a machine, for so many threads.
    pub fn new(caches: &Caches, threads: usize) -> Self {
        let slab = if caches.l2 == 0 { L2 } else { caches.l2 } / SLAB_SHARE_OF_L2;
        let shared = caches.l3 / ROWS_SHARE_OF_L3;
        Self { slab, block: slab / 2, shared, together: (slab * threads).max(shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_block_and_what_passes_share_the_second_cache() {
        let caches = Caches { l1d: 32 << 10, l2: 2 << 20, l3: 32 << 20 };
        let room = Room::new(&caches, 2);
        assert_eq!([room.slab, room.block, room.shared], [1 << 20, 512 << 10, 8 << 20]);
        assert!(room.slab + room.block < caches.l2);
    }

    #[test]
    fn rows_of_all_threads_are_in_whichever_caches_hold_more() {
        let caches = Caches { l1d: 32 << 10, l2: 1 << 20, l3: 16 << 20 };
        assert_eq!([1, 8, 9, 64].map(|threads| Room::new(&caches, threads).together >> 19), [8, 8, 9, 64]);
    }

    #[test]
    fn a_second_cache_of_unknown_size_counts_as_a_common_one() {
        let unknown = Room::new(&Caches { l1d: 0, l2: 0, l3: 0 }, 1);
        assert_eq!([unknown.slab, unknown.shared, unknown.together], [512 << 10, 0, 512 << 10]);
    }
}
