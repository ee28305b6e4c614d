//! Choice: which row of a table serves a problem, and why.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use sinew_kernels::{Bound, Error as KernelError, Operator, Registry, Row};
use sinew_memory::DeviceKind;

use crate::tune::{self, Problem};
use crate::{Context, Error, Result};

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
    /// Whether a row is preferred.
    pub fn prefers(&self, row: &str) -> bool {
        self.prefer.iter().any(|name| name == row)
    }

    /// Refuses to prefer what none of Sinew's own rows is called, on whatever device.
    ///
    /// ```
    /// use sinew_ops::Policy;
    ///
    /// assert!(Policy::check_names(&["gemm.cpu.portable".to_owned()]).is_ok());
    /// assert!(Policy::check_names(&["gemm.abacus".to_owned()]).is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`].
    pub fn check_names(prefer: &[String]) -> Result<()> {
        if prefer.is_empty() {
            return Ok(());
        }
        let registry = Registry::standard();
        let rows: HashSet<&str> = registry.tables().flat_map(|table| table.row_names()).map(|(row, ..)| row).collect();
        match prefer.iter().find(|name| !rows.contains(name.as_str())) {
            Some(name) => Err(Error::NoSuchKernel { name: name.clone() }),
            None => Ok(()),
        }
    }

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

/// Choices made, per operator: `HashMap<(Static, bucket), Bound>` behind a type that does not name the operator.
#[derive(Default)]
pub(crate) struct Choices(Mutex<HashMap<TypeId, Box<dyn AnyChosen>>>);

/// What one operator's problems were given.
type Chosen<O> = HashMap<(<O as Operator>::Static, <O as Operator>::Dynamic), Bound<O>>;

/// [`Chosen`] without its operator's types.
trait AnyChosen: Any + Send {
    fn problems(&self) -> Vec<Box<dyn Problem>>;
}

impl<O: Operator> AnyChosen for Chosen<O> {
    fn problems(&self) -> Vec<Box<dyn Problem>> {
        let of = |(fixed, call): &(O::Static, O::Dynamic)| -> Box<dyn Problem> {
            Box::new(tune::ProblemOf::<O>(fixed.clone(), *call))
        };
        self.keys().map(of).collect()
    }
}

impl Choices {
    pub(crate) fn get<O: Operator>(&self, ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Bound<O>> {
        let key = (fixed.clone(), O::bucket(*call));
        if let Some(bound) = self.with::<O, _>(|chosen| chosen.get(&key).cloned()) {
            return Ok(bound);
        }
        // Not under the lock: a row may have to be checked first, which takes a while.
        let bound = choose::<O>(ctx, fixed, &key.1, call)?.bind(Arc::new(fixed.clone()), ctx.device())?;
        Ok(self.with::<O, _>(|chosen| chosen.entry(key).or_insert(bound).clone()))
    }

    /// Has a row serve the calls like `call` of its problem from now on.
    pub(crate) fn replace<O: Operator>(&self, bound: &Bound<O>, call: &O::Dynamic) {
        let key = ((**bound.fixed()).clone(), O::bucket(*call));
        self.with::<O, _>(|chosen| chosen.insert(key, bound.clone()));
    }

    /// Every problem that a row was chosen for, with the representative of its calls.
    pub(crate) fn problems(&self) -> Vec<Box<dyn Problem>> {
        let all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        all.values().flat_map(|chosen| chosen.problems()).collect()
    }

    /// Forgets what an operator's problems were given.
    pub(crate) fn forget<O: Operator>(&self) {
        self.with::<O, _>(HashMap::clear);
    }

    fn with<O: Operator, T>(&self, f: impl FnOnce(&mut Chosen<O>) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let entry = all.entry(TypeId::of::<O>()).or_insert_with(|| Box::new(Chosen::<O>::new()));
        let entry: &mut dyn Any = &mut **entry;
        match entry.downcast_mut::<Chosen<O>>() {
            Some(chosen) => f(chosen),
            // What stands under an operator's type is its own; were it not, nothing would be remembered.
            None => f(&mut Chosen::<O>::new()),
        }
    }
}

impl fmt::Debug for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Choices")
    }
}

/// The arithmetic of a static problem under a deterministic policy: that of the row which is cheapest for the
/// operator's anchor call on one thread, so that the bits are the same on any number. Every later choice moves among
/// rows of that arithmetic. A row that was found wrong on the device has no say; one that failed as it was launched
/// does, while others have its arithmetic: what was run before has those bits.
fn family<'a, O: Operator>(ctx: &Context, fixed: &O::Static, rows: &[&'a Row<O>]) -> Option<&'a Row<O>> {
    let (anchor, hardware) = (O::anchor(fixed), &ctx.device().hardware().one_thread());
    let serves = |row: &Row<O>| {
        let mut alike = rows.iter().filter(|other| other.arithmetic == row.arithmetic);
        ctx.trust().wrong(row.name).is_none() && alike.any(|other| ctx.trust().failure(other.name).is_none())
    };
    let own = || rows.iter().copied().filter(|row| !row.arithmetic.foreign && serves(row));
    let preferred = own().find(|row| ctx.policy().prefers(row.name));
    preferred.or_else(|| {
        own().min_by(|a, b| (a.cost)(fixed, &anchor, hardware).total_cmp(&(b.cost)(fixed, &anchor, hardware)))
    })
}

