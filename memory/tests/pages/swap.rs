//! Swaps between pools, feature by feature.

use sinew_memory::{BlockId, Error, PageConfig, PagePool, PrefixConfig};

use super::{config, pool, pool_with_prefixes};

#[test]
fn a_swap_keeps_both_sides_until_the_copies_were_made() {
    let (device, host) = (pool(3), pool(8));
    let mut table = device.table();
    table.append(10).expect("room");
    let swap = table.swap_to(&host).expect("room");
    assert_eq!(swap.copies(), [0, 1, 2].map(|block| (BlockId(block), BlockId(block))));
    assert_eq!((device.stats().free, device.stats().tables), (0, 0), "still to be read");
    assert_eq!((table.num_tokens(), table.blocks().len()), (10, 3));
    drop(table);
    assert_eq!(host.stats().used, 3, "still to be written");
    drop(swap);
    assert_eq!((device.stats().free, host.stats().free), (3, 8));
}

#[test]
fn a_table_goes_to_the_host_and_comes_back() {
    let (device, host) = (pool(4), pool(4));
    let mut table = device.table();
    table.append(14).expect("room");
    table.release_before(5).expect("held");
    let taken = host.allocate().expect("room");
    drop(table.swap_to(&host).expect("room"));
    assert_eq!(table.blocks(), [BlockId(1), BlockId(2), BlockId(3)]);
    assert_eq!((table.positions(), device.stats().free), (4..14, 4));
    assert_eq!((host.stats().table_tokens, host.stats().table_slots, device.stats().table_slots), (10, 12, 0));
    let front = device.allocate().expect("room");
    let swap = table.swap_to(&device).expect("room");
    assert!(
        table.append(1).expect_err("half-filled, still to be written, and all is taken").to_string().contains("0 of 4")
    );
    drop(swap);
    assert!(table.append(1).expect("the last block is its own").is_none());
    assert_eq!((table.first_block(), table.num_tokens(), host.stats().free), (1, 15, 3));
    host.release(taken).expect("taken above");
    device.release(front).expect("taken above");
}

#[test]
fn shared_blocks_stay_with_who_shares_them() {
    let (device, host) = (pool(4), pool(4));
    let mut first = device.table();
    first.append(6).expect("room");
    let second = first.fork().expect("few");
    drop(first.swap_to(&host).expect("room"));
    assert_eq!((device.stats().used, device.stats().shared, device.stats().tables), (2, 0, 1));
    assert_eq!((host.stats().used, second.blocks().len()), (2, 2));
}

#[test]
fn published_blocks_are_found_again_when_their_table_is_back() {
    let device = pool_with_prefixes(8, PrefixConfig::default().hash);
    let host = pool_with_prefixes(8, PrefixConfig::default().hash);
    let words = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut table = device.table();
    table.append(9).expect("room");
    assert_eq!(table.publish(0, &words).expect("whole tokens"), 8);
    let before = table.blocks().to_vec();
    drop(table.swap_to(&host).expect("room"));
    assert_eq!((device.stats().used, device.stats().cached), (0, 2));
    // The host's index is its own.
    assert_eq!(host.matching_tokens(0, &words).ok(), Some(0));
    assert_eq!(table.publish(0, &words).expect("whole tokens"), 8);
    let mut other = host.table();
    assert_eq!(other.lookup(0, &words).expect("empty"), 8);

    drop(table.swap_to(&device).expect("room"));
    assert_ne!(table.blocks()[..2], before[..2]);
    assert_eq!(table.publish(0, &words).expect("whole tokens"), 8);
    assert_eq!(table.blocks()[..2], before[..2]);
    assert_eq!((device.stats().used, device.stats().cached), (3, 0));
}

#[test]
fn what_the_other_pool_has_is_not_copied() {
    let device = pool_with_prefixes(8, PrefixConfig::default().hash);
    let host = pool(8);
    let words = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut table = device.table();
    table.append(9).expect("room");
    table.publish(0, &words).expect("whole tokens");
    let before = table.blocks().to_vec();
    drop(table.swap_to(&host).expect("room"));
    let on_host = (table.blocks().to_vec(), host.stats());
    let mut start = device.table();
    assert_eq!(start.lookup(0, &words).expect("empty"), 8);
    let (back, swap) = table.swapped(start).expect("room");
    assert_eq!(swap.copies(), [(on_host.0[2], back.blocks()[2])]);
    assert_eq!((back.num_tokens(), &back.blocks()[..2]), (9, &before[..2]));
    assert_eq!((device.stats().table_tokens, device.stats().table_slots), (9, 12));
    drop(swap);
    assert_eq!((table.blocks(), host.stats()), (&on_host.0[..], on_host.1));
    assert_eq!((device.stats().used, device.stats().cached), (3, 0));
    // Where the rest does not fit, or what is there is none of the table's.
    let mut taken = device.table();
    taken.append(20).expect("room");
    for tokens in [8, 4, 0] {
        let mut start = device.table();
        start.lookup(0, &words[..tokens]).expect("empty");
        let asked = 3 - tokens / 4;
        assert!(
            matches!(table.swapped(start), Err(Error::OutOfBlocks { asked: of, free: 0, total: 8 }) if of == asked)
        );
    }
    taken.clear();
    let mut longer = device.table();
    longer.append(12).expect("room");
    let mut part = device.table();
    part.append(3).expect("room");
    for start in [longer, part] {
        assert!(matches!(table.swapped(start), Err(Error::Invalid(_))));
    }
    drop(back);
    drop(taken);
    assert_eq!((device.stats().used, device.stats().references, device.stats().tables), (0, 0, 0));
}

