//! Kernels of the device: four operators, one line each in [`register`].
//!
//! They compute in f64 and round once, which is slow and within every bound.

use sinew_kernels::activation::{Activate, ActivationDynamic, ActivationStatic, Gate};
use sinew_kernels::elementwise::{Binary, BinaryDynamic, BinaryFunction, BinaryStatic};
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::gemm::{A, B, BIAS, D, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::harness::case::decode;
use sinew_kernels::{Arithmetic, Compute, Launch, Operands, Operator, Refusal, Registry, Result, Row};
use sinew_memory::Hardware;
use sinew_tensor::DType;

use crate::KIND;
use crate::operand::Operand;
use crate::stream::LaggingStream;

/// Adds the device's kernels to the tables of a registry.
pub fn register(registry: &mut Registry) {
    registry.add(activation_rows());
    registry.add(binary_rows());
    registry.add(gather_rows());
    registry.add(gemm_rows());
}

/// Predicted seconds.
fn cost<O: Operator>(fixed: &O::Static, call: &O::Dynamic, hardware: &Hardware) -> f64 {
    let (work, rates) = (O::work(fixed, call), &hardware.rates);
    rates.launch_s + (work.bytes / rates.read_bytes_per_s).max(work.flops / rates.f32_flops_per_s)
}

/// No scratch: a kernel's vectors are its own affair.
fn no_workspace<O: Operator>(_: &O::Static, _: &O::Dynamic, _: &Hardware) -> usize {
    0
}

const ACTIVATION: &str = "activation.lagging.f64";

/// The rows for [`Activate`].
pub fn activation_rows() -> Vec<Row<Activate>> {
    vec![Row {
        name: ACTIVATION,
        device: KIND,
        arithmetic: Arithmetic::named("activation.lagging"),
        admits: |fixed, _| match fixed.gate {
            Gate::None if [fixed.x, fixed.out].iter().all(|dtype| DType::COMPUTE.contains(dtype)) => Ok(()),
            Gate::None => Err("f32, f16 and bf16 are supported".into()),
            _ => Err("gates are not supported".into()),
        },
        cost: cost::<Activate>,
        workspace: no_workspace::<Activate>,
        run: run_activation,
    }]
}

unsafe fn run_activation(
    launch: &Launch<'_>,
    fixed: &ActivationStatic,
    _: &ActivationDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let stream = LaggingStream::of(launch, ACTIVATION)?;
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

const BINARY: Arithmetic = Arithmetic::named("binary.lagging");

/// The rows for [`Binary`].
pub fn binary_rows() -> Vec<Row<Binary>> {
    let row = |name, run| Row {
        name,
        device: KIND,
        arithmetic: BINARY,
        admits: admits_binary,
        cost: cost::<Binary>,
        workspace: no_workspace::<Binary>,
        run,
    };
    vec![row("binary.lagging.forward", run_binary::<false>), row("binary.lagging.backward", run_binary::<true>)]
}

fn admits_binary(fixed: &BinaryStatic, _: &Hardware) -> Result<(), Refusal> {
    use BinaryFunction as F;
    if !DType::COMPUTE.contains(&fixed.a) {
        return Err(format!("{} is not supported", fixed.a).into());
    }
    match fixed.function {
        F::Add | F::Sub | F::Mul | F::Eq | F::Ne | F::Lt | F::Le | F::Gt | F::Ge => Ok(()),
        other => Err(format!("{} is not supported", other.name()).into()),
    }
}

unsafe fn run_binary<const BACKWARD: bool>(
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
        let step = |i: usize| DType::F32.round(apply_binary(function, a[i], b[i]));
        if BACKWARD {
            (0..a.len()).rev().for_each(|i| result[i] = step(i));
        } else {
            (0..a.len()).for_each(|i| result[i] = step(i));
        }
        y.write(&result)
    });
    Ok(())
}

