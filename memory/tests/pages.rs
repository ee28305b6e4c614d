//! Page pool and block tables against a reference: the tokens of every sequence, and what every block holds.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use common::{Random, operations};
use proptest::prelude::*;
use sinew_memory::{BlockId, BlockTable, CopyBlock, Error, PageConfig, PagePool};

const BLOCK_SIZE: usize = 4;

fn pool(num_blocks: usize) -> PagePool {
    PagePool::new(PageConfig { num_blocks, block_size: BLOCK_SIZE, block_bytes: 1024 }).expect("a small pool")
}

/// A sequence: its table, and the tokens that must be found through it.
struct Sequence {
    table: BlockTable,
    tokens: Vec<u64>,
}

/// The cache's bytes, a token for each slot, and everything that refers to a block.
struct Model {
    pool: PagePool,
    slots: Vec<u64>,
    sequences: Vec<Sequence>,
    /// Copies that were not made yet.
    copies: Vec<CopyBlock>,
    by_hand: Vec<BlockId>,
    next_token: u64,
    copied: usize,
    refused: usize,
}

impl Model {
    fn new(num_blocks: usize) -> Self {
        let pool = pool(num_blocks);
        let slots = vec![u64::MAX; num_blocks * BLOCK_SIZE];
        let (sequences, copies, by_hand) = (Vec::new(), Vec::new(), Vec::new());
        Self { pool, slots, sequences, copies, by_hand, next_token: 0, copied: 0, refused: 0 }
    }

    fn at(block: BlockId, slot: usize) -> usize {
        block.0 as usize * BLOCK_SIZE + slot
    }

    /// Makes the copies, as late as possible but before what they copy is needed.
    fn copy(&mut self) {
        for copy in self.copies.drain(..) {
            for slot in 0..copy.tokens() {
                self.slots[Self::at(copy.to(), slot)] = self.slots[Self::at(copy.from(), slot)];
            }
        }
    }

