//! Choice: which row of a table serves a problem, and why.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use sinew_kernels::{Error as KernelError, Operator, Row, accuracy};
use sinew_memory::DeviceKind;

use crate::{Context, Result};

/// What the choice of kernels may and must do.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Only rows whose bits do not depend on the shape of a call, and one arithmetic for all calls of a static
    /// problem: a sequence gets the same bits alone, in a batch and in any chunking. On by default on CPUs.
    pub deterministic: bool,
    /// Rows to prefer by name wherever they take the problem.
    pub prefer: Vec<String>,
}

impl Policy {
    /// The usual policy for a kind of device: on GPUs the fastest rows win, whatever their bits depend on.
    pub fn of(device: DeviceKind) -> Self {
        Self { deterministic: device == DeviceKind::CPU, ..Self::default() }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { deterministic: true, prefer: Vec::new() }
    }
}

/// Choices made, per operator: `HashMap<(Static, bucket), Row>` behind a type that does not name the operator.
#[derive(Default)]
pub(crate) struct Choices(Mutex<HashMap<TypeId, Box<dyn Any + Send>>>);

/// What one operator's problems were given.
type Chosen<O> = HashMap<(<O as Operator>::Static, <O as Operator>::Dynamic), Row<O>>;

impl Choices {
    pub(crate) fn get<O: Operator>(&self, ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Row<O>> {
        let key = (fixed.clone(), O::bucket(*call));
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let entry = all.entry(TypeId::of::<O>()).or_insert_with(|| Box::new(Chosen::<O>::new()));
        let chosen = entry.downcast_mut::<Chosen<O>>();
        if let Some(row) = chosen.as_ref().and_then(|c| c.get(&key)) {
            return Ok(*row);
        }
        let row = choose::<O>(ctx, fixed, &key.1)?;
        if let Some(chosen) = chosen {
            chosen.insert(key, row);
        }
        Ok(row)
    }
}

impl fmt::Debug for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Choices")
    }
}

/// What came of the self-checks of rows on devices where no recorded run has confirmed them, by the rows' names.
#[derive(Debug, Default)]
pub(crate) struct SelfChecks(Mutex<HashMap<&'static str, std::result::Result<(), String>>>);

impl SelfChecks {
    /// Checks a row at its first use, where that is needed.
    fn check<O: Operator>(&self, ctx: &Context, row: &Row<O>) -> std::result::Result<(), String> {
        if !accuracy::is_unconfirmed(ctx.device().hardware()) {
            return Ok(());
        }
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let outcome = all.entry(row.name).or_insert_with(|| {
            let outcome = ctx.registry().self_check::<O>(row.name, ctx.device());
            if let Err(failure) = &outcome {
                tracing::warn!(row = row.name, failure, "a kernel failed its self-check and is not used");
            }
            outcome
        });
        outcome.clone()
    }

    /// What was wrong with a row that was checked.
    fn failure(&self, row: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get(row)?.clone().err()
    }
}

/// The arithmetic of a static problem under a deterministic policy: that of the row which is cheapest for the
/// operator's anchor call on one thread, so that the bits are the same on any number. Every later choice moves among
/// rows of that arithmetic.
fn family<'a, O: Operator>(ctx: &Context, fixed: &O::Static, rows: &[&'a Row<O>]) -> Option<&'a Row<O>> {
    let (anchor, hardware) = (O::anchor(fixed), &ctx.device().hardware().one_thread());
    let own = || rows.iter().copied().filter(|row| !row.arithmetic.foreign);
    let preferred = own().find(|row| ctx.policy().prefer.iter().any(|name| name == row.name));
    preferred.or_else(|| {
        own().min_by(|a, b| (a.cost)(fixed, &anchor, hardware).total_cmp(&(b.cost)(fixed, &anchor, hardware)))
    })
}

/// Why a row is chosen for a problem, or why not.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    /// It may be chosen: the first such row is.
    Takes { preferred: bool },
    /// The policy is deterministic, and the row's bits depend on the shape of a call.
    Foreign,
    /// The policy is deterministic, and the problem has the arithmetic of this name.
    OtherArithmetic(&'static str),
}

