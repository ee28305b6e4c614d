//! What loading a model costs in memory: weights are read once, and never held twice.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::Value;

#[path = "common/command.rs"]
mod command;
#[path = "common/llama.rs"]
mod llama;

use command::{command, run, stdout};
use llama::Llama;

/// 230 MB in bf16.
const MODEL: Llama = Llama { hidden: 1024, width: 4096, layers: 6, vocab: 16_000 };

/// Peak memory beyond the packed weights: a share of them, or this much.
const SHARE: f64 = 1.15;
const SPARE_BYTES: u64 = 128 << 20;

/// The model, with small weights.
fn write_checkpoint(folder: &Path) -> std::io::Result<u64> {
    std::fs::write(folder.join("config.json"), MODEL.config().to_string())?;
    let (header, end) = MODEL.header();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&header)?;
    // 0x3c… is a bf16 of about 0.01, of either sign.
    let values: Vec<u8> = (0..1 << 16).flat_map(|i: u32| [(i * 37) as u8, 0x3c | ((i & 1) << 7) as u8]).collect();
    let mut left = end;
    while left > 0 {
        let n = left.min(values.len());
        file.write_all(&values[..n])?;
        left -= n;
    }
    file.flush()?;
    Ok(end as u64)
}

#[test]
fn a_model_is_loaded_and_run_in_little_more_memory_than_its_packed_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = write_checkpoint(folder.path()).expect("the checkpoint is written");
    for load in ["mmap", "read"] {
        let bench = ["bench", "--prompt-tokens", "32", "--new-tokens", "4", "--repeat", "1", "--json", "--load", load];
        let output = run(command().args(bench).arg("--model").arg(folder.path()), "");
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let (peak, weights) = (report["peak_rss_bytes"].as_u64(), report["weight_bytes"].as_u64());
        let (peak, weights) = (peak.expect("a peak"), weights.expect("packed weights"));
        println!("--load {load}: file {bytes}, packed weights {weights}, peak {peak} bytes");
        assert!(weights < bytes + bytes / 50, "packed weights take {weights} bytes for {bytes} in the file");
        let most = ((SHARE * weights as f64) as u64).max(weights + SPARE_BYTES);
        assert!(
            peak <= most,
            "--load {load}: the peak is {peak} bytes, at most {most} for {weights} of packed weights"
        );
    }
}
