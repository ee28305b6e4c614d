//! The pool against a map of live ranges, and each of its promises by itself.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Lagging, LaggingStream, Random, assert_filled, fill, operations};
use sinew_memory::{Buffer, Cpu, Device, Error, Event, Pool, PoolConfig, PoolStats, Stream};

const MIB: usize = 1 << 20;

fn address(buffer: &Buffer) -> usize {
    buffer.host_ptr().expect("a host buffer").as_ptr() as usize
}

fn pool(device: &Arc<Lagging>, limit_bytes: usize) -> Pool {
    Pool::new(device.clone(), PoolConfig { limit_bytes, ..PoolConfig::default() })
}

/// What must hold whenever no allocation is under way.
fn assert_adds_up(stats: &PoolStats) {
    assert_eq!(stats.active_bytes + stats.pending_bytes + stats.pooled_bytes, stats.reserved_bytes, "{stats:?}");
    assert_eq!(stats.hits + stats.misses, stats.allocations);
    assert!(stats.requested_bytes <= stats.active_bytes);
    assert!(stats.active_bytes <= stats.peak_bytes && stats.reserved_bytes <= stats.peak_reserved_bytes);
    assert!(stats.largest_free_block <= stats.pooled_bytes);
    assert!((0.0..=1.0).contains(&stats.fragmentation()) && (0.0..=1.0).contains(&stats.hit_rate()));
}

