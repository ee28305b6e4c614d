//! Trials: a problem with operands like a model's, on which rows are timed in turn.

use std::sync::Arc;
use std::time::Instant;

use sinew_memory::{Buffer, Stream};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::harness::accuracy::place;
use crate::harness::case::{Case, Lay, Reference, Values};
use crate::harness::suite::{AnySuite, Suite};
use crate::operator::{Launch, Operands, Work, refuse};
use crate::table::Table;

/// Bytes of a weight that is timed: a part of those that are larger, of which the time is in proportion.
const WEIGHT_BYTES: usize = 8 << 20;
/// Times the last-level cache that the copies of what comes from memory take together, and that cache where the system
/// does not tell.
const BEYOND_CACHE: usize = 2;
const CACHE_BYTES: usize = 32 << 20;
/// The most copies, of small weights, and the most bytes that all have.
const MOST_COPIES: usize = 64;
const MOST_BYTES: usize = 256 << 20;
/// Seconds that a timed run takes at least: of what is faster several in a row are one.
const RUN_SECONDS: f64 = 200e-6;
const MOST_REPEATS: usize = 256;

/// A problem, ready to be timed with each row that takes it: operands of its shapes, those that a model reads from
/// memory in as many copies as no cache holds.
///
/// ```
/// use std::sync::Arc;
/// use sinew_kernels::norm::{Norm, NormDynamic, NormFormula, NormKind, NormStatic};
/// use sinew_kernels::harness::trial::{Timed, Trial};
/// use sinew_kernels::{F32Bits, Registry};
/// use sinew_memory::Cpu;
/// use sinew_tensor::DType;
///
/// let registry = Registry::standard();
/// let formula = NormFormula {
///     kind: NormKind::Rms,
///     eps: F32Bits::new(1e-6),
///     weight: Some(DType::F32),
///     weight_offset: F32Bits::new(0.0),
///     bias: None,
/// };
/// let fixed = NormStatic { width: 896, x: DType::F32, out: DType::F32, in_place: false, residual: None, formula };
/// let stream = Cpu::get().stream()?;
/// let table = registry.table::<Norm>()?;
/// let mut trial = Trial::new(table, &fixed, &NormDynamic { rows: 4 }, &stream)?;
/// let row = trial.names()[0];
/// assert!(trial.time_row(row)? > 0.0);
/// # Ok::<(), sinew_kernels::Error>(())
/// ```
pub struct Trial {
    /// The rows that take the problem, and the problem or a part of it as the one case.
    suite: Box<dyn AnySuite>,
    /// How many times as much work the whole problem is.
    whole: f64,
    /// Sets of inputs, which differ in those that come from memory.
    inputs: Vec<Vec<Option<Tensor>>>,
    outputs: Vec<Tensor>,
    workspace: Option<Buffer>,
    stream: Arc<dyn Stream>,
    next: usize,
}

impl Trial {
    /// A trial of the rows of `table` that take the problem on the stream's device, operands row-major.
    ///
    /// # Errors
    /// Operands that cannot be made.
    pub fn new<O: Reference>(
        table: &Table<O>,
        fixed: &O::Static,
        call: &O::Dynamic,
        stream: &Arc<dyn Stream>,
    ) -> Result<Self> {
        Self::laid(table, fixed, call, Lay::Contiguous, stream)
    }

    /// The same with operands that lie in another way.
    ///
    /// # Errors
    /// Operands that cannot be made.
    pub fn laid<O: Reference>(
        table: &Table<O>,
        fixed: &O::Static,
        call: &O::Dynamic,
        lay: Lay,
        stream: &Arc<dyn Stream>,
    ) -> Result<Self> {
        let rows = table.taking(fixed, stream.device().hardware());
        let part = O::part(fixed, WEIGHT_BYTES);
        let case = Case { fixed: part, call: *call, lay, values: Values::Repeating, seed: 0 };
        Self::of(Box::new(Suite { rows, cases: vec![case] }), O::work(fixed, call), O::COLD, stream)
    }