fn apply_binary(function: BinaryFunction, a: f64, b: f64) -> f64 {
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
        // Refused by `admits_binary`.
        F::Div | F::Max | F::Min | F::Pow => f64::NAN,
    }
}

const GATHER: &str = "gather.lagging.f64";

/// The rows for [`Gather`].
pub fn gather_rows() -> Vec<Row<Gather>> {
    vec![Row {
        name: GATHER,
        device: KIND,
        arithmetic: Arithmetic::named("gather.exact"),
        admits: |_, _| Ok(()),
        cost: cost::<Gather>,
        workspace: no_workspace::<Gather>,
        run: run_gather,
    }]
}

unsafe fn run_gather(
    launch: &Launch<'_>,
    fixed: &GatherStatic,
    call: &GatherDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let stream = LaggingStream::of(launch, GATHER)?;
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

const GEMM: &str = "gemm.lagging.f64";

/// The rows for [`Gemm`].
pub fn gemm_rows() -> Vec<Row<Gemm>> {
    vec![Row {
        name: GEMM,
        device: KIND,
        arithmetic: Arithmetic::named("gemm.lagging"),
        admits: |fixed, _| match fixed.b {
            Rhs::Packed(format) if !format.is_row_major() => Err("packed weights are read in rows only".into()),
            _ if fixed.compute == Compute::Int8 => Err("int8 is not supported".into()),
            _ if fixed.gathered => Err("columns of the left operand in another order are not supported".into()),
            _ if fixed.norm.is_some() => Err("norms of the left operand are not supported".into()),
            _ if fixed.epilogue.gated => Err("gated epilogues are not supported".into()),
            _ if fixed.epilogue.residual.is_some() => Err("residuals are not supported".into()),
            Rhs::Packed(_) | Rhs::Strided(_) => Ok(()),
        },
        cost: cost::<Gemm>,
        workspace: no_workspace::<Gemm>,
        run: run_gemm,
    }]
}

unsafe fn run_gemm(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let stream = LaggingStream::of(launch, GEMM)?;
    let a = Operand::of(operands.input(Gemm::NAME, A, "A")?, stream);
    let b = Operand::of(operands.input(Gemm::NAME, B, "B")?, stream);
    let bias = operands.optional(BIAS).map(|bias| Operand::of(bias, stream));
    let d = Operand::of(operands.output(Gemm::NAME, D, "D")?, stream);
    let (GemmStatic { n, k, b: right, compute, epilogue, .. }, GemmDynamic { batch, m }) = (fixed.clone(), *call);
    let in_rows = match right {
        Rhs::Packed(format) => format.dtype(),
        Rhs::Strided(_) => None,
    };
    stream.enqueue(Gemm::NAME, move || {
        let rounded = |operand: &Operand| -> Result<Vec<f64>, String> {
            let mut values = operand.read()?;
            if compute == Compute::Bf16 {
                values.iter_mut().for_each(|x| *x = DType::BF16.round(*x));
            }
            Ok(values)
        };
        // A packed weight is rows of K in bytes, which all products share, and is rounded already.
        let (b, [of_product, of_column, of_k]) = match in_rows {
            Some(dtype) => {
                let bytes: Vec<u8> = b.read()?.into_iter().map(|byte| byte as u8).collect();
                (decode(dtype, &bytes), [0, k, 1])
            }
            None => (rounded(&b)?, [k * n, 1, n]),
        };
        let a = rounded(&a)?;
        let bias = bias.map(|bias| bias.read()).transpose()?;
        let mut result = Vec::with_capacity(batch * m * n);
        for row in 0..batch * m {
            for column in 0..n {
                let first = row / m * of_product + column * of_column;
                let sum: f64 = (0..k).map(|i| a[row * k + i] * b[first + i * of_k]).sum();
                let x = f64::from(epilogue.alpha) * sum + bias.as_ref().map_or(0.0, |bias| bias[column]);
                result.push(epilogue.activation.map_or(x, |activation| activation.reference(x)));
            }
        }
        d.write(&result)
    });
    Ok(())
}