#[test]
fn no_two_live_buffers_overlap_and_contents_survive_whatever_is_done() {
    const LIMIT: usize = 192 * MIB;
    const TAGS: [&str; 4] = ["", "weights", "kv-cache", "activations"];
    let device = Lagging::new(160 * MIB);
    let pool = pool(&device, LIMIT);
    let stream = LaggingStream::new(device.clone());
    let as_stream: Arc<dyn Stream> = stream.clone();
    let mut random = Random(1);
    // By first address, since a map of ranges finds overlaps with its neighbours only.
    let mut live: BTreeMap<usize, (Buffer, u64, &str)> = BTreeMap::new();
    // The ranges that a stream may still use: nothing may be handed out there.
    let mut lagging: Vec<(usize, usize)> = Vec::new();
    let (mut refused, mut requested, mut waited) = (0, 0, 0);
    let start = Instant::now();
    let operations = operations(10_000);
    for operation in 0..operations {
        match random.below(100) {
            // A little more taking than giving, so that the limit is reached now and then.
            0..50 => {
                let bytes = random.size(24);
                let tag = TAGS[random.below(TAGS.len())];
                match pool.uninitialised_tagged(bytes, tag) {
                    Ok(mut buffer) => {
                        if stream.waits.swap(0, Ordering::SeqCst) > 0 {
                            // Room was made by waiting: in a stream, what came before is then done too.
                            stream.finish();
                            lagging.clear();
                            waited += 1;
                        }
                        let first = address(&buffer);
                        assert_eq!(buffer.len(), bytes);
                        assert!(first.is_multiple_of(64));
                        let end = first + bytes;
                        let below = live.range(..end.max(first + 1)).next_back();
                        assert!(below.is_none_or(|(&a, b)| a + b.0.len().max(1) <= first), "overlaps a live buffer");
                        assert!(lagging.iter().all(|&(a, b)| b <= first || end <= a), "overlaps a pending span");
                        fill(&mut buffer, operation as u64);
                        requested += bytes;
                        live.insert(first, (buffer, operation as u64, tag));
                    }
                    Err(Error::OutOfMemory { asked, available, fits, .. }) => {
                        assert_eq!(asked, bytes);
                        assert!(fits < bytes, "{bytes} bytes were refused where {fits} would fit");
                        assert!(fits <= available);
                        let fitting = pool.uninitialised(fits).expect("what an error says would fit");
                        drop(fitting);
                        stream.finish();
                        stream.waits.store(0, Ordering::SeqCst);
                        lagging.clear();
                        refused += 1;
                        // Make room, or the rest of the run is refusals.
                        for _ in 0..live.len() / 2 {
                            let nth = random.below(live.len());
                            let key = *live.keys().nth(nth).expect("below the length");
                            let (buffer, seed, _) = live.remove(&key).expect("a key of the map");
                            assert_filled(&buffer, seed);
                            requested -= buffer.len();
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            50..95 => {
                if live.is_empty() {
                    continue;
                }
                let nth = random.below(live.len());
                let key = *live.keys().nth(nth).expect("below the length");
                let (buffer, seed, _) = live.remove(&key).expect("a key of the map");
                assert_filled(&buffer, seed);
                requested -= buffer.len();
                if random.below(4) == 0 {
                    buffer.record_use(&as_stream);
                    lagging.push((key, key + buffer.len()));
                }
            }
            95..97 => {
                stream.finish();
                lagging.clear();
            }
            97..98 => {
                pool.trim(Duration::from_millis(random.below(10) as u64));
            }
            98..99 => {
                pool.defragment();
            }
            _ => {
                let report = pool.report();
                let sum = |key: &str| live.values().filter(|(_, _, tag)| *tag == key).count();
                for usage in &report.live {
                    let tag = if usage.tag == "untagged" { "" } else { &usage.tag };
                    assert_eq!(usage.buffers, sum(tag), "{report}");
                }
                assert_eq!(report.live.iter().map(|u| u.bytes).sum::<usize>(), report.used_bytes);
                assert!(report.live.is_sorted_by(|a, b| a.bytes >= b.bytes));
            }
        }
        if operation.is_multiple_of(16) || operation + 1 == operations {
            let stats = pool.stats();
            assert_adds_up(&stats);
            assert_eq!(stats.active_buffers, live.len());
            assert_eq!(stats.requested_bytes, requested);
            let classes: usize = live.values().map(|(b, ..)| pool.class_bytes(b.len()).expect("small")).sum();
            assert!(stats.active_bytes <= classes, "spans larger than their class");
            assert_eq!(stats.reserved_bytes, device.taken(), "what the device gave");
            assert!(stats.reserved_bytes <= LIMIT);
            assert_eq!(stats.pending_spans > 0, stats.pending_bytes > 0);
        }
    }
    let stats = pool.stats();
    println!(
        "pool: {operations} operations in {:.1} s: {} allocations, {:.1} % hits, {refused} refused, {waited} waited, \
         peak {} MiB live of {} MiB reserved",
        start.elapsed().as_secs_f64(),
        stats.allocations,
        stats.hit_rate() * 100.0,
        stats.peak_bytes / MIB,
        stats.peak_reserved_bytes / MIB,
    );
    for (buffer, seed, _) in live.into_values() {
        assert_filled(&buffer, seed);
    }
    stream.finish();
    pool.defragment();
    assert_eq!((pool.stats().reserved_bytes, device.taken()), (0, 0));
}

#[test]
fn threads_never_see_each_others_bytes() {
    const THREADS: usize = 4;
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, 512 * MIB);
    let each = operations(10_000) / THREADS;
    let (moved, start) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<(Buffer, u64)>();
        for thread in 0..THREADS {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || {
                let mut random = Random(thread as u64);
                let mut live = Vec::new();
                for operation in 0..each {
                    if live.len() < 24 && random.below(2) == 0 || live.is_empty() {
                        let seed = (thread << 48 | operation) as u64;
                        let mut buffer =
                            pool.uninitialised_tagged(random.size(21), "threads").expect("below the limit");
                        fill(&mut buffer, seed);
                        live.push((buffer, seed));
                    } else {
                        let (buffer, seed) = live.swap_remove(random.below(live.len()));
                        assert_filled(&buffer, seed);
                        match random.below(16) {
                            0 => sender.send((buffer, seed)).expect("the receiver lives"),
                            1 => drop(pool.trim(Duration::ZERO)),
                            _ => {}
                        }
                    }
                    if operation.is_multiple_of(64) {
                        pool.stats();
                    }
                }
                for (buffer, seed) in live {
                    assert_filled(&buffer, seed);
                }
            });
        }
        drop(sender);
        // Buffers freed by a thread that did not make them.
        for (buffer, seed) in receiver {
            assert_filled(&buffer, seed);
            moved.fetch_add(1, Ordering::Relaxed);
        }
    });
    let stats = pool.stats();
    assert_adds_up(&stats);
    assert_eq!((stats.active_buffers, stats.active_bytes, stats.requested_bytes), (0, 0, 0));
    assert_eq!(stats.reserved_bytes, device.taken());
    println!(
        "pool, {THREADS} threads: {} operations in {:.1} s: {} allocations, {:.1} % hits, {} moved between threads",
        each * THREADS,
        start.elapsed().as_secs_f64(),
        stats.allocations,
        stats.hit_rate() * 100.0,
        moved.into_inner()
    );
}

