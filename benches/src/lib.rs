//! What the benches share: every row of every table, ready to be timed, the context that chooses among them, the
//! protocol of the round robin with other libraries, and how a binary takes its arguments.

pub mod contender;

use std::process::ExitCode;
use std::sync::Arc;

use sinew_kernels::harness::accuracy::Run;
use sinew_kernels::harness::case::Depth;
use sinew_kernels::rates::{Meter, Peaks};
use sinew_kernels::{Factors, Registry, Result};
use sinew_memory::Device;
use sinew_models::WeightOptions;
use sinew_models::precision::{Activations, Quantize};
use sinew_ops::{Context, Policy};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use contender::Measured;

/// Every row of `registry` that runs on `device`, with each of its cases.
///
/// # Errors
/// Operands that cannot be made.
pub fn runs(registry: &Registry, device: &Arc<dyn Device>) -> Result<Vec<Run>> {
    let mut all = Vec::new();
    for table in registry.tables() {
        all.extend(table.runs(device, Depth::Quick)?);
    }
    Ok(all)
}

/// A context that chooses rows on `device` as it is done for whoever asks for nothing special.
///
/// # Errors
/// A device that cannot make a stream.
pub fn context(device: &Arc<dyn Device>) -> sinew_ops::Result<Context> {
    Context::on(device.clone(), Policy::of(device.id().kind))
}

/// What `of` makes of the seconds that `work` says it took, and of the `least` that the limits allow, which are
/// measured before it and after.
///
/// # Errors
/// Those of `work`, and of a meter.
pub fn beside_limits(
    meter: &Meter,
    work: impl FnOnce() -> Result<f64, contender::Error>,
    least: impl Fn(&Peaks) -> f64,
    of: impl Fn(f64) -> f64,
) -> Result<Measured, contender::Error> {
    let before = least(&meter.glance()?);
    let seconds = work()?;
    let after = least(&meter.glance()?);
    Ok(Measured { value: of(seconds), limit: of((before + after) / 2.0) })
}

/// The measured limit of arithmetic, which every CPU has.
pub fn flops_limit(peaks: &Peaks, factors: impl Into<Factors>) -> f64 {
    peaks.flops_per_s(factors).unwrap_or(f64::NAN)
}

/// Seconds of so many operations and bytes at the limits, whichever takes longer.
pub fn least_seconds(peaks: &Peaks, factors: impl Into<Factors>, flops: f64, bytes: f64) -> f64 {
    (flops / flops_limit(peaks, factors)).max(bytes / peaks.memory_bytes_per_s)
}

/// What the dtype of a command line stands for: f32, f16, bf16, int8 or int4, to which weights are quantized in groups of
/// 32 as they are loaded; with `+int8` behind it their products read int8.
///
/// # Errors
/// Any other.
pub fn weights(dtype: &str) -> Result<WeightOptions, contender::Error> {
    let (dtype, activations) = match dtype.split_once('+') {
        Some((dtype, "int8")) => (dtype, Some(Activations::Int8)),
        Some(_) => return Err("products read int8, or what they read without a `+`".into()),
        None => (dtype, None),
    };
    if let Some(float) = DType::COMPUTE.into_iter().find(|d| d.name() == dtype) {
        return Ok(WeightOptions { dtype: Some(float), activations, ..WeightOptions::default() });
    }
    let values = [BlockValues::Int8, BlockValues::Int4].into_iter().find(|values| values.name() == dtype);
    let values = values.ok_or("dtype is f32, f16, bf16, int8 or int4")?;
    let format = BlockFormat::new(values, 32, DType::BF16, false)?;
    let quantize = Some(Quantize { format, per_channel: false, head: true });
    Ok(WeightOptions { quantize, activations, ..WeightOptions::default() })
}

/// Runs a binary with its arguments. `--help` among them prints what `source`, the text of its file, begins with, and
/// runs nothing; an error is printed in a line.
pub fn command(source: &str, body: impl FnOnce(&[String]) -> Result<(), contender::Error>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| ["--help", "-h"].contains(&argument.as_str())) {
        print!("{}", head(source));
        return ExitCode::SUCCESS;
    }
    match body(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The doc comment at the head of a file, without the fences of its code.
fn head(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines = lines.filter(|line| !line.trim_start().starts_with("```"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}
