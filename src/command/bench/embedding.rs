//! `sinew bench` of an embedding model: texts of equal length, in one call.

use std::io::Write;
use std::time::Instant;

use serde_json::json;
use sinew::models::{EmbeddingModel, ModelConfig};

use super::{Bench, limits, median, texts};
use crate::command::interrupts::{catch_interrupts, interrupted};
use crate::command::output::{peak_rss_bytes, rate_text, report_memory};
use crate::command::{Outcome, Run};

impl Bench {
    pub(super) fn run_embedding(&self, run: &Run, config: &ModelConfig) -> Outcome {
        let texts = texts(config, self.batch, self.prompt_tokens)?;
        let start = Instant::now();
        let (ctx, folder) = (run.context()?, self.model.folder(run)?);
        let weights = run.weight_options(Some(folder), &ctx)?;
        let mut model = EmbeddingModel::load_on(ctx, folder, &weights, &mut |_, _| {})?;
        let load_s = start.elapsed().as_secs_f64();
        catch_interrupts();
        let mut seconds = Vec::new();
        for counted in std::iter::once(false).chain(std::iter::repeat_n(true, self.repeat)) {
            let start = Instant::now();
            model.embed_tokens(&texts)?;
            if interrupted() {
                return Ok(());
            }
            if counted {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        let peak_rss = peak_rss_bytes();
        if self.memory_report {
            report_memory(model.context());
        }
        let precision = model.precision();
        let factors = precision.main_factors();
        let compute = factors.compute;
        let peak = limits(model.context()).and_then(|peaks| peaks.flops_per_s(factors));
        let rate = median(seconds.into_iter().map(|s| (self.batch * self.prompt_tokens) as f64 / s));
        let share = peak.map(|peak| rate * config.text_flops_per_token(self.prompt_tokens) / peak);
        let device = model.context().device();
        let (threads, encoding) = (device.hardware().threads, precision.main_encoding());
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = json!({
                "encode_tokens_per_s": rate,
                "encode_share_of_limit": share,
                "texts_per_s": rate / self.prompt_tokens as f64,
                "load_s": load_s,
                "peak_rss_bytes": peak_rss,
                "threads": threads,
                "device": device.id().to_string(),
                "dtype": encoding.to_string(),
                "activations": compute.to_string(),
                "prompt_tokens": self.prompt_tokens,
                "batch": self.batch,
                "repeat": self.repeat,
                "limit_flops_per_s": peak,
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        let hardware = device.hardware();
        writeln!(out, "{}: {hardware}; weights {encoding}, activations {compute}", device.id())?;
        writeln!(
            out,
            "encode   {rate:9.1} tokens/s  {:>5} % of {} GFLOP/s; {:.1} texts/s",
            rate_text(share.map(|share| 100.0 * share)),
            rate_text(peak.map(|peak| peak / 1e9)),
            rate / self.prompt_tokens as f64
        )?;
        writeln!(out, "load     {load_s:9.2} s\nmemory   {:9.1} MB", peak_rss as f64 / 1e6)?;
        Ok(())
    }
}