#[test]
fn a_freed_span_is_reused_for_the_same_class() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    for bytes in [0, 1, 4096, 5000, MIB, 3 * MIB, 100 * MIB] {
        let first = pool.uninitialised(bytes).expect("memory");
        let place = address(&first);
        drop(first);
        let hits = pool.stats().hits;
        assert_eq!(address(&pool.uninitialised(bytes).expect("memory")), place);
        assert_eq!(pool.stats().hits, hits + 1);
    }
}

#[test]
fn a_larger_span_is_split_and_its_parts_merge_again() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    drop(pool.uninitialised(64 * MIB).expect("memory"));
    let parts: Vec<_> = (0..16).map(|_| pool.uninitialised(4 * MIB).expect("memory")).collect();
    let stats = pool.stats();
    assert_eq!((stats.misses, stats.hits, stats.slabs), (1, 16, 1), "all cut from the one slab");
    assert_eq!(stats.pooled_bytes, 0);
    // Every second one first: nothing to merge with.
    let (even, odd): (Vec<_>, Vec<_>) = parts.into_iter().enumerate().partition(|(i, _)| i.is_multiple_of(2));
    drop(even);
    let stats = pool.stats();
    assert_eq!((stats.free_spans, stats.largest_free_block), (8, 4 * MIB));
    assert_eq!(stats.fragmentation(), 1.0 - 4.0 / 32.0);
    drop(odd);
    let stats = pool.stats();
    assert_eq!((stats.free_spans, stats.largest_free_block), (1, 64 * MIB));
    assert_eq!(stats.fragmentation(), 0.0);
    drop(pool.uninitialised(64 * MIB).expect("the merged slab"));
    assert_eq!(pool.stats().misses, 1);
}

#[test]
fn small_buffers_do_not_pin_large_slabs() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    drop(pool.uninitialised(64 * MIB).expect("memory"));
    let _small = pool.uninitialised(100).expect("memory");
    assert_eq!(pool.defragment(), 64 * MIB);
}

#[test]
fn there_are_classes_from_below_4_kib_to_512_mib() {
    let classes = pool(&Lagging::new(usize::MAX), usize::MAX).size_classes();
    assert!(classes.len() >= 21, "{}", classes.len());
    assert!(classes.is_sorted() && classes[0] <= 4096 && classes.last() == Some(&(512 * MIB)));
    for alignment in [1, 256, 4096, 65536] {
        let pool = Pool::new(Lagging::aligned(usize::MAX, alignment), PoolConfig::default());
        let classes = pool.size_classes();
        assert!(classes.len() >= 21 && classes.iter().all(|class| class.is_multiple_of(alignment)));
        for pair in classes.windows(2) {
            assert_eq!(pool.class_bytes(pair[0]), Some(pair[0]));
            assert_eq!(pool.class_bytes(pair[0] + 1), Some(pair[1]));
        }
    }
}

#[test]
fn memory_of_its_own_counts_as_much_as_the_device_holds_for_it() {
    let cpu = Cpu::get();
    let asked = 5 * MIB;
    let held = cpu.held_bytes(asked);
    assert!(held > asked, "large host memory is in huge pages");
    let pool = Pool::new(cpu, PoolConfig::limited(2 * held - 1));
    let buffer = pool.uninitialised_apart(asked, "weights").expect("half of the limit");
    assert_eq!((buffer.len(), pool.stats().apart_bytes, pool.report().live[0].bytes), (asked, held, held));
    assert!(pool.uninitialised_apart(asked, "").is_err(), "both would hold more than the limit");
    drop(buffer);
    assert_eq!(pool.stats().apart_bytes, 0);
    assert!(pool.uninitialised_apart(asked, "").is_ok());
    for unlimited in [Pool::new(Cpu::get(), PoolConfig::default()), pool] {
        assert!(matches!(unlimited.uninitialised_apart(usize::MAX, ""), Err(Error::OutOfMemory { .. })));
    }
}

