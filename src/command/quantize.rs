//! `sinew quantize`: a model as a quantized checkpoint.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sinew::models::settings::{Value as _, WeightDType};
use sinew::models::{Error, Folder, quantize};
use sinew::tensor::BlockValues;

use super::arguments::{CHOOSING, MEMORY, QUANTIZING, of_settings, refused};
use super::interrupts::{catch_interrupts, interrupted};
use super::output::{megabytes, progress_bar};
use super::{Outcome, Run};

/// Write a model as a quantized checkpoint in the format compressed-tensors, which vLLM, transformers and Sinew read.
///
/// The weights of products are rounded as `--dtype` rounds them where a model is loaded, bit for bit; other tensors,
/// the tokenizer and other configs are copied. int4 and int8 are written as `pack-quantized`, fp8 as `float-quantized`;
/// activations are not quantized. Scales are bf16; those of int4 without zero points may be negative. A head that
/// the config ties to the embedding stays as it is, and so do routers of experts. No more than a slice of a weight is in
/// memory. Embeddings, norms and biases keep the dtype of their file.
///
/// Groups of 32, 64 or 128 must divide the rows. Zero points are for int4 and int8, and not of experts, of which others
/// read none. vLLM reads no groups of fp8, and its older releases no quantized head; transformers 5.24 reads zero points
/// with CompressedTensorsConfig(dequantize=True) alone.
#[derive(Debug, Args)]
#[command(args = of_settings(&["load"]), args = of_settings(QUANTIZING))]
#[command(args = refused(&[MEMORY, CHOOSING]))]
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
        run.refuse(&[MEMORY], "is for models that are run: of what is quantized a slice of a weight is in memory")?;
        run.refuse(&[CHOOSING], "is for what runs kernels of a model or of an operator")?;
        let ctx = run.context()?;
        let folder = Folder::new(run.locate(&self.model, self.offline)?);
        let how = run.quantize(self.dtype, &folder)?;
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
                    "the config ties the head to the embedding, so that it stays as it is; loading the original with \
                     --dtype {dtype} quantizes it"
                )?;
            }
        }
        Ok(())
    }
}