/// Why a row is chosen for a problem, or why not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It may be chosen: the first such row is.
    Takes { preferred: bool },
    /// It was wrong on this device, or failed.
    Failed(String),
    /// The policy is deterministic, and the row's bits depend on the shape of a call.
    Foreign,
    /// The policy is deterministic, and the problem has the arithmetic of this name.
    OtherArithmetic(&'static str),
}

/// The rows of a device and a problem.
pub(crate) struct Judged<O: Operator> {
    /// Those that solve it with a verdict on each, those that may be chosen first, the preferred before others, then one
    /// that was measured to be faster than the one of the lowest predicted cost, then by that.
    pub(crate) rows: Vec<(Row<O>, Verdict)>,
    /// Those that refuse it, with their reasons.
    pub(crate) refused: Vec<(&'static str, String)>,
}

impl<O: Operator> Judged<O> {
    /// Those that may serve it, in the order of choice.
    pub(crate) fn allowed(&self) -> impl Iterator<Item = &Row<O>> {
        self.rows.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Takes { .. })).map(|(row, _)| row)
    }
}

/// Every row of this kind of device with what decides whether it may serve the problem: what [`choose`] takes the first
/// of, and [`crate::Explanation`] shows.
pub(crate) fn judge<O: Operator>(ctx: &Context, fixed: &O::Static, call: &O::Dynamic) -> Result<Judged<O>> {
    let (hardware, policy) = (ctx.device().hardware(), ctx.policy());
    let (admitted, refused) = ctx.registry().table::<O>()?.candidates(fixed, hardware);
    let arithmetic = family(ctx, fixed, &admitted).map(|row| row.arithmetic);
    let mut rows: Vec<(Row<O>, Verdict)> = admitted
        .into_iter()
        .map(|row| {
            let verdict = match (ctx.trust().failure(row.name), arithmetic) {
                (Some(failure), _) => Verdict::Failed(failure),
                _ if !policy.deterministic || Some(row.arithmetic) == arithmetic => {
                    Verdict::Takes { preferred: policy.prefers(row.name) }
                }
                (_, Some(chosen)) if !row.arithmetic.foreign => Verdict::OtherArithmetic(chosen.name),
                _ => Verdict::Foreign,
            };
            (*row, verdict)
        })
        .collect();
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Takes { preferred } => u8::from(!preferred),
        Verdict::Failed(_) | Verdict::Foreign | Verdict::OtherArithmetic(_) => 2,
    };
    rows.sort_by(|(a, of_a), (b, of_b)| {
        let cost = |row: &Row<O>| (row.cost)(fixed, call, hardware);
        rank(of_a).cmp(&rank(of_b)).then(cost(a).total_cmp(&cost(b)))
    });
    if let Some(measured) = ctx.measured::<O>(fixed, call) {
        let alike =
            rows.iter().take_while(|(_, verdict)| rank(verdict) < 2 && rank(verdict) == rank(&rows[0].1)).count();
        let names: Vec<&str> = rows[..alike].iter().map(|(row, _)| row.name).collect();
        if let Some(winner) = measured.winner(&names) {
            rows[..=winner].rotate_right(1);
        }
    }
    Ok(Judged { rows, refused: refused.into_iter().map(|(name, reason)| (name, reason.to_string())).collect() })
}

/// The first row that may be chosen for calls like `like` and is right, where that has to be seen, on `call`. A row
/// that is not takes its arithmetic out of the choice if no other row has it.
fn choose<O: Operator>(ctx: &Context, fixed: &O::Static, like: &O::Dynamic, call: &O::Dynamic) -> Result<Row<O>> {
    loop {
        let judged = judge::<O>(ctx, fixed, like)?;
        let Some(row) = judged.allowed().next() else {
            return Err(no_kernel::<O>(ctx, fixed, judged).into());
        };
        if ctx.trust().check(ctx, row, fixed, *call).is_ok() {
            tracing::debug!(operator = O::NAME, row = row.name, problem = %fixed, call = %like, "chosen");
            return Ok(*row);
        }
        // Others may have been given it, or would have to share its arithmetic.
        ctx.choices().forget::<O>();
    }
}

fn no_kernel<O: Operator>(ctx: &Context, fixed: &O::Static, Judged { rows, refused }: Judged<O>) -> KernelError {
    let judged = rows.into_iter().map(|(row, verdict)| match verdict {
        Verdict::Failed(failure) => (row.name, failure),
        _ => (row.name, "only with deterministic off".into()),
    });
    // Kernels that differ only in their instruction set refuse for one reason, which is given once.
    let mut reasons: Vec<(String, &str, usize)> = Vec::new();
    for (name, reason) in refused.into_iter().chain(judged) {
        match reasons.iter_mut().find(|(known, ..)| *known == reason) {
            Some((.., more)) => *more += 1,
            None => reasons.push((reason, name, 0)),
        }
    }
    let reasons = reasons.into_iter().map(|(reason, name, more)| match more {
        0 => format!("{name}: {reason}"),
        _ => format!("{name} and {more} more: {reason}"),
    });
    let mut reasons = reasons.collect::<Vec<_>>().join("; ");
    if reasons.is_empty() {
        reasons = "no kernel of the table runs on this kind of device".into();
    }
    let device = ctx.device().id().to_string();
    KernelError::NoKernel { operator: O::NAME, problem: fixed.to_string(), device, reasons }
}
