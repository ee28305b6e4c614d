//! The prefix index, feature by feature.

use sinew_memory::{BlockId, BlockTable, Error, PageConfig, PagePool, PrefixConfig, PrefixHash};

use super::{BLOCK_SIZE, config, pool, pool_with_prefixes};

/// Under which all blocks collide.
const CONSTANT: PrefixHash = |_, _| 7;
/// Which reaches from the token behind a block to the start of that.
const WINDOW: usize = BLOCK_SIZE + 1;

fn indexed(num_blocks: usize) -> PagePool {
    pool_with_prefixes(num_blocks, PrefixConfig::default().hash)
}

fn remembering(num_blocks: usize, remembered: usize, hash: PrefixHash) -> PagePool {
    let prefixes = PrefixConfig { remembered, hash, ..PrefixConfig::default() };
    PagePool::with_prefixes(config(num_blocks), prefixes).expect("a small pool")
}

fn found(pool: &PagePool, salt: u64, words: &[u32]) -> Vec<BlockId> {
    let mut table = pool.table();
    table.lookup(salt, words).expect("an empty table");
    table.blocks().to_vec()
}

/// A table of these words, published.
fn published(pool: &PagePool, salt: u64, words: &[u32]) -> BlockTable {
    let mut table = pool.table();
    table.append(words.len()).expect("room");
    assert_eq!(table.publish(salt, words).expect("whole tokens"), words.len() / BLOCK_SIZE * BLOCK_SIZE);
    table
}

/// How much a sequence of these words finds where a window sees `WINDOW` positions. It runs the rest block by block, and
/// ends.
fn run(pool: &PagePool, words: &[u32]) -> usize {
    let mut table = pool.table();
    let found = table.lookup_seen(0, words, WINDOW).expect("an empty table");
    for before in (found..words.len()).step_by(BLOCK_SIZE) {
        table.release_before((before + 1).saturating_sub(WINDOW)).expect("held");
        table.append(BLOCK_SIZE).expect("room");
        table.publish(0, words).expect("whole tokens");
    }
    found
}

/// What is evicted, in order, and is taken.
fn taken<const N: usize>(pool: &PagePool) -> [BlockId; N] {
    [(); N].map(|()| pool.allocate().expect("cached"))
}

/// Words of blocks whose four words are the same.
fn words<const N: usize>(blocks: [u32; N]) -> Vec<u32> {
    blocks.iter().flat_map(|&word| [word; BLOCK_SIZE]).collect()
}

#[test]
fn a_collision_returns_nothing_of_another_sequence() {
    for hash in [CONSTANT, PrefixConfig::default().hash] {
        let pool = pool_with_prefixes(16, hash);
        let first = published(&pool, 1, &words([1, 2, 3]));
        let second = published(&pool, 1, &words([4, 2]));
        assert_ne!(first.blocks()[1], second.blocks()[1], "what comes before is compared");
        assert_eq!(found(&pool, 1, &words([1, 2, 3])), first.blocks());
        assert_eq!(found(&pool, 1, &words([4, 2, 3])), second.blocks());
        assert_eq!(found(&pool, 2, &words([1, 2, 3])), [], "the salt is compared");
        assert_eq!(found(&pool, 1, &words([2])), [], "a block in the middle is none at the start");
        assert_eq!(found(&pool, 1, &[1, 1, 1, 9, 2, 2, 2, 2]), [], "all words are compared");
        assert_eq!(found(&pool, 1, &[1, 1, 1, 1, 2, 2, 2, 9]), first.blocks()[..1]);
        assert_eq!(found(&pool, 1, &[1, 1, 1, 1, 2, 2, 2]), first.blocks()[..1], "only full blocks");
    }
}

#[test]
fn equal_blocks_are_held_once() {
    let pool = indexed(8);
    let first = published(&pool, 0, &words([1, 2]));
    let mut second = pool.table();
    second.append(9).expect("room");
    let own = second.blocks().to_vec();
    let mut fork = second.fork().expect("few");
    assert_eq!(second.publish(0, &words([1, 3])).expect("whole tokens"), 8);
    assert_eq!(second.blocks(), [first.blocks()[0], own[1], own[2]]);
    assert_eq!((pool.references(own[0]), pool.references(first.blocks()[0])), (1, 2), "the fork has its own still");
    assert_eq!(fork.publish(0, &words([1, 3])).expect("whole tokens"), 8);
    assert_eq!(fork.blocks(), second.blocks());
    assert_eq!(pool.references(own[0]), 0);
    assert_eq!(pool.stats().used, 4);
}

