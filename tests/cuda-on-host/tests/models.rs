//! Models through the CUDA rows, on the host: every committed checkpoint, held to what transformers computed, and
//! tokens that are drawn where the logits are.
#![cfg(target_os = "linux")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinew::kernels::Registry;
use sinew::memory::DeviceKind;
use sinew::ops::Policy;
use sinew::prelude::*;
use sinew_conformance::parity;
use sinew_cuda_on_host::{HostDriver, Opened};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn context() -> Option<(Arc<Context>, Arc<HostDriver>)> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let Opened { device, driver } = sinew_cuda_on_host::opened(folder).expect("the device is made")?;
    let (registry, policy) = (Arc::new(Registry::standard()), Policy::of(DeviceKind::CUDA));
    Some((Arc::new(Context::new(device, registry, policy).expect("a context")), driver))
}

#[test]
fn models_compute_what_transformers_does() {
    let Some((ctx, _)) = context() else { return };
    let mut failed = Vec::new();
    for folder in parity::fixtures(&fixtures()).expect("the fixtures are there") {
        let in_f32 = parity::in_f32(&ctx, &folder).expect("the fixture runs");
        let in_16_bits = parity::in_16_bits(&ctx, &folder).expect("the fixture runs");
        for comparison in [Some(in_f32), in_16_bits].into_iter().flatten() {
            println!("{comparison}");
            if !comparison.passes() {
                failed.push(comparison.to_string());
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn tokens_drawn_on_the_device_are_those_of_the_host() {
    let Some((ctx, driver)) = context() else { return };
    let folder = fixtures().join("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
    let load = |ctx: Arc<Context>| {
        LanguageModel::load_on(ctx, &Folder::new(&folder), &options, &mut |_, _| {}).expect("it loads")
    };
    let (mut here, mut there) = (load(Arc::new(Context::cpu().expect("the CPU"))), load(ctx));
    for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (0.7, 20, 1.0), (1.0, 0, 0.8), (1.3, 50, 0.9)] {
        let sampling = SamplingParams { temperature, top_k, top_p, seed: 5, ..SamplingParams::default() };
        let options = GenerateOptions { max_new_tokens: 6, sampling, ignore_eos: true, ..GenerateOptions::default() };
        let tokens = |model: &mut LanguageModel| {
            model.generate(&[5, 9, 2], &options, &mut |_| ControlFlow::Continue(())).expect("an answer").tokens
        };
        assert_eq!(tokens(&mut there), tokens(&mut here), "temperature {temperature}, top_k {top_k}, top_p {top_p}");
        // Kernels are chosen, and checked, by now: of each step its token comes to the host, and what kernels report.
        let before = driver.downloaded_bytes();
        let steps = tokens(&mut there).len();
        let each = (driver.downloaded_bytes() - before) / steps;
        assert!(each < there.decoder().config().vocab_size, "{each} bytes of each step come to the host");
    }
    for (place, rows) in there.decoder().kernels() {
        println!("{place}: {}", rows.join(", "));
    }
}
