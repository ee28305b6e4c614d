//! The team of threads that CPU kernels run on.

use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};

/// A team of threads that runs tasks of one kernel and joins.
///
/// CPU kernels receive a `Team` and know nothing of what is under it, which is Rayon's work-stealing pool today.
/// Whoever runs many kernels in a row does so inside [`Team::enter`], so that each fork and join is between threads
/// that are awake.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let team = sinew_memory::Team::new(2)?;
/// let sum = AtomicUsize::new(0);
/// team.run(10, |task, _worker| {
///     sum.fetch_add(task, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 45);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct Team {
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: usize,
}

impl Team {
    /// A team of `threads` threads; one thread means the caller's own.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 threads or more than [`Team::MAX_THREADS`], or where the system refuses to start them.
    pub fn new(threads: usize) -> Result<Self> {
        if threads == 0 || threads > Self::MAX_THREADS {
            return Err(Error::Invalid(format!("threads must be 1 to {}, not {threads}", Self::MAX_THREADS)));
        }
        if threads == 1 {
            return Ok(Self { pool: None, threads });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("sinew-{i}"))
            .build()
            .map_err(|e| Error::Invalid(format!("cannot start {threads} threads: {e}")))?;
        Ok(Self { pool: Some(Arc::new(pool)), threads })
    }

    /// More threads than this are taken for a mistake.
    pub const MAX_THREADS: usize = 4096;

    /// Threads in the team.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on a thread of the team, so that kernels inside it fork without waking anyone first.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }

    /// Calls `task(i, worker)` for every `i` below `tasks`, in any order, on all threads, and returns when all are done.
    ///
    /// `worker` is below [`Team::threads`], and no two calls with one `worker` run at the same time: it may index
    /// scratch. What a task computes must not depend on it: that is what makes results equal on any number of threads.
    pub fn run(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        self.run_dyn(tasks, &task);
    }

    /// [`Team::run`], compiled once for all kernels: Rayon's machinery in each of hundreds of them took most of their
    /// build time, and a call through a pointer per task is not to be measured.
    fn run_dyn(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        match &self.pool {
            Some(pool) if tasks > 0 => {
                // A lone task too runs inside the pool, so that its worker number is its own.
                pool.install(|| split(0, tasks, task));
            }
            _ => (0..tasks).for_each(|i| task(i, 0)),
        }
    }
}

/// Halves the range until single tasks are left; idle threads steal the larger halves first.
fn split(start: usize, end: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    if end - start == 1 {
        task(start, rayon::current_thread_index().unwrap_or(0));
        return;
    }
    let middle = start + (end - start) / 2;
    rayon::join(|| split(start, middle, task), || split(middle, end, task));
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team({} threads)", self.threads)
    }
}
