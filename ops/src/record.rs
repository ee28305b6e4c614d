//! Records: what was launched while a piece of work ran, and how long each launch took.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Instant;

use sinew_kernels::{Bound, Factors, Operator, Work};

use crate::{Context, Explanation, Result};

/// One launch of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Launched {
    /// The operator.
    pub operator: &'static str,
    /// The row that ran.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// The static part of the problem.
    pub problem: String,
    /// The dynamic part.
    pub call: String,
    /// Seconds from the call to the end of the work.
    pub seconds: f64,
    /// The seconds that the row predicts.
    pub predicted_s: f64,
    /// The least work that solves the problem.
    pub work: Work,
    /// What is multiplied, which decides the limit of arithmetic.
    pub factors: Factors,
    /// The candidates and why the row was chosen; that of the first launch with the same static part and alike calls.
    pub explanation: Option<Arc<Explanation>>,
}

/// What was launched while a piece of work ran: see [`Context::record`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record {
    /// The launches, in their order.
    pub launches: Vec<Launched>,
    /// Seconds of the whole piece of work.
    pub seconds: f64,
}

impl Record {
    /// Seconds of all launches together.
    pub fn launched_s(&self) -> f64 {
        self.launches.iter().map(|launched| launched.seconds).sum()
    }
}

/// A launch as it is kept while the work runs: it is put in words when the work is done.
trait Kept: Send + Sync {
    fn in_words(&self, ctx: &Context, explained: &mut Explained) -> Launched;
}

/// What was explained, by operator and problem.
type Explained = HashMap<(&'static str, String), Option<Arc<Explanation>>>;

struct KeptLaunch<O: Operator> {
    bound: Bound<O>,
    call: O::Dynamic,
    seconds: f64,
}

impl<O: Operator> Kept for KeptLaunch<O> {
    fn in_words(&self, ctx: &Context, explained: &mut Explained) -> Launched {
        let Self { bound, call, seconds } = self;
        let (row, fixed) = (bound.row(), &**bound.fixed());
        let key = (O::NAME, format!("{fixed:?} {:?}", O::bucket(*call)));
        let explain = || ctx.explain::<O>(fixed, call).ok().map(Arc::new);
        let explanation = explained.entry(key).or_insert_with(explain).clone();
        Launched {
            explanation,
            operator: O::NAME,
            row: row.name,
            arithmetic: row.arithmetic.name,
            problem: fixed.to_string(),
            call: call.to_string(),
            seconds: *seconds,
            predicted_s: (row.cost)(fixed, call, ctx.device().hardware()),
            work: O::work(fixed, call),
            factors: O::factors(fixed),
        }
    }
}

/// What a context keeps of its launches while records are taken, of each thread its own.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Records that are being taken, on whatever thread.
    taking: AtomicUsize,
    threads: Mutex<HashMap<ThreadId, OfThread>>,
}

/// What is kept of a thread.
#[derive(Default)]
struct OfThread {
    /// Records that it takes, one within another.
    taking: usize,
    launches: Vec<Arc<dyn Kept>>,
}

impl Recorder {
    /// Whether launches of this thread are to be kept.
    pub(crate) fn is_on(&self) -> bool {
        self.taking.load(Ordering::Relaxed) > 0 && self.threads().contains_key(&thread::current().id())
    }

    /// Runs a launch alone on the stream, and keeps how long it took. One that fails is not kept.
    pub(crate) fn time<O: Operator>(
        &self,
        ctx: &Context,
        bound: &Bound<O>,
        call: &O::Dynamic,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        ctx.synchronize()?;
        let start = Instant::now();
        launch()?;
        ctx.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let kept = KeptLaunch { bound: bound.clone(), call: *call, seconds };
        self.threads().entry(thread::current().id()).or_default().launches.push(Arc::new(kept));
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<ThreadId, OfThread>> {
        // What a panic left is whole: launches are pushed one by one.
        self.threads.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({} records)", self.taking.load(Ordering::Relaxed))
    }
}

/// A record that is being taken on a thread. The last one of it that ends forgets what was kept.
struct Taking<'a> {
    recorder: &'a Recorder,
    thread: ThreadId,
    /// Launches that were kept before it.
    before: usize,
}

impl<'a> Taking<'a> {
    fn begin(recorder: &'a Recorder) -> Self {
        recorder.taking.fetch_add(1, Ordering::Relaxed);
        let thread = thread::current().id();
        let mut threads = recorder.threads();
        let of_thread = threads.entry(thread).or_default();
        of_thread.taking += 1;
        Self { recorder, thread, before: of_thread.launches.len() }
    }

    /// What was launched since it began.
    fn launches(&self) -> Vec<Arc<dyn Kept>> {
        let threads = self.recorder.threads();
        threads.get(&self.thread).map_or_else(Vec::new, |of_thread| of_thread.launches[self.before..].to_vec())
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let mut threads = self.recorder.threads();
        if let Some(of_thread) = threads.get_mut(&self.thread) {
            of_thread.taking -= 1;
            if of_thread.taking == 0 {
                threads.remove(&self.thread);
            }
        }
        self.recorder.taking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Context {
    /// Runs `work` and records every launch of this context that this thread makes meanwhile: operator, row, problem, and
    /// how long it took.
    ///
    /// Each launch is waited for, so that on a GPU the work takes longer than it does unrecorded. What other threads launch
    /// is none of it, though it shares the stream, so that times are those of a busy device. While nothing is recorded a
    /// launch costs one relaxed load more and allocates nothing.
    ///
    /// ```
    /// use sinew_ops::{Context, matmul, softmax};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let (y, record) = ctx.record(|| softmax(&ctx, &matmul(&x, &x).run(&ctx)?));
    /// assert_eq!(y?.shape(), [2, 2]);
    /// let operators: Vec<&str> = record.launches.iter().map(|launched| launched.operator).collect();
    /// assert_eq!(operators, ["gemm", "softmax"]);
    /// assert!(record.launched_s() <= record.seconds);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    pub fn record<T>(&self, work: impl FnOnce() -> T) -> (T, Record) {
        let taking = Taking::begin(self.recorder());
        let start = Instant::now();
        let result = work();
        let seconds = start.elapsed().as_secs_f64();
        let mut explained = Explained::new();
        let launches = taking.launches().iter().map(|kept| kept.in_words(self, &mut explained)).collect();
        (result, Record { launches, seconds })
    }
}
