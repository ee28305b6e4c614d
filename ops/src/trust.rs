//! Trust: rows of devices where no recorded run has shown them right are checked there before they are used; those that
//! fail are not used again, nor are those that fail as they are launched.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use sinew_kernels::harness::accuracy;
use sinew_kernels::{Operator, Row};

use crate::Context;

/// What is known to be wrong with rows. One that was wrong once is not chosen again; what was planned with it before
/// keeps it, until it fails there.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// What came of checks, by the rows' names.
    checked: Mutex<HashMap<&'static str, Result<(), String>>>,
    rejected: Mutex<Vec<Rejected>>,
}

/// A row that failed where another did not.
#[derive(Debug)]
struct Rejected {
    row: &'static str,
    problem: String,
    failure: String,
}

impl Trust {
    /// Checks a row over a few of its operator's cases at its first use, and on the problem that it is to solve at the
    /// first use for that, where checks are needed.
    pub(crate) fn check<O: Operator>(
        &self,
        ctx: &Context,
        row: &Row<O>,
        fixed: &O::Static,
        call: O::Dynamic,
    ) -> Result<(), String> {
        let (registry, device) = (ctx.registry(), ctx.device());
        if !accuracy::is_unconfirmed(device.hardware()) {
            return Ok(());
        }
        let known = self.outcomes().get(row.name).cloned();
        let failed = |failure: String| format!("failed its self-check: {failure}");
        let outcome = known.unwrap_or_else(|| registry.self_check::<O>(row.name, device).map_err(failed));
        let of_problem = || registry.check_problem::<O>(row.name, fixed, call, device).map_err(failed);
        let outcome = outcome.and_then(|()| of_problem());
        if let Err(failure) = &outcome {
            tracing::warn!(row = row.name, failure, "a kernel is not used");
        }
        let mut outcomes = self.outcomes();
        let so_far = outcomes.entry(row.name).or_insert(Ok(()));
        *so_far = so_far.clone().and(outcome);
        so_far.clone()
    }

    /// Notes that a row failed on a problem where another did not, and says so the first time.
    pub(crate) fn reject(&self, row: &'static str, problem: &str, failure: String) {
        if self.is_rejected(row, problem) {
            return;
        }
        tracing::warn!(row, failure, "a kernel is not used");
        self.rejections().push(Rejected { row, problem: problem.to_owned(), failure });
    }

    /// Whether a row failed on a problem where another did not.
    pub(crate) fn is_rejected(&self, row: &str, problem: &str) -> bool {
        self.rejections().iter().any(|rejected| rejected.row == row && rejected.problem == problem)
    }

    /// What was wrong with a row, as it was checked or launched.
    pub(crate) fn failure(&self, row: &str) -> Option<String> {
        let of_launch = || {
            let all = self.rejections();
            all.iter().find(|rejected| rejected.row == row).map(|rejected| rejected.failure.clone())
        };
        self.wrong(row).or_else(of_launch)
    }

    /// What a check found wrong with a row.
    pub(crate) fn wrong(&self, row: &str) -> Option<String> {
        self.outcomes().get(row)?.clone().err()
    }

    /// How many rows were found wrong by checks.
    pub(crate) fn failures(&self) -> usize {
        self.outcomes().values().filter(|outcome| outcome.is_err()).count()
    }

    fn outcomes(&self) -> MutexGuard<'_, HashMap<&'static str, Result<(), String>>> {
        self.checked.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn rejections(&self) -> MutexGuard<'_, Vec<Rejected>> {
        self.rejected.lock().unwrap_or_else(|e| e.into_inner())
    }
}
