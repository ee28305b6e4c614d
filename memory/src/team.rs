//! The team of threads that CPU kernels run on.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use core_affinity::CoreId;

use crate::{Error, Result, system};

/// A team of threads that runs tasks of one kernel and joins.
///
/// The caller is one of its threads. A kernel of a decode step runs for tens of microseconds, hundreds of them a step,
/// so a fork and join has to cost about one: helpers wait for the next fork awake for a moment before they sleep, and
/// no one waits for a helper that comes late. Each thread starts on a run of tasks of its own, from call to call the
/// same share, and helps others out when it is done.
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
    /// None for a team of one.
    crew: Option<Arc<Crew>>,
}

/// A task: its number, and that of the thread.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

impl Team {
    /// A team of `threads` threads, the caller's one of them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 threads or more than [`Team::MAX_THREADS`], or where the system refuses to start them.
    pub fn new(threads: usize) -> Result<Self> {
        Self::start(threads, &[])
    }

    /// [`Team::new`] with each helper kept on a logical core of its own, the first core left to the caller, whose
    /// thread stays its own to place. For a machine that nobody else uses: where another program runs on one of the
    /// cores, threads that may move are faster.
    ///
    /// # Errors
    /// Those of [`Team::new`], and [`Error::Invalid`] where there are fewer cores than threads or the system refuses.
    pub fn pinned(threads: usize) -> Result<Self> {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        if threads > cores.len() {
            let few = format!("cannot keep {threads} threads on cores of their own: {} can be used", cores.len());
            return Err(Error::Invalid(few));
        }
        Self::start(threads, &cores)
    }

    /// A team whose helpers stay on `cores`, the first left out; anywhere where there are none.
    fn start(threads: usize, cores: &[CoreId]) -> Result<Self> {
        if threads == 0 || threads > Self::MAX_THREADS {
            return Err(Error::Invalid(format!("threads must be 1 to {}, not {threads}", Self::MAX_THREADS)));
        }
        let crew = if threads == 1 { None } else { Some(Arc::new(Crew::new(threads, cores)?)) };
        Ok(Self { crew })
    }

    /// More threads than this are taken for a mistake.
    pub const MAX_THREADS: usize = 4096;

    /// Threads in the team.
    pub fn threads(&self) -> usize {
        self.crew.as_ref().map_or(1, |crew| crew.shared.shares.len())
    }

    /// Calls `task(i, worker)` for every `i` below `tasks`, in any order, on all threads, and returns when all are
    /// done.
    ///
    /// `worker` is below [`Team::threads`], and no two tasks of one call with one `worker` run at the same time: it may
    /// index scratch. What a task computes must not depend on it: that is what makes results equal on any number of
    /// threads. Calls from several threads take turns; a call from inside a task runs on that task's thread alone. A
    /// panic of a task is passed on when the others are done.
    pub fn run(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        self.run_any(tasks, &task);
    }

    /// [`Team::run`], compiled once for all tasks.
    fn run_any(&self, tasks: usize, task: &Task<'_>) {
        // A call from inside a task must stay on its thread: another would wait for that task.
        if DEEP_TASKS.load(Ordering::Relaxed) && !DEEP_STACK.get() && !INSIDE.get() {
            return on_deep_stack(&|| self.run_here(tasks, task));
        }
        self.run_here(tasks, task);
    }

    /// Makes every later [`Team::run`] of the process work on threads with a deep stack, the caller's share as well.
    ///
    /// Kernels that are compiled without optimisation need it: they keep every vector of a loop on the stack, which takes
    /// more than the 2 MiB that Rust's own threads and those of async runtimes have. A thread is then started for each
    /// call from a thread that is not the team's, which takes some 30 µs.
    pub fn use_deep_stacks() {
        DEEP_TASKS.store(true, Ordering::Relaxed);
    }

    /// [`Team::run`] on the caller's stack.
    fn run_here(&self, tasks: usize, task: &Task<'_>) {
        match &self.crew {
            Some(crew) if tasks > 1 && !INSIDE.get() => crew.run(tasks, task),
            _ => (0..tasks).for_each(|i| task(i, 0)),
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team({} threads)", self.threads())
    }
}

thread_local! {
    /// Whether this thread is running a task: a fork inside it would wait for its own thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Set on threads with a stack of [`STACK_BYTES`].
    static DEEP_STACK: Cell<bool> = const { Cell::new(false) };
}

/// Set once tasks need a stack of [`STACK_BYTES`]; see [`Team::use_deep_stacks`].
static DEEP_TASKS: AtomicBool = AtomicBool::new(false);

/// The stack of the team's threads. Kernels compiled without optimisation overflow 5 MiB and fit in 6 (measured with
/// AVX512-BF16). Pages that nothing touches take no memory.
const STACK_BYTES: usize = 16 << 20;

/// Runs `work` on a thread with a stack of [`STACK_BYTES`], and returns when it has ended.
fn on_deep_stack(work: &(dyn Fn() + Sync)) {
    let outcome = thread::scope(|scope| {
        let builder = thread::Builder::new().name("sinew-caller".to_owned()).stack_size(STACK_BYTES);
        let life = || {
            DEEP_STACK.set(true);
            work();
        };
        builder.spawn_scoped(scope, life).map(|thread| thread.join())
    });
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!("cannot start a thread with a stack of {STACK_BYTES} bytes: {error}"),
    }
}

