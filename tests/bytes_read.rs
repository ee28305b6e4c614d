//! Weights are read once: what loading reads of files is what they hold.
//!
//! The system counts what a process reads, so this is a test by itself.
#![cfg(target_os = "linux")]

use std::io;
use std::path::Path;
use std::sync::Arc;

use sinew::models::Load;
use sinew::prelude::*;

#[path = "common/llama.rs"]
mod llama;

use llama::{GptOss, Llama, Neox, Stored};

/// Whose weights are packed in several slices each.
const MODEL: Llama = Llama { hidden: 2048, width: 8192, layers: 1, vocab: 512 };

/// Bytes that this process has read so far.
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").expect("the system counts what is read");
    let count = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.and_then(|count| count.parse().ok()).expect("a number of bytes")
}

/// Loads what was written into a folder, and tells whether no more is read than that.
fn check(what: &str, write: impl FnOnce(&Path) -> io::Result<u64>) {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = write(folder.path()).expect("the checkpoint is written");
    let options = LoadOptions {
        weights: WeightOptions { load: Load::Read, ..WeightOptions::default() },
        ..LoadOptions::default()
    };
    let ctx = Arc::new(Context::cpu().expect("a context"));
    let before = bytes_read();
    LanguageModel::load_on(ctx, &Folder::new(folder.path()), &options, &mut |_, _| {}).expect("it loads");
    let read = bytes_read() - before;
    println!("{what}: {read} bytes are read of {bytes}");
    // The header comes on top, and zero points are looked at before it is known what a weight becomes.
    assert!(read < bytes + bytes / 50, "{what}: {read} bytes are read of {bytes}");
}

#[test]
fn a_model_is_read_once() {
    for stored in [Stored::Bf16, Stored::Gptq, Stored::ActOrder, Stored::Awq] {
        check(&format!("{stored:?}"), |folder| MODEL.write(folder, stored));
        // Matrices that are rows of one tensor.
        check(&format!("{stored:?}, fused"), |folder| Neox(MODEL).write(folder, stored));
    }
    // Matrices whose rows take turns.
    check("MXFP4", |folder| GptOss(Llama { width: 2048, ..MODEL }).write(folder));
}