#[test]
fn the_least_recently_used_goes_first_and_of_a_chain_its_end() {
    let pool = indexed(6);
    let first = published(&pool, 0, &words([1, 2, 3]));
    let second = published(&pool, 0, &words([4, 5]));
    let (a, b) = (first.blocks().to_vec(), second.blocks().to_vec());
    drop(first);
    drop(second);
    let stats = pool.stats();
    assert_eq!((stats.used, stats.cached, stats.free, stats.available()), (0, 5, 1, 6));
    assert_eq!(pool.allocate().ok(), Some(BlockId(5)), "a free one first");
    // The start of the first chain is used anew, its end is not.
    assert_eq!(found(&pool, 0, &words([1])), a[..1]);
    let expected = [a[2], a[1], b[1], b[0], a[0]];
    assert_eq!([(); 5].map(|()| pool.allocate().expect("cached")), expected);
    assert_eq!(pool.stats().evictions, 5);
    assert!(matches!(pool.allocate(), Err(Error::OutOfBlocks { asked: 1, free: 0, total: 6 })));
    assert_eq!(pool.stats().published, 0);
}

#[test]
fn what_a_table_uses_is_not_evicted() {
    let pool = indexed(4);
    let first = published(&pool, 0, &words([1, 2]));
    drop(published(&pool, 0, &words([1, 3])));
    assert_eq!(pool.stats().cached, 1);
    let mut other = pool.table();
    assert!(matches!(other.append(9), Err(Error::OutOfBlocks { asked: 3, free: 2, total: 4 })));
    assert_eq!((pool.stats().cached, pool.stats().evictions), (1, 0), "a refusal evicts nothing");
    other.append(8).expect("one free, one cached");
    assert_eq!(found(&pool, 0, &words([1, 2])), first.blocks());
    assert_eq!(pool.stats().evictions, 1);
}

#[test]
fn a_published_block_is_copied_before_it_is_written_again() {
    let pool = indexed(4);
    let mut table = published(&pool, 0, &words([1, 2]));
    let before = table.blocks().to_vec();
    table.truncate(6).expect("held");
    assert_eq!(table.blocks_needed(1), 1);
    let copy = table.append(2).expect("room").expect("published");
    assert_eq!((copy.from(), copy.tokens()), (before[1], 2));
    drop(copy);
    let other = [1, 1, 1, 1, 2, 2, 9, 9];
    assert_eq!(table.publish(0, &other).expect("whole tokens"), 8);
    assert_eq!(found(&pool, 0, &words([1, 2])), before);
    assert_eq!(found(&pool, 0, &other), table.blocks());
}

#[test]
fn a_sliding_table_goes_on_publishing_behind_what_it_released() {
    let pool = indexed(4);
    let all = words([1, 2, 3, 4]);
    let mut table = published(&pool, 0, &all[..8]);
    let front = table.blocks()[0];
    table.release_before(4).expect("held");
    assert_eq!((pool.references(front), pool.stats().cached), (0, 1));
    table.append(4).expect("room");
    assert_eq!(table.publish(0, &all).expect("whole tokens"), 12);
    let mut other = pool.table();
    assert_eq!(other.lookup(0, &all).expect("empty"), 12);
    assert_eq!(other.release_before(8).ok(), Some(2), "what the window does not reach");
    drop(other);

    // Once its front is evicted, the rest cannot be found, and the table has nothing to publish behind.
    table.append(4).expect("room");
    assert_eq!(pool.allocate().ok(), Some(front));
    assert_eq!(pool.stats().published, 0);
    assert_eq!((table.publish(0, &all).expect("whole tokens"), table.blocks().len()), (0, 3));
    // Somebody else brings the front back.
    table.truncate(12).expect("held");
    pool.release(front).expect("taken above");
    let again = published(&pool, 0, &all[..4]);
    assert_eq!(table.publish(0, &all).expect("whole tokens"), 12);
    assert_eq!(found(&pool, 0, &all)[1..], *table.blocks());
    drop(again);
}

