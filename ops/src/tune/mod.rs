//! Tuning: the rows that may serve a problem, timed on this machine, once, and kept.
//!
//! The cost model is an estimate; what it orders wrongly on a machine is put right by [`tune`]. Measured times choose
//! among the rows that the policy allows, and where it is deterministic these have one arithmetic: a tuned context gives
//! the bits of an untuned one. Which arithmetic a problem has is never measured.

mod cache;
mod problem;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use sinew_kernels::harness::trial::Timed;

use crate::{Context, Result};

pub(crate) use cache::{MARGIN, Timings};
pub use cache::{Times, TuningCache};
pub(crate) use problem::{Problem, ProblemOf};

/// How long [`tune`] may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Time for all problems. No trial begins after it; one that has begun is ended, of which no run takes more than a
    /// fraction of a second.
    pub time: Duration,
    /// Runs of each row whose median counts, at most.
    pub runs: usize,
}

impl Default for Budget {
    /// Ten seconds, and seven runs.
    fn default() -> Self {
        Self { time: Duration::from_secs(10), runs: 7 }
    }
}

/// Runs after which a row may be given up, and how many times as long as the fastest row's best its own best then takes.
const FEW_RUNS: usize = 2;
const HOPELESS: f64 = 1.5;
/// A problem's share of the time that is left: what small ones leave goes to those behind them.
const SHARE: u32 = 2;
/// Longer budgets are as good as none, and times that far ahead can be counted.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What [`tune`] measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tuned {
    /// The problems that were measured.
    pub problems: Vec<TunedProblem>,
    /// Problems for which no time was left.
    pub left: usize,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A problem that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct TunedProblem {
    /// Its operator.
    pub operator: &'static str,
    /// The static problem, and the call that stands for those like it.
    pub problem: String,
    /// The row that is chosen where nothing is measured.
    pub predicted: &'static str,
    /// The row that is chosen now.
    pub winner: &'static str,
    /// Medians of the rows that ran, in seconds.
    pub times: Times,
    /// Rows that failed, and how.
    pub failed: Vec<(&'static str, String)>,
    key: String,
}

/// Which problems are measured first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Several rows may serve it.
    New,
    /// Of those there are times.
    Known,
    /// There is nothing to choose: its time is only told.
    Single,
}

/// Times the rows for every problem that a context was asked for: by a model that planned its layers with it, or by
/// calls. Each row runs once to make ready; then they take turns, and one that is clearly slower is given up early.
///
/// Problems come first among whose rows there is something to choose and of which the context has not been told enough
/// times before ([`Context::with_tuning`]), so that what one budget leaves the next one reaches; of those the short ones
/// before the long. One row takes the place of another only where both ran often enough that a few slow runs say
/// nothing. The context itself is not changed: make one with the cache that the result is saved to.
///
/// ```
/// use sinew_memory::PrivateFolder;
/// use sinew_ops::{Budget, Context, TuningCache, softmax, tune};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[0.5f32; 512], &[4, 128])?;
/// let untuned = softmax(&ctx, &x)?;
/// let tuned = tune(&ctx, &Budget::default())?;
/// assert_eq!(tuned.problems[0].operator, "softmax");
///
/// let cache = TuningCache::at(PrivateFolder::none()); // or TuningCache::of_user()
/// cache.save(&ctx, &tuned).expect("nothing is written here");
/// let ctx = Context::cpu()?.with_tuning(&cache);
/// assert_eq!(softmax(&ctx, &x)?.to_vec::<f32>()?, untuned.to_vec::<f32>()?);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// A device that fails, or has no memory for operands. A row that fails is none: it is told in the result.
pub fn tune(ctx: &Context, budget: &Budget) -> Result<Tuned> {
    tune_while(ctx, budget, &mut |_| ControlFlow::Continue(()))
}

