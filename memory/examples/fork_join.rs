//! What a fork and join costs on the team and on Rayon's pool: medians in nanoseconds, by the pause before it.
//!
//!     cargo run --release -p sinew-memory --example fork_join -- [THREADS]

use std::hint::black_box;
use std::time::{Duration, Instant};

use sinew_memory::Team;

const FORKS: usize = 2000;
/// Tasks per thread, as kernels split their work.
const TASKS: usize = 6;
/// A thread that was just woken may share its waker's core until the system spreads them.
const SETTLE: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads: usize = std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?;
    let team = Team::new(threads)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let begun = Instant::now();
    while begun.elapsed() < SETTLE {
        team.run(threads * TASKS, |_, _| work());
    }
    println!("{threads} threads, {TASKS} tasks each of about 1 µs: ns above an even split of the work, median (p90)");
    println!("{:>12}  {:>20}  {:>20}", "pause", "team", "rayon");
    for pause in [0, 5, 20, 100, 1000].map(Duration::from_micros) {
        // One after the other: the threads of either would find the other's cores busy.
        let mut times = [Vec::new(), Vec::new()];
        times[0].extend((0..FORKS).map(|_| timed(pause, || team.run(threads * TASKS, |_, _| work()))));
        pool.install(|| times[1].extend((0..FORKS).map(|_| timed(pause, || split(0, threads * TASKS)))));
        let [ours, rayons] = times.map(|mut t| {
            t.sort_unstable();
            let alone = TASKS as i64 * 1000;
            format!("{} ({})", t[FORKS / 2] - alone, t[FORKS * 9 / 10] - alone)
        });
        println!("{pause:>12?}  {ours:>20}  {rayons:>20}");
    }
    Ok(())
}

/// Nanoseconds of `f`, after `pause` of work that other threads have no part in.
fn timed(pause: Duration, f: impl FnOnce()) -> i64 {
    spin(pause);
    let start = Instant::now();
    f();
    start.elapsed().as_nanos() as i64
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn work() {
    spin(black_box(Duration::from_micros(1)));
}

fn split(start: usize, end: usize) {
    if end - start == 1 {
        return work();
    }
    let middle = start + (end - start) / 2;
    rayon::join(|| split(start, middle), || split(middle, end));
}
