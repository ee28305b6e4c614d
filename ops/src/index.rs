//! Selection by index: embedding, gather, index_select and top-k.

use sinew_kernels::embedding::{Embedding, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew_kernels::gather::{Gather, GatherDynamic, GatherStatic};
use sinew_kernels::topk::{TopK, TopKDynamic, TopKStatic};
use sinew_tensor::{DType, Layout, Tensor, View};

use crate::error::{operand, refuse};
use crate::shape::{each_folded, expect_dim, expect_output, width};
use crate::{Context, Result};

/// Rows of `table [vocab, width]` by number: ids (u32, i32 or i64) of any shape give `[ids.., width]`.
///
/// A packed weight serves as a table too, as [`crate::layers::Embedding`].
///
/// ```
/// use sinew_ops::{Context, embedding};
///
/// let ctx = Context::cpu()?;
/// let table = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let ids = ctx.tensor(&[1u32, 0, 1], &[3])?;
/// assert_eq!(embedding(&ctx, &ids, &table)?.to_vec::<f32>()?, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// An id that is not in the table, other dtypes, tensors of another device, or out of memory.
pub fn embedding(ctx: &Context, ids: &Tensor, table: &Tensor) -> Result<Tensor> {
    let (_, shape) = embedding_shape(ids, table)?;
    let mut y = ctx.uninitialised(table.dtype(), &shape)?;
    embedding_into(ctx, ids, table, &mut y)?;
    Ok(y)
}

/// [`embedding`] into a tensor `[ids.., width]` of f32, f16 or bf16, in any strides.
///
/// # Errors
/// Those of [`embedding`], another shape, or a shared output.
pub fn embedding_into(ctx: &Context, ids: &Tensor, table: &Tensor, y: &mut Tensor) -> Result<()> {
    let ([vocab, width], shape) = embedding_shape(ids, table)?;
    expect_output("embedding", "y", y, &shape)?;
    let fixed = EmbeddingStatic { width, vocab, table: TableKind::Strided(table.dtype()), out: y.dtype() };
    each_folded([*ids.layout(), *y.layout()], ids.layout().rank(), |[ids_at, y_at]| {
        let inputs = [Some(ids.view().with_layout(ids_at)?), Some(table.view())];
        let call = EmbeddingDynamic { tokens: ids_at.elements() };
        ctx.run::<Embedding>(&fixed, &call, &inputs, &[y.view_mut()?.with_layout(y_at)?])
    })
}

fn embedding_shape(ids: &Tensor, table: &Tensor) -> Result<([usize; 2], Vec<usize>)> {
    let &[vocab, width] = table.shape() else {
        return Err(refuse("embedding", format!("{}; it must be [vocab, width]", operand("the table", table))));
    };
    Ok(([vocab, width], ids.shape().iter().copied().chain([width]).collect()))
}

/// `y[i…] = x[i…, with index[i…] in dimension dim]`: `torch.gather`. The result has the index's shape and the dtype of
/// `x`, any; in the other dimensions `x` is at least as long as the index, which is u32, i32 or i64.
///
/// ```
/// use sinew_ops::{Context, gather};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let index = ctx.tensor(&[1u32, 0], &[2, 1])?;
/// assert_eq!(gather(&ctx, &x, 1, &index)?.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not fit, an index that is outside the dimension, tensors of another device, or out of memory.
pub fn gather(ctx: &Context, x: &Tensor, dim: usize, index: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(x.dtype(), index.shape())?;
    gather_into(ctx, x, dim, index, &mut y)?;
    Ok(y)
}

/// [`gather`] into a tensor of the index's shape and the dtype of `x`, in any strides.
///
/// # Errors
/// Those of [`gather`], another shape or dtype, or a shared output.
pub fn gather_into(ctx: &Context, x: &Tensor, dim: usize, index: &Tensor, y: &mut Tensor) -> Result<()> {
    expect_dim("gather", x, dim)?;
    expect_output("gather", "y", y, index.shape())?;
    run_gather(ctx, x, dim, index.view(), y)
}

/// The indices of one dimension that `index` (u32, i32 or i64 `[n]`) lists, in its order: `torch.index_select`.
///
/// ```
/// use sinew_ops::{Context, index_select};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let index = ctx.tensor(&[1u32, 1, 0], &[3])?;
/// assert_eq!(index_select(&ctx, &x, 0, &index)?.to_vec::<f32>()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// A dimension or an index that is not there, an index of another rank, tensors of another device, or out of memory.
pub fn index_select(ctx: &Context, x: &Tensor, dim: usize, index: &Tensor) -> Result<Tensor> {
    let layout = select_layout(x, dim, index)?;
    let mut y = ctx.uninitialised(x.dtype(), layout.shape())?;
    run_gather(ctx, x, dim, index.view().with_layout(layout)?, &mut y)?;
    Ok(y)
}

/// [`index_select`] into a tensor of the result's shape and the dtype of `x`, in any strides.
///
/// # Errors
/// Those of [`index_select`], another shape or dtype, or a shared output.
pub fn index_select_into(ctx: &Context, x: &Tensor, dim: usize, index: &Tensor, y: &mut Tensor) -> Result<()> {
    let layout = select_layout(x, dim, index)?;
    expect_output("index_select", "y", y, layout.shape())?;
    run_gather(ctx, x, dim, index.view().with_layout(layout)?, y)
}

/// The list of indices broadcast over the other dimensions.
fn select_layout(x: &Tensor, dim: usize, index: &Tensor) -> Result<Layout> {
    expect_dim("index_select", x, dim)?;
    let &[n] = index.shape() else {
        return Err(refuse("index_select", format!("{}; it must be [n]", operand("index", index))));
    };
    let mut shape = x.shape().to_vec();
    shape[dim] = n;
    let mut layout = *index.layout();
    for _ in dim + 1..shape.len() {
        layout = layout.unsqueeze(layout.rank())?;
    }
    Ok(layout.broadcast_to(&shape)?)
}

fn run_gather(ctx: &Context, x: &Tensor, dim: usize, index: View<'_>, y: &mut Tensor) -> Result<()> {
    let call = GatherDynamic { elements: y.layout().elements(), size: x.shape()[dim] };
    let fixed = GatherStatic { dtype: x.dtype(), dim };
    ctx.run::<Gather>(&fixed, &call, &[Some(x.view()), Some(index)], &[y.view_mut()?])
}

/// The `k` largest elements of the last dimension, largest first, and where they are, as i64: `torch.topk`. NaN counts
/// as larger than all; of equal elements the first comes first.
///
/// ```
/// use sinew_ops::{Context, topk};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[1.0f32, 5.0, 3.0], &[1, 3])?;
/// let (values, indices) = topk(&ctx, &x, 2)?;
/// assert_eq!(values.to_vec::<f32>()?, [5.0, 3.0]);
/// assert_eq!(indices.to_vec::<i64>()?, [1, 2]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// More than there are, a dtype other than f32, f16 and bf16, a tensor of another device, or out of memory.
pub fn topk(ctx: &Context, x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let shape = topk_shape(x, k)?;
    let (mut values, mut indices) = (ctx.uninitialised(x.dtype(), &shape)?, ctx.uninitialised(DType::I64, &shape)?);
    topk_into(ctx, x, k, &mut values, &mut indices)?;
    Ok((values, indices))
}

/// [`topk`] into tensors `[.., k]`, in any strides: values of the dtype of `x`, and indices u32, i32 or i64.
///
/// # Errors
/// Those of [`topk`], other shapes or dtypes, or shared outputs.
pub fn topk_into(ctx: &Context, x: &Tensor, k: usize, values: &mut Tensor, indices: &mut Tensor) -> Result<()> {
    let shape = topk_shape(x, k)?;
    expect_output("topk", "values", values, &shape)?;
    expect_output("topk", "indices", indices, &shape)?;
    let width = width("topk", "x", x)?;
    let fixed = TopKStatic { k, dtype: x.dtype(), indices: indices.dtype() };
    let call = TopKDynamic { rows: x.shape()[..shape.len() - 1].iter().product(), width };
    ctx.run::<TopK>(&fixed, &call, &[Some(x.view())], &[values.view_mut()?, indices.view_mut()?])
}

fn topk_shape(x: &Tensor, k: usize) -> Result<Vec<usize>> {
    let width = width("topk", "x", x)?;
    if k > width {
        return Err(refuse("topk", format!("the top {k} of {width} elements: {}", operand("x", x))));
    }
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(k);
    Ok(shape)
}
