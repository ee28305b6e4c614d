//! f64, integers and bools.

use sinew_memory::DeviceKind;
use sinew_tensor::{DType, Element};

use super::cpu::walks;
use super::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic};
use crate::Result;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row};
use crate::rates::predicted;
use crate::strided::{Address, Walk, store_index};

/// Shares of the memory rate and the arithmetic peak: plain loops.
const READS: f64 = 0.4;
const COMPUTES: f64 = 0.02;

pub(super) fn row() -> Row<Reduce> {
    Row {
        name: "reduce.cpu.wide",
        device: DeviceKind::CPU,
        arithmetic: Arithmetic::named("reduce.own-dtype"),
        admits: |fixed, _| {
            if DType::COMPUTE.contains(&fixed.input) { Err("for f64, integers and bools".into()) } else { Ok(()) }
        },
        cost: |fixed, call, hardware| predicted::by_shares(Reduce::work(fixed, call), hardware, READS, COMPUTES),
        workspace: |_, _, _| 0,
        run,
    }
}

unsafe fn run(launch: &Launch<'_>, fixed: &ReduceStatic, call: &ReduceDynamic, operands: Operands<'_>) -> Result<()> {
    let x = operands.input(Reduce::NAME, Reduce::X, "x")?;
    let y = operands.output(Reduce::NAME, Reduce::Y, "y")?;
    let (rows, within) = walks(y.layout(), x.layout(), fixed.dims);
    let (to, from) = (Address(y.host_ptr()?), Address::read(x.host_ptr()?));
    let (function, output, width) = (fixed.function, fixed.output, call.width);
    let size = fixed.input.size();
    macro_rules! typed {
        ($($dtype:ident: $t:ty, $wide:ty, $widen:expr;)*) => {
            launch.team()?.run(rows.tasks(), |task, _| {
                let [y_step, x_step] = rows.steps;
                for run in rows.task(task) {
                    for i in 0..run.len {
                        let y = to.at(run.at[0] + i * y_step, output.size());
                        let x = from.at(run.at[1] + i * x_step, size);
                        // SAFETY: shapes and dtypes are checked; the walks stay inside; tasks share no output.
                        unsafe {
                            match fixed.input {
                                $(DType::$dtype => reduce::<$t, $wide>(function, output, &within, width, y, x, $widen),)*
                                _ => {}
                            }
                        }
                    }
                }
            })
        };
    }
    typed! {
        F64: f64, f64, |x| x;
        I64: i64, i64, |x| x;
        I32: i32, i64, i64::from;
        I16: i16, i64, i64::from;
        I8: i8, i64, i64::from;
        U32: u32, i64, i64::from;
        U8: u8, i64, i64::from;
        Bool: u8, i64, |x| i64::from(x != 0);
    }
    Ok(())
}

/// What sums are made in.
trait Sum: Element {
    fn plus(self, other: Self) -> Self;
}

impl Sum for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Sum for i64 {
    // As in PyTorch, and rather than a panic or a wrong sign of the host's choosing.
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

/// # Safety
/// `x` is the first element of a row of `T` that `within` walks, and `y` an element of `output` which this task alone
/// writes.
#[inline]
unsafe fn reduce<T: Element + PartialOrd, W: Sum>(
    function: ReduceFunction,
    output: DType,
    within: &Walk<1>,
    width: usize,
    y: *mut u8,
    x: *const u8,
    widen: impl Fn(T) -> W,
) {
    use ReduceFunction as F;
    let [step] = within.steps;
    let x = x.cast::<T>();
    // SAFETY: passed on.
    unsafe {
        if matches!(function, F::Sum | F::Mean) {
            let mut sum = W::zeroed();
            for run in within.all() {
                (0..run.len).for_each(|i| sum = sum.plus(widen(*x.add(run.at[0] + i * step))));
            }
            // Means are of f64 only.
            *y.cast::<W>() = if function == F::Mean { W::from_f64(sum.to_f64() / width as f64) } else { sum };
            return;
        }
        let mut best: Option<(T, usize)> = None;
        for run in within.all() {
            for i in 0..run.len {
                let v = *x.add(run.at[0] + i * step);
                #[allow(clippy::eq_op)]
                let nan = |v: T| v != v;
                let wins = match best {
                    None => true,
                    Some((b, _)) if nan(b) => false,
                    Some((b, _)) => nan(v) || if matches!(function, F::Max | F::ArgMax) { v > b } else { v < b },
                };
                if wins {
                    best = Some((v, run.first + i));
                }
            }
        }
        if let Some((value, at)) = best {
            if function.finds() { store_index(output, y, at) } else { *y.cast::<T>() = value }
        }
    }
}