#[test]
fn a_limit_that_is_set_later_counts_what_is_there() {
    let device = Lagging::new(usize::MAX);
    let pool = Pool::new(device.clone(), PoolConfig::default());
    let weights = pool.uninitialised_tagged(40 * MIB, "weights").expect("no limit");
    let apart = pool.uninitialised_apart(8 * MIB, "kv-cache").expect("no limit");
    drop(pool.uninitialised(16 * MIB).expect("no limit"));
    assert_eq!(device.taken(), 64 * MIB);
    // What is free goes back; what is live is more than the limit, and stays.
    pool.limit(44 * MIB);
    assert_eq!((device.taken(), pool.config().limit_bytes), (48 * MIB, 44 * MIB));
    for refused in [pool.uninitialised(1), pool.uninitialised_apart(1, "")] {
        let error = refused.expect_err("over the limit");
        let Error::OutOfMemory { available, total, fits, .. } = &error else { panic!("{error}") };
        assert_eq!((*available, *total, *fits), (0, 44 * MIB, 0));
        assert!(error.to_string().contains("weights 40.0 MiB in 1 buffers, kv-cache 8.0 MiB"), "{error}");
    }
    drop(apart);
    let more = pool.uninitialised_apart(4 * MIB, "").expect("room for so much");
    assert!(pool.uninitialised_apart(1, "").is_err());
    drop(more);
    drop(pool.uninitialised(MIB).expect("room for so much"));
    // What comes free while there is more than the limit is given back before anything is handed out.
    pool.limit(8 * MIB);
    drop(weights);
    let small = pool.uninitialised(8 * MIB).expect("as much as the limit");
    assert!(device.taken() == 8 * MIB && pool.uninitialised(1).is_err());
    drop(small);
    // What a limit holds back, a higher one does not.
    pool.limit(usize::MAX);
    drop(pool.uninitialised(64 * MIB).expect("no limit"));
    assert_adds_up(&pool.stats());
}

#[test]
fn the_limit_holds_and_the_error_says_who_has_the_memory() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, 64 * MIB);
    let weights = pool.uninitialised_tagged(40 * MIB, "weights").expect("below the limit");
    let _cache = pool.uninitialised_tagged(16 * MIB, "kv-cache").expect("below the limit");
    let error = pool.uninitialised(10 * MIB).expect_err("over the limit");
    let Error::OutOfMemory { asked, available, total, fits, .. } = error else { panic!("{error}") };
    assert_eq!((asked, available, total, fits), (10 * MIB, 8 * MIB, 64 * MIB, 8 * MIB));
    let text = error.to_string();
    for part in ["10.0 MiB asked", "8.0 MiB of 64.0 MiB free", "weights 40.0 MiB", "kv-cache 16.0 MiB", "would fit"] {
        assert!(text.contains(part), "`{part}` is not in `{text}`");
    }
    drop(pool.uninitialised(fits).expect("what would fit"));
    // A little more reads as more.
    let text = pool.uninitialised(fits + 1).expect_err("over the limit").to_string();
    let words = format!("{} B asked, {fits} B of 64.0 MiB free", fits + 1);
    assert!(text.contains(&words) && text.contains(&format!("at most {fits} B")), "`{words}` is not in `{text}`");
    drop(weights);
    // 10 MiB of the 40 that are pooled.
    let _more = pool.uninitialised(10 * MIB).expect("room again");
    assert!(device.taken() <= 64 * MIB);
    assert!(matches!(pool.uninitialised(usize::MAX), Err(Error::OutOfMemory { .. })));
    assert!(matches!(pool.uninitialised(isize::MAX as usize), Err(Error::OutOfMemory { .. })));
    assert_adds_up(&pool.stats());
}

