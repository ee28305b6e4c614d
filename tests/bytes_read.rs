//! Weights are read once: what loading reads of files is what they hold.
//!
//! The system counts what a process reads, so this is a test by itself.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use sinew::models::Load;
use sinew::prelude::*;

#[path = "common/llama.rs"]
mod llama;

use llama::{Llama, Neox, Stored};

/// Whose weights are packed in several slices each.
const MODEL: Llama = Llama { hidden: 2048, width: 8192, layers: 1, vocab: 512 };

/// Bytes that this process has read so far.
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").expect("the system counts what is read");
    let count = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.and_then(|count| count.parse().ok()).expect("a number of bytes")
}

#[test]
fn a_model_is_read_once() {
    let stored = [Stored::Bf16, Stored::Gptq, Stored::ActOrder, Stored::Awq];
    for (stored, fused) in stored.into_iter().flat_map(|stored| [(stored, false), (stored, true)]) {
        let folder = tempfile::tempdir().expect("a folder");
        let written = match fused {
            false => MODEL.write(folder.path(), stored),
            true => Neox(MODEL).write(folder.path(), stored),
        };
        let bytes = written.expect("the checkpoint is written");
        let options = LoadOptions {
            weights: WeightOptions { load: Load::Read, ..WeightOptions::default() },
            ..LoadOptions::default()
        };
        let ctx = Arc::new(Context::cpu().expect("a context"));
        let before = bytes_read();
        LanguageModel::load_on(ctx, &Folder::new(folder.path()), &options, &mut |_, _| {}).expect("it loads");
        let read = bytes_read() - before;
        println!("{stored:?}, {fused}: {read} bytes are read of {bytes}");
        // The header comes on top, and zero points are looked at before it is known what a weight becomes.
        assert!(read < bytes + bytes / 50, "{stored:?}, {fused}: {read} bytes are read of {bytes}");
    }
}
