//! The arena against a list of live ranges and a stack of scopes.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use common::{Lagging, LaggingStream, Random, assert_filled, fill, operations};
use proptest::prelude::*;
use sinew_memory::{Arena, ArenaPlan, ArenaScope, Buffer, Cpu, Device, Error, Pool, PoolConfig, Stream};

fn address(buffer: &Buffer) -> usize {
    buffer.host_ptr().expect("a host buffer").as_ptr() as usize
}

#[test]
fn live_buffers_are_never_overwritten_in_whatever_order_scopes_and_buffers_end() {
    let device = Lagging::new(usize::MAX);
    let as_device: Arc<dyn Device> = device.clone();
    let arena = Arena::planned(&as_device, 64 << 10).expect("memory");
    let stream = LaggingStream::new(device.clone());
    let as_stream: Arc<dyn Stream> = stream.clone();
    let mut random = Random(2);
    let mut scopes: Vec<ArenaScope<'_>> = Vec::new();
    let mut live: Vec<(Buffer, u64)> = Vec::new();
    let mut lagging: Vec<(usize, usize)> = Vec::new();
    let (mut served, mut refused, mut waited) = (0, 0, 0);
    let (start, operations) = (Instant::now(), operations(10_000));
    for operation in 0..operations {
        match random.below(20) {
            0..7 => {
                let bytes = random.size(13);
                match arena.uninitialised(bytes) {
                    Ok(mut buffer) => {
                        let (first, end) = (address(&buffer), address(&buffer) + bytes);
                        assert!(first.is_multiple_of(arena.alignment()));
                        for (other, _) in &live {
                            let at = address(other);
                            assert!(end <= at || at + other.len() <= first, "overlaps a live buffer");
                        }
                        if stream.waits.swap(0, Ordering::SeqCst) > 0 {
                            // Room was made by waiting: in a stream, what came before is then done too.
                            stream.finish();
                            lagging.clear();
                            waited += 1;
                        }
                        for &(a, b) in &lagging {
                            assert!(end <= a || b <= first, "overlaps bytes that a stream still uses");
                        }
                        fill(&mut buffer, operation as u64);
                        live.push((buffer, operation as u64));
                        served += 1;
                    }
                    Err(Error::OutOfMemory { fits, .. }) => {
                        assert!(fits < bytes);
                        drop(arena.uninitialised(fits).expect("what would fit"));
                        refused += 1;
                        scopes.clear();
                        live.drain(..).for_each(|(buffer, seed)| assert_filled(&buffer, seed));
                        stream.finish();
                        stream.waits.store(0, Ordering::SeqCst);
                        lagging.clear();
                        assert_eq!(arena.stats().used, 0, "everything is gone");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            7..14 if !live.is_empty() => {
                let (buffer, seed) = live.swap_remove(random.below(live.len()));
                assert_filled(&buffer, seed);
                if random.below(8) == 0 {
                    buffer.record_use(&as_stream);
                    lagging.push((address(&buffer), address(&buffer) + buffer.len()));
                }
            }
            14..16 => scopes.push(arena.enter()),
            // Any scope, not only the innermost.
            16..19 if !scopes.is_empty() => drop(scopes.swap_remove(random.below(scopes.len()))),
            19 => {
                stream.finish();
                lagging.clear();
            }
            _ => {}
        }
        let stats = arena.stats();
        assert_eq!(stats.live_buffers, live.len() + lagging.len());
        let bytes =
            live.iter().map(|(b, _)| b.len()).sum::<usize>() + lagging.iter().map(|(a, b)| b - a).sum::<usize>();
        assert_eq!(stats.live_bytes, bytes);
        assert!(bytes <= stats.used && stats.used <= stats.high_water && stats.high_water <= stats.capacity);
    }
    println!(
        "arena: {operations} operations in {:.1} s: {served} buffers, {refused} refused, {waited} waited, high water {} of {} bytes",
        start.elapsed().as_secs_f64(),
        arena.stats().high_water,
        arena.stats().capacity
    );
    live.iter().for_each(|(buffer, seed)| assert_filled(buffer, *seed));
}

/// What a model does: buffers, and scopes of the same.
#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Scope(Vec<Step>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leaf = (0..5000usize).prop_map(Step::Allocate);
    let step = leaf.prop_recursive(3, 24, 6, |inner| prop::collection::vec(inner, 0..6).prop_map(Step::Scope));
    prop::collection::vec(step, 0..8)
}

fn plan(plan: &mut ArenaPlan, steps: &[Step], offsets: &mut Vec<usize>) {
    for step in steps {
        match step {
            Step::Allocate(bytes) => offsets.push(plan.allocate(*bytes).expect("small")),
            Step::Scope(steps) => plan.scope(|inner| self::plan(inner, steps, offsets)),
        }
    }
}

fn run(arena: &Arena, steps: &[Step], base: usize, offsets: &mut Vec<usize>) {
    let mut kept = Vec::new();
    for step in steps {
        match step {
            Step::Allocate(bytes) => {
                kept.push(arena.uninitialised(*bytes).expect("planned"));
                offsets.extend(kept.last().map(|buffer| address(buffer) - base));
            }
            Step::Scope(steps) => arena.scope(|arena| run(arena, steps, base, offsets)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_arena_of_the_planned_size_serves_the_plan_at_the_planned_offsets(steps in steps()) {
        let device = Cpu::get();
        let mut planned = ArenaPlan::new(device.alignment());
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        plan(&mut planned, &steps, &mut expected);
        let arena = Arena::planned(&device, planned.bytes()).expect("memory");
        let base = address(&arena.uninitialised(0).expect("nothing"));
        for _step in 0..2 {
            got.clear();
            arena.scope(|arena| run(arena, &steps, base, &mut got));
            prop_assert_eq!(&got, &expected);
            prop_assert_eq!(arena.stats().used, 0);
        }
        prop_assert_eq!(arena.stats().high_water, planned.bytes());
    }
}

#[test]
fn inside_a_scope_nothing_is_reused_and_after_it_everything_is() {
    let arena = Arena::planned(&Cpu::get(), 4096).expect("memory");
    let scope = arena.enter();
    let first = arena.uninitialised(1024).expect("room");
    let place = address(&first);
    drop(first);
    assert_eq!(address(&arena.uninitialised(1024).expect("room")), place + 1024);
    assert_eq!(arena.stats().used, 2048);
    drop(scope);
    assert_eq!(arena.stats().used, 0);
    assert_eq!(address(&arena.uninitialised(4096).expect("room")), place);
}

#[test]
fn a_buffer_that_outlives_its_scope_keeps_its_bytes() {
    let arena = Arena::planned(&Cpu::get(), 4096).expect("memory");
    let mut kept = arena.scope(|arena| {
        let _below = arena.uninitialised(1024).expect("room");
        arena.uninitialised(1024).expect("room")
    });
    fill(&mut kept, 1);
    let mut next = arena.uninitialised(2048).expect("above the one that is kept");
    fill(&mut next, 2);
    assert_filled(&kept, 1);
    let error = arena.uninitialised(1).expect_err("the bytes below the kept buffer wait for it");
    assert!(error.to_string().contains("3.0 KiB in 2 live buffers"), "{error}");
    drop(next);
    drop(kept);
    assert_eq!(arena.stats().used, 0);
}

#[test]
fn a_scope_that_panics_ends_too() {
    let arena = Arena::planned(&Cpu::get(), 4096).expect("memory");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        arena.scope(|arena| {
            let _buffer = arena.uninitialised(100);
            panic!("as a kernel might");
        })
    }));
    assert!(result.is_err());
    assert_eq!(arena.stats().used, 0);
}

#[test]
fn bytes_that_a_stream_still_uses_are_waited_for_only_when_they_are_needed() {
    let device = Lagging::new(usize::MAX);
    let as_device: Arc<dyn Device> = device.clone();
    let arena = Arena::planned(&as_device, 4096).expect("memory");
    let stream = LaggingStream::new(device.clone());
    let use_and_drop = |bytes| {
        arena.scope(|arena| {
            let buffer = arena.uninitialised(bytes).expect("room");
            buffer.record_use(&(stream.clone() as Arc<dyn Stream>));
            address(&buffer)
        })
    };
    let first = use_and_drop(1024);
    assert_eq!(arena.stats().live_bytes, 1024);
    assert_eq!(use_and_drop(1024), first + 1024, "the first is in use, there is room above");
    assert_eq!(use_and_drop(4096), first, "no room above: waited");
    stream.finish();
    assert_eq!(arena.stats().used, 0);
}

#[test]
fn an_arena_in_a_pooled_buffer_gives_it_back_after_its_last_buffer() {
    let pool = Pool::new(Cpu::get(), PoolConfig::default());
    let arena = Arena::in_buffer(pool.uninitialised_tagged(1 << 20, "activations").expect("memory")).expect("unshared");
    let mut buffer = arena.uninitialised(1000).expect("room");
    drop(arena);
    fill(&mut buffer, 1);
    assert_eq!(pool.stats().active_buffers, 1);
    assert_filled(&buffer, 1);
    drop(buffer);
    assert_eq!(pool.stats().active_buffers, 0);
    let shared = pool.uninitialised(100).expect("memory");
    let _other = shared.clone();
    assert!(matches!(Arena::in_buffer(shared), Err(Error::Shared { .. })));
}

#[test]
fn sizes_that_cannot_be_addressed_are_refused() {
    let arena = Arena::planned(&Cpu::get(), 1000).expect("memory");
    let _first = arena.uninitialised(1).expect("room");
    assert!(matches!(arena.uninitialised(usize::MAX), Err(Error::OutOfMemory { .. })));
    assert!(matches!(Arena::planned(&Cpu::get(), usize::MAX), Err(Error::OutOfMemory { .. })));
    let mut plan = ArenaPlan::new(64);
    plan.allocate(1).expect("small");
    assert!(matches!(plan.allocate(usize::MAX), Err(Error::Invalid(_))));
    assert_eq!(plan.bytes(), 1, "a refusal plans nothing");
}

#[test]
fn threads_share_an_arena() {
    let arena = Arena::planned(&Cpu::get(), 1 << 20).expect("memory");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let arena = &arena;
            scope.spawn(move || {
                let mut random = Random(thread);
                for step in 0..operations(10_000) / 40 {
                    arena.scope(|arena| {
                        let mut live = Vec::new();
                        for i in 0..8 {
                            let Ok(mut buffer) = arena.uninitialised(random.size(11)) else { break };
                            let seed = thread << 48 | (step * 8 + i) as u64;
                            fill(&mut buffer, seed);
                            live.push((buffer, seed));
                        }
                        live.iter().for_each(|(buffer, seed)| assert_filled(buffer, *seed));
                    });
                }
            });
        }
    });
    assert_eq!(arena.stats().used, 0);
    assert!(arena.stats().high_water > 0);
}
