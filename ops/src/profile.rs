//! Profiles: where the time of a step goes, kernel by kernel, beside what was predicted and the least there is.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use sinew_kernels::Work;

use crate::{Bound, Context, Error, Explanation, Launched, Limits, Record};

/// The launches of one row for one static problem, together.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The operator.
    pub operator: &'static str,
    /// The static part of the problem.
    pub problem: String,
    /// The row.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// How often it was launched.
    pub launches: usize,
    /// The seconds that the row predicts for them.
    pub predicted_s: f64,
    /// Their seconds.
    pub seconds: f64,
    /// The least work that solves them.
    pub work: Work,
    /// The least seconds for it by the device's limits.
    pub least_s: f64,
    /// Which limit the most of these are.
    pub bound: Bound,
    /// Why the row was chosen for the first of them.
    pub explanation: Option<Arc<Explanation>>,
}

impl Part {
    /// The share of the roofline that was reached: the least seconds to the measured.
    pub fn roofline_share(&self) -> f64 {
        self.least_s / self.seconds
    }
}

/// Where the time of a step goes. Printed as a table.
///
/// All of it is of one turn: a step unrecorded and the same recorded right after it. Of those that were taken it is the one
/// whose [share](Self::accounted) is the median, so that what else the machine did meets both alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The hardware.
    pub hardware: String,
    /// Its limits.
    pub limits: Limits,
    /// The recorded step.
    pub record: Record,
    /// Seconds of the unrecorded step.
    pub step_s: f64,
}

impl Profile {
    /// The launches by operator, problem and row, those that took the longest first.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<(Part, f64)> = Vec::new();
        for launched in &self.record.launches {
            let Launched { operator, row, problem, seconds, predicted_s, work, .. } = launched;
            let (least_s, bound) = self.limits.least(*work, launched.factors);
            let known =
                parts.iter_mut().find(|(p, _)| p.operator == *operator && p.row == *row && p.problem == *problem);
            let (part, by_memory) = match known {
                Some(part) => part,
                None => {
                    let part = Part {
                        operator,
                        problem: problem.clone(),
                        row,
                        arithmetic: launched.arithmetic,
                        launches: 0,
                        predicted_s: 0.0,
                        seconds: 0.0,
                        work: Work::default(),
                        least_s: 0.0,
                        bound,
                        explanation: launched.explanation.clone(),
                    };
                    parts.push((part, 0.0));
                    let last = parts.len() - 1;
                    &mut parts[last]
                }
            };
            part.launches += 1;
            part.predicted_s += predicted_s;
            part.seconds += seconds;
            part.work = Work { flops: part.work.flops + work.flops, bytes: part.work.bytes + work.bytes };
            part.least_s += least_s;
            *by_memory += if bound == Bound::Memory { least_s } else { 0.0 };
            part.bound = if 2.0 * *by_memory >= part.least_s { Bound::Memory } else { Bound::Arithmetic };
        }
        parts.sort_by(|(a, _), (b, _)| b.seconds.total_cmp(&a.seconds));
        parts.into_iter().map(|(part, _)| part).collect()
    }

    /// Seconds of all launches.
    pub fn launched_s(&self) -> f64 {
        self.record.launched_s()
    }

    /// Seconds of the recorded step in which no kernel ran: what the model does between launches.
    pub fn between_s(&self) -> f64 {
        self.record.seconds - self.launched_s()
    }

    /// The launches' seconds as a share of the unrecorded step: how much of it the table accounts for.
    pub fn accounted(&self) -> f64 {
        self.launched_s() / self.step_s
    }
}

