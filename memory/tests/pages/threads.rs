//! Threads that share a pool and its prefixes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sinew_memory::{BlockId, BlockTable, PrefixConfig};

use super::common::{Random, operations};
use super::{BLOCK_SIZE, content, pool_with_prefixes};

const BLOCKS: usize = 48;
const SALT: u64 = 5;

struct Sequence {
    table: BlockTable,
    words: Vec<u32>,
    contents: Vec<u64>,
}

/// One thread's share: every token it sees through its tables is the one that belongs there.
fn work(mut random: Random, operations: usize, empty: impl Fn() -> BlockTable, slots: &[AtomicU64]) {
    let at = |block: BlockId, slot| &slots[block.0 as usize * BLOCK_SIZE + slot];
    let mut sequences: Vec<Sequence> = Vec::new();
    for _ in 0..operations {
        let index = random.below(sequences.len());
        if sequences.is_empty() || (random.below(8) == 0 && sequences.len() < 4) {
            let mut words: Vec<u32> = (0..16).map(|_| random.below(2) as u32).collect();
            let mut table = empty();
            words.truncate(table.lookup(SALT, &words).expect("an empty table"));
            sequences.push(Sequence { table, contents: super::contents(SALT, &words), words });
        } else if random.below(8) == 0 && sequences.len() < 4 {
            let Sequence { table, words, contents } = &sequences[index];
            let table = table.fork().expect("few");
            let fork = Sequence { table, words: words.clone(), contents: contents.clone() };
            sequences.push(fork);
        } else if sequences[index].words.len() > 24 {
            sequences.swap_remove(index);
        } else {
            let Sequence { table, words, contents } = &mut sequences[index];
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
            for _ in 0..count {
                let word = random.below(2) as u32;
                let value = content(contents.last().copied().unwrap_or(SALT), word);
                let (block, slot) = table.slot(words.len()).expect("just appended");
                at(block, slot).store(value, Ordering::Relaxed);
                words.push(word);
                contents.push(value);
            }
            if random.below(2) == 0 {
                table.publish(SALT, words).expect("whole tokens");
            }
        }
        for Sequence { table, contents, .. } in &sequences {
            for (position, &value) in contents.iter().enumerate() {
                let (block, slot) = table.slot(position).expect("held");
                assert_eq!(at(block, slot).load(Ordering::Relaxed), value, "token {position} of {table:?}");
            }
        }
    }
}

#[test]
fn threads_share_a_pool_and_its_prefixes_and_a_block_has_one_writer() {
    let pool = pool_with_prefixes(BLOCKS, PrefixConfig::default().hash);
    let slots: Vec<AtomicU64> = (0..BLOCKS * BLOCK_SIZE).map(|_| AtomicU64::new(0)).collect();
    let each = operations(100_000) / 8;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, slots) = (&pool, &slots);
            scope.spawn(move || work(Random(thread), each, || pool.table(), slots));
        }
    });
    println!("pages, 4 threads: {} operations in {:.1} s", each * 4, start.elapsed().as_secs_f64());
    let stats = pool.stats();
    assert!(stats.hits > 0 && stats.evictions > 0, "the test has lost its point");
    assert_eq!((stats.used, stats.references, stats.tables, stats.table_slots), (0, 0, 0, 0));
    assert_eq!(stats.free + stats.cached, BLOCKS);
}
