//! Activations without a gate.

use sinew_kernels::activation::{Activate, ActivationDynamic, ActivationStatic, Gate};
use sinew_kernels::{Arithmetic, Launch, Operands, Operator, Result, Row};
use sinew_tensor::DType;

use super::{cost, no_workspace};
use crate::KIND;
use crate::operand::Operand;
use crate::stream::LaggingStream;

const NAME: &str = "activation.lagging.f64";

/// The rows for [`Activate`].
pub fn rows() -> Vec<Row<Activate>> {
    vec![Row {
        name: NAME,
        device: KIND,
        arithmetic: Arithmetic::named("activation.lagging"),
        admits: |fixed, _| match fixed.gate {
            Gate::None if [fixed.x, fixed.out].iter().all(|dtype| DType::COMPUTE.contains(dtype)) => Ok(()),
            Gate::None => Err("f32, f16 and bf16 are supported".into()),
            _ => Err("gates are not supported".into()),
        },
        cost: cost::<Activate>,
        workspace: no_workspace::<Activate>,
        run,
    }]
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &ActivationStatic,
    _: &ActivationDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let stream = LaggingStream::of(launch, NAME)?;
    let y = operands.output(Activate::NAME, Activate::Y, "y")?;
    let x = Operand::of(operands.optional(Activate::X).unwrap_or_else(|| y.view()), stream);
    let y = Operand::of(y, stream);
    let activation = fixed.activation;
    stream.enqueue(Activate::NAME, move || {
        let values: Vec<f64> = x.read()?.into_iter().map(|x| activation.reference(x)).collect();
        y.write(&values)
    });
    Ok(())
}
