//! Page pools, block tables, the prefix index and swaps: each feature by itself, and random operations on all of them
//! against a model.

#[path = "../common/mod.rs"]
mod common;
mod model;
mod operations;
mod prefix;
mod swap;
mod table;
mod threads;

use sinew_memory::{PageConfig, PagePool, PrefixConfig, PrefixHash};

const BLOCK_SIZE: usize = 4;

fn config(num_blocks: usize) -> PageConfig {
    PageConfig { num_blocks, block_size: BLOCK_SIZE, block_bytes: 1024 }
}

fn pool(num_blocks: usize) -> PagePool {
    PagePool::new(config(num_blocks)).expect("a small pool")
}

fn pool_with_prefixes(num_blocks: usize, hash: PrefixHash) -> PagePool {
    let prefixes = PrefixConfig { hash, ..PrefixConfig::default() };
    PagePool::with_prefixes(config(num_blocks), prefixes).expect("a small pool")
}

/// What a token's slot must hold: it depends on all words up to it, as keys and values do.
fn content(before: u64, word: u32) -> u64 {
    common::Random(before ^ u64::from(word + 1).wrapping_mul(0xd134_2543_de82_ef95)).next()
}

/// What the slots of a sequence must hold.
fn contents(salt: u64, words: &[u32]) -> Vec<u64> {
    words
        .iter()
        .scan(salt, |before, &word| {
            *before = content(*before, word);
            Some(*before)
        })
        .collect()
}
