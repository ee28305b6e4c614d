//! What was measured, in memory and on disk.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use sinew_kernels::Operator;
use sinew_memory::PrivateFolder;

use super::Tuned;
use super::problem::key;
use crate::Context;

/// A row that is measured to be faster than the one of the lowest predicted cost by less than this share is not taken in
/// its place: another measurement may say the opposite.
pub(crate) const MARGIN: f64 = 0.03;

/// Rounds in which the row of the lowest predicted cost ran, of fewer than which none takes its place: one or two slow
/// runs say nothing on a machine that others use.
const LEAST_ROUNDS: usize = 5;

/// Seconds that rows took for a problem, medians; none for rows that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    rows: BTreeMap<String, Option<f64>>,
    /// Turns that the rows took.
    rounds: usize,
}

impl Times {
    pub(super) fn new(
        times: &[(&'static str, f64)],
        failed: impl IntoIterator<Item = &'static str>,
        rounds: usize,
    ) -> Self {
        let times = times.iter().map(|&(row, seconds)| (row, Some(seconds)));
        let all = times.chain(failed.into_iter().map(|row| (row, None)));
        Self { rows: all.map(|(row, seconds)| (row.to_owned(), seconds)).collect(), rounds }
    }

    /// Takes in others of the same problem, which go before those that are there, as they are newer; but for those of fewer
    /// rounds. Rows that they are not about, such as those that their policy left out, keep what was known of them, if that
    /// was [enough](Self::is_enough): else all would count as measured so few times.
    fn merge(&mut self, other: &Times) {
        if other.rounds < self.rounds {
            return;
        }
        if !self.is_enough() || self.rows.keys().all(|row| other.rows.contains_key(row)) {
            self.clone_from(other);
        } else {
            self.rows.extend(other.rows.clone());
        }
    }

    /// Seconds of a row, where it was measured.
    pub fn seconds(&self, row: &str) -> Option<f64> {
        self.rows.get(row).copied().flatten().filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }

    /// Every row with its seconds; those that failed have none.
    pub fn rows(&self) -> &BTreeMap<String, Option<f64>> {
        &self.rows
    }

    /// Turns that the rows took which were not given up.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Whether they are of so many rounds that a row may be chosen by them.
    pub(crate) fn is_enough(&self) -> bool {
        self.rounds >= LEAST_ROUNDS
    }

    /// Whether a row was to be measured, and failed.
    pub(crate) fn failed(&self, row: &str) -> bool {
        matches!(self.rows.get(row), Some(None))
    }

    /// Which of these rows, the first of which would be chosen if nothing were measured, is to be chosen in its place:
    /// one that is faster, or any that did not fail where the first did. `None` where there is none, or the first was
    /// not measured, or [not often](Self::is_enough): then there is nothing to hold the others against.
    pub(crate) fn winner(&self, rows: &[&str]) -> Option<usize> {
        let runs = rows.iter().position(|row| !self.failed(row))?;
        let timed = rows.iter().enumerate().filter_map(|(i, row)| Some((i, self.seconds(row)?)));
        let fastest = timed.min_by(|a, b| a.1.total_cmp(&b.1));
        let winner = match (self.seconds(rows[runs]), fastest) {
            (Some(first), Some((fastest, least))) if self.is_enough() && least < first * (1.0 - MARGIN) => fastest,
            (None, Some((fastest, _))) if runs > 0 => fastest,
            _ => runs,
        };
        (winner > 0).then_some(winner)
    }
}

/// Times of problems by operator and [key](super::Problem::key): of one hardware and one registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timings(BTreeMap<String, BTreeMap<String, Times>>);

impl Timings {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The times of a problem.
    pub(crate) fn of<O: Operator>(&self, fixed: &O::Static, like: &O::Dynamic) -> Option<&Times> {
        self.0.get(O::NAME)?.get(&key::<O>(fixed, like))
    }

    /// Takes in others: see [`Times::merge`].
    fn merge(&mut self, other: &Tuned) {
        for problem in &other.problems {
            let of_operator = self.0.entry(problem.operator.to_owned()).or_default();
            of_operator.entry(problem.key.clone()).or_default().merge(&problem.times);
        }
    }

    /// Whether there is of each of these rows of a problem what they are chosen by.
    pub(crate) fn has(&self, operator: &str, key: &str, mut rows: impl Iterator<Item = &'static str>) -> bool {
        let times = self.0.get(operator).and_then(|all| all.get(key));
        times.is_some_and(|times| times.is_enough() && rows.all(|row| times.rows.contains_key(row)))
    }
}

/// Where the times of problems are kept: a file for each hardware, number of threads, version and set of rows, in a folder
/// that nobody but the user can write to.
///
/// What is damaged, of another hardware, version or set of rows, or could have been written by another user, counts as
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningCache(PrivateFolder);

impl TuningCache {
    /// The user's: `sinew/tuning` in `$XDG_CACHE_HOME` or `$HOME/.cache`.
    pub fn of_user() -> Self {
        Self(PrivateFolder::of_user("tuning"))
    }

    /// One in a folder.
    pub fn at(folder: PrivateFolder) -> Self {
        Self(folder)
    }

    /// The folder.
    pub fn folder(&self) -> &PrivateFolder {
        &self.0
    }

    /// Keeps what was measured on a context's device with its registry, beside what is kept already. Others who write at
    /// the same time lose nothing.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn save(&self, ctx: &Context, tuned: &Tuned) -> io::Result<()> {
        let key = key_of(ctx);
        self.0.update(&file(ctx, &key), &key, |kept| {
            let mut timings = kept.and_then(|kept| parse(&kept)).unwrap_or_default();
            timings.merge(tuned);
            // Maps of words and numbers cannot fail to be written; were they to, nothing would be kept.
            serde_json::to_vec(&timings).unwrap_or_default()
        })
    }

    /// What is kept for a context's device and registry.
    pub(crate) fn timings(&self, ctx: &Context) -> Timings {
        let key = key_of(ctx);
        self.0.get(&file(ctx, &key), &key).and_then(|kept| parse(&kept)).unwrap_or_default()
    }
}

fn parse(kept: &[u8]) -> Option<Timings> {
    serde_json::from_slice(kept).ok()
}

/// A file for each key, which begins with what people tell them apart by.
fn file(ctx: &Context, key: &str) -> String {
    let hardware = ctx.device().hardware();
    let (device, version) = (ctx.device().id(), env!("CARGO_PKG_VERSION"));
    let name = format!("{device}-{}-{}-{version}", hardware.simd, hardware.threads);
    PrivateFolder::file(&name.replace(':', "-"), key)
}

/// Everything that the times depend on but the problem.
fn key_of(ctx: &Context) -> String {
    let (version, hardware) = (env!("CARGO_PKG_VERSION"), ctx.device().hardware());
    let mut rows: Vec<String> = Vec::new();
    for table in ctx.registry().tables() {
        let of_device = table.row_names().into_iter().filter(|(_, device, _)| *device == hardware.kind);
        rows.extend(of_device.map(|(row, _, arithmetic)| format!("{row} {arithmetic}")));
    }
    rows.sort();
    let build = if cfg!(debug_assertions) { "with debug assertions" } else { "optimised" };
    format!("tuning 2 of sinew {version}, {build}: {hardware}, caches {:?}; {}", hardware.caches, rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::TunedProblem;
    use super::*;

    #[test]
    fn a_winner_beats_the_prediction_by_more_than_noise() {
        let times = |all: &[(&'static str, f64)]| Times::new(all, [], LEAST_ROUNDS);
        let rows = ["predicted", "other", "third"];
        assert_eq!(times(&[("predicted", 1.0), ("other", 0.5), ("third", 0.4)]).winner(&rows), Some(2));
        assert_eq!(times(&[("predicted", 1.0), ("other", 0.99)]).winner(&rows), None);
        assert_eq!(times(&[("predicted", 1.0), ("other", 1.5)]).winner(&rows), None);
        assert_eq!(times(&[("other", 0.5)]).winner(&rows), None);
        assert_eq!(times(&[("predicted", 1.0), ("unknown", 0.1)]).winner(&rows), None);
        for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(times(&[("predicted", 1.0), ("other", nonsense)]).winner(&rows), None);
        }
        assert_eq!(times(&[]).winner(&[]), None);
        // Of fewer rounds nothing is taken for faster.
        assert_eq!(Times::new(&[("predicted", 1.0), ("other", 0.1)], [], LEAST_ROUNDS - 1).winner(&rows), None);
    }

    #[test]
    fn fewer_rounds_do_not_replace_more() {
        let tuned = |seconds, rounds| {
            let times = Times::new(&[("row", seconds)], [], rounds);
            let (problem, key) = (String::new(), "problem".to_owned());
            let (operator, predicted, winner, failed) = ("gemm", "row", "row", Vec::new());
            Tuned {
                problems: vec![TunedProblem { operator, problem, predicted, winner, times, failed, key }],
                ..Tuned::default()
            }
        };
        let mut kept = Timings::default();
        for (seconds, rounds, then) in [(1.0, 2, 1.0), (2.0, 7, 2.0), (3.0, 6, 2.0), (4.0, 7, 4.0)] {
            kept.merge(&tuned(seconds, rounds));
            assert_eq!(kept.0["gemm"]["problem"].seconds("row"), Some(then));
        }
        let has = |operator, key, row| kept.has(operator, key, [row].into_iter());
        assert!(has("gemm", "problem", "row") && !has("gemm", "problem", "another"));
        assert!(!has("gemm", "other", "row") && !has("norm", "problem", "row"));
    }

    #[test]
    fn rows_that_others_are_not_about_keep_their_times() {
        let mut kept = Times::new(&[("row", 1.0), ("of another arithmetic", 2.0)], ["failed"], 9);
        kept.merge(&Times::new(&[("row", 3.0), ("new", 4.0)], [], 8));
        assert_eq!((kept.seconds("row"), kept.seconds("new"), kept.rounds), (Some(1.0), None, 9));
        kept.merge(&Times::new(&[("row", 3.0), ("new", 4.0)], [], 12));
        assert_eq!((kept.seconds("row"), kept.seconds("new")), (Some(3.0), Some(4.0)));
        // Of fewer rounds than the newer ones.
        assert_eq!((kept.seconds("of another arithmetic"), kept.rounds), (Some(2.0), 9));
        assert!(kept.failed("failed"));
        // Of too few rounds nothing stays that would hold the newer ones down to as few.
        let mut few = Times::new(&[("row", 1.0), ("of another arithmetic", 2.0)], [], LEAST_ROUNDS - 1);
        few.merge(&Times::new(&[("row", 3.0)], [], LEAST_ROUNDS));
        assert!(few.is_enough() && few.rows().len() == 1);
    }

    #[test]
    fn a_row_that_failed_is_no_winner_and_makes_way() {
        let rows = ["predicted", "other", "third"];
        let winner = |times: &[(&'static str, f64)], failed: &[&'static str]| {
            let times = Times::new(times, failed.iter().copied(), LEAST_ROUNDS);
            let kept = serde_json::to_string(&times).expect("JSON");
            assert_eq!(serde_json::from_str::<Times>(&kept).expect("times"), times);
            times.winner(&rows)
        };
        assert_eq!(winner(&[("other", 2.0), ("third", 1.0)], &["predicted"]), Some(2));
        assert_eq!(winner(&[("other", 1.0), ("third", 0.99)], &["predicted"]), Some(1));
        assert_eq!(winner(&[("third", 1.0)], &["predicted", "other"]), Some(2));
        assert_eq!(winner(&[], &["predicted"]), Some(1));
        assert_eq!(winner(&[("predicted", 1.0), ("third", 2.0)], &["other"]), None);
        assert_eq!(winner(&[], &rows), None);
    }
}
