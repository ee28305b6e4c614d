//! Bare `sinew`: the bundled model answers a few prompts.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

use sinew::demo;
use sinew::models::GenerateOptions;

use super::interrupts::{catch_interrupts, interrupted};
use super::output::{megabytes, peak_rss_bytes};
use super::{Outcome, Run};

pub fn run(run: &Run) -> Outcome {
    catch_interrupts();
    let ctx = run.context()?;
    let mut model = demo::load(ctx.clone(), &run.load_options(None, &ctx)?)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "The bundled model answers. Your own: sinew generate --model PATH --prompt TEXT\n")?;
    let (mut tokens, mut time) = (0, Duration::ZERO);
    for (prompt, _) in demo::PROMPTS {
        write!(out, "  {prompt} ")?;
        out.flush()?;
        let prompt = model.encode(prompt)?;
        let answer = model.generate(&prompt, &GenerateOptions::default(), &mut |text| {
            let shown = write!(out, "{text}").and_then(|()| out.flush());
            if shown.is_err() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        writeln!(out)?;
        if interrupted() {
            return Ok(());
        }
        tokens += answer.tokens.len().saturating_sub(1);
        time += answer.decode;
    }
    let hardware = ctx.device().hardware();
    let decoder = model.decoder();
    writeln!(out, "\ndevice   {}: {hardware}", ctx.device().id())?;
    for (place, rows) in decoder.kernels() {
        writeln!(out, "kernel   {place}: {}", rows.join(", "))?;
    }
    writeln!(
        out,
        "memory   {} weights, {} KV cache, {} peak",
        megabytes(decoder.weight_bytes()),
        megabytes(model.cache().bytes()),
        megabytes(peak_rss_bytes())
    )?;
    writeln!(out, "speed    {:.0} tokens/s", tokens as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE))?;
    Ok(())
}
