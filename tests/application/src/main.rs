//! Runs Sinew as an application does that keeps Cargo's dev profile: unoptimised, and on threads with 2 MiB of stack.
//!
//! `cargo run [-- path/to/all-MiniLM-L6-v2]`

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;

use sinew::models::WeightOptions;
use sinew::prelude::*;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let folder = std::env::args().nth(1);
    let ctx = Arc::new(Context::cpu()?);
    run_all(&ctx, folder.as_deref())?;
    println!("the main thread: ok");

    let (other, path) = (ctx.clone(), folder.clone());
    std::thread::spawn(move || run_all(&other, path.as_deref())).join().map_err(|_| "the thread panicked")??;
    println!("a thread of the standard library: ok");

    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(runtime.spawn_blocking(move || run_all(&ctx, folder.as_deref())))??;
    println!("a blocking thread of tokio: ok");

    // The newest minijinja resolves beside Sinew.
    println!("{}", minijinja::Environment::new().render_str("minijinja: {{ 'ok' }}", ())?);
    Ok(())
}

fn run_all(ctx: &Arc<Context>, minilm: Option<&str>) -> Outcome {
    multiply(ctx, DType::F32, 128)?;
    multiply(ctx, DType::BF16, 896)?;
    generate(ctx)?;
    minilm.map_or(Ok(()), embed)
}

/// Multiplies matrices of small integers, whose products are exact in every dtype.
fn multiply(ctx: &Context, dtype: DType, size: usize) -> Outcome {
    let values = |modulus: usize| -> Vec<f32> { (0..128 * size).map(|i| (i % modulus) as f32).collect() };
    let (a, b) = (values(3), values(2));
    let a_tensor = sinew::ops::cast(ctx, &ctx.tensor(&a, &[128, size])?, dtype)?;
    let b_tensor = sinew::ops::cast(ctx, &ctx.tensor(&b, &[128, size])?, dtype)?;
    let product = sinew::ops::matmul(&a_tensor, &b_tensor.t()?).run(ctx)?;
    let product = sinew::ops::cast(ctx, &product, DType::F32)?.to_vec::<f32>()?;
    for (at, found) in product.iter().enumerate() {
        let (row, column) = (&a[at / 128 * size..][..size], &b[at % 128 * size..][..size]);
        let exact: f32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
        // Sums above 256 are rounded to the 8 bits of bf16.
        if (found - exact).abs() > exact / 256.0 {
            return Err(format!("{dtype}: element {at} is {found}, expected {exact}").into());
        }
    }
    Ok(())
}

/// Generates with the bundled model.
fn generate(ctx: &Arc<Context>) -> Outcome {
    let mut model = sinew::demo::load(ctx.clone(), &LoadOptions::default())?;
    let (prompt, answer) = sinew::demo::PROMPTS[0];
    let prompt = model.encode(prompt)?;
    let options = GenerateOptions { max_new_tokens: 8, ..GenerateOptions::default() };
    let mut text = String::new();
    model.generate(&prompt, &options, &mut |piece| {
        text.push_str(piece);
        ControlFlow::Continue(())
    })?;
    if !text.starts_with(answer) {
        return Err(format!("the bundled model answers {text:?}, expected {answer:?}").into());
    }
    Ok(())
}

fn embed(folder: &str) -> Outcome {
    let mut model = EmbeddingModel::load(folder, &WeightOptions::default())?;
    let vectors = model.embed(&["A cat sits on a mat.", "There is a cat on the mat."])?;
    let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    if cosine < 0.7 {
        return Err(format!("two sentences of one meaning have a cosine of {cosine}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_fit_the_stack_of_a_test() {
        run_all(&Arc::new(Context::cpu().unwrap()), None).unwrap();
    }
}
