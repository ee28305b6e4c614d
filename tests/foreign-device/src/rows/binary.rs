//! Sums, differences, products and comparisons of two operands: two rows of one arithmetic, which the accuracy harness
//! compares with each other.

use sinew_kernels::elementwise::{Binary, BinaryDynamic, BinaryFunction, BinaryStatic};
use sinew_kernels::{Arithmetic, Launch, Operands, Operator, Refusal, Result, Row};
use sinew_memory::Hardware;
use sinew_tensor::DType;

use super::{cost, no_workspace};
use crate::KIND;
use crate::operand::Operand;
use crate::stream::LaggingStream;

const ARITHMETIC: Arithmetic = Arithmetic::named("binary.lagging");

/// The rows for [`Binary`].
pub fn rows() -> Vec<Row<Binary>> {
    let row = |name, run| Row {
        name,
        device: KIND,
        arithmetic: ARITHMETIC,
        admits,
        cost: cost::<Binary>,
        workspace: no_workspace::<Binary>,
        run,
    };
    vec![row("binary.lagging.forward", run::<false>), row("binary.lagging.backward", run::<true>)]
}

fn admits(fixed: &BinaryStatic, _: &Hardware) -> Result<(), Refusal> {
    use BinaryFunction as F;
    if !DType::COMPUTE.contains(&fixed.a) {
        return Err(format!("{} is not supported", fixed.a).into());
    }
    match fixed.function {
        F::Add | F::Sub | F::Mul | F::Eq | F::Ne | F::Lt | F::Le | F::Gt | F::Ge => Ok(()),
        other => Err(format!("{} is not supported", other.name()).into()),
    }
}

unsafe fn run<const BACKWARD: bool>(
    launch: &Launch<'_>,
    fixed: &BinaryStatic,
    call: &BinaryDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let stream = LaggingStream::of(launch, "binary.lagging")?;
    let y = operands.output(Binary::NAME, Binary::Y, "y")?;
    let a = Operand::of(operands.optional(Binary::A).unwrap_or_else(|| y.view()), stream);
    let b = operands.optional(Binary::B).map(|b| Operand::of(b, stream));
    let y = Operand::of(y, stream);
    let (function, scalar) = (fixed.function, fixed.b.round(call.scalar()));
    stream.enqueue(Binary::NAME, move || {
        let a = a.read()?;
        let b = b.map_or(Ok(vec![scalar; a.len()]), |b| b.read())?;
        let mut result = vec![0.0; a.len()];
        // As f32 would have it, so that the result is that of every other device.
        let step = |i: usize| DType::F32.round(apply(function, a[i], b[i]));
        if BACKWARD {
            (0..a.len()).rev().for_each(|i| result[i] = step(i));
        } else {
            (0..a.len()).for_each(|i| result[i] = step(i));
        }
        y.write(&result)
    });
    Ok(())
}

fn apply(function: BinaryFunction, a: f64, b: f64) -> f64 {
    use BinaryFunction as F;
    let truth = |yes: bool| f64::from(u8::from(yes));
    match function {
        F::Add => a + b,
        F::Sub => a - b,
        F::Mul => a * b,
        F::Eq => truth(a == b),
        F::Ne => truth(a != b),
        F::Lt => truth(a < b),
        F::Le => truth(a <= b),
        F::Gt => truth(a > b),
        F::Ge => truth(a >= b),
        // Refused by `admits`.
        F::Div | F::Max | F::Min | F::Pow => f64::NAN,
    }
}
