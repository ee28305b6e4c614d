//! What a model holds of its device's memory is known by what it is for, in reports and where memory runs out.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use sinew::memory::{Bytes, MemoryReport};
use sinew::models::{Footprint, Load, OldKv, Planner};
use sinew::prelude::*;

const MODEL: &str = "tests/fixtures/llama3_rope_gqa3_hd20_bf16_tied_bpe";

fn folder() -> Folder {
    Folder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL))
}

fn planned(options: &LoadOptions) -> sinew::models::DeviceBytes {
    let folder = folder();
    let checkpoint = folder.checkpoint(Load::Mmap).expect("a checkpoint");
    let config = folder.config().expect("a config").as_decoder().expect("a decoder");
    LanguageModel::plan(config, &checkpoint, options, &Context::cpu().expect("a context")).expect("a plan")
}

/// What a process takes that loads the model so.
fn footprint(options: &LoadOptions) -> Footprint {
    let (ctx, folder) = (Context::cpu().expect("a context"), folder());
    let planner = Planner::new(&ctx, &folder, Load::Mmap).expect("a planner");
    planner.footprint(options).expect("a footprint")
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
        for (tag, least) in [("weights", plan.weights), ("rotary tables", plan.tables), ("logits", plan.logits)] {
            let held = bytes(&report, tag);
            assert!(held >= least && held < 2 * least + (64 << 10), "{tag}: {held} of {least}: {report}");
        }
        assert_eq!(bytes(&report, "kv cache"), plan.cache, "{report}");
        assert_eq!(bytes(&report, "activations"), ctx.device().held_bytes(plan.activations), "{report}");
        assert_eq!(report.used_bytes, report.live.iter().map(|usage| usage.bytes).sum::<usize>());
        assert!(report.high_water_bytes >= report.used_bytes && report.stats.apart_bytes > plan.cache);
        let text = report.to_string();
        assert!(text.contains("kv cache") && text.contains("fragmentation"), "{text}");
        drop(model);
        let report = ctx.memory_report();
        assert!(report.live.iter().all(|usage| usage.tag == "workspace"), "{report}");
        // What was grown out of went back when more was asked for.
        let workspace = bytes(&report, "workspace");
        assert!(workspace > 0 && report.stats.apart_bytes == workspace, "{report}");
        assert_eq!(workspace, ctx.device().held_bytes(footprint(&options).workspace), "{report}");
        // What is free is whole again, and goes back.
        drop(ctx.pool().uninitialised(8 << 20).expect("memory"));
        let pooled = report.stats.pooled_bytes + (8 << 20);
        let given_back = ctx.pool().defragment();
        let stats = ctx.pool().stats();
        assert!(given_back >= 8 << 20 && stats.pooled_bytes == pooled - given_back, "{given_back} of {pooled}");
    }
}

#[test]
fn a_limit_counts_what_a_context_has_handed_out_before_it() {
    let ctx = Context::cpu().expect("a context");
    let held = ctx.uninitialised_tagged("results", DType::F32, &[1 << 20]).expect("memory");
    let ctx = ctx.with_memory_limit(8 << 20);
    assert_eq!((bytes(&ctx.memory_report(), "results"), ctx.memory_limit_left()), (4 << 20, 4 << 20));
    let refused = ctx.uninitialised(DType::F32, &[5 << 18]).expect_err("4 MiB are left").to_string();
    assert!(refused.contains("5.0 MiB asked, 4.0 MiB of 8.0 MiB free; held by results 4.0 MiB"), "{refused}");
    // Less than there is already: it stays, and there is no more until it is gone.
    let ctx = ctx.with_memory_limit(3 << 20);
    assert_eq!(ctx.memory_limit_left(), 0);
    let refused = ctx.uninitialised(DType::F32, &[1]).expect_err("nothing is left").to_string();
    assert!(refused.contains("0 B of 3.0 MiB free; held by results 4.0 MiB"), "{refused}");
    drop(held);
    ctx.uninitialised(DType::F32, &[1 << 19]).expect("there are 3 MiB again");
    assert!(ctx.uninitialised(DType::F32, &[1 << 20]).is_err());
}

#[test]
fn a_model_that_runs_out_of_memory_says_what_holds_it_and_what_would_fit() {
    let options = LoadOptions::default();
    let pooled = footprint(&options).pooled();
    let load = |limit: usize, while_it_loads: &dyn Fn(&Context)| {
        let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(limit));
        LanguageModel::load_on(ctx.clone(), &folder(), &options, &mut |_, _| while_it_loads(&ctx)).map(drop)
    };
    // Less than a plan says a limit has to leave is refused before anything is loaded. With so much it loads.
    let refused = load(pooled - 1, &|_| {}).expect_err("too little").to_string();
    let (taken, [free]) = Bytes(pooled).beside([pooled - 1]);
    assert!(taken != free && refused.starts_with(&format!("the model takes {taken} for ")), "{refused}");
    assert!(refused.contains(&format!("{free} of {free} are free on cpu; ")), "{refused}");
    for part in ["weights", "workspace", "rounding"] {
        assert!(refused.contains(part), "no {part} in: {refused}");
    }
    for kib in (0..8 << 10).step_by(250) {
        load(pooled + (kib << 10), &|_| {}).unwrap_or_else(|error| panic!("{kib} KiB more than planned: {error}"));
    }
    // What others take meanwhile is missing on the way.
    let held = RefCell::new(Vec::new());
    let hold = |ctx: &Context| {
        while let Ok(results) = ctx.uninitialised_tagged("results", DType::U8, &[64 << 10]) {
            held.borrow_mut().push(results);
        }
    };
    let error = load(pooled, &hold).expect_err("nothing is left");
    let out = error.one_line();
    for words in ["out of memory", "free", "weights", "results"] {
        assert!(out.contains(words), "no `{words}` in: {out}");
    }
    let [asked, fits] = asked_and_fits(&error);
    assert!(fits < asked, "{fits} bytes would fit: {out}");
}

