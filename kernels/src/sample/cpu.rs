//! One row is one task: what is kept is sorted out, then drawn from by id.

use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::View;

use super::{LOGITS, PARAMS, Sample, SampleDynamic, SampleStatic, TOKENS, TOP_K};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, refuse};
use crate::rates::predicted;
use crate::strided::Address;
use crate::{Error, Result};

pub(super) const ROW: Row<Sample> = Row {
    name: "sample.cpu",
    device: DeviceKind::CPU,
    arithmetic: Arithmetic::named("sample.f64"),
    admits: |_, _| Ok(()),
    cost: |fixed, call, hardware| predicted::by_shares(Sample::work(fixed, call), hardware, 0.1, 0.1),
    workspace,
    run,
};

/// A token that may be drawn.
#[derive(Clone, Copy)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// The largest logit first, then the lowest id. No logit is NaN by now, and the two zeros are equal.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit);
        by_logit.unwrap_or(std::cmp::Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

fn workspace(fixed: &SampleStatic, _: &SampleDynamic, hardware: &Hardware) -> usize {
    hardware.threads.saturating_mul(fixed.vocab).saturating_mul(size_of::<Candidate>())
}

/// How one row is drawn from.
struct Options {
    temperature: f64,
    top_p: f64,
    min_p: f64,
    draw: f64,
    top_k: usize,
}

/// Elements of an operand that tasks read or write.
#[derive(Clone, Copy)]
struct Elements<'a> {
    at: Address,
    strides: &'a [usize],
}

impl<'a> Elements<'a> {
    fn of(view: &'a View<'_>) -> Result<Self> {
        Ok(Self { at: Address::read(view.host_ptr()?), strides: view.strides() })
    }

    fn element<T>(&self, index: [usize; 2]) -> *mut T {
        let at = self.strides.iter().zip(index).map(|(stride, i)| stride * i).sum();
        self.at.at(at, size_of::<T>()).cast()
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &SampleStatic, call: &SampleDynamic, operands: Operands<'_>) -> Result<()> {
    let team = launch.team()?;
    let logits = Elements::of(operands.input(Sample::NAME, LOGITS, "logits")?)?;
    let params = Elements::of(operands.input(Sample::NAME, PARAMS, "params")?)?;
    let top_k = Elements::of(operands.input(Sample::NAME, TOP_K, "top_k")?)?;
    let tokens = operands.output(Sample::NAME, TOKENS, "tokens")?;
    let tokens = Elements { at: Address(tokens.host_ptr()?), strides: tokens.strides() };
    let bytes = team.threads() * fixed.vocab * size_of::<Candidate>();
    let scratch = Address(launch.host_workspace(bytes)?);
    let failed = std::sync::Mutex::new(None);
    team.run(call.rows, |row, worker| {
        // SAFETY: the operator checked shapes and dtypes; each task reads and writes a row of its own, and the scratch
        // of its worker holds a candidate for each logit.
        unsafe {
            let logit = |id: usize| logits.element::<f32>([row, id]).read();
            let param = |i: usize| f64::from(params.element::<f32>([row, i]).read());
            let options = Options {
                temperature: param(0),
                top_p: param(1),
                min_p: param(2),
                draw: param(3),
                top_k: top_k.element::<u32>([row, 0]).read() as usize,
            };
            let all = scratch.at(worker * fixed.vocab, size_of::<Candidate>()).cast::<Candidate>();
            let mut count = 0;
            let mut bad = None;
            for id in 0..fixed.vocab {
                let logit = logit(id);
                if logit.is_nan() || logit == f32::INFINITY {
                    bad.get_or_insert((id, logit));
                } else if logit > f32::NEG_INFINITY {
                    all.add(count).write(Candidate { logit, id: id as u32 });
                    count += 1;
                }
            }
            let outcome = match bad {
                Some((id, logit)) => Err(refuse(Sample::NAME, format!("token {id} of row {row} has logit {logit}"))),
                None if count == 0 => Err(refuse(Sample::NAME, format!("no logit of row {row} is finite"))),
                None => Ok(draw(std::slice::from_raw_parts_mut(all, count), &options)),
            };
            match outcome {
                Ok(token) => tokens.element::<u32>([row, 0]).write(token),
                Err(error) => remember(&failed, error),
            }
        }
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

fn remember(failed: &std::sync::Mutex<Option<Error>>, error: Error) {
    failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
}

/// A token of at least one candidate.
fn draw(all: &mut [Candidate], options: &Options) -> u32 {
    let &Options { temperature, top_p, min_p, draw, top_k } = options;
    let Some(best) = all.iter().copied().min_by(Candidate::order) else { return 0 };
    if temperature == 0.0 {
        return best.id;
    }
    let weight = |c: &Candidate| ((f64::from(c.logit) - f64::from(best.logit)) / temperature).exp();
    let mut kept = all.len();
    if top_k > 0 && top_k < kept {
        all.select_nth_unstable_by(top_k, Candidate::order);
        kept = top_k;
    }
    let all = &mut all[..kept];
    if top_p < 1.0 {
        all.sort_unstable_by(Candidate::order);
        let limit = top_p * all.iter().map(weight).sum::<f64>();
        let mut sum = 0.0;
        kept = all
            .iter()
            .take_while(|c| {
                let keep = sum < limit;
                sum += weight(c);
                keep
            })
            .count();
    }
    let all = &mut all[..kept];
    all.sort_unstable_by_key(|c| c.id);
    let lowest = if min_p > 0.0 { min_p.ln() * temperature } else { f64::NEG_INFINITY };
    let drawn = || all.iter().filter(|c| f64::from(c.logit) - f64::from(best.logit) >= lowest);
    let target = draw * drawn().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let mut last = best.id;
    for candidate in drawn().filter(|c| weight(c) > 0.0) {
        sum += weight(candidate);
        last = candidate.id;
        if sum > target {
            break;
        }
    }
    last
}
