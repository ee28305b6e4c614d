//! Explanation: why a problem gets the kernel that it gets, in words and numbers.

use std::fmt;
use std::time::{Duration, Instant};

use sinew_kernels::{Factors, Operator, Row, Work};

use crate::choice::{self, Judged, Verdict};
use crate::error::refuse;
use crate::tune::{Turns, take_turns};
use crate::{Bound, Budget, Context, Limits, Result};

/// One row as a candidate for a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The row.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// Predicted seconds, for rows that take the problem.
    pub predicted_s: Option<f64>,
    /// Measured seconds, where they are known of this very call: the tuning cache has those of one of each kind.
    pub measured_s: Option<f64>,
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
    pub work: Work,
    /// What the device does at most.
    pub limits: Limits,
    /// The least seconds that these leave for the work.
    pub least_s: f64,
    /// Which of them that is.
    pub bound: Bound,
    /// Candidates, the choice first.
    pub candidates: Vec<Candidate>,
}

impl Explanation {
    /// The candidate that is chosen; none where no row takes the problem.
    pub fn choice(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.chosen)
    }

    /// The same held against other limits, such as measured ones.
    pub fn against(self, limits: Limits, factors: Factors) -> Self {
        let (least_s, bound) = limits.least(self.work, factors);
        Self { limits, least_s, bound, ..self }
    }
}

impl Candidate {
    /// Whether the row takes the problem, be it chosen or not.
    pub fn takes(&self) -> bool {
        self.predicted_s.is_some()
    }

    /// Seconds: measured where they are known, else predicted.
    pub fn seconds(&self) -> Option<f64> {
        self.measured_s.or(self.predicted_s)
    }
}

