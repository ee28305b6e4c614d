//! What the peers share with Sinew's side: the protocol of the round robin, and what is measured.

#[path = "../../../src/contender.rs"]
pub mod contender;

use contender::{Error, Product};

/// `THREADS M,N,K`; rayon gets so many threads.
///
/// # Errors
/// Other arguments.
pub fn product_from_arguments() -> Result<(usize, Product), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [threads, product] = &arguments[..] else { return Err("THREADS M,N,K".into()) };
    let threads = threads.parse()?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    Ok((threads, Product::parse(product)?))
}

/// A, and as many copies of W as take turns.
pub fn values(product: &Product, copies: usize) -> (Vec<f32>, Vec<Vec<f32>>) {
    let value = |i: usize| (i * 7919 % 1000) as f32 / 1000.0 - 0.5;
    let weight = |copy: usize| (0..product.n * product.k).map(|i| value(i + copy)).collect();
    ((0..product.m * product.k).map(value).collect(), (0..copies).map(weight).collect())
}
