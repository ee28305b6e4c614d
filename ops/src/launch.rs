//! From a problem to a launch: rows are planned or chosen, given their workspace, and run, and another where one that was
//! measured to be fastest fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sinew_kernels::{Bound, Error as KernelError, Launch, Operands, Operator, Row};
use sinew_memory::Buffer;
use sinew_tensor::{View, ViewMut};

use crate::choice;
use crate::{Context, Error, Result};

/// Scratch of the kernel that is running: kernels of one stream run in order, so one is enough. It has memory of its own:
/// what is grown out of would stay in a pool, where nothing else is as large.
#[derive(Debug, Default)]
pub(crate) struct Workspace(Mutex<Option<Buffer>>);

impl Workspace {
    /// What is allocated for so many bytes: those of a size class, so that calls which grow little by little do not each
    /// ask the device.
    fn rounded(ctx: &Context, bytes: usize) -> usize {
        if bytes == 0 { 0 } else { ctx.pool().class_bytes(bytes).unwrap_or(bytes) }
    }

    fn hold(&self) -> MutexGuard<'_, Option<Buffer>> {
        // A panic while it was held leaves scratch bytes, which no one reads.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes what is held as large as so many bytes at least.
    fn grow(ctx: &Context, held: &mut Option<Buffer>, bytes: usize) -> Result<()> {
        if bytes > held.as_ref().map_or(0, Buffer::len) {
            *held = None;
            let buffer = ctx.pool().uninitialised_apart(Self::rounded(ctx, bytes), "workspace")?;
            buffer.record_use(ctx.stream());
            *held = Some(buffer);
        }
        Ok(())
    }
}

impl Context {
    /// Chooses and runs.
    ///
    /// # Errors
    /// No row for the problem, operands that do not fit it, or what the kernel reports.
    pub fn run<O: Operator>(
        &self,
        fixed: &O::Static,
        call: &O::Dynamic,
        inputs: &[Option<View<'_>>],
        outputs: &[ViewMut<'_>],
    ) -> Result<()> {
        let bound = self.choices().get::<O>(self, fixed, call)?;
        self.launch(&bound, call, Operands { inputs, outputs })?;
        Ok(())
    }

    /// Plans a problem for a model: rows are chosen now for each of `calls`, the workspace is made large enough for
    /// them, and running it later allocates nothing.
    ///
    /// # Errors
    /// No row for the problem, or no memory for the workspace.
    pub fn plan<O: Operator>(&self, fixed: O::Static, calls: &[O::Dynamic]) -> Result<Planned<O>> {
        // A row that turns out wrong for one call may be what another was given, or have its arithmetic.
        let rows = loop {
            let failures = self.trust().failures();
            let rows = self.choose_all::<O>(&fixed, calls)?;
            if self.trust().failures() == failures {
                break rows;
            }
        };
        Ok(Planned { fixed: Arc::new(fixed), rows, moved: Arc::new(Moved::default()) })
    }

    /// Bytes of workspace that [`Context::plan`] would make room for, for all of `calls` together: they run one after
    /// the other.
    ///
    /// # Errors
    /// No row for the problem.
    pub fn workspace_bytes<O: Operator>(&self, fixed: &O::Static, calls: &[O::Dynamic]) -> Result<usize> {
        let most = calls.iter().try_fold(0, |most, call| {
            let row = self.choose::<O>(fixed, call)?;
            Ok::<_, Error>(most.max((row.workspace)(fixed, call, self.device().hardware())))
        })?;
        Ok(Workspace::rounded(self, most))
    }

    /// The rows for calls like these, with room for their workspaces.
    fn choose_all<O: Operator>(&self, fixed: &O::Static, calls: &[O::Dynamic]) -> Result<Vec<(O::Dynamic, Bound<O>)>> {
        let mut rows: Vec<(O::Dynamic, Bound<O>)> = Vec::new();
        for call in calls {
            let bound = self.choices().get::<O>(self, fixed, call)?;
            let bytes = (bound.row().workspace)(fixed, call, self.device().hardware());
            Workspace::grow(self, &mut self.workspace().hold(), bytes)?;
            let bucket = O::bucket(*call);
            if !rows.iter().any(|(b, _)| *b == bucket) {
                rows.push((bucket, bound));
            }
        }
        Ok(rows)
    }

    /// The row that ran in the place of `bound`, where that failed.
    fn launch<O: Operator>(
        &self,
        bound: &Bound<O>,
        call: &O::Dynamic,
        operands: Operands<'_>,
    ) -> Result<Option<Bound<O>>> {
        match self.attempt(bound, call, operands) {
            Ok(()) => Ok(None),
            // For want of memory no row is to blame.
            Err(error @ Error::Memory(_)) => Err(error),
            Err(error) if self.is_tuned() => self.fall_back(bound, call, operands, error).map(Some),
            Err(error) => Err(error),
        }
    }

    fn attempt<O: Operator>(&self, bound: &Bound<O>, call: &O::Dynamic, operands: Operands<'_>) -> Result<()> {
        tracing::trace!(operator = O::NAME, row = bound.row().name, problem = %bound.fixed(), call = %call);
        let launch = |launch: &Launch<'_>| bound.launch(launch, call, operands);
        if self.recorder().is_on() {
            return self.recorder().time(self, bound, call, || self.enqueue(&launch));
        }
        self.enqueue(&launch)
    }

    /// Runs the next row that may serve and does, where the one that was measured to be fastest does not run; while the
    /// policy is deterministic one of its arithmetic. Rows look at all that they are given before they write, so that
    /// nothing was done yet. Where none runs it is the operands' fault, and the first error is told.
    #[cold]
    fn fall_back<O: Operator>(
        &self,
        failed: &Bound<O>,
        call: &O::Dynamic,
        operands: Operands<'_>,
        error: Error,
    ) -> Result<Bound<O>> {
        let (failed, fixed) = (failed.row(), failed.fixed());
        let problem = fixed.to_string();
        let same_bits = |row: &Row<O>| !self.policy().deterministic || row.arithmetic == failed.arithmetic;
        let serves = |bound: &Bound<O>| {
            let row = bound.row();
            row.name != failed.name && same_bits(row) && self.attempt(bound, call, operands).is_ok()
        };
        // Another plan of the problem has found out.
        if self.trust().is_rejected(failed.name, &problem)
            && let Some(known) = self.choices().get::<O>(self, fixed, call).ok().filter(&serves)
        {
            return Ok(known);
        }
        let Ok(judged) = choice::judge::<O>(self, fixed, &O::bucket(*call)) else {
            return Err(error);
        };
        let bind = |row: &Row<O>| row.bind(fixed.clone(), self.device()).ok();
        let Some(next) = judged.allowed().filter_map(bind).find(serves) else {
            return Err(error);
        };
        let failure = format!("failed, and {} ran in its place: {error}", next.row().name);
        self.trust().reject(failed.name, &problem, failure);
        self.choices().replace(&next, call);
        Ok(next)
    }

    /// Launches with the workspace that there is, and once more where that is too small.
    fn enqueue(&self, launch: &dyn Fn(&Launch<'_>) -> sinew_kernels::Result<()>) -> Result<()> {
        let mut held = self.workspace().hold();
        match launch(&Launch::new(self.stream(), held.as_mut())?) {
            Err(KernelError::Workspace { needed, .. }) => {
                Workspace::grow(self, &mut held, needed)?;
                Ok(launch(&Launch::new(self.stream(), held.as_mut())?)?)
            }
            result => Ok(result?),
        }
    }
}

/// A problem whose rows are chosen: what models hold. Running it allocates nothing for calls up to the largest planned.
#[derive(Debug, Clone)]
pub struct Planned<O: Operator> {
    fixed: Arc<O::Static>,
    rows: Vec<(O::Dynamic, Bound<O>)>,
    moved: Arc<Moved<O>>,
}

/// Rows that took the place of planned ones that failed, with the bucket that each serves: almost always none.
#[derive(Debug)]
struct Moved<O: Operator> {
    any: AtomicBool,
    rows: Mutex<Vec<(O::Dynamic, Bound<O>)>>,
}

impl<O: Operator> Default for Moved<O> {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), rows: Mutex::new(Vec::new()) }
    }
}

