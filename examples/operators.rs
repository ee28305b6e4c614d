//! Calls operators directly, on tensors and on `ndarray` views: `cargo run --release --example operators`.

use std::error::Error;

use ndarray::array;
use sinew::ops;
use sinew::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let ctx = Context::cpu()?;

    // Any strided view will do: nothing has to be made contiguous.
    let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    let gram = ops::matmul(&x, &x.transpose(0, 1)?).run(&ctx)?;
    println!("x · xᵀ =\n{gram}");

    // bias and activation ride on the product's one pass.
    let w = ctx.tensor(&[0.5f32, -0.25, 1.0, 0.0, 0.75, -1.0], &[2, 3])?;
    let b = ctx.tensor(&[0.1f32, 0.2], &[2])?;
    let y = ops::matmul(&x, &w.transpose(0, 1)?).bias(&b).gelu().run(&ctx)?;
    println!("gelu(x · wᵀ + b) =\n{y}");

    // From ndarray and back without a copy of the array.
    let a = Tensor::from_ndarray(ctx.device(), array![[1.0f32, 2.0], [3.0, 4.0]].into_dyn())?;
    let softmax = ops::softmax(&ctx, &a)?;
    println!("softmax =\n{}", softmax.as_ndarray::<f32>()?);
    Ok(())
}