/// The candidates for a problem in the order of choice, and after them the rows that refuse it; how many of the first may
/// serve.
fn explained<O: Operator>(ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<(Explanation, usize)> {
    O::defined(fixed)?;
    let hardware = ctx.device().hardware();
    let table = ctx.registry().table::<O>()?;
    let like = O::bucket(*call);
    let judged = choice::judge::<O>(ctx, fixed, &like)?;
    let allowed = judged.allowed().count();
    let Judged { rows, refused } = judged;
    let measured = ctx.measured::<O>(fixed, &like);
    let failed = |row: &Row<O>| measured.is_some_and(|times| times.failed(row.name));
    let cost = |row: &Row<O>| (row.cost)(fixed, &like, hardware);
    let may_serve = &rows[..allowed];
    let made_way = may_serve.first().is_some_and(|first| {
        may_serve.iter().any(|(row, _)| failed(row) && !failed(&first.0) && cost(row) < cost(&first.0))
    });
    // As cheap as the choice, and not it.
    let ties =
        |row: &Row<O>| may_serve.first().is_some_and(|(first, _)| first.name != row.name && cost(first) == cost(row));
    let tied = may_serve.iter().any(|(row, _)| ties(row));
    let candidate = |i: usize, (row, verdict): &(Row<O>, Verdict)| {
        let of_kind = measured.and_then(|times| times.seconds(row.name));
        let measured_s = of_kind.filter(|_| like == *call);
        Candidate {
            row: row.name,
            arithmetic: row.arithmetic.name,
            predicted_s: Some((row.cost)(fixed, call, hardware)),
            measured_s,
            workspace: (row.workspace)(fixed, call, hardware),
            verdict: match verdict {
                Verdict::Takes { .. } if failed(row) && i > 0 => "failed when it was tuned".into(),
                Verdict::Takes { .. } if failed(row) => "chosen: all failed when they were tuned".into(),
                Verdict::Takes { preferred: false } if i == 0 && made_way => {
                    "chosen: what is predicted to be faster failed when it was tuned".into()
                }
                Verdict::Takes { preferred: false } if i == 0 && tied && of_kind.is_none() => {
                    "chosen: none is predicted to be faster".into()
                }
                Verdict::Takes { .. } if i > 0 && ties(row) && of_kind.is_none() => "as fast by prediction".into(),
                _ => in_words(verdict, i == 0, of_kind.is_some()),
            },
            chosen: i == 0 && allowed > 0,
        }
    };
    let mut candidates: Vec<Candidate> = rows.iter().enumerate().map(|(i, row)| candidate(i, row)).collect();
    let arithmetic_of = |name: &str| table.rows().iter().find(|r| r.name == name).map_or("", |r| r.arithmetic.name);
    candidates.extend(refused.into_iter().map(|(row, reason)| Candidate {
        row,
        arithmetic: arithmetic_of(row),
        predicted_s: None,
        measured_s: None,
        workspace: 0,
        verdict: format!("refused: {reason}"),
        chosen: false,
    }));
    let (work, limits) = (O::work(fixed, call), Limits::estimated(hardware));
    let (least_s, bound) = limits.least(work, O::factors(fixed));
    let explanation = Explanation {
        operator: O::NAME,
        problem: format!("{fixed}; {call}"),
        hardware: hardware.to_string(),
        work,
        limits,
        least_s,
        bound,
        candidates,
    };
    Ok((explanation, allowed))
}

/// Bytes that a problem reads and writes up to which it is measured: operands are made on the host, as f64 at first.
const MOST_BYTES: f64 = (512 << 20) as f64;
/// Time for a problem's candidates: each runs a few times even where one takes longer. One of which a single run is
/// predicted to take as long is not run.
const TRIALS: Duration = Duration::from_secs(5);

impl Context {
    /// Every candidate for a problem with its predicted cost, the choice, and why the others refused.
    ///
    /// # Errors
    /// An operator that the registry does not hold.
    pub fn explain<O: Operator>(&self, fixed: &O::Static, call: &O::Dynamic) -> Result<Explanation> {
        explained::<O>(self, fixed, call).map(|(explanation, _)| explanation)
    }

    /// The same with the time that every candidate takes on operands like a model's, measured now in turns, and held
    /// against measured limits: some seconds. The choice is what it was; [`tune`](crate::tune()) changes that.
    ///
    /// ```
    /// use sinew_kernels::softmax::{Softmax, SoftmaxDynamic, SoftmaxStatic};
    /// use sinew_ops::Context;
    ///
    /// let ctx = Context::cpu()?;
    /// let call = SoftmaxDynamic { rows: 16, width: 1024 };
    /// let explanation = ctx.explain_measured::<Softmax>(&SoftmaxStatic::default(), &call)?;
    /// assert!(explanation.choice().is_some_and(|choice| choice.measured_s.is_some()));
    /// println!("{explanation}");
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// An operator that the registry does not hold, or a problem too large to make operands for.
    pub fn explain_measured<O: Operator>(&self, fixed: &O::Static, call: &O::Dynamic) -> Result<Explanation> {
        let (mut explanation, allowed) = explained::<O>(self, fixed, call)?;
        let bytes = explanation.work.bytes;
        if bytes > MOST_BYTES {
            let [bytes, most] = [bytes, MOST_BYTES].map(|bytes| bytes / 1e6);
            return Err(refuse(
                O::NAME,
                format!("{bytes:.0} MB are too many to measure; problems of up to {most:.0} MB are"),
            ));
        }
        let short = |c: &&Candidate| c.predicted_s.is_some_and(|seconds| seconds < TRIALS.as_secs_f64());
        let rows: Vec<&'static str> = explanation.candidates.iter().filter(short).map(|c| c.row).collect();
        if let (true, Some(least_s)) = (rows.is_empty(), explanation.choice().and_then(|choice| choice.predicted_s)) {
            return Err(refuse(O::NAME, format!("{least_s:.0} s are predicted, which are too many to measure")));
        }
        let table = self.registry().named(O::NAME).ok_or_else(|| refuse(O::NAME, "it is not in the registry"))?;
        let mut trial = table.trial(&(fixed.clone(), *call), self.stream())?;
        let Turns { times, failed, .. } =
            take_turns(&mut trial, &rows, Instant::now() + TRIALS, Budget::default().runs);
        let seconds = |of: &str| times.iter().find(|(row, _)| *row == of).map(|(_, seconds)| *seconds);
        let chosen = explanation.choice().and_then(|choice| seconds(choice.row));
        let faster = |row: &str| {
            seconds(row).zip(chosen).is_some_and(|(seconds, chosen)| seconds < chosen * (1.0 - crate::tune::MARGIN))
        };
        // Of one that is preferred by name no time is asked.
        let preferred = explanation.choice().is_some_and(|choice| self.policy().prefers(choice.row));
        for (i, candidate) in explanation.candidates.iter_mut().enumerate() {
            candidate.measured_s = seconds(candidate.row);
            if i < allowed && !candidate.chosen && !preferred && faster(candidate.row) {
                candidate.verdict += "; faster as measured now: tuning would choose it";
            }
            if let Some((_, failure)) = failed.iter().find(|(row, _)| *row == candidate.row) {
                let chosen = if candidate.chosen { "chosen, and " } else { "" };
                candidate.verdict = format!("{chosen}failed its trial: {failure}");
            }
        }
        Ok(explanation.against(Limits::measure(self.device())?, O::factors(fixed)))
    }
}

/// A verdict as it is printed.
fn in_words(verdict: &Verdict, chosen: bool, measured: bool) -> String {
    match verdict {
        Verdict::Takes { preferred: true } if chosen => "chosen: preferred by name".into(),
        Verdict::Takes { .. } if chosen && measured => "chosen: none was measured to be clearly faster".into(),
        Verdict::Takes { .. } if chosen => "chosen: lowest predicted cost".into(),
        Verdict::Takes { .. } if measured => "not clearly faster, measured".into(),
        Verdict::Takes { .. } => "slower by prediction".into(),
        Verdict::Failed(failure) => failure.clone(),
        Verdict::Foreign => "its bits depend on the shape; only with deterministic off".into(),
        Verdict::OtherArithmetic(family) => format!("another arithmetic than {family}"),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.operator, self.problem)?;
        writeln!(f, "on {}; {:.3} GFLOP, {:.3} MB", self.hardware, self.work.flops / 1e9, self.work.bytes / 1e6)?;
        let us = |seconds: Option<f64>| seconds.map_or_else(|| "-".into(), |s| format!("{:.1} µs", s * 1e6));
        let unless = if self.bound == Bound::Memory { ", unless a cache holds the operands" } else { "" };
        writeln!(f, "at least {} by {}{unless}: {}", us(Some(self.least_s)), self.bound, self.limits)?;
        let width = self.candidates.iter().map(|c| c.row.len()).max().unwrap_or(0);
        let arithmetic = self.candidates.iter().map(|c| c.arithmetic.len()).max().unwrap_or(0);
        let measured = self.candidates.iter().any(|c| c.measured_s.is_some());
        for c in &self.candidates {
            let mark = if c.chosen { '*' } else { ' ' };
            let (row, name, predicted) = (c.row, c.arithmetic, us(c.predicted_s));
            write!(f, "{mark} {row:width$}  {name:arithmetic$}  {predicted:>12}")?;
            if measured {
                let measured = c.measured_s.map(|seconds| format!("{} measured", us(Some(seconds))));
                write!(f, "  {:>21}", measured.unwrap_or_default())?;
            }
            writeln!(f, "  {}", c.verdict)?;
        }
        if let Some(seconds) = self.choice().and_then(Candidate::seconds) {
            let how = if self.choice().is_some_and(|c| c.measured_s.is_some()) { "measured" } else { "predicted" };
            let share = self.least_s / seconds;
            if share > 1.0 && self.bound == Bound::Memory {
                writeln!(f, "the choice takes less than memory would ({how}): a cache holds its operands")?;
            } else {
                writeln!(f, "the choice reaches {:.0} % of the limit ({how})", 100.0 * share)?;
            }
        }
        Ok(())
    }
}
