//! What a model holds of its device's memory is known by what it is for, in reports and where memory runs out.

use std::path::Path;
use std::sync::Arc;

use sinew::memory::MemoryReport;
use sinew::models::{Load, OldKv};
use sinew::prelude::*;

const MODEL: &str = "tests/fixtures/llama3_rope_gqa3_hd20_bf16_tied_bpe";

fn folder() -> Folder {
    Folder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL))
}

fn planned(options: &LoadOptions) -> sinew::models::Plan {
    let folder = folder();
    let checkpoint = folder.checkpoint(Load::Mmap).expect("a checkpoint");
    let config = folder.config().expect("a config").as_decoder().expect("a decoder");
    LanguageModel::plan(config, &checkpoint, options, &*Cpu::get()).expect("a plan")
}

fn bytes(report: &MemoryReport, tag: &str) -> usize {
    report.live.iter().find(|usage| usage.tag == tag).map_or(0, |usage| usage.bytes)
}

/// What a request asked for that found no memory, and what would have found some.
fn asked_and_fits(error: &impl std::fmt::Debug) -> [usize; 2] {
    let text = format!("{error:?}");
    ["asked: ", "fits: "].map(|name| {
        let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("not out of memory: {text}"));
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().expect("a number")
    })
}

#[test]
fn a_model_s_memory_is_reported_by_what_it_is_for_until_it_is_gone() {
    let old_kv = Some(OldKv { dtype: DType::I8, recent: 8 });
    for options in [LoadOptions::default(), LoadOptions { max_sequences: 3, old_kv, ..LoadOptions::default() }] {
        let ctx = Arc::new(Context::cpu().expect("a context"));
        let plan = planned(&options);
        let model = LanguageModel::load_on(ctx.clone(), &folder(), &options, &mut |_, _| {}).expect("it loads");
        let report = ctx.memory_report();
        assert_eq!(bytes(&report, "untagged"), 0, "{report}");
        // What is cut from slabs is rounded up to a size class, and never down.
        for (tag, least) in [
            ("weights", plan.weights),
            ("activations", plan.activations),
            ("rotary tables", plan.tables),
            ("logits", plan.logits),
        ] {
            let held = bytes(&report, tag);
            assert!(held >= least && held < 2 * least + (64 << 10), "{tag}: {held} of {least}: {report}");
        }
        assert_eq!(bytes(&report, "kv cache"), plan.cache, "{report}");
        assert_eq!(report.used_bytes, report.live.iter().map(|usage| usage.bytes).sum::<usize>());
        assert!(report.high_water_bytes >= report.used_bytes && report.stats.apart_bytes > plan.cache);
        let text = report.to_string();
        assert!(text.contains("kv cache") && text.contains("fragmentation"), "{text}");
        drop(model);
        let report = ctx.memory_report();
        assert!(report.live.iter().all(|usage| usage.tag == "workspace"), "{report}");
        assert_eq!(report.stats.apart_bytes, 0);
        // What is free is whole again, and goes back.
        drop(ctx.pool().allocate(8 << 20).expect("memory"));
        let pooled = report.stats.pooled_bytes + (8 << 20);
        let given_back = ctx.pool().defragment();
        let stats = ctx.pool().stats();
        assert!(given_back >= 8 << 20 && stats.pooled_bytes == pooled - given_back, "{given_back} of {pooled}");
    }
}

#[test]
fn a_model_that_runs_out_of_memory_says_what_holds_it_and_what_would_fit() {
    let options = LoadOptions::default();
    let total = planned(&options).total();
    let load = |limit: usize| {
        let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(limit));
        LanguageModel::load_on(ctx, &folder(), &options, &mut |_, _| {}).map(drop)
    };
    // Less than is planned is refused before anything is loaded.
    let refused = load(total - 1).expect_err("too little").to_string();
    assert!(refused.contains("weights") && refused.contains(&format!("{} bytes are free", total - 1)), "{refused}");
    // The plan fits, and what is free in the slabs that a pool takes may be missing: that is seen on the way. More never
    // serves where less did.
    let mut served = false;
    for kib in (0..8 << 10).step_by(250) {
        match load(total + (kib << 10)) {
            Ok(()) => served = true,
            Err(error) => {
                let out = error.one_line();
                assert!(!served && kib << 10 < total / 4, "{kib} KiB more than planned: {out}");
                for words in ["out of memory", "free", "weights"] {
                    assert!(out.contains(words), "no `{words}` in: {out}");
                }
                let [asked, fits] = asked_and_fits(&error);
                assert!(fits < asked, "{fits} bytes would fit: {out}");
            }
        }
    }
    assert!(served);
}