#[test]
fn models_with_ordered_inputs_or_experts_load_within_what_is_planned() {
    let options = LoadOptions::default();
    for name in ["quantized/gptq_4bit_g32_asym_desc_act_qwen2_f16_2layers", "mixtral_4experts_gqa3_hd12_f32_old_config"]
    {
        let folder = Folder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name));
        let unlimited = Context::cpu().expect("a context");
        let planner = Planner::new(&unlimited, &folder, Load::Mmap).expect("a planner");
        let footprint = planner.footprint(&options).expect("a footprint");
        let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(footprint.pooled()));
        let model = LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {})
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let report = ctx.memory_report();
        let planned = [("weights", footprint.plan.weights), ("activations", footprint.plan.activations)];
        for (tag, least) in planned {
            let held = bytes(&report, tag);
            assert!(held >= least, "{name}: {tag}: {held} of {least}: {report}");
        }
        drop(model);
    }
}

#[test]
fn a_model_that_is_refused_says_who_holds_the_rest_and_what_would_fit() {
    let options = LoadOptions { max_sequences: 400, context: Some(250), ..LoadOptions::default() };
    let plan = planned(&options);
    let limit = plan.total() / 2;
    let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(limit));
    let load = |options: &LoadOptions| LanguageModel::load_on(ctx.clone(), &folder(), options, &mut |_, _| {});
    let refused = load(&options).expect_err("too little").to_string();
    let asked = format!(
        "the model takes {} for 400 sequences of 250 tokens (weights {}, KV cache {}, ",
        Bytes(footprint(&options).pooled()),
        Bytes(plan.weights),
        Bytes(plan.cache)
    );
    assert!(refused.starts_with(&asked), "{refused}");
    assert!(!refused.contains("held by") && !refused.contains("bytes"), "{refused}");
    // What is said to fit does, and all but as much as would fit is said.
    let number = |words: [&str; 2]| -> usize {
        let (_, rest) = refused.split_once(words[0]).unwrap_or_else(|| panic!("no `{}` in: {refused}", words[0]));
        rest.split_once(words[1]).expect("a number").0.parse().expect("a number")
    };
    let (sequences, context) =
        (number(["what would fit: ", " sequences at once"]), number(["a context of ", " tokens"]));
    for fits in [
        LoadOptions { max_sequences: sequences, ..options.clone() },
        LoadOptions { context: Some(context), ..options.clone() },
    ] {
        let model = load(&fits).expect("what is said to fit fits");
        assert!(planned(&fits).total() > limit * 3 / 4, "{fits:?}: {refused}");
        drop(model);
        ctx.pool().defragment();
    }
    // With half of it taken, that is said, and less would fit.
    let held = ctx.uninitialised_tagged("results", DType::F32, &[limit / 8]).expect("memory");
    let less = load(&options).expect_err("still less").to_string();
    let holder = format!("the rest is held by results {}", Bytes(bytes(&ctx.memory_report(), "results")));
    assert!(less.contains(&holder) && !less.contains(&format!("{sequences} sequences at once")), "{less}");
    drop(held);
    // Of a budget in which nothing fits the least is told.
    let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(1 << 10));
    let none = LanguageModel::load_on(ctx, &folder(), &options, &mut |_, _| {}).expect_err("nothing").to_string();
    let (_, least) = none
        .split_once("no one change would make it fit: keys and values in i8 would take ")
        .unwrap_or_else(|| panic!("{none}"));
    // Counted as what was asked for: without the process.
    let mib: f64 = least.strip_suffix(" MiB").and_then(|mib| mib.parse().ok()).unwrap_or_else(|| panic!("{none}"));
    let total = planned(&LoadOptions { kv: Some(DType::I8), ..options }).total() as f64 / f64::from(1 << 20);
    assert!(mib > total - 0.1 && mib < total + 8.0, "{total} of {none}");
}

#[test]
fn what_embeds_texts_and_is_too_large_says_so_as_well() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert_hd20_f32_wordpiece");
    let (folder, options) = (Folder::new(&path), WeightOptions::default());
    let checkpoint = folder.checkpoint(Load::Mmap).expect("a checkpoint");
    let config = folder.config().expect("a config");
    let plan =
        EmbeddingModel::plan(config, &checkpoint, &options, &Context::cpu().expect("a context")).expect("a plan");
    let ctx = Arc::new(Context::cpu().expect("a context").with_memory_limit(plan.total() - 1));
    let refused = EmbeddingModel::load_on(ctx, &folder, &options, &mut |_, _| {}).expect_err("too little").to_string();
    assert!(refused.contains(&format!("for embeddings (weights {}", Bytes(plan.weights))), "{refused}");
    // Its weights are so few that no other dtype of them helps enough, with whatever workspace the machine's kernels take.
    let (_, advice) = refused.split_once("are free on cpu; ").unwrap_or_else(|| panic!("{refused}"));
    let nothing = advice == "there is nothing to change that would make it fit";
    assert!(nothing || advice.starts_with("no one change would make it fit: weights in int4 would take "), "{refused}");
}
