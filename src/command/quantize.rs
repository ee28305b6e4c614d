//! `sinew quantize`: a model as a quantized checkpoint.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sinew::models::settings::{GroupSize, Value as _, WeightDType};
use sinew::models::{Error, Folder, quantize};
use sinew::tensor::BlockValues;

use super::arguments::{EMBEDS, of_settings};
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{megabytes, progress_bar};
use super::{Outcome, Run};

/// Write a model as a quantized checkpoint in the format compressed-tensors, which vLLM, transformers and Sinew read.
///
/// The weights of products are rounded as `--dtype` rounds them where a model is loaded, bit for bit; other tensors,
/// the tokenizer and other configs are copied. int4 and int8 are written as `pack-quantized`, fp8 as `float-quantized`;
/// activations are not quantized. Scales are bf16; those of int4 without zero points may be negative. A head that is
/// tied to the embedding stays as it is, and so do routers of experts. No more than a slice of a weight is in memory.
/// Embeddings, norms and biases keep the dtype of their file.
#[derive(Debug, Args)]
#[command(args = of_settings(&["load"]))]
pub struct Quantize {
    /// Folder with config.json and safetensors files, or id of the Hugging Face Hub: [owner/]name[@revision].
    #[arg(long, value_name = "PATH|ID")]
    model: PathBuf,
    /// The folder to write: a new one, which appears when it is complete, or an empty one, in which the files do.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// What weights are rounded to.
    #[arg(long, value_name = "int4|int8|fp8", value_parser = parse_values)]
    dtype: BlockValues,
    /// Values of a row that share a scale: 32, 64 or 128, which must divide the rows, or channel, which is the whole
    /// row; auto is 32 for int4 and int8, and channel for fp8, of which vLLM reads no groups.
    #[arg(long, value_name = "N", value_parser = GroupSize::parse, default_value = "auto")]
    group_size: GroupSize,
    /// With a zero point for each group, for int4 and int8; not of experts, of which others read none. transformers
    /// 5.24 reads them with CompressedTensorsConfig(dequantize=True) alone.
    #[arg(long)]
    zero_points: bool,
    /// Do not quantize the head: not every program reads one that is quantized, as older releases of vLLM.
    #[arg(long)]
    keep_head: bool,
    /// Take models from folders and the hub's cache only, as HF_HUB_OFFLINE=1 does.
    #[arg(long)]
    offline: bool,
    /// Print one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

fn parse_values(text: &str) -> Result<BlockValues, String> {
    match WeightDType::parse(text) {
        Ok(WeightDType::Quantized(values)) => Ok(values),
        _ => Err("supported are int4, int8 and fp8".to_owned()),
    }
}

impl Quantize {
    pub fn run(&self, run: &Run) -> Outcome {
        let how = self.group_size.quantize(self.dtype, self.zero_points, self.keep_head)?;
        let ctx = run.context()?;
        let folder = Folder::new(run.locate(&self.model, self.offline)?);
        if self.keep_head && folder.embeds()? {
            return Err(format!("--keep-head {EMBEDS}").into());
        }
        catch_interrupts();
        let bar = progress_bar("quantizing {bar:32} {bytes}/{total_bytes} {bytes_per_sec}");
        let written = quantize::quantize(&ctx, &folder, &self.output, how, run.settings().load, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        let written = match written {
            Err(Error::Cancelled) if interrupted() => return Ok(()),
            written => written?,
        };
        let quantize::Quantized { modules, kept, tied_head_kept, bytes_before, bytes_after } = &written;
        let mut out = std::io::stdout().lock();
        if self.json {
            let summary = json!({
                "output": self.output.display().to_string(),
                "modules": modules,
                "kept": kept,
                "tied_head_kept": tied_head_kept,
                "bytes_before": bytes_before,
                "bytes_after": bytes_after,
            });
            writeln!(out, "{summary}")?;
        } else {
            let [before, after] = [bytes_before, bytes_after].map(|&bytes| megabytes(bytes as usize));
            writeln!(out, "{modules} modules quantized, {} as they are: {before} to {after}", kept.len())?;
            if *tied_head_kept {
                let dtype = WeightDType::Quantized(self.dtype).show();
                writeln!(
                    out,
                    "the head is tied to the embedding and stays as it is; loading the original with --dtype {dtype} \
                     quantizes it"
                )?;
            }
        }
        Ok(())
    }
}