/// Rows that solve a problem with a verdict on each, those that may be chosen first, the preferred before others, then
/// by predicted cost; and the rows that refuse it, with their reasons.
type Judged<O> = (Vec<(Row<O>, Verdict)>, Vec<(&'static str, String)>);

fn judge<O: Operator>(ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Judged<O>> {
    let (hardware, policy) = (ctx.device().hardware(), ctx.policy());
    let (admitted, refused) = ctx.registry().table::<O>()?.candidates(fixed, hardware);
    let arithmetic = family(ctx, fixed, &admitted).map(|row| row.arithmetic);
    let mut rows: Vec<(Row<O>, Verdict)> = admitted
        .into_iter()
        .map(|row| {
            let verdict = match arithmetic {
                _ if !policy.deterministic || Some(row.arithmetic) == arithmetic => {
                    Verdict::Takes { preferred: policy.prefer.iter().any(|name| name == row.name) }
                }
                Some(chosen) if !row.arithmetic.foreign => Verdict::OtherArithmetic(chosen.name),
                _ => Verdict::Foreign,
            };
            (*row, verdict)
        })
        .collect();
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Takes { preferred } => u8::from(!preferred),
        _ => 2,
    };
    rows.sort_by(|(a, of_a), (b, of_b)| {
        let cost = |row: &Row<O>| (row.cost)(fixed, call, hardware);
        rank(of_a).cmp(&rank(of_b)).then(cost(a).total_cmp(&cost(b)))
    });
    Ok((rows, refused.into_iter().map(|(name, reason)| (name, reason.to_string())).collect()))
}

fn choose<O: Operator>(ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Row<O>> {
    let (rows, refused) = judge::<O>(ctx, fixed, call)?;
    let mut reasons: Vec<String> = refused.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    for (row, verdict) in &rows {
        let reason = match verdict {
            Verdict::Takes { .. } => match ctx.self_checks().check(ctx, row) {
                Ok(()) => {
                    tracing::debug!(operator = O::NAME, row = row.name, problem = %fixed, call = %call, "chosen");
                    return Ok(*row);
                }
                Err(failure) => format!("failed its self-check: {failure}"),
            },
            _ => "only with deterministic off".to_owned(),
        };
        reasons.push(format!("{}: {reason}", row.name));
    }
    if reasons.is_empty() {
        reasons.push("no row of the table runs on this kind of device".into());
    }
    Err(KernelError::NoKernel {
        operator: O::NAME,
        problem: fixed.to_string(),
        device: ctx.device().id().to_string(),
        reasons: reasons.join("; "),
    }
    .into())
}

/// One row as a candidate for a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The row.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// Predicted seconds, for rows that take the problem.
    pub predicted_s: Option<f64>,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Why it is chosen, or why not.
    pub verdict: String,
    /// Whether it is the choice.
    pub chosen: bool,
}

/// Why a problem gets the kernel that it gets. Printed as a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The operator.
    pub operator: &'static str,
    /// The problem, static and dynamic part.
    pub problem: String,
    /// The hardware that decided.
    pub hardware: String,
    /// The least floating-point operations and bytes.
    pub work: (f64, f64),
    /// Candidates, the choice first.
    pub candidates: Vec<Candidate>,
}

pub(crate) fn explain<O: Operator>(ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Explanation> {
    let hardware = ctx.device().hardware();
    let table = ctx.registry().table::<O>()?;
    let (rows, refused) = judge::<O>(ctx, fixed, &O::bucket(*call))?;
    let usable = |(row, verdict): &(Row<O>, Verdict)| {
        matches!(verdict, Verdict::Takes { .. }) && ctx.self_checks().failure(row.name).is_none()
    };
    let choice = rows.iter().position(usable);
    let candidate = |i: usize, (row, verdict): &(Row<O>, Verdict)| {
        let chosen = choice == Some(i);
        Candidate {
            row: row.name,
            arithmetic: row.arithmetic.name,
            predicted_s: Some((row.cost)(fixed, call, hardware)),
            workspace: (row.workspace)(fixed, call, hardware),
            verdict: match verdict {
                Verdict::Takes { preferred: true } if chosen => "chosen: preferred by name".into(),
                Verdict::Takes { .. } if chosen => "chosen: lowest predicted cost".into(),
                Verdict::Takes { .. } => match ctx.self_checks().failure(row.name) {
                    Some(failure) => format!("failed its self-check: {failure}"),
                    None => "slower by prediction".into(),
                },
                Verdict::Foreign => "its bits depend on the shape; only with deterministic off".into(),
                Verdict::OtherArithmetic(family) => format!("another arithmetic than {family}"),
            },
            chosen,
        }
    };
    let mut candidates: Vec<Candidate> = rows.iter().enumerate().map(|(i, row)| candidate(i, row)).collect();
    let arithmetic_of = |name: &str| table.rows().iter().find(|r| r.name == name).map_or("", |r| r.arithmetic.name);
    candidates.extend(refused.into_iter().map(|(row, reason)| Candidate {
        row,
        arithmetic: arithmetic_of(row),
        predicted_s: None,
        workspace: 0,
        verdict: format!("refused: {reason}"),
        chosen: false,
    }));
    let work = O::work(fixed, call);
    Ok(Explanation {
        operator: O::NAME,
        problem: format!("{fixed}; {call}"),
        hardware: hardware.to_string(),
        work: (work.flops, work.bytes),
        candidates,
    })
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.operator, self.problem)?;
        writeln!(f, "on {}; {:.3} GFLOP, {:.3} MB", self.hardware, self.work.0 / 1e9, self.work.1 / 1e6)?;
        let width = self.candidates.iter().map(|c| c.row.len()).max().unwrap_or(0);
        let arithmetic = self.candidates.iter().map(|c| c.arithmetic.len()).max().unwrap_or(0);
        for c in &self.candidates {
            let mark = if c.chosen { '*' } else { ' ' };
            let cost = c.predicted_s.map_or_else(|| "-".into(), |s| format!("{:.1} µs", s * 1e6));
            let (row, name) = (c.row, c.arithmetic);
            writeln!(f, "{mark} {row:width$}  {name:arithmetic$}  {cost:>12}  {}", c.verdict)?;
        }
        Ok(())
    }
}
