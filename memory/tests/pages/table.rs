//! Pools and block tables, feature by feature.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sinew_memory::{BlockId, BlockTable, CopyBlock, Error, PageConfig, PagePool, SwapBlocks};

use super::pool;

#[test]
fn a_copy_keeps_both_blocks_until_it_was_made() {
    let pool = pool(4);
    let mut first = pool.table();
    first.append(2).expect("room");
    let mut second = first.fork().expect("few");
    let copy = second.append(1).expect("room").expect("shared and half-filled");
    assert_eq!((copy.from(), copy.to(), copy.tokens()), (BlockId(0), BlockId(1), 2));
    drop(first);
    drop(second);
    assert_eq!((pool.references(BlockId(0)), pool.references(BlockId(1))), (1, 1), "still to be read and written");
    assert_eq!(pool.allocate().ok(), Some(BlockId(2)));
    drop(copy);
    assert_eq!(pool.allocate().ok(), Some(BlockId(0)));
    assert_eq!(pool.allocate().ok(), Some(BlockId(1)));
}

#[test]
fn a_copy_that_could_not_be_made_is_taken_back() {
    let pool = pool(6);
    let mut first = pool.table();
    first.append(6).expect("room");
    let mut second = first.fork().expect("few");
    let before = (second.blocks().to_vec(), second.num_tokens(), pool.stats());
    let copy = second.append(7).expect("room").expect("shared and half-filled");
    second.take_back(copy).expect("its own");
    let now = pool.stats();
    assert_eq!((second.blocks().to_vec(), second.num_tokens()), (before.0, before.1));
    assert_eq!(
        (now.used, now.references, now.table_tokens),
        (before.2.used, before.2.references, before.2.table_tokens)
    );
    let copy = second.append(1).expect("room").expect("shared still");
    assert!(matches!(first.take_back(copy), Err(Error::Invalid(_))), "another table's");
}

#[test]
fn an_append_that_needs_a_copy_and_finds_no_block_changes_nothing() {
    let pool = pool(2);
    let mut first = pool.table();
    first.append(6).expect("room");
    let mut second = first.fork().expect("few");
    let before = (second.blocks().to_vec(), second.num_tokens(), pool.stats());
    assert!(matches!(second.append(1), Err(Error::OutOfBlocks { asked: 1, free: 0, total: 2 })));
    assert_eq!((second.blocks().to_vec(), second.num_tokens(), pool.stats()), before);
    drop(first);
    assert!(second.append(1).expect("no longer shared").is_none());
}

#[test]
fn a_fork_that_cannot_be_changes_nothing() {
    let pool = pool(4);
    let mut table = pool.table();
    table.append(10).expect("room");
    // Somebody releases what is not theirs.
    pool.release(table.blocks()[2]).expect("the table's");
    let before = pool.stats();
    assert!(matches!(table.fork(), Err(Error::Invalid(_))));
    assert_eq!(pool.stats(), before);
}

#[test]
fn appending_to_full_or_unshared_blocks_copies_nothing() {
    let pool = pool(8);
    let mut first = pool.table();
    assert!(first.append(4).expect("room").is_none());
    let mut second = first.fork().expect("few");
    assert!(second.append(1).expect("room").is_none(), "the shared block is full");
    assert_eq!(second.blocks()[0], first.blocks()[0]);
    assert!(second.append(1).expect("room").is_none(), "the last block is its own");
    assert!(first.append(0).expect("nothing").is_none());
    drop(first);
    second.truncate(3).expect("held");
    assert!(second.append(1).expect("room").is_none(), "no longer shared");
}

#[test]
fn misuse_is_an_error_that_changes_nothing() {
    let pool = pool(4);
    let block = pool.allocate().expect("room");
    assert_eq!(pool.release(block).ok(), Some(true));
    let before = pool.stats();
    for block in [block, BlockId(3), BlockId(4), BlockId(u32::MAX)] {
        assert!(matches!(pool.release(block), Err(Error::Invalid(_))));
        assert!(matches!(pool.retain(block), Err(Error::Invalid(_))));
    }
    let mut table = pool.table();
    table.append(6).expect("room");
    assert!(matches!(table.append(usize::MAX), Err(Error::Invalid(_))));
    assert!(matches!(table.append(isize::MAX as usize - 6), Err(Error::OutOfBlocks { .. })));
    assert_eq!(table.blocks_needed(usize::MAX), usize::MAX);
    assert_eq!((table.num_tokens(), table.blocks().len()), (6, 2));
    table.reserve(usize::MAX);
    drop(table);
    let peak_used = pool.stats().peak_used;
    assert_eq!(pool.stats(), sinew_memory::PageStats { peak_used, ..before });
    for (num_blocks, block_size, block_bytes) in
        [(1, 0, 1), (u32::MAX as usize, 1, 1), (1 << 31, 1 << 40, 1), (1 << 31, 1, 1 << 40), (2, usize::MAX, 0)]
    {
        let config = PageConfig { num_blocks, block_size, block_bytes };
        assert!(matches!(PagePool::new(config), Err(Error::Invalid(_))), "{config:?}");
    }
    let none = PagePool::new(PageConfig { num_blocks: 0, block_size: 1, block_bytes: 0 }).expect("empty");
    assert!(matches!(none.allocate(), Err(Error::OutOfBlocks { .. })));
}

#[test]
fn byte_offsets_go_beyond_4_gib() {
    let config = PageConfig { num_blocks: 1 << 20, block_size: 16, block_bytes: 1 << 20 };
    let pool = PagePool::new(config).expect("a large pool");
    assert_eq!(pool.byte_offset(BlockId((1 << 20) - 1)), ((1 << 20) - 1) << 20);
}

#[test]
fn appending_within_what_was_reserved_moves_no_table() {
    let pool = pool(64);
    let mut table = pool.table();
    table.reserve(200);
    table.append(1).expect("room");
    let place = table.blocks().as_ptr();
    for _ in 1..200 {
        table.append(1).expect("room");
    }
    assert_eq!(table.blocks().as_ptr(), place);
}

#[test]
fn tails_are_counted_as_fragmentation() {
    let pool = pool(8);
    assert_eq!(pool.stats().tail_fragmentation(), 0.0);
    let mut table = pool.table();
    table.append(5).expect("room");
    assert_eq!(pool.stats().tail_fragmentation(), 1.0 - 5.0 / 8.0);
    table.append(3).expect("room");
    assert_eq!(pool.stats().tail_fragmentation(), 0.0);
}

#[test]
fn page_pools_and_tables_cross_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<PagePool>();
    assert_shared::<BlockTable>();
    assert_shared::<CopyBlock>();
    assert_shared::<SwapBlocks>();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_a_workload_gets_depends_only_on_what_is_free(order in Just((0..32u32).collect::<Vec<_>>()).prop_shuffle(), released in 0..32usize) {
        let pool = pool(32);
        for _ in 0..32 {
            pool.allocate().expect("room");
        }
        let free: BTreeSet<u32> = order[..released].iter().copied().collect();
        for &block in &order[..released] {
            pool.release(BlockId(block)).expect("in use");
        }
        let got: Vec<u32> = (0..released).map(|_| pool.allocate().expect("free").0).collect();
        prop_assert_eq!(got, free.into_iter().collect::<Vec<_>>());
    }
}