/// How long a helper waits awake for the next fork: longer than what lies between two kernels of a model's step (the
/// longest is the choice of a token from 100,000 logits), and shorter than anyone would notice. Waking a thread that
/// sleeps takes 5 to 50 µs.
const AWAKE: Duration = Duration::from_micros(200);
/// Looks at the state between two looks at the clock.
const LOOKS: usize = 64;
/// Looks after which a caller that waits for a helper's last task lets other threads run: the helper may be waiting for
/// this core.
const PATIENCE: usize = 1 << 10;

/// [`Shared::state`]: the number of the last fork above, whether it is open, and how many helpers are at work in it.
const FORK: u64 = 1 << 32;
const STOP: u64 = 1 << 31;
const OPEN: u64 = 1 << 30;
const AT_WORK: u64 = OPEN - 1;

/// The threads of a team, without the caller's.
struct Crew {
    shared: Arc<Shared>,
    helpers: Vec<Thread>,
    /// Held by the caller whose fork it is.
    turn: Mutex<()>,
}

/// What the caller and its helpers share.
///
/// A fork is open from when its tasks are set out until the caller finds none left; helpers enter it while it is open,
/// and it is over when all that entered have left. Only then are the task and the shares of the next set out.
struct Shared {
    state: Line<AtomicU64>,
    /// The task of the fork, whose lifetime is that of the fork.
    task: UnsafeCell<Option<*const Task<'static>>>,
    /// The tasks that are left of each thread's share: the first above, the end below.
    shares: Box<[Line<AtomicU64>]>,
    /// Helpers that sleep, or are about to.
    asleep: Line<AtomicUsize>,
    /// The first panic in the fork.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// How long helpers wait awake: not at all where there are more threads than cores, as another may need theirs.
    awake: Duration,
}

/// A value on cache lines of its own: cores fetch two at a time.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: `task` is written only by the caller whose turn it is, while no fork is open and no helper in one, and read
// only by threads in an open fork; what it points to is `Sync`, and the caller waits for all who may use it.
unsafe impl Sync for Shared {}
// SAFETY: the same.
unsafe impl Send for Shared {}

