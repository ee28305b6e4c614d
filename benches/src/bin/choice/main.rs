//! How near the untuned choice of kernels comes to the best one.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin choice [-- PROBLEM]
//! ```
//! times, for each problem of a grid (or those whose description contains PROBLEM), every CPU row that takes it, in turns,
//! medians, and prints for how many the row that the cost model picks takes at most 15 % longer than the best: among all
//! rows, as with `deterministic` off, and among those of one arithmetic, as with it on. Problems that a single row takes
//! are left out: there is nothing to pick. A hit and a miss are told by the same number of rounds: were either timed again
//! and the other not, chance would always help one side. `SINEW_SIMD` caps the level.

mod grid;

use std::process::ExitCode;

use sinew_benches::{command, context};
use sinew_kernels::harness::case::{Lay, Reference};
use sinew_kernels::harness::trial::{Timed as _, Trial};
use sinew_kernels::{Operator, Row};
use sinew_memory::Cpu;
use sinew_ops::{Context, Policy};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// How much longer than the best a pick may take.
const NEAR: f64 = 1.15;
/// Runs of each row, whose median counts; after a few of them a row is given up that takes this many times the best,
/// whether it is picked or not: more runs would not make it near.
const RUNS: usize = 15;
const FEW_RUNS: usize = 2;
const HOPELESS: f64 = 2.5;

/// A row of a problem, and its median seconds.
struct Timed {
    name: &'static str,
    arithmetic: &'static str,
    seconds: f64,
}

/// How often a pick was near the best of those that it was among.
#[derive(Default)]
struct Score {
    problems: usize,
    near: usize,
}

struct Grid {
    /// Picks among all rows, and among those of one arithmetic.
    open: Context,
    deterministic: Context,
    only: String,
    scores: [Score; 2],
}

/// What a pick is among.
const AMONG: [&str; 2] = ["all rows", "one arithmetic"];

impl Grid {
    fn new(only: String) -> Result<Self> {
        let device = Cpu::get();
        let policy = Policy { deterministic: false, ..Policy::default() };
        let open = Context::on(device.clone(), policy)?;
        Ok(Self { open, deterministic: context(&device)?, only, scores: Default::default() })
    }

    /// A problem with operands that lie row by row.
    fn problem<O: Reference>(&mut self, fixed: O::Static, call: O::Dynamic) -> Result {
        self.laid::<O>(fixed, call, Lay::Contiguous)
    }

    fn laid<O: Reference>(&mut self, fixed: O::Static, call: O::Dynamic, lay: Lay) -> Result {
        let words = format!("{} {fixed}; {call}, {lay:?}", O::NAME);
        let hardware = self.open.device().hardware();
        let table = self.open.registry().table::<O>()?;
        let rows: Vec<Row<O>> = table.candidates(&fixed, hardware).0.into_iter().copied().collect();
        if rows.len() < 2 || !words.contains(&self.only) {
            return Ok(());
        }
        let mut trial = Trial::laid(table, &fixed, &call, lay, self.open.stream())?;
        let picks = [&self.open, &self.deterministic].map(|ctx| ctx.choose::<O>(&fixed, &call));
        let all = time(&rows, |row| trial.time_row(row.name))?;
        for (among, pick) in picks.into_iter().enumerate() {
            let pick = pick?;
            if among == 1 && all.iter().filter(|row| row.arithmetic == pick.arithmetic.name).count() < 2 {
                continue;
            }
            let over = beside_best(&all, &pick, among == 1);
            self.scores[among].problems += 1;
            self.scores[among].near += usize::from(over <= NEAR);
            if over > NEAR {
                let times = all.iter().map(|row| format!("{} {:.1} µs", row.name, row.seconds * 1e6));
                let times = times.collect::<Vec<_>>().join(", ");
                println!("miss among {}, {over:.2}x: {words}: {} of {times}", AMONG[among], pick.name);
            }
        }
        Ok(())
    }
}

/// How many times as long as the best a pick takes, among rows of its arithmetic or all.
fn beside_best<O: Operator>(all: &[Timed], pick: &Row<O>, of_arithmetic: bool) -> f64 {
    let rows = all.iter().filter(|row| !of_arithmetic || row.arithmetic == pick.arithmetic.name);
    let best = rows.map(|row| row.seconds).fold(f64::INFINITY, f64::min);
    all.iter().find(|row| row.name == pick.name).map_or(f64::INFINITY, |row| row.seconds / best)
}

/// Rows in turns, so that what else the machine does meets all alike.
fn time<O: Operator, E>(rows: &[Row<O>], mut run: impl FnMut(&Row<O>) -> Result<f64, E>) -> Result<Vec<Timed>, E> {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for round in 0..RUNS {
        let least = |of_row: &Vec<f64>| of_row.iter().copied().fold(f64::INFINITY, f64::min);
        let best = times.iter().map(least).fold(f64::INFINITY, f64::min);
        for (row, times) in rows.iter().zip(&mut times) {
            if round < FEW_RUNS || least(times) < HOPELESS * best {
                times.push(run(row)?);
            }
        }
    }
    let median = |(row, mut times): (&Row<O>, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        Timed { name: row.name, arithmetic: row.arithmetic.name, seconds: times[times.len() / 2] }
    };
    Ok(rows.iter().zip(times).map(median).collect())
}

fn main() -> ExitCode {
    command(include_str!("main.rs"), choices)
}

fn choices(arguments: &[String]) -> Result {
    let mut grid = Grid::new(arguments.first().cloned().unwrap_or_default())?;
    println!("{}", grid.open.device().hardware());
    grid::walk(&mut grid)?;
    for (Score { problems, near }, among) in grid.scores.iter().zip(AMONG) {
        let share = 100.0 * *near as f64 / (*problems).max(1) as f64;
        println!("among {among}: {near} of {problems} picks within 15 % of the best ({share:.1} %)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use sinew_kernels::softmax::{self, Softmax};

    use super::*;

    fn named(name: &'static str) -> Row<Softmax> {
        Row { name, ..softmax::rows()[0] }
    }

    #[test]
    fn hits_and_misses_are_told_by_as_many_rounds() {
        let rows = [named("best"), named("near"), named("miss"), named("hopeless")];
        let mut runs = Vec::new();
        // Every third run is disturbed.
        let seconds = |run: usize, steady: f64| if run.is_multiple_of(3) { 10.0 } else { steady };
        let all = time(&rows, |row| {
            let run = runs.iter().filter(|name| **name == row.name).count();
            runs.push(row.name);
            let steady = match row.name {
                "best" => 1.0,
                "near" => 1.1,
                "miss" => 1.3,
                _ => 4.0,
            };
            Ok::<_, Infallible>(seconds(run, steady))
        });
        let all = all.unwrap();
        assert_eq!(all.iter().map(|row| row.seconds).collect::<Vec<_>>()[..3], [1.0, 1.1, 1.3]);
        let count = |row: &Row<Softmax>| runs.iter().filter(|name| **name == row.name).count();
        assert_eq!(rows.each_ref().map(count), [RUNS, RUNS, RUNS, FEW_RUNS]);
        // In turns.
        assert_eq!(runs[..4], ["best", "near", "miss", "hopeless"]);
        let over = |row: &Row<Softmax>| beside_best(&all, row, false);
        assert!([&rows[0], &rows[1]].into_iter().all(|row| over(row) <= NEAR) && over(&rows[2]) > NEAR);
    }
}
