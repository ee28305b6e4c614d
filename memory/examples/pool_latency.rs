//! Warm pool hits against cold allocations: `cargo run --release -p sinew-memory --example pool_latency`.
//!
//! A few buffers are allocated and then released, many times, and the best round is shown, so that a round in which
//! the system ran something else does not count. Cold memory is zeroed, which touches every page, as the first use of
//! it would.

use std::hint::black_box;
use std::time::Instant;

use sinew_memory::{Buffer, Bytes, Cpu, Pool, PoolConfig, Result};

/// Buffers alive at once: enough that reading the clock counts for little, few enough for 100 MiB each.
const BATCH: usize = 8;

/// Best nanoseconds of an allocation and of a release.
fn best(rounds: usize, allocate: impl Fn() -> Result<Buffer>) -> Result<(f64, f64)> {
    let (mut allocating, mut releasing) = (f64::INFINITY, f64::INFINITY);
    let mut live = Vec::with_capacity(BATCH);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..BATCH {
            live.push(allocate()?);
        }
        let allocated = Instant::now();
        live.clear();
        releasing = releasing.min(allocated.elapsed().as_nanos() as f64 / BATCH as f64);
        allocating = allocating.min((allocated - start).as_nanos() as f64 / BATCH as f64);
    }
    Ok((allocating, releasing))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = Cpu::get();
    println!("{}; nanoseconds, best of many", device.hardware().name);
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>12} {:>9} {:>10}",
        "size", "warm hit", "tagged", "release", "cold", "release", "cold/warm"
    );
    for bytes in [4 << 10, 1 << 20, 100 << 20] {
        let pool = Pool::new(device.clone(), PoolConfig::default());
        best(1, || pool.uninitialised(bytes))?;
        let misses = pool.stats().misses;
        let (hit, release) = best(100_000, || pool.uninitialised(black_box(bytes)))?;
        let (tagged, _) = best(100_000, || pool.uninitialised_tagged(black_box(bytes), "kv-cache"))?;
        assert_eq!(pool.stats().misses, misses, "a warm pool takes nothing from the device");
        drop(pool);
        let (cold, cold_release) =
            best(((1 << 30) / bytes).min(5000), || Buffer::uninitialised(&device, black_box(bytes)))?;
        println!(
            "{:>10} {hit:>9.0} {tagged:>9.0} {release:>9.0} {cold:>12.0} {cold_release:>9.0} {:>9.0}x",
            Bytes(bytes).to_string(),
            (cold + cold_release) / (hit + release)
        );
    }
    Ok(())
}
