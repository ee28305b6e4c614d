//! How near the untuned choice of kernels comes to the best one.
//!
//! ```text
//! cargo run --release -p sinew-benches --bin choice [-- PROBLEM]
//! ```
//! times, for each problem of a grid (or those whose description contains PROBLEM), every CPU row that takes it, in turns,
//! medians, and prints for how many the row that the cost model picks takes at most 15 % longer than the best: among all
//! rows, as with `deterministic` off, and among those of one arithmetic, as with it on. Problems that a single row takes
//! are left out: there is nothing to pick. What misses is timed again, three times as often, and is a miss where it
//! misses again. `SINEW_SIMD` caps the level.

mod grid;

use sinew_benches::context;
use sinew_kernels::Row;
use sinew_kernels::case::{Lay, Reference};
use sinew_kernels::trial::Trial;
use sinew_memory::Cpu;
use sinew_ops::{Context, Policy};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// How much longer than the best a pick may take.
const NEAR: f64 = 1.15;
/// Runs of each row, whose median counts; after two of them a row is given up that takes this many times the best.
const RUNS: usize = 5;
const AGAIN: usize = 3;
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
        let rows = self.open.registry().table::<O>()?.candidates(&fixed, hardware).0.len();
        if rows < 2 || !words.contains(&self.only) {
            return Ok(());
        }
        let table = self.open.registry().table::<O>()?;
        let mut trial = Trial::<O>::laid(table, &fixed, &call, lay, self.open.stream())?;
        let picks = [&self.open, &self.deterministic].map(|ctx| ctx.choose::<O>(&fixed, &call));
        let mut all = time(&mut trial, RUNS)?;
        let mut again = false;
        for (among, pick) in picks.into_iter().enumerate() {
            let pick = pick?;
            if among == 1 && all.iter().filter(|row| row.arithmetic == pick.arithmetic.name).count() < 2 {
                continue;
            }
            let mut over = beside_best(&all, &pick, among == 1);
            if over > NEAR && !again {
                (all, again) = (time(&mut trial, AGAIN * RUNS)?, true);
                over = beside_best(&all, &pick, among == 1);
            }
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
fn beside_best<O: Reference>(all: &[Timed], pick: &Row<O>, of_arithmetic: bool) -> f64 {
    let rows = all.iter().filter(|row| !of_arithmetic || row.arithmetic == pick.arithmetic.name);
    let best = rows.map(|row| row.seconds).fold(f64::INFINITY, f64::min);
    all.iter().find(|row| row.name == pick.name).map_or(f64::INFINITY, |row| row.seconds / best)
}

fn time<O: Reference>(trial: &mut Trial<O>, runs: usize) -> Result<Vec<Timed>> {
    let rows = trial.rows();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for round in 0..runs {
        let least = |of_row: &Vec<f64>| of_row.iter().copied().fold(f64::INFINITY, f64::min);
        let best = times.iter().map(least).fold(f64::INFINITY, f64::min);
        for (row, times) in rows.iter().zip(&mut times) {
            if round < 2 || least(times) < HOPELESS * best {
                times.push(trial.time(row)?);
            }
        }
    }
    let median = |(row, mut times): (&Row<O>, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        Timed { name: row.name, arithmetic: row.arithmetic.name, seconds: times[times.len() / 2] }
    };
    Ok(rows.iter().zip(times).map(median).collect())
}

fn main() -> Result {
    let mut grid = Grid::new(std::env::args().nth(1).unwrap_or_default())?;
    println!("{}", grid.open.device().hardware());
    grid::walk(&mut grid)?;
    for (Score { problems, near }, among) in grid.scores.iter().zip(AMONG) {
        let share = 100.0 * *near as f64 / (*problems).max(1) as f64;
        println!("among {among}: {near} of {problems} picks within 15 % of the best ({share:.1} %)");
    }
    Ok(())
}