impl Context {
    /// Runs a step `repeat` times unrecorded and as often recorded, in turns, after one of each that is not counted: where
    /// its time goes, held against `limits`.
    ///
    /// ```
    /// use sinew_ops::{Context, Error, Limits, matmul};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32; 64 * 64], &[64, 64])?;
    /// let limits = Limits::estimated(ctx.device().hardware());
    /// let profile = ctx.profile(limits, 3, || matmul(&x, &x).run(&ctx).map(|_| ()))?;
    /// assert_eq!(profile.parts().len(), 1);
    /// println!("{profile}");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the step.
    pub fn profile<E: From<Error>>(
        &self,
        limits: Limits,
        repeat: usize,
        mut step: impl FnMut() -> Result<(), E>,
    ) -> Result<Profile, E> {
        let mut turns = Vec::new();
        // The first turn is not counted: kernels are chosen, and caches and clock rates settle in it.
        for turn in 0..=repeat.max(1) {
            let start = Instant::now();
            step()?;
            self.synchronize()?;
            let seconds = start.elapsed().as_secs_f64();
            let (done, record) = self.record(&mut step);
            done?;
            if turn > 0 {
                let hardware = self.device().hardware().to_string();
                turns.push(Profile { hardware, limits, record, step_s: seconds });
            }
        }
        Ok(median(turns))
    }
}