#[test]
fn free_slabs_make_room_for_what_does_not_fit_in_them() {
    let device = Lagging::new(64 * MIB);
    let pool = pool(&device, usize::MAX);
    let parts: Vec<_> = (0..4).map(|_| pool.uninitialised(16 * MIB).expect("memory")).collect();
    drop(parts);
    let _whole = pool.uninitialised(64 * MIB).expect("the four slabs went back to the device");
    assert_eq!(device.taken(), 64 * MIB);
}

#[test]
fn small_and_large_requests_serve_themselves_from_each_others_slabs_before_they_are_refused() {
    let pool = pool(&Lagging::new(8 * MIB), usize::MAX);
    let _large = pool.uninitialised(5 * MIB).expect("memory");
    drop(pool.uninitialised(3 * MIB).expect("memory"));
    let _small = pool.uninitialised(1000).expect("from the free large span");
    let _rest = pool.uninitialised(2 * MIB).expect("from the rest of it");
    assert_eq!(pool.stats().slabs, 2);
}

#[test]
fn errors_of_the_device_are_passed_on_and_leave_the_counts_right() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, usize::MAX);
    device.broken.store(true, Ordering::SeqCst);
    assert!(matches!(pool.uninitialised(100), Err(Error::Device { .. })));
    assert_eq!(pool.stats().reserved_bytes, 0);
    device.broken.store(false, Ordering::SeqCst);
    drop(pool.uninitialised(100).expect("memory"));
    assert_adds_up(&pool.stats());
}

#[test]
fn trimming_takes_only_what_has_been_free_for_that_long() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, usize::MAX);
    let (old, young) = (pool.uninitialised(8 * MIB).expect("memory"), pool.uninitialised(16 * MIB).expect("memory"));
    let live = pool.uninitialised(32 * MIB).expect("memory");
    drop(old);
    std::thread::sleep(Duration::from_millis(300));
    drop(young);
    assert_eq!(pool.trim(Duration::from_millis(150)), 8 * MIB);
    assert_eq!(pool.trim(Duration::from_secs(3600)), 0);
    assert_eq!(device.taken(), 48 * MIB);
    assert_eq!(pool.trim(Duration::ZERO), 16 * MIB);
    assert_eq!(pool.stats().released_bytes, 24 * MIB as u64);
    drop(live);
    assert_eq!(pool.defragment(), 32 * MIB);
    assert_eq!(device.taken(), 0);
}

#[test]
fn defragmenting_leaves_live_buffers_where_they_are() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    let mut buffers: Vec<_> = (0..1000).map(|i| pool.uninitialised(1000 + i * 7).expect("memory")).collect();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        fill(buffer, i as u64);
    }
    let mut kept: Vec<_> = buffers.into_iter().enumerate().filter(|(i, _)| i % 3 == 0).collect();
    let places: Vec<_> = kept.iter().map(|(_, buffer)| address(buffer)).collect();
    pool.defragment();
    assert_eq!(places, kept.iter().map(|(_, buffer)| address(buffer)).collect::<Vec<_>>());
    kept.iter().for_each(|(i, buffer)| assert_filled(buffer, *i as u64));
    kept.truncate(1);
    pool.defragment();
    assert_eq!(pool.stats().slabs, 1);
}

#[test]
fn a_span_that_a_stream_still_uses_is_not_handed_out() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, usize::MAX);
    let (one, other) = (LaggingStream::new(device.clone()), LaggingStream::new(device.clone()));
    let (first, second): (Arc<dyn Stream>, Arc<dyn Stream>) = (one.clone(), other.clone());
    let buffer = pool.uninitialised(2 * MIB).expect("memory");
    let place = address(&buffer);
    buffer.record_use(&first);
    buffer.record_use(&second);
    drop(buffer);
    let stats = pool.stats();
    assert_eq!((stats.pending_spans, stats.pending_bytes, stats.pooled_bytes), (1, 2 * MIB, 0));
    assert_ne!(address(&pool.uninitialised(2 * MIB).expect("memory")), place);
    assert_eq!(pool.defragment(), 2 * MIB, "a pending slab stays");
    one.finish();
    assert_eq!(pool.stats().pending_spans, 1, "one of two streams is not done");
    other.finish();
    assert_eq!(pool.stats().pending_spans, 0);
    assert_eq!(address(&pool.uninitialised(2 * MIB).expect("memory")), place);
    assert_eq!((one.waits.load(Ordering::SeqCst), other.waits.load(Ordering::SeqCst)), (0, 0), "nobody waited");
}