impl<O: Operator> Moved<O> {
    fn get(&self, bucket: &O::Dynamic) -> Option<Bound<O>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.rows().iter().find(|(b, _)| b == bucket).map(|(_, row)| row.clone())
    }

    fn set(&self, bucket: O::Dynamic, row: Bound<O>) {
        let mut rows = self.rows();
        rows.retain(|(b, _)| *b != bucket);
        rows.push((bucket, row));
        self.any.store(true, Ordering::Release);
    }

    fn rows(&self) -> MutexGuard<'_, Vec<(O::Dynamic, Bound<O>)>> {
        self.rows.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl<O: Operator> Planned<O> {
    /// The static part of the problem.
    pub fn fixed(&self) -> &O::Static {
        &self.fixed
    }

    /// The rows chosen, with the bucket that each serves.
    pub fn rows(&self) -> &[(O::Dynamic, Bound<O>)] {
        &self.rows
    }

    /// Enqueues the work. Where a row fails that was measured to be fastest, another runs in its place, and from then on
    /// at once.
    ///
    /// # Errors
    /// Operands that do not fit the problem, or what the kernel reports.
    pub fn run(
        &self,
        ctx: &Context,
        call: &O::Dynamic,
        inputs: &[Option<View<'_>>],
        outputs: &[ViewMut<'_>],
    ) -> Result<()> {
        let (bucket, operands) = (O::bucket(*call), Operands { inputs, outputs });
        let moved = self.moved.get(&bucket);
        let planned = || self.rows.iter().find(|(b, _)| *b == bucket).map(|(_, bound)| bound);
        let chosen;
        let bound = match moved.as_ref().or_else(planned) {
            Some(bound) => bound,
            None => {
                chosen = ctx.choices().get::<O>(ctx, &self.fixed, call)?;
                &chosen
            }
        };
        if let Some(next) = ctx.launch(bound, call, operands)? {
            self.moved.set(bucket, next);
        }
        Ok(())
    }
}
