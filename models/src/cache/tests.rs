//! What a cache holds, byte by byte, and what is left where it is full.

use sinew_ops::Context;
use sinew_tensor::{DType, PagedLayout};

use super::*;

const BLOCK_SIZE: usize = 4;

/// Two layers that see all, and one with a window of 3 between them.
fn cache(ctx: &Context, dtype: DType, blocks: [usize; 2]) -> KvCache {
    let group = |window: Option<usize>| {
        let blocks = blocks[usize::from(window.is_some())];
        let layout = PagedLayout::new(blocks, 2, BLOCK_SIZE, 3, dtype).expect("a small cache");
        Ok(GroupShape { window, layout, is_old: false })
    };
    let shape = CacheShape::of_groups([None, Some(3), None].into_iter().map(group)).expect("two groups");
    KvCache::new(ctx, CacheShape { remembered: 8, ..shape }).expect("a small cache")
}

fn context() -> Context {
    Context::cpu().expect("the CPU is there")
}

#[test]
fn an_append_that_one_group_has_no_room_for_takes_nothing_of_the_others() {
    let ctx = context();
    let mut cache = cache(&ctx, DType::F32, [8, 1]);
    let mut sequence = cache.sequence(16);
    cache.append(&ctx, &mut sequence, 3).expect("there are blocks");
    let before = cache.stats();
    let error = cache.append(&ctx, &mut sequence, 5).expect_err("a window of one block");
    assert!(error.to_string().contains("blocks"), "{error}");
    assert_eq!((sequence.len(), cache.stats()), (3, PageStats { peak_used: cache.stats().peak_used, ..before }));
    cache.append(&ctx, &mut sequence, 1).expect("it goes on");
    assert_eq!((sequence.len(), cache.stats().used), (4, 2));
}

#[test]
fn all_that_a_cache_works_with_is_of_its_contexts_memory_and_planned() {
    let ctx = context();
    let mut cache = cache(&ctx, DType::F32, [8, 4]);
    let held = |ctx: &Context| ctx.memory_report().live.iter().find(|usage| usage.tag == TAG).map_or(0, |u| u.bytes);
    let mut first = cache.sequence(8);
    cache.append(&ctx, &mut first, 3).expect("there are blocks");
    let mut fork = cache.fork(&first).expect("few");
    // A block that is copied goes by a room of its own.
    let (planned, before) = (cache.shape().held_bytes(&**ctx.device(), 0), held(&ctx));
    let ctx = ctx.with_memory_limit(planned - 1);
    let error = cache.append(&ctx, &mut fork, 1).expect_err("no room").one_line();
    assert!(error.contains("out of memory") && error.contains(TAG), "{error}");
    assert_eq!((fork.len(), held(&ctx)), (3, before));
    let ctx = ctx.with_memory_limit(planned);
    cache.append(&ctx, &mut fork, 1).expect("room for a block");
    assert_eq!((fork.len(), held(&ctx)), (4, planned));
}

#[test]
fn a_prefix_is_known_as_far_as_all_groups_have_it() {
    let ctx = context();
    let mut cache = cache(&ctx, DType::F32, [8, 4]);
    let tokens: Vec<u32> = (0..17).collect();
    let mut first = cache.sequence(17);
    for step in tokens.chunks(BLOCK_SIZE) {
        cache.append(&ctx, &mut first, step.len()).expect("there are blocks");
        let run = first.len();
        cache.publish(&mut first, 7, &tokens[..run]).expect("its tokens");
    }
    assert_eq!([&tokens[..], &tokens[..16], &tokens[..15], &tokens[..3]].map(|t| cache.known(7, t)), [16, 16, 12, 0]);
    assert_eq!(cache.known(8, &tokens), 0);
    // Of the window, what the ends of shorter prefixes see is gone.
    drop(first);
    let mut other = cache.sequence(12);
    cache.append(&ctx, &mut other, 9).expect("what is left of the window's blocks, and two that are evicted");
    assert_eq!([&tokens[..], &tokens[..15]].map(|t| cache.known(7, t)), [16, 0]);
    let mut second = cache.sequence(17);
    assert_eq!(cache.start(&mut second, 7, &tokens).expect("empty"), 16);
    assert_eq!((second.blocks(0).count(), second.tables[1].positions()), (4, 12..16));
    assert!(cache.start(&mut second, 7, &tokens).is_err());
    drop((other, second));
    cache.forget_prefixes();
    assert_eq!((cache.known(7, &tokens), cache.stats().free), (0, 12));
}

