//! Products by candle, in products.py: `candle_products THREADS M,N,K`.

use candle_core::{DType, Device, Tensor};
use sinew_peers::contender::{Error, serve};

fn main() -> Result<(), Error> {
    let (_, product) = sinew_peers::product_from_arguments()?;
    let (a, weights) = sinew_peers::values(&product, product.copies(product.n * product.k * 2));
    let mut operands = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let tensor =
            |values: &[f32], shape: (usize, usize)| Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype);
        let a = tensor(&a, (product.m, product.k))?;
        let copies = product.copies(product.n * product.k * dtype.size_in_bytes());
        // As candle's Linear has them.
        let weights = weights[..copies].iter().map(|w| tensor(w, (product.n, product.k))?.t());
        let weights = weights.collect::<candle_core::Result<Vec<_>>>()?;
        match a.matmul(&weights[0]) {
            Ok(_) => operands.push((product.item("candle", dtype.as_str()), a, weights)),
            Err(error) => eprintln!("{dtype:?}: {error}"),
        }
    }
    let items: Vec<_> = operands.iter().map(|(item, ..)| item.clone()).collect();
    serve(&items, &mut |item| {
        let (_, a, weights) =
            operands.iter().find(|(of, ..)| of.what == item.what).ok_or("an item that is not there")?;
        let seconds = product.seconds(weights.len(), &mut |i| a.matmul(&weights[i]).map(drop))?;
        Ok(seconds.into())
    })
}