#[test]
fn a_block_published_anew_is_not_taken_for_what_it_was() {
    let pool = indexed(3);
    let mut table = published(&pool, 0, &words([1, 2]));
    table.release_before(8).expect("held");
    assert_eq!(table.blocks(), []);
    // Both blocks go, and come back as the same words behind others.
    assert_eq!(pool.evict(9), 2);
    let other = published(&pool, 0, &words([3, 2]));
    assert_eq!(other.blocks(), [BlockId(0), BlockId(1)]);
    table.append(4).expect("room");
    assert_eq!(table.publish(0, &words([1, 2, 4])).expect("whole tokens"), 0);
    assert_eq!(found(&pool, 0, &words([3, 2, 4])), other.blocks());
}

#[test]
fn a_table_does_not_go_on_behind_what_others_made_of_its_blocks() {
    let pool = indexed(4);
    let mut table = published(&pool, 0, &words([1, 2, 3]));
    let mut fork = table.fork().expect("few");
    pool.clear_prefixes();
    // The fork says that the first block has other words.
    assert_eq!(fork.publish(0, &words([9, 2, 3])).expect("whole tokens"), 12);
    table.truncate(8).expect("held");
    table.append(4).expect("room");
    assert_eq!(table.publish(0, &words([1, 2, 4])).expect("whole tokens"), 0);
    assert_eq!(found(&pool, 0, &words([9, 2, 4])), fork.blocks()[..2]);
}

#[test]
fn a_block_keeps_the_words_it_was_published_with() {
    let pool = indexed(4);
    let mut table = published(&pool, 1, &words([1, 2]));
    assert_eq!(table.publish(2, &words([1, 2])).expect("whole tokens"), 0);
    assert_eq!(table.publish(1, &words([1, 3])).expect("whole tokens"), 4);
    assert_eq!(found(&pool, 2, &words([1])), []);
    assert_eq!(found(&pool, 1, &words([1, 3])), table.blocks()[..1]);
    assert_eq!(found(&pool, 1, &words([1, 2])), table.blocks());
}

#[test]
fn a_window_finds_a_prefix_of_which_it_sees_the_end_and_nothing_of_another() {
    for hash in [CONSTANT, PrefixConfig::default().hash] {
        let pool = remembering(6, 8, hash);
        let all = words([1, 2, 3, 4, 5]);
        let mut table = published(&pool, 1, &all[..12]);
        table.release_before(8).expect("held");
        // The first blocks go, and the table goes on behind them.
        assert_eq!((pool.evict(2), pool.stats().remembered, pool.stats().published), (2, 2, 1));
        table.append(8).expect("room");
        assert_eq!(table.publish(1, &all).expect("whole tokens"), 20);
        let mut other = pool.table();
        for (window, tokens, first) in [(1, 20, 5), (2, 20, 4), (5, 20, 4), (6, 20, 3), (12, 20, 2), (13, 20, 2)] {
            assert_eq!(other.lookup_seen(1, &all, window).expect("empty"), tokens, "a window of {window}");
            assert_eq!((other.first_block(), other.blocks()), (first, &table.blocks()[first - 2..]));
            other.clear();
        }
        // What it would see is gone.
        assert_eq!((other.lookup_seen(1, &all, 14).expect("empty"), other.first_block()), (0, 0));
        assert_eq!(pool.matching_tokens(1, &all).ok(), Some(0));
        // In the middle of the prefix as well as at its end.
        assert_eq!(pool.matching_seen(1, &words([1, 2, 3, 9]), 5).ok(), Some(12));
        for (salt, words) in [(2, words([1, 2, 3])), (1, words([9, 2, 3])), (1, words([1, 9, 3])), (1, words([3]))] {
            assert_eq!(pool.matching_seen(salt, &words, 5).ok(), Some(0), "{salt} {words:?}");
        }
        let stats = pool.stats();
        assert_eq!((stats.hits, stats.misses), (30, 5));
    }
}

#[test]
fn a_chain_goes_on_behind_what_was_released_before_it_was_published() {
    let pool = remembering(4, 2, PrefixConfig::default().hash);
    let all = words([1, 2, 3]);
    let mut table = pool.table();
    table.append(12).expect("room");
    table.release_before(8).expect("held");
    assert_eq!(table.publish(0, &all).expect("whole tokens"), 12);
    assert_eq!((pool.stats().remembered, pool.matching_seen(0, &all, 5).ok()), (2, Some(12)));
    // Somebody who has the first block brings it back.
    let first = published(&pool, 0, &all[..4]);
    assert_eq!(first.blocks(), [BlockId(0)]);
    assert_eq!((pool.stats().remembered, pool.stats().published), (1, 2));
    assert_eq!(found(&pool, 0, &all), first.blocks());
    // One block more than may be remembered, and nothing behind it: nothing is left of what was begun.
    let mut long = pool.table();
    long.append(8).expect("room");
    long.release_before(8).expect("held");
    assert_eq!(long.publish(0, &words([7, 8])).expect("whole tokens"), 0);
    assert_eq!(pool.stats().remembered, 1);
    drop((table, first));
    // A chain's end takes with it what is remembered before it, unless another chain needs that.
    assert_eq!((pool.evict(9), pool.stats().remembered, pool.stats().published), (2, 0, 0));
}

