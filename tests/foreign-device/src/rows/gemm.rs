//! Matrix products, also of weights that are packed in rows.

use sinew_kernels::gemm::{A, B, BIAS, D, Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::harness::case::decode;
use sinew_kernels::{Arithmetic, Compute, Launch, Operands, Operator, Result, Row};
use sinew_tensor::DType;

use super::{cost, no_workspace};
use crate::KIND;
use crate::operand::Operand;
use crate::stream::LaggingStream;

const NAME: &str = "gemm.lagging.f64";

/// The rows for [`Gemm`].
pub fn rows() -> Vec<Row<Gemm>> {
    vec![Row {
        name: NAME,
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
        run,
    }]
}

unsafe fn run(launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let stream = LaggingStream::of(launch, NAME)?;
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