    /// A trial of a suite's only case, as a part of a problem that is so much work; inputs at the places `cold` come from
    /// memory.
    fn of(suite: Box<dyn AnySuite>, of_whole: Work, cold: &[usize], stream: &Arc<dyn Stream>) -> Result<Self> {
        let hardware = stream.device().hardware();
        let of_part = suite.work(0);
        let whole = if of_part.flops > 0.0 { of_whole.flops / of_part.flops } else { of_whole.bytes / of_part.bytes };
        let host = suite.operands(0)?;
        let placed = |at: usize| host.inputs[at].as_ref().map(|operand| place(stream, &operand.tensor)).transpose();
        let first = (0..host.inputs.len()).map(placed).collect::<Result<Vec<_>>>()?;
        let bytes: usize = cold.iter().filter_map(|&at| Some(first.get(at)?.as_ref()?.buffer().len())).sum();
        let cache = if hardware.caches.l3 == 0 { CACHE_BYTES } else { hardware.caches.l3 };
        let copies = match (BEYOND_CACHE * cache).min(MOST_BYTES).checked_div(bytes) {
            Some(copies) => (copies + 1).min(MOST_COPIES),
            None => 1,
        };
        let mut inputs = vec![first];
        for _ in 1..copies {
            let mut set = inputs[0].clone();
            for &at in cold.iter().filter(|&&at| at < host.inputs.len()) {
                set[at] = placed(at)?;
            }
            inputs.push(set);
        }
        let outputs = host.outputs.iter().map(|operand| place(stream, &operand.tensor)).collect::<Result<_>>()?;
        let most = (0..suite.rows()).map(|row| suite.workspace(row, 0, hardware)).max().unwrap_or(0);
        let workspace = (most > 0).then(|| Buffer::uninitialised(stream.device(), most)).transpose()?;
        Ok(Self { suite, whole, inputs, outputs, workspace, stream: stream.clone(), next: 0 })
    }

    /// The mean of so many runs one after another.
    fn run(&mut self, row: usize, repeats: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..repeats {
            self.enqueue(row)?;
        }
        self.stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    }

    fn enqueue(&mut self, row: usize) -> Result<()> {
        self.next = (self.next + 1) % self.inputs.len();
        let inputs: Vec<Option<View<'_>>> =
            self.inputs[self.next].iter().map(|tensor| tensor.as_ref().map(Tensor::view)).collect();
        let outputs: Vec<ViewMut<'_>> =
            self.outputs.iter_mut().map(Tensor::view_mut).collect::<Result<_, sinew_tensor::Error>>()?;
        let launch = Launch::new(&self.stream, self.workspace.as_mut())?;
        self.suite.launch(row, 0, &launch, Operands { inputs: &inputs, outputs: &outputs })
    }
}

/// Times `run(repeats)` after warm-up runs, and returns its mean seconds.
fn time(mut run: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let mut once = run(1)?;
    // A single short run is no measure of how many fill the time: caches and code may be cold.
    if once < 10.0 * RUN_SECONDS {
        once = once.min(run(1)?);
    }
    let repeats = (RUN_SECONDS / once.max(f64::MIN_POSITIVE)).ceil() as usize;
    run(repeats.clamp(1, MOST_REPEATS))
}

/// Rows that are timed in turn: a [`Trial`], or in tests what stands for one.
pub trait Timed {
    /// Names of the rows that take the problem.
    fn names(&self) -> Vec<&'static str>;
    /// Seconds of the whole problem by the row of a name, in one run after one that makes ready, or the mean of several
    /// where one is too short for a clock.
    ///
    /// # Errors
    /// No such row, or what the kernel or the device reports.
    fn time_row(&mut self, name: &str) -> Result<f64>;
}

impl Timed for Trial {
    fn names(&self) -> Vec<&'static str> {
        (0..self.suite.rows()).map(|row| self.suite.row(row).0).collect()
    }
    fn time_row(&mut self, name: &str) -> Result<f64> {
        let row = self
            .names()
            .iter()
            .position(|&row| row == name)
            .ok_or_else(|| refuse(self.suite.operator(), format!("no row {name} takes {}", self.suite.text(0))))?;
        Ok(time(|repeats| self.run(row, repeats))? * self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts of runs that take so long one after another, and how many each was of.
    fn timed(seconds: &[f64]) -> (f64, Vec<usize>) {
        let (mut runs, mut left) = (Vec::new(), seconds.iter().copied());
        let counted = time(|repeats| {
            runs.push(repeats);
            Ok(left.next().expect("it has ended"))
        });
        assert_eq!(left.next(), None);
        (counted.unwrap(), runs)
    }

    #[test]
    fn runs_that_make_ready_do_not_count() {
        // The first compiles.
        assert_eq!(timed(&[3.0, 0.5]), (0.5, vec![1, 1]));
        // The first finds caches cold, and the second says how many are needed.
        assert_eq!(timed(&[1.9e-3, RUN_SECONDS / 4.0, 7e-5]), (7e-5, vec![1, 1, 4]));
        assert_eq!(timed(&[1e-9, 2e-9, 3e-9]), (3e-9, vec![1, 1, MOST_REPEATS]));
        assert_eq!(timed(&[0.0, 0.0, 1e-9]), (1e-9, vec![1, 1, MOST_REPEATS]));
    }

    #[test]
    fn a_run_that_fails_ends_a_trial() {
        let mut runs = 0;
        let failed = time(|_| {
            runs += 1;
            Err(refuse("gemm", "it always fails"))
        });
        assert_eq!((failed.is_err(), runs), (true, 1));
    }
}
