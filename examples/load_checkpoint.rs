//! Loads a safetensors checkpoint and generates: `cargo run --release --example load_checkpoint -- PATH "a prompt"`.

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;

use sinew::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("usage: load_checkpoint PATH PROMPT".into());
    };
    let mut model = LanguageModel::load(path, &LoadOptions::default())?;
    let prompt = model.encode(&prompt)?;
    let options = GenerateOptions { max_new_tokens: 64, ..GenerateOptions::default() };
    let mut out = std::io::stdout().lock();
    let answer = model.generate(&prompt, &options, &mut |text| {
        // A reader that went away ends the answer.
        let shown = write!(out, "{text}").and_then(|()| out.flush());
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    writeln!(out, "\n{} tokens, {}", answer.tokens.len(), answer.finish)?;
    Ok(())
}
