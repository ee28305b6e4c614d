//! The arena: buffers that do not overlap, at the places that their sizes say.

mod common;

use std::sync::Arc;

use common::{Lagging, LaggingStream, assert_filled, fill};
use proptest::prelude::*;
use sinew_memory::{Arena, ArenaPlan, Buffer, Cpu, Device, Error, Pool, PoolConfig, Stream};

const ALIGNMENT: usize = 256;

fn pool(device: Arc<dyn Device>) -> Pool {
    Pool::new(device, PoolConfig::default())
}

fn address(buffer: &Buffer) -> usize {
    buffer.host_ptr().expect("a host buffer").as_ptr() as usize
}

fn planned(sizes: &[usize]) -> usize {
    let mut plan = ArenaPlan::new(ALIGNMENT);
    sizes.iter().for_each(|bytes| plan.allocate(*bytes));
    plan.bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_arena_of_the_planned_size_holds_all_buffers_each_with_its_own_bytes(
        sizes in prop::collection::vec(0..5000usize, 1..24),
    ) {
        let bytes = planned(&sizes);
        let device = Lagging::aligned(bytes, ALIGNMENT);
        let pool = pool(device.clone());
        let mut arena = Arena::new(&pool, bytes, "activations").expect("memory");
        let buffers: Result<Vec<Buffer>, Error> = sizes.iter().map(|bytes| arena.allocate(*bytes)).collect();
        let mut buffers = buffers.expect("the plan counted them");
        prop_assert!(buffers.iter().map(Buffer::len).eq(sizes.iter().copied()));
        let first = address(&buffers[0]);
        prop_assert!(buffers.iter().all(|buffer| (address(buffer) - first).is_multiple_of(ALIGNMENT)));
        for (seed, buffer) in buffers.iter_mut().enumerate() {
            fill(buffer, seed as u64);
        }
        for (seed, buffer) in buffers.iter().enumerate() {
            assert_filled(buffer, seed as u64);
        }
        // To the byte: nothing is rounded up.
        prop_assert_eq!(device.taken(), bytes);
        prop_assert!(arena.allocate(1).is_err());
    }
}

#[test]
fn an_arena_counts_under_its_tag_until_its_last_buffer_is_gone() {
    let device = Lagging::aligned(1 << 20, ALIGNMENT);
    let pool = pool(device.clone());
    let mut arena = Arena::new(&pool, 1024, "activations").expect("memory");
    let (mut kept, other) = (arena.allocate(100).expect("room"), arena.allocate(100).expect("room"));
    drop((arena, other));
    let live = pool.report().live;
    assert_eq!((live.len(), live[0].tag.as_str(), live[0].bytes), (1, "activations", 1024));
    fill(&mut kept, 1);
    assert_filled(&kept, 1);
    drop(kept);
    assert!(pool.report().live.is_empty());
    assert_eq!(device.taken(), 0);
}

#[test]
fn a_buffer_that_a_stream_still_uses_is_not_waited_for() {
    let device = Lagging::new(1 << 20);
    let stream = LaggingStream::new(device.clone());
    let mut arena = Arena::new(&pool(device), 1000, "activations").expect("memory");
    let buffer = arena.allocate(100).expect("room");
    buffer.record_use(&(stream.clone() as Arc<dyn Stream>));
    drop((buffer, arena));
    assert_eq!(stream.waits.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn what_does_not_fit_is_refused_and_what_fits_is_said() {
    let pool = pool(Cpu::get());
    let mut arena = Arena::new(&pool, 1000, "activations").expect("memory");
    let _first = arena.allocate(1).expect("room");
    for asked in [1000, usize::MAX] {
        let error = arena.allocate(asked).expect_err("too much");
        assert!(error.to_string().contains("an arena of which 1 B are cut"), "{error}");
        let Error::OutOfMemory { available, total, fits, .. } = error else { panic!("{error}") };
        assert_eq!((available, total, fits), (999, 1000, 1000 - Cpu::get().alignment()));
    }
    assert!(arena.allocate(1000 - Cpu::get().alignment()).is_ok());
    assert!(matches!(Arena::new(&pool, usize::MAX, ""), Err(Error::OutOfMemory { .. })));
    assert_eq!(planned(&[1, usize::MAX]), usize::MAX);
    assert_eq!(planned(&[usize::MAX, 0, 1]), usize::MAX);
}