/// [`tune`], which after every problem gives `go_on` what it has measured so far, and ends where that breaks off. What is
/// saved there is kept, whatever happens to those that come after it.
///
/// ```
/// use std::ops::ControlFlow;
/// use sinew_memory::PrivateFolder;
/// use sinew_ops::{Budget, Context, TuningCache, log_softmax, softmax, tune_while};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[0.5f32; 512], &[4, 128])?;
/// (softmax(&ctx, &x)?, log_softmax(&ctx, &x)?);
/// let cache = TuningCache::at(PrivateFolder::none()); // or TuningCache::of_user()
/// let tuned = tune_while(&ctx, &Budget::default(), &mut |so_far| {
///     cache.save(&ctx, so_far).expect("nothing is written here");
///     ControlFlow::Break(())
/// })?;
/// assert_eq!((tuned.problems.len(), tuned.left), (1, 1));
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Those of [`tune`].
pub fn tune_while(ctx: &Context, budget: &Budget, go_on: &mut dyn FnMut(&Tuned) -> ControlFlow<()>) -> Result<Tuned> {
    let begun = Instant::now();
    let mut problems = Vec::new();
    for problem in ctx.choices().problems() {
        let candidates = problem.candidates(ctx)?;
        if let Some(&(_, predicted_s)) = candidates.first() {
            let turn = match candidates.len() {
                1 => Turn::Single,
                _ => {
                    let rows = candidates.iter().map(|(name, _)| *name);
                    if ctx.is_timed(problem.operator(), &problem.key(), rows) { Turn::Known } else { Turn::New }
                }
            };
            problems.push((turn, predicted_s, problem.key(), problem, candidates));
        }
    }
    problems.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| a.2.cmp(&b.2)));
    let mut tuned = Tuned { left: problems.len(), ..Tuned::default() };
    for (i, (turn, _, _, problem, candidates)) in problems.iter().enumerate() {
        let left = budget.time.min(LONGEST).saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        // Those of a later turn have what is left.
        let alike = problems[i..].iter().take_while(|other| other.0 == *turn).count();
        let share = (left / alike as u32 * SHARE).min(left);
        let names: Vec<&'static str> = candidates.iter().map(|(name, _)| *name).collect();
        tuned.problems.push(measure(ctx, &**problem, &names, Instant::now() + share, budget.runs)?);
        (tuned.left, tuned.seconds) = (tuned.left - 1, begun.elapsed().as_secs_f64());
        if go_on(&tuned).is_break() {
            break;
        }
    }
    Ok(tuned)
}

