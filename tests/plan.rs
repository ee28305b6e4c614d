//! The plan of a model is what loading it then takes of its device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sinew::memory::{Cpu, Device, DeviceId, Hardware, Location, MemoryInfo, Result, Storage, Stream};
use sinew::models::plan::Change;
use sinew::models::precision::Quantize;
use sinew::models::{Folder, Load, OldKv, Planner};
use sinew::ops::Policy;
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues};

/// The CPU, with what was allocated on it.
#[derive(Debug)]
struct Counting {
    cpu: Arc<dyn Device>,
    allocated: AtomicUsize,
    available: usize,
}

impl Counting {
    fn new(available: usize) -> Arc<Self> {
        Arc::new(Self { cpu: Cpu::get(), allocated: AtomicUsize::new(0), available })
    }
}

impl Device for Counting {
    fn id(&self) -> DeviceId {
        self.cpu.id()
    }
    fn hardware(&self) -> &Hardware {
        self.cpu.hardware()
    }
    fn memory(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.available, available: self.available })
    }
    fn alignment(&self) -> usize {
        self.cpu.alignment()
    }
    fn location(&self) -> Location {
        self.cpu.location()
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Storage>> {
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
        self.cpu.allocate(bytes)
    }
    fn stream(self: Arc<Self>) -> Result<Arc<dyn Stream>> {
        self.cpu.clone().stream()
    }
}

fn context(device: &Arc<Counting>) -> Arc<Context> {
    let device: Arc<dyn Device> = device.clone();
    let policy = Policy::of(device.id().kind);
    Arc::new(Context::on(device, policy).expect("a context"))
}

/// What a model asks of its device, until it is dropped: what kernels work on stays with the context.
fn taken<T>(load: impl Fn(Arc<Context>) -> T) -> usize {
    let device = Counting::new(usize::MAX);
    let ctx = context(&device);
    // From now on that is as large as it will be.
    drop(load(ctx.clone()));
    let outside = || device.allocated.load(Ordering::Relaxed) - ctx.pool().stats().reserved_bytes;
    let before = outside();
    let model = load(ctx.clone());
    let (loaded, outside) = (ctx.pool().stats(), outside() - before);
    drop(model);
    outside + loaded.requested_bytes - ctx.pool().stats().requested_bytes
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = [folder.join("quantized"), folder].map(|folder| folder.read_dir().expect("there are fixtures"));
    let folders = entries.into_iter().flatten().map(|entry| entry.expect("readable").path());
    // Whole models: others are tensors alone.
    let mut folders: Vec<_> = folders.filter(|path| path.join("expected.safetensors").exists()).collect();
    folders.sort();
    folders
}

#[test]
fn every_model_takes_what_its_plan_says() {
    let (mut decoders, mut embedding, cpu) = (0, 0, Context::cpu().expect("a context"));
    for path in fixtures() {
        let folder = Folder::new(&path);
        let config = folder.config().expect("a config");
        let checkpoint = folder.checkpoint(Load::Mmap).expect("a checkpoint");
        let int4 = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false).expect("a format");
        let quantized = |head| WeightOptions {
            quantize: Some(Quantize { format: int4, per_channel: false, head }),
            ..Default::default()
        };
        let exact = |dtype| WeightOptions { dtype, ..Default::default() };
        for weights in [exact(None), exact(Some(DType::F32)), quantized(true), quantized(false)] {
            let name = format!("{}, {weights:?}", path.display());
            if folder.embeds().expect("a config") {
                embedding += 1;
                let plan = EmbeddingModel::plan(config, &checkpoint, &weights, &cpu).expect("a plan");
                let load = |ctx| EmbeddingModel::load_on(ctx, &folder, &weights, &mut |_, _| {}).expect("it loads");
                assert_eq!(taken(load), plan.total(), "{name}: {plan:?}");
                continue;
            }
            let config = config.as_decoder().expect("a decoder");
            let usual = LoadOptions { weights, ..LoadOptions::default() };
            let short = LoadOptions { context: Some(19), max_sequences: 3, max_logits: 5, ..usual.clone() };
            let scaled = LoadOptions { kv: Some(DType::I8), ..short.clone() };
            let old_kv = Some(OldKv { dtype: DType::F8E4M3, recent: 5 });
            let mixed = LoadOptions { old_kv, ..short.clone() };
            for options in [usual, short, scaled, mixed] {
                decoders += 1;
                let plan = LanguageModel::plan(config, &checkpoint, &options, &cpu).expect("a plan");
                let load = |ctx| {
                    let model = LanguageModel::load_on(ctx, &folder, &options, &mut |_, _| {}).expect("it loads");
                    assert_eq!(model.decoder().weight_bytes(), plan.weights, "{name}");
                    model
                };
                assert_eq!(taken(load), plan.total(), "{name}: {plan:?}");
            }
        }
    }
    assert!(decoders > 200 && embedding > 15, "{decoders} decoders, {embedding} embedding models");
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_anything_is_allocated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let folder = Folder::new(path);
    let (few, ctx) = (LoadOptions::default(), context(&Counting::new(usize::MAX)));
    let planner = Planner::new(&ctx, &folder, Load::Mmap).expect("a planner");
    let pooled = planner.footprint(&few).expect("a footprint").pooled();
    let many = LoadOptions { max_sequences: usize::MAX / 2, ..few.clone() };
    for (available, options, words) in [
        (
            pooled - 1,
            &few,
            &["1 sequence of", "weights", "KV cache", "activations", "rotary tables", "logits", "rounding", "free"][..],
        ),
        (usize::MAX - 1, &many, &["more than 16 EiB", "free"]),
    ] {
        let device = Counting::new(available);
        let error = LanguageModel::load_on(context(&device), &folder, options, &mut |_, _| {}).expect_err("refused");
        let line = error.to_string();
        assert!(words.iter().all(|word| line.contains(word)) && line.lines().count() == 1, "{line}");
        assert_eq!(device.allocated.load(Ordering::Relaxed), 0);
    }
    let device = Counting::new(pooled);
    LanguageModel::load_on(context(&device), &folder, &few, &mut |_, _| {}).expect("it fits");
}

