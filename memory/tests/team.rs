//! The team: every task once, whoever comes late, whoever panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sinew_memory::{Error, Team};

/// Runs `tasks` tasks and says how often each ran, checking that workers are not shared.
fn counts(team: &Team, tasks: usize) -> Vec<usize> {
    let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    let busy: Vec<AtomicUsize> = (0..team.threads()).map(|_| AtomicUsize::new(0)).collect();
    team.run(tasks, |task, worker| {
        assert_eq!(busy[worker].fetch_add(1, Ordering::Relaxed), 0, "worker {worker} runs two tasks at a time");
        ran[task].fetch_add(1, Ordering::Relaxed);
        busy[worker].fetch_sub(1, Ordering::Relaxed);
    });
    ran.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once_on_any_number_of_threads() {
    for threads in [1, 2, 3, 5, 16] {
        let team = Team::new(threads).unwrap();
        assert_eq!(team.threads(), threads);
        for tasks in (0..40).chain([100, 1000, 10_007]) {
            assert_eq!(counts(&team, tasks), vec![1; tasks], "{tasks} tasks on {threads} threads");
        }
    }
}

#[test]
fn forks_follow_each_other_whether_helpers_are_awake_or_asleep() {
    let team = Team::new(4).unwrap();
    let sum = AtomicUsize::new(0);
    for fork in 0..20_000 {
        team.run(5, |task, _| {
            sum.fetch_add(task + fork, Ordering::Relaxed);
        });
        if fork % 1000 == 0 {
            // Long enough that helpers have gone to sleep.
            thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(sum.into_inner(), 20_000 * 10 + 5 * (0..20_000).sum::<usize>());
}

#[test]
fn tasks_that_take_long_are_shared_out() {
    let team = Team::new(2).unwrap();
    let workers = [AtomicUsize::new(0), AtomicUsize::new(0)];
    team.run(20, |_, worker| {
        workers[worker].fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(2));
    });
    let [caller, helper] = workers.map(AtomicUsize::into_inner);
    assert!(caller > 0 && helper > 0 && caller + helper == 20, "{caller} and {helper}");
}

#[test]
fn callers_take_turns_and_a_call_from_a_task_runs_at_once() {
    let team = Team::new(3).unwrap();
    let total = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    team.run(7, |_, _| {
                        team.run(3, |_, worker| {
                            assert_eq!(worker, 0);
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 500 * 7 * 3);
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_when_the_others_are_done() {
    let team = Team::new(2).unwrap();
    for culprit in [0, 7, 15] {
        let done = AtomicUsize::new(0);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            team.run(16, |task, _| {
                assert_ne!(task, culprit, "the culprit");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }));
        let message = panic.unwrap_err();
        assert!(message.downcast_ref::<String>().is_some_and(|m| m.contains("the culprit")));
        assert_eq!(done.into_inner(), 15);
    }
    assert_eq!(counts(&team, 100), [1; 100], "the team goes on");
}

#[test]
fn teams_come_and_go() {
    for _ in 0..200 {
        let team = Team::new(3).unwrap();
        let again = team.clone();
        drop(team);
        assert_eq!(counts(&again, 9), [1; 9]);
    }
}

#[test]
fn no_threads_and_too_many_are_errors() {
    for threads in [0, Team::MAX_THREADS + 1, usize::MAX] {
        assert!(matches!(Team::new(threads), Err(Error::Invalid(_))), "{threads}");
    }
}

/// Other systems say which cores a process may use, not a thread.
#[cfg(target_os = "linux")]
#[test]
fn helpers_stay_on_cores_of_their_own_where_that_is_asked_for() {
    use std::sync::{Barrier, Mutex};

    let cores: Vec<usize> = core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
    let of_thread = || core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect::<Vec<_>>();
    let seen = |team: &Team| {
        let seen: Vec<Mutex<Vec<usize>>> = (0..team.threads()).map(|_| Mutex::new(Vec::new())).collect();
        // A task that waits for the others makes every thread take one.
        let all = Barrier::new(team.threads());
        team.run(team.threads(), |_, worker| {
            all.wait();
            *seen[worker].lock().unwrap() = of_thread();
        });
        seen.into_iter().map(|cores| cores.into_inner().unwrap()).collect::<Vec<_>>()
    };
    let pinned = Team::pinned(cores.len()).unwrap();
    let expected: Vec<Vec<usize>> =
        (0..cores.len()).map(|i| if i == 0 { cores.clone() } else { vec![cores[i]] }).collect();
    assert_eq!(seen(&pinned), expected);
    assert_eq!(seen(&Team::new(cores.len()).unwrap()), vec![cores.clone(); cores.len()]);
    assert!(matches!(Team::pinned(cores.len() + 1), Err(Error::Invalid(_))));
    assert!(matches!(Team::pinned(0), Err(Error::Invalid(_))));
}
