//! Loads a safetensors checkpoint and generates: `cargo run --release --example load_checkpoint -- PATH "a prompt"`.

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use sinew::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("usage: load_checkpoint PATH PROMPT".into());
    };
    let folder = Folder::new(path);
    let ctx = Arc::new(Context::cpu()?);
    let mut model = LanguageModel::load_on(ctx, &folder, &LoadOptions::default(), &mut |_, _| {})?;
    let prompt = model.encode(&prompt)?;
    // As generation_config.json says, and at most 64 tokens where it does not say how many.
    let options = folder.generation_config()?.options(prompt.len(), 64);
    let mut out = std::io::stdout().lock();
    let answer = model.generate(&prompt, &options, &mut |text| {
        // A reader that went away ends the answer.
        let shown = write!(out, "{text}").and_then(|()| out.flush());
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    writeln!(out, "\n{} tokens, {}", answer.tokens.len(), answer.finish)?;
    Ok(())
}
