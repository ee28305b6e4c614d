//! `published FOLDER FORMAT OUTPUT`: a model in a format that others publish, for what speed and quality are measured on.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sinew_conformance::published::Published;

/// Write a model in a format that others publish, rounded to the nearest.
#[derive(Debug, Parser)]
struct Options {
    /// The model: config.json, and model.safetensors in bf16 or f32.
    folder: PathBuf,
    /// gptq-int4, gptq-int8, awq, compressed-int4, compressed-int8, compressed-w8a8, compressed-fp8, fp8-blocks, mxfp4
    /// or nf4.
    #[arg(value_parser = parse)]
    format: Published,
    /// The folder to write, which must not be there yet.
    output: PathBuf,
}

fn parse(text: &str) -> Result<Published, String> {
    let known = || Published::ALL.map(Published::name).join(", ");
    Published::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| format!("known are {}", known()))
}

fn main() -> ExitCode {
    let Options { folder, format, output } = Options::parse();
    match format.write(&folder, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where it cannot be said, the exit code says it.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