#[test]
fn where_no_more_may_be_remembered_an_eviction_cuts_the_chain() {
    let pool = remembering(4, 1, PrefixConfig::default().hash);
    let mut table = published(&pool, 0, &words([1, 2, 3]));
    table.release_before(8).expect("held");
    assert_eq!((pool.evict(1), pool.stats().remembered), (1, 1));
    assert_eq!(pool.matching_seen(0, &words([1, 2, 3]), 2).ok(), Some(12));
    assert_eq!((pool.evict(1), pool.stats().remembered, pool.stats().published), (1, 0, 0));
    assert_eq!(pool.matching_seen(0, &words([1, 2, 3]), 2).ok(), Some(0));
    assert_eq!((table.positions(), pool.stats().used), (8..12, 1));
}

#[test]
fn of_prefixes_that_come_in_turn_the_third_of_each_finds_what_the_first_two_share() {
    for hash in [CONSTANT, PrefixConfig::default().hash] {
        let pool = remembering(20, 400, hash);
        let mut tails = 100..;
        let mut request = |prefix: u32| {
            let (prefix, tail) = ((0..12).map(|at| 20 * prefix + at), tails.by_ref().take(8));
            let blocks: Vec<u32> = prefix.chain(tail).collect();
            run(&pool, &blocks.iter().flat_map(|&word| [word; BLOCK_SIZE]).collect::<Vec<_>>())
        };
        for found in [0, 0, 48, 48, 48] {
            assert_eq!([0, 1, 2, 3].map(&mut request), [found; 4]);
        }
        // What passes through makes no difference.
        let long: Vec<u32> = (1000..1400).collect();
        assert_eq!((run(&pool, &long), run(&pool, &long[200..])), (0, 0));
        assert_eq!([0, 1, 2, 3].map(&mut request), [48; 4]);
        let stats = pool.stats();
        assert!(stats.evictions > 400 && (stats.used, stats.table_slots) == (0, 0));
    }
}

#[test]
fn what_windows_left_behind_goes_before_all_else_in_the_order_in_which_they_did() {
    let pool = remembering(8, 8, PrefixConfig::default().hash);
    let ended = published(&pool, 0, &words([1, 2]));
    let mut sliding = published(&pool, 0, &words([3, 4, 5]));
    let mut other = published(&pool, 0, &words([6, 7, 8]));
    let [a, b, c] = [&ended, &sliding, &other].map(|table| table.blocks().to_vec());
    let fork = other.fork().expect("few");
    drop(ended);
    other.release_before(4).expect("held");
    sliding.release_before(8).expect("held");
    // The last reference counts, however others were released.
    drop(fork);
    other.release_before(8).expect("held");
    drop(sliding);
    assert_eq!(taken(&pool), [b[0], b[1], c[1], a[1], a[0], c[0], b[2]]);
    assert_eq!(pool.stats().published, 1, "the last of what is still held");
}

#[test]
fn the_end_of_a_chain_stays_until_its_turn_comes_also_where_a_window_has_left_it_behind() {
    let pool = remembering(6, 8, PrefixConfig::default().hash);
    let mut sliding = published(&pool, 0, &words([1, 2]));
    let ended = published(&pool, 0, &words([3]));
    let (a, b) = (sliding.blocks().to_vec(), ended.blocks().to_vec());
    sliding.release_before(8).expect("held");
    drop(ended);
    // What is run behind it makes it one of those that go first, and it is none again when that is gone.
    let mut longer = published(&pool, 0, &words([1, 2, 4]));
    assert_eq!(longer.blocks()[..2], a[..]);
    let end = longer.blocks()[2];
    longer.release_before(12).expect("held");
    assert_eq!(taken(&pool), [3, 4].map(BlockId), "free ones first");
    assert_eq!(taken(&pool), [a[0], a[1], b[0]]);
    assert_eq!((pool.stats().remembered, pool.matching_seen(0, &words([1, 2, 4]), WINDOW).ok()), (2, Some(12)));
    assert_eq!(taken(&pool), [end]);
    assert_eq!((pool.stats().published, pool.stats().remembered), (0, 0));
}

