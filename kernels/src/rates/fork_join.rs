//! What it costs to start all threads of a team and to join them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sinew_memory::Team;

use super::peaks::SETTLE;

/// Forks that are timed one by one, of which the median counts; fewer where they take longer than this many seconds.
const FORKS: usize = 2001;
const SECONDS: f64 = 0.5;
/// Looks after which a thread that waits lets others run: one that has not come may be waiting for this core.
const PATIENCE: usize = 1 << 10;
/// Whoever waits longer goes on: a fork inside a task runs on one thread, to which no other comes.
const LONGEST: Duration = Duration::from_secs(1);

/// Seconds of a fork and join in which every thread takes part, in the median. `came` is told of each thread, fork by
/// fork.
pub(super) fn fork_join(team: &Team, came: impl Fn(usize) + Sync) -> f64 {
    let fork = || meet(team, &came);
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < SETTLE {
        fork();
    }
    let (mut all, mut spent) = (Vec::with_capacity(FORKS), 0.0);
    while all.len() < FORKS && spent < SECONDS {
        let seconds = fork();
        spent += seconds;
        all.push(seconds);
    }
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Seconds of a fork whose threads wait for one another, each with a task of its own. Tasks that wait for nobody would not
/// do: the caller has run them all before a helper has seen the first.
fn meet(team: &Team, came: impl Fn(usize) + Sync) -> f64 {
    let (threads, here, start) = (team.threads(), AtomicUsize::new(0), Instant::now());
    team.run(threads, |_, worker| {
        came(worker);
        here.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        while here.load(Ordering::Relaxed) < threads {
            looks += 1;
            if looks < PATIENCE {
                std::hint::spin_loop();
            } else if start.elapsed() < LONGEST {
                std::thread::yield_now();
            } else {
                break;
            }
        }
    });
    start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_thread_takes_part_in_each_fork_that_is_timed() {
        // More than there may be cores as well.
        for threads in [1, 2, 3, 9] {
            let team = Team::new(threads).unwrap();
            // Who came, one after another: all of one fork before any of the next.
            let came = Mutex::new(Vec::new());
            let seconds = fork_join(&team, |worker| came.lock().unwrap().push(worker));
            assert!(seconds > 0.0);
            let came = came.into_inner().unwrap();
            assert!(came.len() > threads);
            for fork in came.chunks(threads) {
                let mut workers = fork.to_vec();
                workers.sort_unstable();
                assert_eq!(workers, (0..threads).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_fork_inside_a_task_is_not_waited_for_without_end() {
        let team = Team::new(2).unwrap();
        let alone = AtomicUsize::new(0);
        team.run(2, |task, _| {
            if task == 0 {
                meet(&team, |worker| {
                    assert_eq!(worker, 0);
                    alone.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(alone.into_inner(), 2);
    }
}
