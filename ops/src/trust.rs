//! Trust: rows of devices where no recorded run has shown them right are checked there before they are used; those that
//! fail are not used again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use sinew_kernels::{Operator, Row, accuracy};

use crate::Context;

/// What came of checks, by the rows' names. A row that was wrong once is not chosen again; what was planned with it
/// before keeps it.
#[derive(Debug, Default)]
pub(crate) struct Trust(Mutex<HashMap<&'static str, Result<(), String>>>);

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

    /// Notes that a row failed where another did not.
    pub(crate) fn reject(&self, row: &'static str, failure: String) {
        tracing::warn!(row, failure, "a kernel is not used");
        self.outcomes().insert(row, Err(failure));
    }

    /// What was wrong with a row.
    pub(crate) fn failure(&self, row: &str) -> Option<String> {
        self.outcomes().get(row)?.clone().err()
    }

    /// How many rows were wrong.
    pub(crate) fn failures(&self) -> usize {
        self.outcomes().values().filter(|outcome| outcome.is_err()).count()
    }

    fn outcomes(&self) -> MutexGuard<'_, HashMap<&'static str, Result<(), String>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
