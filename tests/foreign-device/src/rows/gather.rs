//! Gathers. The indices are on the device: what is wrong with them shows when the work runs.

use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::{Arithmetic, Launch, Operands, Operator, Result, Row};

use super::{cost, no_workspace};
use crate::KIND;
use crate::operand::Operand;
use crate::stream::LaggingStream;

const NAME: &str = "gather.lagging.f64";

/// The rows for [`Gather`].
pub fn rows() -> Vec<Row<Gather>> {
    vec![Row {
        name: NAME,
        device: KIND,
        arithmetic: Arithmetic::named("gather.exact"),
        admits: |_, _| Ok(()),
        cost: cost::<Gather>,
        workspace: no_workspace::<Gather>,
        run,
    }]
}

unsafe fn run(launch: &Launch<'_>, fixed: &GatherStatic, call: &GatherDynamic, operands: Operands<'_>) -> Result<()> {
    let stream = LaggingStream::of(launch, NAME)?;
    let x = operands.input(Gather::NAME, Gather::X, "x")?;
    let y = operands.output(Gather::NAME, Gather::Y, "y")?;
    let (from, to) = (x.shape().to_vec(), y.shape().to_vec());
    let index = Operand::of(operands.input(Gather::NAME, Gather::INDEX, "index")?, stream);
    let (x, y) = (Operand::of(x, stream), Operand::of(y, stream));
    let (dim, size) = (fixed.dim, call.size);
    stream.enqueue(Gather::NAME, move || {
        let (values, index) = (x.read()?, index.read()?);
        let mut result = Vec::with_capacity(index.len());
        for (i, &chosen) in index.iter().enumerate() {
            if !(0.0..size as f64).contains(&chosen) {
                return Err(format!("index {chosen} at position {i} is outside the {size} elements"));
            }
            // From the last dimension to the first: where the output's index `i` is, with `chosen` put in.
            let (mut rest, mut at, mut stride) = (i, 0, 1);
            for d in (0..to.len()).rev() {
                at += stride * if d == dim { chosen as usize } else { rest % to[d] };
                rest /= to[d];
                stride *= from[d];
            }
            result.push(values[at]);
        }
        debug_assert_eq!(x.dtype(), y.dtype());
        y.write(&result)
    });
    Ok(())
}