#[test]
fn of_a_model_that_embeds_no_number_of_sequences_is_planned() {
    let ctx = Context::cpu().expect("a context");
    for name in ["qwen3_embedding_no_prefix_gqa3_hd20_bf16", "bert_hd20_f16"] {
        let folder = Folder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name));
        let planner = Planner::new(&ctx, &folder, Load::Mmap).expect("a planner");
        let options = LoadOptions::default();
        let footprint = planner.footprint(&options).expect("a footprint");
        assert!(planner.embeds() && footprint.sequences.is_none(), "{name}");
        for asked in [planner.most_sequences(&options, usize::MAX), planner.longest_context(&options, usize::MAX)] {
            let refused = asked.expect_err("it generates nothing").to_string();
            assert!(refused.contains("embeds texts") && refused.contains("models that generate"), "{refused}");
        }
        let changes = planner.savings(&options, footprint.peak() - 1).expect("savings");
        let is_of_weights = |change| matches!(change, Change::Weights(_) | Change::Dtype(_));
        assert!(changes.iter().all(|saving| is_of_weights(saving.change)), "{name}: {changes:?}");
    }
}

#[test]
fn of_one_token_plans_speak_in_the_singular() {
    let words = [Change::Context(1), Change::CacheTokens(Some(1)), Change::BlockSize(1), Change::Context(2)];
    let expected =
        ["a context of 1 token", "a cache of 1 token", "blocks of 1 token in the cache", "a context of 2 tokens"];
    assert_eq!(words.map(|change| change.to_string()), expected);
}

#[test]
fn a_step_reads_the_experts_that_its_tokens_use_and_the_keys_that_its_windows_have() {
    let load = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        LanguageModel::load(path, &LoadOptions::default()).expect("it loads")
    };
    let model = load("mixtral_5experts_window_gqa3_hd20_bf16");
    let (decoder, config) = (model.decoder(), model.decoder().config());
    // Two experts for each token.
    let [one, two, three, many] = [1, 2, 3, 40].map(|sequences| decoder.step_bytes(sequences, 0.0));
    assert!(one < two && two < three && three <= decoder.weight_bytes() as f64);
    assert_eq!((two - one, three), (2.0 * (three - two), many));
    let window = config.layers[0].window.expect("a window") as f64;
    let [inside, full, past] = [1.0, window, 100.0 * window].map(|length| decoder.step_bytes(1, length) - one);
    assert_eq!(inside, model.cache().bytes_per_token() as f64);
    assert_eq!((full, past), (window * inside, full));

    let model = load("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let (decoder, of_token) = (model.decoder(), model.cache().bytes_per_token() as f64);
    assert_eq!(decoder.step_bytes(4, 100.0), decoder.weight_bytes() as f64 + 400.0 * of_token);
}

#[test]
fn a_cache_in_int8_or_fp8_takes_half_of_bf16_and_a_scale_for_each_token_and_head() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let folder = Folder::new(path);
    let checkpoint = folder.checkpoint(Load::Mmap).expect("a checkpoint");
    let config = folder.config().expect("a config").as_decoder().expect("a decoder");
    let heads = 2 * config.num_hidden_layers() * config.num_key_value_heads;
    let of = |kv| {
        let options = LoadOptions { kv, context: Some(48), ..LoadOptions::default() };
        let plan =
            LanguageModel::plan(config, &checkpoint, &options, &Context::cpu().expect("a context")).expect("a plan");
        let model = LanguageModel::load(folder.path(), &options).expect("it loads");
        let (decoder, of_token) = (model.decoder(), model.cache().bytes_per_token());
        assert_eq!(decoder.step_bytes(4, 100.0), (decoder.weight_bytes() + 400 * of_token) as f64, "{kv:?}");
        assert_eq!((plan.cache, model.cache().bytes()), (48 * of_token, 48 * of_token), "{kv:?}");
        of_token
    };
    assert_eq!(of(None), heads * config.head_dim * 2);
    for (kv, of_head) in [
        (DType::F32, config.head_dim * 4),
        (DType::F16, config.head_dim * 2),
        (DType::I8, config.head_dim + 4),
        (DType::F8E4M3, config.head_dim + 4),
    ] {
        assert_eq!(of(Some(kv)), heads * of_head, "{kv}");
    }
    let options = LoadOptions { kv: Some(DType::F8E5M2), ..LoadOptions::default() };
    let refused = LanguageModel::load(folder.path(), &options).expect_err("no such cache").to_string();
    assert!(refused.contains("f8_e5m2") && refused.contains("int8, fp8"), "{refused}");
}