#[test]
fn a_hit_finds_what_a_stream_has_just_finished_with() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, usize::MAX);
    let stream = LaggingStream::new(device.clone());
    let buffer = pool.uninitialised(2 * MIB).expect("memory");
    let place = address(&buffer);
    drop(pool.uninitialised(64 * MIB).expect("memory"));
    buffer.record_use(&(stream.clone() as Arc<dyn Stream>));
    drop(buffer);
    stream.finish();
    // No call of `stats` in between, which would look for itself; and 64 MiB are free, so that nothing has to be found.
    assert_eq!(address(&pool.uninitialised(2 * MIB).expect("memory")), place);
    assert_eq!(pool.stats().misses, 2);
}

#[test]
fn rather_than_refuse_the_pool_waits_for_streams() {
    let device = Lagging::new(8 * MIB);
    let pool = pool(&device, usize::MAX);
    let (one, other) = (LaggingStream::new(device.clone()), LaggingStream::new(device.clone()));
    let buffer = pool.uninitialised(8 * MIB).expect("memory");
    // One of the two is done before anybody waits.
    buffer.record_use(&(one.clone() as Arc<dyn Stream>));
    buffer.record_use(&(other.clone() as Arc<dyn Stream>));
    drop(buffer);
    one.finish();
    let _again = pool.uninitialised(8 * MIB).expect("after waiting");
    assert!(matches!(pool.uninitialised(MIB), Err(Error::OutOfMemory { .. })));
}

/// An event that never completes, as of a stream whose device is lost.
#[derive(Debug)]
struct Lost;

impl Event for Lost {
    fn is_complete(&self) -> bool {
        false
    }
    fn synchronize(&self) -> sinew_memory::Result<()> {
        Err(Error::Invalid("the device is lost".into()))
    }
}

#[derive(Debug)]
struct LostStream(Arc<dyn Device>);

impl Stream for LostStream {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn upload(&self, _: &[u8], _: &mut Buffer, _: usize) -> sinew_memory::Result<()> {
        unimplemented!("not needed")
    }
    fn download(&self, _: &Buffer, _: usize, _: &mut [u8]) -> sinew_memory::Result<()> {
        unimplemented!("not needed")
    }
    fn copy(&self, _: &Buffer, _: usize, _: &mut Buffer, _: usize, _: usize) -> sinew_memory::Result<()> {
        unimplemented!("not needed")
    }
    fn record(&self) -> sinew_memory::Result<Arc<dyn Event>> {
        Ok(Arc::new(Lost))
    }
    fn wait(&self, _: &Arc<dyn Event>) -> sinew_memory::Result<()> {
        Ok(())
    }
    fn synchronize(&self) -> sinew_memory::Result<()> {
        Err(Error::Invalid("the device is lost".into()))
    }
}

#[test]
fn memory_of_a_lost_stream_is_never_reused_and_nothing_hangs() {
    let device = Lagging::new(8 * MIB);
    let pool = pool(&device, usize::MAX);
    let stream = LaggingStream::new(device.clone());
    let mut buffer = pool.uninitialised(6 * MIB).expect("memory");
    buffer.record_use(&(stream.clone() as Arc<dyn Stream>));
    buffer.record_use(&(Arc::new(LostStream(device.clone())) as Arc<dyn Stream>));
    assert!(buffer.as_mut_slice::<u8>().is_err(), "the host learns of the failure");
    drop(buffer);
    stream.finish();
    assert!(matches!(pool.uninitialised(6 * MIB), Err(Error::OutOfMemory { .. })));
    assert_eq!(pool.stats().pending_bytes, 6 * MIB);
}

#[test]
fn the_host_waits_for_streams_before_it_looks() {
    let device = Lagging::new(usize::MAX);
    let stream = LaggingStream::new(device.clone());
    let as_stream: Arc<dyn Stream> = stream.clone();
    let mut buffer = pool(&device, usize::MAX).uninitialised(64).expect("memory");
    buffer.record_use(&as_stream);
    buffer.as_slice::<u8>().expect("host memory");
    buffer.as_slice::<u8>().expect("host memory");
    assert_eq!(stream.waits.load(Ordering::SeqCst), 1, "once for one use");
    buffer.record_use(&as_stream);
    buffer.as_mut_slice::<u8>().expect("host memory");
    assert_eq!(stream.waits.load(Ordering::SeqCst), 2);
}

