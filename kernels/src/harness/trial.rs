//! Trials: a problem with operands like a model's, on which rows are timed in turn.

use std::sync::Arc;
use std::time::Instant;

use sinew_memory::{Buffer, Stream};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::harness::accuracy::place;
use crate::harness::case::{Case, Lay, Reference, Values};
use crate::operator::{Launch, Operands, Operator, Row, refuse};
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
/// use sinew_kernels::harness::trial::Trial;
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
/// let mut trial = Trial::<Norm>::new(registry.table()?, &fixed, &NormDynamic { rows: 4 }, &stream)?;
/// let row = trial.rows()[0];
/// assert!(trial.time(&row)? > 0.0);
/// # Ok::<(), sinew_kernels::Error>(())
/// ```
pub struct Trial<O: Operator> {
    fixed: O::Static,
    call: O::Dynamic,
    /// How many times as much work the whole problem is.
    whole: f64,
    rows: Vec<Row<O>>,
    /// Sets of inputs, which differ in those that come from memory.
    inputs: Vec<Vec<Option<Tensor>>>,
    outputs: Vec<Tensor>,
    workspace: Option<Buffer>,
    stream: Arc<dyn Stream>,
    next: usize,
}

impl<O: Reference> Trial<O> {
    /// A trial of the rows of `table` that take the problem on the stream's device, operands row-major.
    ///
    /// # Errors
    /// Operands that cannot be made.
    pub fn new(table: &Table<O>, fixed: &O::Static, call: &O::Dynamic, stream: &Arc<dyn Stream>) -> Result<Self> {
        Self::laid(table, fixed, call, Lay::Contiguous, stream)
    }

    /// The same with operands that lie in another way.
    ///
    /// # Errors
    /// Operands that cannot be made.
    pub fn laid(
        table: &Table<O>,
        fixed: &O::Static,
        call: &O::Dynamic,
        lay: Lay,
        stream: &Arc<dyn Stream>,
    ) -> Result<Self> {
        let hardware = stream.device().hardware();
        let rows: Vec<Row<O>> = table.candidates(fixed, hardware).0.into_iter().copied().collect();
        let part = O::part(fixed, WEIGHT_BYTES);
        let (of_whole, of_part) = (O::work(fixed, call), O::work(&part, call));
        let whole = if of_part.flops > 0.0 { of_whole.flops / of_part.flops } else { of_whole.bytes / of_part.bytes };
        let host = O::operands(&Case { fixed: part.clone(), call: *call, lay, values: Values::Repeating, seed: 0 })?;
        let placed = |at: usize| host.inputs[at].as_ref().map(|operand| place(stream, &operand.tensor)).transpose();
        let first = (0..host.inputs.len()).map(placed).collect::<Result<Vec<_>>>()?;
        let cold = |at: &usize| first.get(*at)?.as_ref().map(|tensor| tensor.buffer().len());
        let bytes: usize = O::COLD.iter().filter_map(cold).sum();
        let cache = if hardware.caches.l3 == 0 { CACHE_BYTES } else { hardware.caches.l3 };
        let copies = match (BEYOND_CACHE * cache).min(MOST_BYTES).checked_div(bytes) {
            Some(copies) => (copies + 1).min(MOST_COPIES),
            None => 1,
        };
        let mut inputs = vec![first];
        for _ in 1..copies {
            let mut set = inputs[0].clone();
            for &at in O::COLD.iter().filter(|&&at| at < host.inputs.len()) {
                set[at] = placed(at)?;
            }
            inputs.push(set);
        }
        let outputs = host.outputs.iter().map(|operand| place(stream, &operand.tensor)).collect::<Result<_>>()?;
        let most = rows.iter().map(|row| (row.workspace)(&part, call, hardware)).max().unwrap_or(0);
        let workspace = (most > 0).then(|| Buffer::uninitialised(stream.device(), most)).transpose()?;
        let (call, stream) = (*call, stream.clone());
        Ok(Self { fixed: part, call, whole, rows, inputs, outputs, workspace, stream, next: 0 })
    }
}

impl<O: Operator> Trial<O> {
    /// The rows that take the problem.
    pub fn rows(&self) -> Vec<Row<O>> {
        self.rows.clone()
    }

    /// Seconds of the whole problem by a row, in one run after one that makes ready, or the mean of several where one is
    /// too short for a clock.
    ///
    /// # Errors
    /// What the kernel or the device reports.
    pub fn time(&mut self, row: &Row<O>) -> Result<f64> {
        Ok(time(|repeats| self.run(row, repeats))? * self.whole)
    }

    /// The mean of so many runs one after another.
    fn run(&mut self, row: &Row<O>, repeats: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..repeats {
            self.enqueue(row)?;
        }
        self.stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    }

    fn enqueue(&mut self, row: &Row<O>) -> Result<()> {
        self.next = (self.next + 1) % self.inputs.len();
        let inputs: Vec<Option<View<'_>>> =
            self.inputs[self.next].iter().map(|tensor| tensor.as_ref().map(Tensor::view)).collect();
        let outputs: Vec<ViewMut<'_>> =
            self.outputs.iter_mut().map(Tensor::view_mut).collect::<Result<_, sinew_tensor::Error>>()?;
        let launch = Launch::new(&self.stream, self.workspace.as_mut())?;
        row.launch(&launch, &self.fixed, &self.call, Operands { inputs: &inputs, outputs: &outputs })
    }
}

/// What counts of `run`, which returns the mean seconds of so many runs: those after the ones that make ready.
fn time(mut run: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let mut once = run(1)?;
    // A single short run is no measure of how many fill the time: caches and code may be cold.
    if once < 10.0 * RUN_SECONDS {
        once = once.min(run(1)?);
    }
    let repeats = (RUN_SECONDS / once.max(f64::MIN_POSITIVE)).ceil() as usize;
    run(repeats.clamp(1, MOST_REPEATS))
}

/// A trial without its operator's types.
pub trait AnyTrial {
    /// Names of the rows that take the problem.
    fn names(&self) -> Vec<&'static str>;
    /// [`Trial::time`] of the row of a name.
    ///
    /// # Errors
    /// No such row, or what the kernel or the device reports.
    fn time_row(&mut self, name: &str) -> Result<f64>;
}

impl<O: Operator> AnyTrial for Trial<O> {
    fn names(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.name).collect()
    }
    fn time_row(&mut self, name: &str) -> Result<f64> {
        let row = self.rows.iter().copied().find(|row| row.name == name);
        self.time(&row.ok_or_else(|| refuse(O::NAME, format!("no row {name} takes {}", self.fixed)))?)
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
