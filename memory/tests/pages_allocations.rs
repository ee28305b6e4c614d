//! Pools and tables that have grown to their size allocate nothing on the host.

use std::sync::atomic::Ordering;

use sinew_memory::{PageConfig, PagePool, PrefixConfig};

#[path = "../../tests/common/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const BLOCKS: usize = 64;
const BLOCK_SIZE: usize = 16;
const TOKENS: usize = 400;

#[test]
fn appending_truncating_publishing_finding_and_evicting_allocate_nothing() {
    let config = PageConfig { num_blocks: BLOCKS, block_size: BLOCK_SIZE, block_bytes: 1024 };
    // Of layers that see everything, and of such that see a part.
    for (remembered, window) in [(0, usize::MAX), (3 * BLOCKS, 3 * BLOCK_SIZE)] {
        let prefixes = PrefixConfig { remembered, ..PrefixConfig::default() };
        let pool = PagePool::with_prefixes(config, prefixes).expect("a small pool");
        let mut table = pool.table();
        table.reserve(TOKENS);
        let mut words: Vec<u32> = (0..TOKENS as u32).collect();
        let mut copies = 0;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for round in 0..200 {
            // Two rounds in three start with words that were there before.
            words[TOKENS / 2..].fill(round / 3);
            let found = table.lookup_seen(0, &words, window).expect("an empty table");
            for token in found..TOKENS {
                copies += usize::from(table.append(1).expect("free or cached blocks").is_some());
                if token.is_multiple_of(64) {
                    table.publish(0, &words).expect("whole tokens");
                }
            }
            table.publish(0, &words).expect("whole tokens");
            table.truncate(TOKENS - 3).expect("held");
            copies += usize::from(table.append(3).expect("free or cached blocks").is_some());
            table.release_before((TOKENS / 2).max(table.positions().start)).expect("held");
            table.clear();
            pool.evict(1);
        }
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let stats = pool.stats();
        assert!(stats.hits > 1000 && stats.evictions > 300 && copies > 100, "{stats:?} {copies}");
        assert_eq!(allocated, 0, "{stats:?}");
    }
}