#[test]
fn buffers_outlive_their_pool_and_their_memory_goes_back_with_the_last() {
    let device = Lagging::new(usize::MAX);
    let pool = pool(&device, usize::MAX);
    let stream = LaggingStream::new(device.clone());
    let (mut first, second) = (pool.uninitialised(1000).expect("memory"), pool.uninitialised(2 * MIB).expect("memory"));
    drop(pool.uninitialised(64 * MIB).expect("memory"));
    fill(&mut first, 3);
    drop(pool);
    assert_eq!(device.taken(), (4 + 2) * MIB, "free slabs went back at once");
    assert_filled(&first, 3);
    drop(first);
    assert_eq!(device.taken(), 2 * MIB);
    second.record_use(&(stream.clone() as Arc<dyn Stream>));
    drop(second);
    assert_eq!(device.taken(), 0);
}

#[test]
fn a_report_lists_live_buffers_by_tag_the_largest_first() {
    let pool = pool(&Lagging::new(256 * MIB), 128 * MIB);
    let _cache = pool.uninitialised_tagged(32 * MIB, "kv-cache").expect("memory");
    let _weights = [8, 40].map(|n| pool.uninitialised_tagged(n * MIB, "weights").expect("memory"));
    let _plain = pool.uninitialised(4096).expect("memory");
    drop(pool.uninitialised_tagged(16 * MIB, "scratch").expect("memory"));
    let report = pool.report();
    let live: Vec<_> = report.live.iter().map(|u| (u.tag.as_str(), u.buffers, u.bytes)).collect();
    assert_eq!(live, [("weights", 2, 48 * MIB), ("kv-cache", 1, 32 * MIB), ("untagged", 1, 4096)]);
    assert_eq!(report.total_bytes, 128 * MIB);
    assert_eq!(report.used_bytes, 80 * MIB + 4096);
    assert_eq!(report.high_water_bytes, 96 * MIB + 4096);
    // 16 MiB and the rest of the shared slab are pooled; 128 - (80 + 4 + 16) may still be taken.
    assert_eq!(report.available_bytes, 16 * MIB + (4 * MIB - 4096) + 28 * MIB);
    let text = report.to_string();
    assert!(text.find("weights") < text.find("kv-cache") && !text.contains("scratch"), "{text}");
}

#[test]
fn any_number_of_tags_can_come_and_go() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    let _kept = pool.uninitialised_tagged(100, "kept").expect("memory");
    for i in 0..5000 {
        drop(pool.uninitialised_tagged(100, &format!("request {i}")).expect("memory"));
    }
    let live: Vec<_> =
        (0..600).map(|i| pool.uninitialised_tagged(100, &format!("live {i}")).expect("memory")).collect();
    assert_eq!(pool.report().live.len(), 601);
    drop(live);
    assert_eq!(pool.report().live.len(), 1);
}

#[test]
fn pools_and_buffers_cross_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Pool>();
    assert_shared::<Buffer>();
}

#[test]
fn a_span_comes_back_once_when_its_last_two_handles_are_dropped_at_the_same_moment() {
    let pool = pool(&Lagging::new(usize::MAX), usize::MAX);
    let barrier = std::sync::Barrier::new(2);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Buffer>(1);
    std::thread::scope(|scope| {
        let (barrier, receiver) = (&barrier, receiver);
        scope.spawn(move || {
            for handle in receiver {
                barrier.wait();
                drop(handle);
                barrier.wait();
            }
        });
        for _ in 0..operations(10_000) / 10 {
            let buffer = pool.uninitialised(5000).expect("memory");
            sender.send(buffer.clone()).expect("the other thread lives");
            barrier.wait();
            drop(buffer);
            barrier.wait();
            let stats = pool.stats();
            assert_eq!((stats.active_buffers, stats.active_bytes, stats.misses), (0, 0, 1));
        }
        drop(sender);
    });
}