#[test]
fn a_window_that_slid_here_and_there_goes_on_with_what_either_has() {
    let prefixes = PrefixConfig { remembered: 8, ..PrefixConfig::default() };
    let words: Vec<u32> = (0..18).collect();
    // Where the table on the host begins, what the device finds of how many tokens, and which blocks come from where.
    for (released, window, tokens, copied) in [
        (8, 5, 16, [2, 4].as_slice()),
        (4, 5, 16, &[1, 2, 4]),
        (12, 9, 16, &[4]),
        (12, 5, 12, &[3, 4]),
        (8, 9, 0, &[2, 3, 4]),
    ] {
        let device = PagePool::with_prefixes(config(12), prefixes).expect("a small pool");
        let host = pool(12);
        let mut table = device.table();
        table.append(18).expect("room");
        table.publish(0, &words).expect("whole tokens");
        table.release_before(released).expect("held");
        drop(table.swap_to(&host).expect("room"));
        let on_host = table.blocks().to_vec();
        let first = table.first_block();
        let mut start = device.table();
        assert_eq!(start.lookup_seen(0, &words[..tokens], window).expect("empty"), tokens);
        let (seen, found) = (start.first_block(), start.blocks().to_vec());
        let (back, swap) = table.swapped(start).expect("room");
        assert_eq!((back.first_block(), back.num_tokens(), back.blocks().len()), (first, 18, 5 - first));
        let expected: Vec<_> =
            copied.iter().map(|&block| (on_host[block - first], back.blocks()[block - first])).collect();
        assert_eq!(swap.copies(), expected, "{released} {window} {tokens}");
        for (block, found) in (seen..).zip(found).filter(|(block, _)| *block >= first) {
            assert_eq!(back.blocks()[block - first], found);
        }
        drop(swap);
        assert_eq!((device.stats().used, device.stats().table_tokens), (5 - first, 18 - 4 * first as u64));
        drop((back, table));
        assert_eq!((device.stats().used, device.stats().table_slots, host.stats().used), (0, 0, 0));
    }
}

#[test]
fn what_comes_before_what_was_found_is_published_anew() {
    let prefixes = PrefixConfig { remembered: 8, ..PrefixConfig::default() };
    let device = PagePool::with_prefixes(config(12), prefixes).expect("a small pool");
    let host = pool(12);
    let words: Vec<u32> = (0..18).collect();
    let mut table = device.table();
    table.append(18).expect("room");
    table.publish(0, &words).expect("whole tokens");
    let before = table.blocks().to_vec();
    table.release_before(4).expect("held");
    drop(table.swap_to(&host).expect("room"));
    let mut start = device.table();
    assert_eq!(start.lookup_seen(0, &words, 5).ok(), Some(16));
    // Of the two blocks before that, one is there still, and one remembered.
    assert_eq!((device.evict(2), device.stats().remembered), (2, 2));
    let (mut back, swap) = table.swapped(start).expect("room");
    assert_eq!((back.first_block(), back.blocks()[2], swap.copies().len()), (1, before[3], 3));
    drop(swap);
    let copied = back.blocks().to_vec();
    assert_eq!(back.publish(0, &words).ok(), Some(16));
    assert_eq!(back.blocks(), [before[1], copied[1], before[3], copied[3]]);
    assert_eq!((device.stats().remembered, device.stats().published, device.references(copied[0])), (1, 3, 0));
}

#[test]
fn a_swap_that_cannot_be_changes_nothing() {
    let (device, host) = (pool(4), pool(2));
    let mut table = device.table();
    table.append(12).expect("room");
    let before = (table.blocks().to_vec(), device.stats(), host.stats());
    assert!(matches!(table.swap_to(&host), Err(Error::OutOfBlocks { asked: 3, free: 2, total: 2 })));
    for other in [PageConfig { block_size: 8, ..config(8) }, PageConfig { block_bytes: 1, ..config(8) }] {
        let other = PagePool::new(other).expect("a small pool");
        assert!(matches!(table.swap_to(&other), Err(Error::Invalid(_))));
        assert_eq!(other.stats().free, 8);
    }
    assert_eq!((table.blocks().to_vec(), device.stats(), host.stats()), before);
}