/// Whether each element of a layer is NaN, by block and slot; those of scales count for their codes.
fn is_nan(layout: &PagedLayout, tensor: &Tensor, block: usize, slot: usize) -> bool {
    let bytes = tensor.buffer().as_slice::<u8>().expect("on the host");
    let f32_at = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let place = |head, d| layout.index(block, head, slot, d).expect("inside") * layout.dtype().size();
    (0..layout.num_kv_heads()).all(|head| match layout.scale_index(block, head, slot) {
        Some(scale) => f32_at(scale).is_nan(),
        None => (0..layout.head_dim()).all(|d| match layout.dtype() {
            DType::F32 => f32_at(place(head, d)).is_nan(),
            // The exponent is all ones, and there is more.
            DType::BF16 => bytes[place(head, d)..][..2] == [0xff; 2],
            dtype => panic!("{dtype}"),
        }),
    })
}

/// Writes zeros where tokens are, as a step does.
fn write(cache: &mut KvCache, sequence: &Sequence, positions: std::ops::Range<usize>) {
    let shape = cache.shape.clone();
    for LayerCache { group, cache: (keys, values), .. } in cache.layers_mut() {
        let layout = &shape.groups()[group].layout;
        for position in positions.clone().filter(|&position| sequence.slot(group, position).is_ok()) {
            let slot = sequence.slot(group, position).expect("held") as usize;
            for half in [&mut *keys, &mut *values] {
                let bytes = half.buffer_mut().expect("its own").as_mut_slice::<u8>().expect("on the host");
                for head in 0..layout.num_kv_heads() {
                    let at = |d| layout.index(slot / BLOCK_SIZE, head, slot % BLOCK_SIZE, d).expect("inside");
                    bytes[at(0) * layout.dtype().size()..(at(2) + 1) * layout.dtype().size()].fill(0);
                    let scale = layout.scale_index(slot / BLOCK_SIZE, head, slot % BLOCK_SIZE);
                    scale.into_iter().for_each(|scale| bytes[scale..scale + 4].fill(0));
                }
            }
        }
    }
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "nothing is poisoned in this build")]
fn where_no_token_is_a_cache_holds_nan() {
    let ctx = context();
    for dtype in [DType::F32, DType::BF16, DType::I8, DType::F8E4M3] {
        let mut cache = cache(&ctx, dtype, [12, 8]).with_host(32).expect("a small host");
        let assert_poisoned = |cache: &KvCache, sequences: &[&Sequence], when: &str| {
            for (group, (keys, values)) in cache.shape.layers.iter().copied().zip(&cache.layers) {
                let layout = &cache.shape.groups[group].layout;
                let held = |sequence: &&Sequence| {
                    let positions = sequence.tables[group].positions();
                    positions.map(|position| sequence.slot(group, position).expect("held") as usize).collect::<Vec<_>>()
                };
                let held: Vec<usize> = sequences.iter().flat_map(held).collect();
                for slot in 0..layout.num_blocks() * BLOCK_SIZE {
                    for half in [keys, values] {
                        let found = is_nan(layout, half, slot / BLOCK_SIZE, slot % BLOCK_SIZE);
                        assert_eq!(found, !held.contains(&slot), "{dtype} {when}: group {group}, slot {slot}");
                    }
                }
            }
        };
        assert_poisoned(&cache, &[], "at first");
        let mut first = cache.sequence(40);
        cache.append(&ctx, &mut first, 10).expect("there are blocks");
        write(&mut cache, &first, 0..10);
        assert_poisoned(&cache, &[&first], "behind tokens");
        // What the window leaves behind is free.
        cache.append(&ctx, &mut first, 1).expect("there are blocks");
        write(&mut cache, &first, 10..11);
        assert_poisoned(&cache, &[&first], "before what is seen");
        // A fork's block is copied with what the other wrote behind the tokens that they share.
        let mut fork = cache.fork(&first).expect("few");
        cache.append(&ctx, &mut first, 1).expect("there are blocks");
        write(&mut cache, &first, 11..12);
        first.truncate(11).expect("longer");
        cache.append(&ctx, &mut fork, 0).expect("nothing");
        cache.append(&ctx, &mut fork, 1).expect("there are blocks");
        write(&mut cache, &fork, 11..12);
        cache.append(&ctx, &mut first, 2).expect("there are blocks");
        write(&mut cache, &first, 11..13);
        assert_poisoned(&cache, &[&first, &fork], "behind forks");
        // There and back again, and away.
        cache.swap_out(&ctx, &mut first).expect("there is room");
        let start = cache.sequence(40);
        cache.swap_in(&ctx, &mut first, start).expect("there is room");
        drop(fork);
        cache.append(&ctx, &mut first, 1).expect("there are blocks");
        write(&mut cache, &first, 13..14);
        assert_poisoned(&cache, &[&first], "after a swap");
        drop(first);
        let mut last = cache.sequence(40);
        cache.append(&ctx, &mut last, 1).expect("there are blocks");
        write(&mut cache, &last, 0..1);
        assert_poisoned(&cache, &[&last], "where others have been");
    }
}