impl Crew {
    fn new(threads: usize, cores: &[CoreId]) -> Result<Self> {
        let awake = if threads <= system::available_threads() { AWAKE } else { Duration::ZERO };
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            task: UnsafeCell::new(None),
            shares: (0..threads).map(|_| Line(AtomicU64::new(0))).collect(),
            asleep: Line(AtomicUsize::new(0)),
            panic: Mutex::new(None),
            awake,
        });
        // Dropped on an error, which sends those home that have started.
        let mut crew = Self { shared, helpers: Vec::with_capacity(threads - 1), turn: Mutex::new(()) };
        // Dropped by each helper as it starts, so that what a thread allocates to start is not part of a later step.
        let (starting, started) = mpsc::channel();
        for worker in 1..threads {
            let (shared, starting, core) = (crew.shared.clone(), starting.clone(), cores.get(worker).copied());
            let life = move || {
                DEEP_STACK.set(true);
                if let Some(core) = core.filter(|&core| !core_affinity::set_for_current(core)) {
                    // Who waits for it is there until every helper has started.
                    let _ = starting.send(core.id);
                }
                drop(starting);
                shared.help(worker);
            };
            let helper = thread::Builder::new().name(format!("sinew-{worker}")).stack_size(STACK_BYTES).spawn(life);
            let helper = helper.map_err(|e| Error::Invalid(format!("cannot start {threads} threads: {e}")))?;
            crew.helpers.push(helper.thread().clone());
        }
        drop(starting);
        // Ends when the last sender is dropped.
        match started.iter().last() {
            Some(core) => Err(Error::Invalid(format!("the system keeps no thread on core {core}"))),
            None => Ok(crew),
        }
    }

    fn run(&self, tasks: usize, task: &Task<'_>) {
        // A panic while it was held left nothing half-done.
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        // Shares count in 32 bits.
        for first in (0..tasks).step_by(u32::MAX as usize) {
            self.fork(first, (tasks - first).min(u32::MAX as usize), task);
        }
    }

    /// Runs tasks `first..first + tasks`, the turn being this thread's.
    fn fork(&self, first: usize, tasks: usize, task: &Task<'_>) {
        let shared = &*self.shared;
        let last = shared.state.0.load(Ordering::Acquire);
        debug_assert!(last & (OPEN | AT_WORK) == 0, "the last fork is over");
        let task: &Task<'_> = &move |i, worker| task(first + i, worker);
        // SAFETY: the turn is this thread's and no helper is in a fork. This function returns only when none is again,
        // so the task outlives its use.
        unsafe { *shared.task.get() = Some(std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task)) };
        let threads = shared.shares.len();
        for (worker, share) in shared.shares.iter().enumerate() {
            let at = |worker: usize| (worker * tasks / threads) as u64;
            share.0.store(at(worker) << 32 | at(worker + 1), Ordering::Relaxed);
        }
        // Before the look at who sleeps; see `wait`.
        shared.state.0.store((last & !AT_WORK).wrapping_add(FORK) | OPEN, Ordering::SeqCst);
        if shared.asleep.0.load(Ordering::SeqCst) > 0 {
            // One for each task but the caller's own.
            self.helpers.iter().take(tasks - 1).for_each(Thread::unpark);
        }
        shared.work(0);
        shared.state.0.fetch_and(!OPEN, Ordering::Relaxed);
        let mut looks = 0;
        while shared.state.0.load(Ordering::Acquire) & AT_WORK != 0 {
            looks += 1;
            if looks < PATIENCE { std::hint::spin_loop() } else { thread::yield_now() }
        }
        if let Some(panic) = shared.panicked().take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // No fork is open: a caller holds the team. Helpers hold what they share, and end in their own time.
        self.shared.state.0.fetch_or(STOP, Ordering::SeqCst);
        self.helpers.iter().for_each(Thread::unpark);
    }
}

impl Shared {
    /// The life of a helper.
    fn help(&self, worker: usize) {
        let mut last = 0;
        loop {
            let state = self.wait(last);
            if state & STOP != 0 {
                return;
            }
            // Another helper may have entered before, or the fork may be closed by now: look again.
            if self.state.0.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.work(worker);
                self.state.0.fetch_sub(1, Ordering::Release);
                last = state / FORK;
            }
        }
    }

    /// Waits until a fork other than `last` is open, or the end.
    fn wait(&self, last: u64) -> u64 {
        let news = |state: u64| state & STOP != 0 || (state & OPEN != 0 && state / FORK != last);
        let mut until = None;
        loop {
            for _ in 0..LOOKS {
                let state = self.state.0.load(Ordering::Relaxed);
                if news(state) {
                    return state;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + self.awake) {
                break;
            }
        }
        // Either the caller that opens a fork sees that someone sleeps, or this helper sees the fork.
        self.asleep.0.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.0.load(Ordering::SeqCst);
            if news(state) {
                break state;
            }
            thread::park();
        };
        self.asleep.0.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Runs tasks until none is left: the thread's own from the front, then those of others from the back.
    fn work(&self, worker: usize) {
        INSIDE.set(true);
        // SAFETY: the fork is open to the caller, or this helper has entered it: the task is set and lives.
        let task = unsafe { (*self.task.get()).map(|task| &*task) };
        debug_assert!(task.is_some());
        let run = || {
            let Some(task) = task else { return };
            let threads = self.shares.len();
            for other in (worker..threads).chain(0..worker) {
                while let Some(i) = self.take(other, other == worker) {
                    task(i, worker);
                }
            }
        };
        // A panic ends one task; the rest of the share is run all the same.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.panicked().get_or_insert(panic);
        }
        INSIDE.set(false);
    }

    /// Takes the first task of a share, or the last.
    fn take(&self, share: usize, first: bool) -> Option<usize> {
        let share = &self.shares[share].0;
        let mut left = share.load(Ordering::Relaxed);
        loop {
            let (start, end) = (left >> 32, left & u64::from(u32::MAX));
            if start >= end {
                return None;
            }
            let (task, rest) = if first { (start, left + FORK) } else { (end - 1, left - 1) };
            match share.compare_exchange_weak(left, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(task as usize),
                Err(now) => left = now,
            }
        }
    }

    fn panicked(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(|e| e.into_inner())
    }
}
