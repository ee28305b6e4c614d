//! Turns texts into vectors and compares them: `cargo run --release --example embed -- PATH "a text" "another"`.

use std::error::Error;

use sinew::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else { return Err("usage: embed PATH TEXT...".into()) };
    let texts: Vec<String> = arguments.collect();

    let mut model = EmbeddingModel::load(path, &WeightOptions::default())?;
    let vectors = model.embed(&texts)?;
    // Vectors of most models have the length 1, so that this is the cosine of the angle between them.
    for (text, vector) in texts.iter().zip(&vectors) {
        let likeness: f32 = vector.iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
        println!("{likeness:.3}  {text}");
    }
    Ok(())
}