#[test]
fn what_was_found_is_kept_when_it_is_left_behind() {
    let pool = remembering(7, 8, PrefixConfig::default().hash);
    let all = words([1, 2, 3]);
    let first = published(&pool, 0, &all);
    let ended = published(&pool, 0, &words([4]));
    let [a, b] = [&first, &ended].map(|table| table.blocks().to_vec());
    drop((first, ended));
    // Nothing of another salt, what a window sees, and nothing beyond a limit.
    assert_eq!(pool.table().lookup_seen(1, &all, WINDOW).ok(), Some(0));
    let mut table = pool.table();
    assert_eq!(table.lookup_within(0, &all, WINDOW, 8).ok(), Some(8));
    assert_eq!(table.blocks(), [a[1]]);
    table.release_before(8).expect("held");
    let mut again = published(&pool, 0, &all);
    assert_eq!(again.blocks(), a);
    again.release_before(12).expect("held");
    assert_eq!(taken(&pool), [4, 5, 6].map(BlockId), "free ones first");
    assert_eq!(taken(&pool), [a[0], b[0], a[1], a[2]]);
}

#[test]
fn what_is_known_and_not_found_is_kept_once_it_is_back() {
    for hash in [CONSTANT, PrefixConfig::default().hash] {
        let pool = remembering(6, 8, hash);
        let all = words([1, 2, 3, 4]);
        drop(published(&pool, 0, &words([9])));
        let mut first = published(&pool, 0, &all);
        let a = first.blocks().to_vec();
        first.release_before(12).expect("held");
        assert_eq!((pool.evict(2), pool.stats().remembered), (2, 2));
        // Of the two blocks before the fourth that a window sees, one is there, and goes no sooner than others now.
        assert_eq!(pool.matching_seen(0, &all[..12], 2 * BLOCK_SIZE).ok(), Some(0));
        assert_eq!((pool.evict(1), pool.matching_seen(0, &words([9]), WINDOW).ok()), (1, Some(0)));
        assert_eq!((pool.evict(1), pool.stats().remembered), (1, 3));
        // Somebody runs all three again, and leaves them behind; what was never missed goes first.
        let mut again = published(&pool, 0, &all[..12]);
        let mut passing = published(&pool, 0, &words([8, 10]));
        let (b, c) = (again.blocks().to_vec(), passing.blocks().to_vec());
        again.release_before(12).expect("held");
        passing.release_before(4).expect("held");
        drop(first);
        assert_eq!(taken(&pool), [b[0], c[0], b[1], b[2], a[3]]);
    }
}

#[test]
fn where_nothing_is_remembered_the_ends_of_chains_go_before_what_windows_left_behind_of_them() {
    for is_found in [false, true] {
        let pool = indexed(6);
        let ended = published(&pool, 0, &words([1, 2]));
        let all = words([3, 4, 5, 6]);
        let mut sliding = published(&pool, 0, &all);
        let (a, b) = (ended.blocks().to_vec(), sliding.blocks().to_vec());
        drop(ended);
        sliding.release_before(12).expect("held");
        sliding.clear();
        // The end keeps what it continues, until it goes itself or is in use.
        if is_found {
            assert_eq!(sliding.lookup_seen(0, &all, WINDOW).ok(), Some(16));
            assert_eq!(taken(&pool), [b[2], b[1], b[0], a[1], a[0]]);
        } else {
            assert_eq!(taken(&pool), [a[1], a[0], b[3], b[2], b[1], b[0]]);
        }
        assert_eq!((pool.stats().published, pool.stats().cached), (0, 0));
    }
}

#[test]
fn where_no_more_may_be_remembered_the_oldest_ends_make_room_for_what_is_run() {
    let pool = remembering(20, 80, PrefixConfig::default().hash);
    for pair in 0..10 {
        let two = [0, 1].map(|at| (1000 * (2 * pair + at)..).take(140).collect::<Vec<u32>>());
        assert_eq!(two.each_ref().map(|all| run(&pool, &all[..120])), [0, 0], "pair {pair}");
        assert_eq!(two.each_ref().map(|all| run(&pool, all)), [120, 120], "pair {pair}");
    }
}