    fn append(&mut self, index: usize, tokens: usize) {
        let sequence = &mut self.sequences[index];
        let before = (sequence.table.blocks().to_vec(), sequence.table.positions(), self.pool.stats());
        let needed = sequence.table.blocks_needed(tokens);
        match sequence.table.append(tokens) {
            Ok(copy) => {
                assert_eq!(before.2.free - self.pool.stats().free, needed);
                if let Some(copy) = copy {
                    assert_eq!(before.0.last(), Some(&copy.from()));
                    assert!(self.pool.references(copy.from()) >= 2, "it was not shared");
                    assert_eq!(copy.tokens(), before.1.end % BLOCK_SIZE);
                    self.copies.push(copy);
                    self.copied += 1;
                }
                for _ in 0..tokens {
                    let (block, slot) = sequence.table.slot(sequence.tokens.len()).expect("just appended");
                    let copies = self.copies.iter().filter(|copy| copy.to() == block).count();
                    assert_eq!(self.pool.references(block) as usize, 1 + copies, "a write into a shared block");
                    self.slots[Self::at(block, slot)] = self.next_token;
                    sequence.tokens.push(self.next_token);
                    self.next_token += 1;
                }
            }
            Err(Error::OutOfBlocks { asked, free, total }) => {
                assert!(asked > free && free == before.2.free && total == before.2.total && asked == needed);
                let after = (sequence.table.blocks().to_vec(), sequence.table.positions(), self.pool.stats());
                assert_eq!(before, after, "a refusal changes nothing");
                // Make room, or the rest of the run is refusals.
                self.sequences.truncate(self.sequences.len() / 2);
                self.copy();
                self.refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn assert_holds(&mut self, every_token: bool) {
        let mut references = BTreeMap::<u32, u64>::new();
        let tables = self.sequences.iter().flat_map(|s| s.table.blocks().iter().copied());
        let copies = self.copies.iter().flat_map(|copy| [copy.from(), copy.to()]);
        for block in tables.chain(copies).chain(self.by_hand.iter().copied()) {
            *references.entry(block.0).or_default() += 1;
        }
        let stats = self.pool.stats();
        assert_eq!(stats.used, references.len());
        assert_eq!(stats.free, stats.total - stats.used);
        assert_eq!(stats.references, references.values().sum::<u64>());
        assert_eq!(stats.shared, references.values().filter(|&&n| n > 1).count());
        assert_eq!(stats.tables, self.sequences.len());
        let held = self.sequences.iter().map(|s| s.table.positions().len() as u64).sum::<u64>();
        let slots = self.sequences.iter().map(|s| (s.table.blocks().len() * BLOCK_SIZE) as u64).sum::<u64>();
        assert_eq!((stats.table_tokens, stats.table_slots), (held, slots));
        assert!(stats.used <= stats.peak_used);
        if !every_token {
            return;
        }
        for block in 0..stats.total as u32 {
            let expected = references.get(&block).copied().unwrap_or(0);
            assert_eq!(u64::from(self.pool.references(BlockId(block))), expected, "references of {block}");
        }
        self.copy();
        for Sequence { table, tokens } in &self.sequences {
            assert_eq!(table.num_tokens(), tokens.len());
            let held = table.positions();
            assert!(held.start == 0 || table.slot(held.start - 1).is_none());
            assert_eq!(table.slot(held.end), None);
            for position in held {
                let (block, slot) = table.slot(position).expect("held");
                assert_eq!(self.slots[Self::at(block, slot)], tokens[position], "token {position} of {table:?}");
            }
        }
    }
}

#[test]
fn every_sequence_finds_its_own_tokens_whatever_is_shared_and_released() {
    let mut model = Model::new(96);
    let mut random = Random(3);
    let (start, operations) = (Instant::now(), operations());
    let mut most = 0;
    for operation in 0..operations {
        let count = model.sequences.len();
        let index = random.below(count);
        match random.below(100) {
            0..5 if count < 24 => {
                let table = model.pool.table();
                model.sequences.push(Sequence { table, tokens: Vec::new() });
            }
            _ if count == 0 => {}
            5..50 => {
                let tokens = random.below(7);
                model.append(index, tokens);
                // Now and then several appends come before the copies are made.
                if random.below(4) != 0 {
                    model.copy();
                }
            }
            50..60 if count < 24 => {
                let Sequence { table, tokens } = &model.sequences[index];
                let fork = Sequence { table: table.fork().expect("few"), tokens: tokens.clone() };
                model.sequences.push(fork);
            }
            60..72 => {
                let Sequence { table, tokens } = &mut model.sequences[index];
                let kept = random.below(tokens.len() + 3);
                let held = table.positions();
                let allowed = held.start <= kept && kept <= held.end;
                assert_eq!(table.truncate(kept).is_ok(), allowed);
                tokens.truncate(if allowed { kept } else { usize::MAX });
            }
            72..84 => {
                let Sequence { table, tokens } = &mut model.sequences[index];
                let position = random.below(tokens.len() + 2);
                let first = table.first_block();
                match table.release_before(position) {
                    Ok(released) => {
                        assert_eq!(table.first_block(), first.max(position / BLOCK_SIZE));
                        assert_eq!(table.first_block() - first, released);
                        assert_eq!(table.release_before(position).ok(), Some(0), "nothing is released twice");
                    }
                    Err(_) => assert!(position > tokens.len()),
                }
            }
            84..90 => drop(model.sequences.swap_remove(index)),
            90..92 => {
                let lowest = (0..96).map(BlockId).find(|&b| model.pool.references(b) == 0);
                match (model.pool.allocate(), lowest) {
                    (Ok(block), Some(lowest)) => {
                        assert_eq!(block, lowest, "the lowest free block comes first");
                        model.by_hand.push(block);
                    }
                    (Err(Error::OutOfBlocks { asked: 1, free: 0, total: 96 }), None) => {}
                    other => panic!("{other:?}"),
                }
            }
            92..96 => {
                while let Some(block) = model.by_hand.pop() {
                    let last = model.pool.references(block) == 1;
                    assert_eq!(model.pool.release(block).ok(), Some(last));
                }
            }
            _ => {}
        }
        most = most.max(model.pool.stats().used);
        model.assert_holds(operation.is_multiple_of(8) || operation + 1 == operations);
    }
    println!(
        "pages: {operations} operations in {:.1} s: {} tokens, {} copies on write, {} refused, at most {most} of 96 blocks",
        start.elapsed().as_secs_f64(),
        model.next_token,
        model.copied,
        model.refused,
    );
    assert_eq!(most, 96, "the pool was never full: the test has lost its point");
    model.sequences.clear();
    model.copies.clear();
    model.by_hand.drain(..).for_each(|block| drop(model.pool.release(block)));
    assert_eq!(model.pool.stats().references, 0);
    assert_eq!(model.pool.stats().free, 96);
}

#[test]
fn threads_share_a_pool_and_a_block_has_one_writer() {
    use std::sync::atomic::{AtomicU64, Ordering};
    const BLOCKS: usize = 64;
    let pool = pool(BLOCKS);
    let slots: Vec<AtomicU64> = (0..BLOCKS * BLOCK_SIZE).map(|_| AtomicU64::new(0)).collect();
    let each = operations() / 4;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, slots) = (&pool, &slots);
            scope.spawn(move || {
                let at = |block: BlockId, slot| &slots[Model::at(block, slot)];
                let mut random = Random(thread);
                let mut sequences: Vec<Sequence> = Vec::new();
                for operation in 0..each {
                    let index = random.below(sequences.len());
                    if sequences.is_empty() {
                        sequences.push(Sequence { table: pool.table(), tokens: Vec::new() });
                    } else if random.below(8) == 0 && sequences.len() < 4 {
                        let Sequence { table, tokens } = &sequences[index];
                        let fork = Sequence { table: table.fork().expect("few"), tokens: tokens.clone() };
                        sequences.push(fork);
                    } else if sequences[index].tokens.len() > 24 {
                        sequences.swap_remove(index);
                    } else {
                        let Sequence { table, tokens } = &mut sequences[index];
                        let count = random.below(5);
                        let Ok(copy) = table.append(count) else {
                            sequences.swap_remove(index);
                            continue;
                        };
                        if let Some(copy) = copy {
                            for slot in 0..copy.tokens() {
                                let token = at(copy.from(), slot).load(Ordering::Relaxed);
                                at(copy.to(), slot).store(token, Ordering::Relaxed);
                            }
                        }
                        for i in 0..count {
                            let token = thread << 48 | (operation * 8 + i) as u64;
                            let (block, slot) = table.slot(tokens.len()).expect("just appended");
                            at(block, slot).store(token, Ordering::Relaxed);
                            tokens.push(token);
                        }
                        for (position, &token) in tokens.iter().enumerate() {
                            let (block, slot) = table.slot(position).expect("held");
                            assert_eq!(at(block, slot).load(Ordering::Relaxed), token);
                        }
                    }
                }
            });
        }
    });
    println!("pages, 4 threads: {} operations in {:.1} s", each * 4, start.elapsed().as_secs_f64());
    let stats = pool.stats();
    assert_eq!((stats.used, stats.references, stats.tables, stats.table_slots), (0, 0, 0, 0));
}

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
