//! Shapes of operands that meet: broadcasting, dtypes of results, leading dimensions walked one index at a time.

use sinew_tensor::{DType, Layout, MAX_RANK, Tensor};

use crate::Result;
use crate::error::{operand, refuse};
use crate::matmul::broadcast;

/// The shape that all operands broadcast to.
pub(crate) fn common(operator: &'static str, operands: &[(&str, &Tensor)]) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for (_, x) in operands {
        shape = broadcast(&shape, x.shape()).ok_or_else(|| {
            let rule = "shapes are aligned at their ends, and sizes there must be equal or 1";
            refuse(operator, format!("{} do not broadcast together: {rule}", list(operands)))
        })?;
    }
    Ok(shape)
}

/// The dtype of what two operands give: theirs, or f32 for two different ones of f32, f16 and bf16.
pub(crate) fn promote(operator: &'static str, a: (&str, &Tensor), b: (&str, &Tensor)) -> Result<DType> {
    match (a.1.dtype(), b.1.dtype()) {
        (a, b) if a == b => Ok(a),
        (a, b) if DType::COMPUTE.contains(&a) && DType::COMPUTE.contains(&b) => Ok(DType::F32),
        (_, other) => {
            let rule = format!("f32, f16 and bf16 mix, other dtypes do not: cast one, as with cast(ctx, {}, …)", a.0);
            Err(refuse(operator, format!("{}; {rule} to {other}", list(&[a, b]))))
        }
    }
}

/// Refuses operands of two dtypes.
pub(crate) fn same_dtype(operator: &'static str, a: (&str, &Tensor), b: (&str, &Tensor)) -> Result<()> {
    if a.1.dtype() == b.1.dtype() {
        return Ok(());
    }
    let rule = format!("both must have one dtype: cast(ctx, {}, {}) gives it", b.0, a.1.dtype());
    Err(refuse(operator, format!("{}; {rule}", list(&[a, b]))))
}

/// Refuses an output of another shape than the result's.
pub(crate) fn expect_output(operator: &'static str, name: &str, out: &Tensor, shape: &[usize]) -> Result<()> {
    if out.shape() == shape {
        return Ok(());
    }
    Err(refuse(operator, format!("the result has shape {shape:?}, but {}", operand(name, out))))
}

/// The size of the last dimension, which must be there.
pub(crate) fn width(operator: &'static str, name: &str, x: &Tensor) -> Result<usize> {
    let missing = || refuse(operator, format!("{}; it wants at least one dimension", operand(name, x)));
    x.shape().last().copied().ok_or_else(missing)
}

/// Refuses a dimension that is not there.
pub(crate) fn expect_dim(operator: &'static str, x: &Tensor, dim: usize) -> Result<()> {
    let rank = x.layout().rank();
    if dim < rank {
        return Ok(());
    }
    Err(refuse(operator, format!("dimension {dim} of {rank}: {}; dimensions count from 0", operand("x", x))))
}

/// Operands in words.
fn list(operands: &[(&str, &Tensor)]) -> String {
    let all: Vec<String> = operands.iter().map(|(name, x)| operand(name, x)).collect();
    all.join(", ")
}

/// Calls `f` for every index of some leading dimensions, in row-major order.
pub(crate) fn each_index(sizes: &[usize], mut f: impl FnMut(&[usize]) -> Result<()>) -> Result<()> {
    let mut index = [0; MAX_RANK];
    for flat in 0..sizes.iter().product() {
        let mut rest: usize = flat;
        for d in (0..sizes.len()).rev() {
            index[d] = rest % sizes[d];
            rest /= sizes[d];
        }
        f(&index[..sizes.len()])?;
    }
    Ok(())
}

/// The layout of one index of the leading dimensions.
pub(crate) fn at(layout: &Layout, index: &[usize]) -> Result<Layout> {
    let mut layout = *layout;
    for &i in index {
        layout = layout.select(0, i)?;
    }
    Ok(layout)
}

/// Calls `f` with layouts whose `leading` first dimensions are one: once where all strides allow it, otherwise for each
/// index of all but the last of them, which must then have the same sizes in every layout.
pub(crate) fn each_folded<const N: usize>(
    layouts: [Layout; N],
    leading: usize,
    mut f: impl FnMut([Layout; N]) -> Result<()>,
) -> Result<()> {
    let mut folded = layouts;
    if folded.iter_mut().all(|layout| layout.flatten(0..leading).map(|flat| *layout = flat).is_ok()) {
        return f(folded);
    }
    each_index(&layouts[0].shape()[..leading - 1], |index| {
        let mut parts = layouts;
        for part in &mut parts {
            *part = at(part, index)?;
        }
        f(parts)
    })
}