/// Times a problem's rows, the first of which is predicted fastest, until `end`.
fn measure(
    ctx: &Context,
    problem: &dyn Problem,
    rows: &[&'static str],
    end: Instant,
    runs: usize,
) -> Result<TunedProblem> {
    let operator = problem.operator();
    let table = ctx.registry().named(operator);
    let table = table.ok_or_else(|| crate::error::refuse(operator, "it is not in the registry"))?;
    let mut trial = table.trial(&*problem.typed(), ctx.stream())?;
    let Turns { times, failed, rounds } = take_turns(&mut trial, rows, end, runs);
    for (row, failure) in &failed {
        tracing::warn!(row, failure, problem = problem.words(), "a kernel failed its trial");
    }
    let times = Times::new(&times, failed.iter().map(|(row, _)| *row), rounds);
    let winner = rows[times.winner(rows).unwrap_or(0)];
    let (key, words) = (problem.key(), problem.words());
    Ok(TunedProblem { operator, problem: words, predicted: rows[0], winner, times, failed, key })
}

/// What rows took in turns.
pub(crate) struct Turns {
    /// Medians.
    pub(crate) times: Vec<(&'static str, f64)>,
    /// Rows that failed, and how.
    pub(crate) failed: Vec<(&'static str, String)>,
    /// How often those ran that were not given up.
    rounds: usize,
}

/// Rows in turns, so that what else the machine does meets all alike. The first is never given up: others are held
/// against it.
pub(crate) fn take_turns(trial: &mut dyn Timed, rows: &[&'static str], end: Instant, runs: usize) -> Turns {
    let mut times: Vec<(&'static str, Vec<f64>)> = rows.iter().map(|&row| (row, Vec::new())).collect();
    let (mut given_up, mut failed, mut rounds) = (Vec::new(), Vec::new(), 0);
    for round in 0..runs.max(1) {
        if round > 0 && Instant::now() >= end {
            break;
        }
        rounds += 1;
        times.retain_mut(|(row, of_row)| match trial.time_row(row) {
            Ok(seconds) => {
                of_row.push(seconds);
                true
            }
            Err(error) => {
                failed.push((*row, error.to_string()));
                false
            }
        });
        let best = |of_row: &[f64]| of_row.iter().copied().fold(f64::INFINITY, f64::min);
        let least = times.iter().map(|(_, of_row)| best(of_row)).fold(f64::INFINITY, f64::min);
        if round + 1 >= FEW_RUNS {
            let hopeless = |(row, of_row): &mut (&str, Vec<f64>)| *row != rows[0] && best(of_row) > HOPELESS * least;
            given_up.extend(times.extract_if(.., hopeless));
        }
    }
    let median = |(row, mut of_row): (&'static str, Vec<f64>)| {
        of_row.sort_by(f64::total_cmp);
        (row, of_row[of_row.len() / 2])
    };
    Turns { times: times.into_iter().chain(given_up).map(median).collect(), failed, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with times of their own, which count how often they run.
    struct Counting(Vec<(&'static str, f64, usize)>);

    impl Timed for Counting {
        fn names(&self) -> Vec<&'static str> {
            self.0.iter().map(|(name, ..)| *name).collect()
        }
        fn time_row(&mut self, name: &str) -> Result<f64, sinew_kernels::Error> {
            let row = self.0.iter_mut().find(|(row, ..)| *row == name).expect("a row of the trial");
            row.2 += 1;
            let failure = || sinew_kernels::operator::refuse("gemm", "it always fails");
            if row.1 > 0.0 { Ok(row.1) } else { Err(failure()) }
        }
    }

    fn counting() -> (Counting, Vec<&'static str>) {
        let trial = Counting(vec![("near", 1.1, 0), ("best", 1.0, 0), ("far", 4.0, 0), ("broken", -1.0, 0)]);
        let names = trial.names();
        (trial, names)
    }

    #[test]
    fn a_row_that_is_clearly_slower_or_fails_is_not_run_again() {
        let (mut trial, names) = counting();
        let end = Instant::now() + Duration::from_secs(3600);
        let Turns { times, failed, rounds } = take_turns(&mut trial, &names, end, 7);
        assert_eq!((times, rounds), (vec![("near", 1.1), ("best", 1.0), ("far", 4.0)], 7));
        assert_eq!(failed.iter().map(|(row, _)| *row).collect::<Vec<_>>(), ["broken"]);
        assert_eq!(trial.0.iter().map(|row| row.2).collect::<Vec<_>>(), [7, 7, FEW_RUNS, 1]);
    }

    /// Rows with a time for each run.
    struct Varying(Vec<(&'static str, Vec<f64>)>);

    impl Timed for Varying {
        fn names(&self) -> Vec<&'static str> {
            self.0.iter().map(|(name, _)| *name).collect()
        }
        fn time_row(&mut self, name: &str) -> Result<f64, sinew_kernels::Error> {
            Ok(self.0.iter_mut().find(|(row, _)| *row == name).expect("a row of the trial").1.remove(0))
        }
    }

    #[test]
    fn what_counts_of_a_row_is_the_median_of_its_runs() {
        // Of each the mean, the least and the last say else.
        let steady = ("steady", vec![3.0, 3.0, 3.0, 3.0, 3.0]);
        let disturbed = ("disturbed", vec![2.0, 90.0, 2.5, 1.9, 80.0]);
        let mut trial = Varying(vec![steady, disturbed]);
        let names = trial.names();
        let end = Instant::now() + Duration::from_secs(3600);
        let Turns { times, rounds, .. } = take_turns(&mut trial, &names, end, 5);
        assert_eq!((times, rounds), (vec![("steady", 3.0), ("disturbed", 2.5)], 5));
    }

    #[test]
    fn a_row_is_given_up_by_its_best_run_and_the_predicted_one_never() {
        let once = ("once", vec![9.0, 1.0, 1.2, 1.2]);
        let slow = ("slow", vec![9.0, 9.0, 9.0, 9.0]);
        for rows in [[once.clone(), slow.clone()], [slow, once]] {
            let mut trial = Varying(rows.to_vec());
            let names = trial.names();
            take_turns(&mut trial, &names, Instant::now() + Duration::from_secs(3600), 4);
            let left = |row: &str| trial.0.iter().find(|(name, _)| *name == row).expect("a row").1.len();
            let given_up_after = if names[0] == "slow" { 4 } else { FEW_RUNS };
            assert_eq!([left("once"), left("slow")], [0, 4 - given_up_after]);
        }
    }

    #[test]
    fn after_its_time_a_problem_gets_one_round_and_no_more() {
        let (mut trial, names) = counting();
        take_turns(&mut trial, &names, Instant::now(), 7);
        assert!(trial.0.iter().all(|row| row.2 == 1));
    }
}