/// Of turns that which accounts for the median share.
fn median(mut turns: Vec<Profile>) -> Profile {
    turns.sort_by(|a, b| a.accounted().total_cmp(&b.accounted()));
    let middle = turns.len() / 2;
    turns.swap_remove(middle)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        writeln!(f, "on {}; at most {}", self.hardware, self.limits)?;
        let ms = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
        if parts.is_empty() {
            return writeln!(f, "no kernel ran in a step of {}", ms(self.step_s));
        }
        let width = |of: fn(&Part) -> usize, title: &str| parts.iter().map(of).max().unwrap_or(0).max(title.len());
        let operator = width(|part| part.operator.len(), "operator");
        let row = width(|part| part.row.len(), "kernel");
        let arithmetic = width(|part| part.arithmetic.len(), "arithmetic");
        writeln!(
            f,
            "{:operator$}  {:row$}  {:arithmetic$}  launches  predicted   measured  of step  of limit  bound       problem",
            "operator", "kernel", "arithmetic"
        )?;
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        for part in &parts {
            // Memory need not give what lies in a cache.
            let cached = part.bound == Bound::Memory && part.roofline_share() > 1.0;
            let of_limit = if cached { "in cache".to_owned() } else { percent(part.roofline_share()) };
            writeln!(
                f,
                "{:operator$}  {:row$}  {:arithmetic$}  {:8}  {:>9}  {:>9}  {:>7}  {:>8}  {:10}  {}",
                part.operator,
                part.row,
                part.arithmetic,
                part.launches,
                ms(part.predicted_s),
                ms(part.seconds),
                percent(part.seconds / self.record.seconds),
                of_limit,
                part.bound,
                part.problem
            )?;
        }
        let sum = |of: fn(&Part) -> f64| parts.iter().map(of).sum::<f64>();
        let (predicted, least) = (sum(|part| part.predicted_s), sum(|part| part.least_s));
        let launched = self.launched_s();
        writeln!(
            f,
            "kernels          {:>12}  predicted {}, {} of the limit",
            ms(launched),
            ms(predicted),
            percent(least / launched)
        )?;
        writeln!(f, "between kernels  {:>12}", ms(self.between_s()))?;
        writeln!(
            f,
            "step             {:>12}  {} unrecorded, of which the kernels are {}",
            ms(self.record.seconds),
            ms(self.step_s),
            percent(self.accounted())
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use sinew_kernels::Compute;

    use super::*;
    use crate::matmul;

    /// A record of launches that took so long, in a step that took as much as ten of them.
    fn record(seconds: &[f64]) -> Record {
        let launched = |&seconds: &f64| Launched {
            operator: "gemm",
            row: "gemm.cpu.row",
            arithmetic: "gemm",
            problem: "a product".into(),
            call: "m=1".into(),
            seconds,
            predicted_s: 1.0,
            work: Work { flops: 1.0, bytes: 1.0 },
            factors: Compute::F32.into(),
            explanation: None,
        };
        let launches: Vec<Launched> = seconds.iter().map(launched).collect();
        Record { seconds: 10.0 * seconds.iter().sum::<f64>(), launches }
    }

    #[test]
    fn what_a_table_accounts_for_is_its_launches_beside_the_unrecorded_step() {
        let limits = Limits::estimated(sinew_memory::Cpu::get().hardware());
        let turn = |(step_s, launches): (f64, &[f64])| Profile {
            hardware: "a machine".into(),
            limits,
            record: record(launches),
            step_s,
        };
        // Of the turns 4 of 5, 1 of 2 and 6 of 6; nothing is taken of how long the recorded steps took, and of no two turns
        // are the parts mixed: neither that step nor these launches took the median time.
        let turns: [(f64, &[f64]); 3] = [(5.0, &[3.0, 1.0]), (2.0, &[0.5, 0.5]), (3.0, &[3.0])];
        let profile = median(turns.map(turn).to_vec());
        assert_eq!((profile.accounted(), profile.step_s), (0.8, 5.0));
        assert_eq!((profile.launched_s(), profile.record.launches.len()), (4.0, 2));
        assert_eq!(profile.between_s(), 36.0);
        let parts = profile.parts();
        assert_eq!((parts.len(), parts[0].launches, parts[0].seconds), (1, 2, 4.0));
        assert!(profile.to_string().contains("5000.000 ms unrecorded, of which the kernels are 80.0 %"), "{profile}");
    }

    #[test]
    fn steps_are_timed_without_the_recorder_and_launched_alike_with_it() {
        let ctx = Context::cpu().unwrap();
        let x = ctx.tensor(&[1.0f32; 16 * 16], &[16, 16]).unwrap();
        let mut recorded = Vec::new();
        let limits = Limits::estimated(ctx.device().hardware());
        let profile = ctx.profile(limits, 3, || {
            recorded.push(ctx.recorder().is_on());
            let y = matmul(&x, &x).run(&ctx)?;
            crate::softmax(&ctx, &matmul(&y, &x).run(&ctx)?).map(drop)
        });
        let profile = profile.unwrap();
        // One turn of both is not counted.
        assert_eq!(recorded, [false, true].repeat(4));
        let launched: Vec<&str> = profile.record.launches.iter().map(|launched| launched.operator).collect();
        assert_eq!(launched, ["gemm", "gemm", "softmax"]);
        assert_eq!(profile.parts().iter().map(|part| part.launches).sum::<usize>(), 3);
    }

    #[test]
    fn a_record_has_the_launches_of_its_own_thread_and_no_others() {
        let ctx = Context::cpu().unwrap();
        let x = ctx.tensor(&[1.0f32; 16 * 16], &[16, 16]).unwrap();
        let operators = |record: Record| record.launches.iter().map(|launched| launched.operator).collect::<Vec<_>>();
        // Two threads record at once, and a third launches while they do.
        let together = Barrier::new(3);
        let around = |work: &dyn Fn()| {
            together.wait();
            work();
            together.wait();
        };
        let product = || drop(matmul(&x, &x).run(&ctx).unwrap());
        let softmax = || drop(crate::softmax(&ctx, &x).unwrap());
        let record = |work: &dyn Fn()| operators(ctx.record(|| around(work)).1);
        thread::scope(|scope| {
            let first = scope.spawn(|| record(&|| [(); 3].iter().for_each(|()| product())));
            let second = scope.spawn(|| record(&softmax));
            around(&|| {
                assert!(!ctx.recorder().is_on());
                product();
            });
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (vec!["gemm"; 3], vec!["softmax"]));
        });
        // One within another has its part, and afterwards nothing is kept.
        let (inner, outer) = ctx.record(|| {
            product();
            ctx.record(softmax).1
        });
        assert_eq!((operators(inner), operators(outer)), (vec!["softmax"], vec!["gemm", "softmax"]));
        assert!(!ctx.recorder().is_on());
    }

    #[test]
    fn a_step_without_kernels_is_said_to_have_none() {
        let ctx = Context::cpu().unwrap();
        let limits = Limits::estimated(ctx.device().hardware());
        let profile = ctx.profile::<Error>(limits, 1, || Ok(())).unwrap();
        let words = profile.to_string();
        assert!(words.contains("no kernel ran") && !words.contains("NaN"), "{words}");
    }
}