#[test]
fn a_token_may_have_several_words() {
    let prefixes = PrefixConfig { words_per_token: 2, ..PrefixConfig::default() };
    let pool = PagePool::with_prefixes(config(4), prefixes).expect("a small pool");
    let mut table = pool.table();
    table.append(4).expect("room");
    let tokens = [5, 0, 5, 1, 5, 2, 5, 3];
    assert_eq!(table.publish(0, &tokens).expect("whole tokens"), 4);
    assert_eq!(pool.matching_tokens(0, &tokens).ok(), Some(4));
    assert_eq!(pool.matching_tokens(0, &[5, 0, 5, 1, 5, 2, 5, 4]).ok(), Some(0));
    assert!(matches!(pool.matching_tokens(0, &[5, 0, 5]), Err(Error::Invalid(_))));
    for (limit, found) in [(3, 0), (4, 4), (5, 4), (usize::MAX, 4)] {
        let within = pool.table().lookup_within(0, &tokens, usize::MAX, limit);
        assert_eq!(within.ok(), Some(found), "of {limit} tokens");
    }
}

#[test]
fn hits_and_misses_are_counted_in_full_blocks_that_were_asked_for() {
    let pool = indexed(8);
    let table = published(&pool, 0, &words([1, 2]));
    assert_eq!(pool.stats().hit_rate(), 0.0);
    assert_eq!(pool.matching_tokens(0, &words([1, 2])).ok(), Some(8), "which counts as nothing");
    found(&pool, 0, &words([1, 2, 3, 4]));
    found(&pool, 0, &[5, 5, 5, 5, 5, 5]);
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_rate()), (2, 3, 0.4));
    assert_eq!((stats.published, stats.cached, stats.used), (2, 0, 2));
    // Of what another table found less of, the rest counts as missed.
    let mut other = pool.table();
    assert_eq!(other.lookup_within(0, &words([1, 2, 3]), usize::MAX, 4).ok(), Some(4));
    assert_eq!((pool.stats().hits, pool.stats().misses), (3, 5));
    drop((table, other));
    assert_eq!((pool.stats().published, pool.stats().cached, pool.stats().used), (2, 2, 0));
}

#[test]
fn evicted_and_cleared_blocks_are_free() {
    let pool = indexed(8);
    drop(published(&pool, 0, &words([1, 2, 3])));
    let used = published(&pool, 0, &words([4]));
    assert_eq!((pool.evict(0), pool.evict(2), pool.free_blocks(), pool.available_blocks()), (0, 2, 6, 7));
    assert_eq!(found(&pool, 0, &words([1, 2])).len(), 1);
    pool.clear_prefixes();
    assert_eq!((pool.free_blocks(), pool.stats().published, pool.evict(1)), (7, 0, 0));
    assert_eq!(pool.references(used.blocks()[0]), 1);
    drop(used);
    assert_eq!(pool.free_blocks(), 8);
}

#[test]
fn misuse_is_an_error_that_changes_nothing() {
    let plain = pool(4);
    let mut table = plain.table();
    assert!(matches!(table.lookup(0, &[1]), Err(Error::Invalid(_))));
    table.append(4).expect("room");
    assert!(matches!(table.publish(0, &words([1])), Err(Error::Invalid(_))));
    assert!(matches!(plain.matching_tokens(0, &[1]), Err(Error::Invalid(_))));
    assert_eq!(plain.evict(1), 0);

    let pool = indexed(4);
    let mut table = published(&pool, 0, &words([1]));
    let before = (pool.stats(), table.blocks().to_vec());
    assert!(matches!(table.lookup(0, &words([1])), Err(Error::Invalid(_))), "the table has tokens");
    assert_eq!((pool.stats(), table.blocks().to_vec()), before);
    drop(table);
    assert!(matches!(pool.retain(before.1[0]), Err(Error::Invalid(_))), "nothing refers to a cached block");
    assert!(matches!(pool.release(before.1[0]), Err(Error::Invalid(_))));

    let with = |num_blocks, words_per_token| {
        let config = PageConfig { num_blocks, block_size: 1 << 20, block_bytes: 1 };
        PagePool::with_prefixes(config, PrefixConfig { words_per_token, ..PrefixConfig::default() })
    };
    for (num_blocks, words_per_token) in [(1, 0), (1, usize::MAX), (1 << 30, 1 << 40), (1 << 20, 1 << 20)] {
        assert!(matches!(with(num_blocks, words_per_token), Err(Error::Invalid(_))), "{words_per_token} words");
    }
    assert!(with(0, 1).is_ok());
}
