//! What quantization costs: answers of the bundled model with its weights rounded to each format, beside those in bf16,
//! and embeddings by all-MiniLM-L6-v2, beside those in f32.
//!
//! `SINEW_MINILM=FOLDER cargo test --test quantized -- --include-ignored --nocapture` prints the figures of `models/README.md`;
//! without `--include-ignored` those of the bundled model alone. `.ci/minilm.py --unpack` leaves such a folder.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use sinew::demo;
use sinew::models::OldKv;
use sinew::models::precision::{Activations, Precision, Quantize};
use sinew::models::quality::{self, Divergence, Exact};
use sinew::ops::layers::Encoding;
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues, DType};
use sinew_conformance::published::Published;
use tempfile::TempDir;

/// Prompts whose answers are compared.
const PROMPTS: usize = 60;

/// Texts whose embeddings are compared: those that `sinew quality` compares.
const TEXTS: &str = include_str!("../src/command/quality.txt");

/// What a format and activations cost, as measured: the KL divergence and the agreement with the bundled model, and how
/// far the mean and the least of MiniLM's cosines are from 1.
struct Cost(&'static str, [[f64; 4]; 2]);

/// By bf16 and by int8 activations, which floats do not have; MiniLM has no head.
#[rustfmt::skip]
const COSTS: [Cost; 20] = [
    Cost("int8, groups of 32", [[9.91e-5, 0.997, 1.25e-4, 1.62e-4], [2.77e-4, 0.992, 3.27e-4, 5.88e-4]]),
    Cost("int8, groups of 128", [[1.36e-4, 0.996, 2.14e-4, 3.70e-4], [4.89e-4, 0.997, 8.96e-4, 1.33e-3]]),
    Cost("int8, rows", [[1.69e-4, 0.998, 3.77e-4, 5.97e-4], [4.30e-4, 0.997, 1.05e-3, 1.66e-3]]),
    Cost("fp8, groups of 128", [[2.00e-3, 0.987, 1.34e-3, 1.79e-3], [0.0; 4]]),
    Cost("fp8, rows", [[1.89e-3, 0.983, 1.45e-3, 1.94e-3], [0.0; 4]]),
    Cost("int4, groups of 32", [[2.29e-2, 0.970, 2.78e-2, 4.18e-2], [2.33e-2, 0.968, 2.79e-2, 4.32e-2]]),
    Cost("int4, groups of 32, zero points", [[2.12e-2, 0.961, 2.25e-2, 2.80e-2], [2.11e-2, 0.958, 2.25e-2, 2.79e-2]]),
    Cost("int4, groups of 128", [[2.99e-2, 0.961, 4.52e-2, 6.34e-2], [3.11e-2, 0.962, 4.56e-2, 6.47e-2]]),
    Cost("int4, groups of 128, zero points", [[2.72e-2, 0.938, 3.86e-2, 5.20e-2], [2.71e-2, 0.917, 3.94e-2, 5.41e-2]]),
    Cost("int4, groups of 128, 16-bit head", [[1.93e-2, 0.962, 0.0, 0.0], [2.00e-2, 0.962, 0.0, 0.0]]),
    Cost("gptq-int4", [[2.53e-2, 0.950, 5.05e-2, 6.58e-2], [2.56e-2, 0.943, 5.11e-2, 6.85e-2]]),
    Cost("gptq-int8", [[1.33e-4, 0.998, 2.15e-4, 2.95e-4], [3.20e-4, 0.993, 8.85e-4, 1.36e-3]]),
    Cost("awq", [[1.92e-2, 0.971, 3.89e-2, 5.14e-2], [1.83e-2, 0.970, 3.95e-2, 5.30e-2]]),
    Cost("compressed-int4", [[2.64e-2, 0.945, 5.01e-2, 6.62e-2], [2.67e-2, 0.946, 5.08e-2, 6.82e-2]]),
    Cost("compressed-int8", [[1.32e-4, 0.996, 3.71e-4, 5.39e-4], [3.93e-4, 0.994, 1.04e-3, 1.64e-3]]),
    Cost("compressed-w8a8", [[1.32e-4, 0.996, 3.71e-4, 5.39e-4], [3.93e-4, 0.994, 1.04e-3, 1.64e-3]]),
    Cost("compressed-fp8", [[1.40e-3, 0.983, 1.45e-3, 1.93e-3], [0.0; 4]]),
    Cost("fp8-blocks", [[1.61e-3, 0.990, 1.49e-3, 2.18e-3], [0.0; 4]]),
    Cost("mxfp4", [[2.78e-2, 0.959, 3.45e-2, 5.80e-2], [0.0; 4]]),
    Cost("nf4", [[1.79e-2, 0.967, 2.61e-2, 3.78e-2], [0.0; 4]]),
];

/// The least of the mean of MiniLM's cosines in bf16, and of each, where nothing is quantized.
const BF16: [f64; 2] = [0.99998, 0.99996];

/// By so much more or less than [`COSTS`] figures may come out: other levels of instructions give 5 % more or less. Groups
/// of 128 instead of 32 give 28 % more at least.
const MARGIN: f64 = 1.2;
/// The same of shares of tokens, a few of which are as likely as others.
const OF_TOKENS: f64 = 0.01;

/// Weights in a format: rounded as they are loaded, or as others publish them.
struct Form {
    name: String,
    format: BlockFormat,
    made: Made,
}

#[derive(Clone, Copy)]
enum Made {
    Loading(Quantize),
    Published(Published),
}

/// Every one that there is a cost of.
fn forms() -> Vec<Form> {
    use BlockValues::{F4E2M1, F8E4M3, Int4, Int8, Nf4};
    let loading = quality::formats().expect("known").into_iter();
    let loading = loading.map(|how| Form { name: quality::name(&how), format: how.format, made: Made::Loading(how) });
    let published = Published::ALL.into_iter().map(|published| {
        let (values, group, scale, zero_points) = match published {
            Published::Gptq(4) => (Int4, 128, DType::F16, false),
            Published::Gptq(_) => (Int8, 128, DType::F16, false),
            Published::Awq => (Int4, 128, DType::F16, true),
            Published::Packed(4) => (Int4, 128, DType::BF16, false),
            Published::Packed(_) | Published::W8A8 => (Int8, 128, DType::BF16, false),
            Published::Float8 => (F8E4M3, 128, DType::BF16, false),
            Published::Fp8Blocks => (F8E4M3, 128, DType::F32, false),
            Published::Mxfp4 => (F4E2M1, 32, DType::BF16, false),
            Published::Nf4 => (Nf4, 64, DType::F32, false),
        };
        let format = BlockFormat::new(values, group, scale, zero_points).expect("a format");
        Form { name: published.name().to_owned(), format, made: Made::Published(published) }
    });
    loading.chain(published).collect()
}

impl Form {
    /// Weights in it, once for each kind of activations that it has, with what they cost, and what begins a line of their
    /// figures.
    fn each_activations(&self) -> impl Iterator<Item = (WeightOptions, [f64; 4], String)> {
        let bits = quality::bits(Encoding::Blocks(self.format));
        let Cost(_, costs) = COSTS.iter().find(|cost| cost.0 == self.name).unwrap_or_else(|| panic!("{}", self.name));
        let all = [Activations::Bf16, Activations::Int8].into_iter().zip(costs);
        let of_format = all.filter(|(a, _)| *a == Activations::Bf16 || self.format.values().is_integer());
        of_format.map(move |(activations, cost)| {
            let quantize = if let Made::Loading(how) = self.made { Some(how) } else { None };
            let options = WeightOptions { quantize, activations: Some(activations), ..WeightOptions::default() };
            (options, *cost, line_start(&self.name, &format!("{activations:?}"), bits))
        })
    }

    /// The folder of a model in it, where it is published so.
    fn published(&self, source: &Path) -> Option<TempDir> {
        let Made::Published(published) = self.made else { return None };
        let place = tempfile::tempdir().expect("a folder");
        published.write(source, &place.path().join(MODEL)).expect("the model is rounded");
        Some(place)
    }

    fn assert_is_of(&self, precision: Precision) {
        assert_eq!(precision.main_encoding(), Encoding::Blocks(self.format), "{}", self.name);
    }
}

/// The model in a folder of its own.
const MODEL: &str = "model";

fn line_start(format: &str, activations: &str, bits: f64) -> String {
    format!("{format:<34} {activations:<12} {bits:<5.2}")
}

/// The table of a comparison, and what is wrong with it.
struct Table {
    text: String,
    costs: BTreeMap<(String, bool), f64>,
    wrong: Vec<String>,
}

impl Table {
    fn new(columns: &str) -> Self {
        let text = format!("{:<34} {:<12} {:<5} {columns}\n", "format", "activations", "bits");
        Self { text, costs: BTreeMap::new(), wrong: Vec::new() }
    }

    fn line(&mut self, line: &str, figures: &str) {
        writeln!(self.text, "{line} {figures}").expect("written");
    }

    /// A figure is what it was, but for other instructions.
    fn check(&mut self, line: &str, found: f64, measured: f64) {
        if !(found <= MARGIN * measured && found >= measured / MARGIN) {
            self.wrong.push(format!("{line}: {found:.3e}, and it was {measured:.3e}"));
        }
    }

    fn cost(&mut self, form: &Form, options: &WeightOptions, cost: f64) {
        self.costs.insert((form.name.clone(), options.activations == Some(Activations::Int8)), cost);
    }

    /// Prints it, at once, as other tests print too. Larger groups cost more.
    fn finish(mut self) {
        for of_32 in ["int8, groups of 32", "int4, groups of 32", "int4, groups of 32, zero points"] {
            for int8 in [false, true] {
                let cost = |name: String| self.costs[&(name, int8)];
                if cost(of_32.to_owned()) >= cost(of_32.replace("32", "128")) {
                    self.wrong.push(format!("{of_32} cost no less than those of 128, {int8}"));
                }
            }
        }
        print!("{}", self.text);
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
    }
}

/// Every product of a model ran on rows for quantized weights, with these activations.
fn assert_quantized(kernels: &[(&str, Vec<&str>)], options: &WeightOptions) {
    // CPUs without fast bf16 dot products take activations as int16.
    let ends = if options.activations == Some(Activations::Int8) { &[".int8"][..] } else { &[".blocks", ".int16"] };
    const PLACES: [&str; 5] = ["qkv", "output", "gate and up", "up", "down"];
    let products: Vec<_> = kernels.iter().filter(|(place, _)| PLACES.contains(place)).collect();
    assert!(products.len() >= 4, "{kernels:?}");
    for (place, rows) in products {
        assert!(rows.iter().all(|row| ends.iter().any(|end| row.ends_with(end))), "{place} ran {rows:?}");
    }
}

#[derive(Deserialize)]
struct HeldOut {
    prompt: String,
    answer: String,
}

/// Rows of logits behind every token of the prompts and their answers.
fn logits(options: LoadOptions) -> (LanguageModel, Vec<Vec<f32>>) {
    logits_of_joined(1, options, None)
}

/// The same of so many prompts and answers at a time, one behind the other, and of the model in a folder where one is given.
fn logits_of_joined(joined: usize, options: LoadOptions, folder: Option<&Path>) -> (LanguageModel, Vec<Vec<f32>>) {
    let held_out: Vec<HeldOut> =
        serde_json::from_str(include_str!("../src/demo/held_out.json")).expect("the prompts are valid JSON");
    let options = LoadOptions { max_logits: 64, ..options };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let mut model = match folder {
        Some(folder) => LanguageModel::load_on(ctx, &Folder::new(folder), &options, &mut |_, _| {}),
        None => demo::load(ctx, &options),
    }
    .expect("the model loads");
    let vocab = model.decoder().config().vocab_size;
    let mut rows = Vec::new();
    for some in held_out[..PROMPTS].chunks(joined) {
        let text: String = some.iter().flat_map(|one| [one.prompt.as_str(), &one.answer]).collect();
        let tokens = model.encode(&text).expect("the text encodes");
        model
            .logits(&tokens, &mut |some| {
                rows.extend(some.chunks(vocab).map(<[f32]>::to_vec));
                Ok(())
            })
            .expect("the model runs");
    }
    (model, rows)
}

/// Weights in bf16, and a cache of some dtype.
fn in_bf16(kv: Option<DType>) -> LoadOptions {
    let weights = WeightOptions { dtype: Some(DType::BF16), ..WeightOptions::default() };
    LoadOptions { weights, kv, ..LoadOptions::default() }
}

/// The divergence of all rows, and the share of rows whose likeliest token is the same.
fn divergence_and_agreement(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> (f64, f64) {
    assert_eq!(exact.len(), rounded.len());
    let mut all = Divergence::default();
    exact.iter().zip(rounded).for_each(|(exact, rounded)| all.add(exact, rounded));
    (all.mean(), all.agreement())
}

#[test]
fn answers_with_quantized_weights_are_as_near_to_those_with_exact_ones_as_they_were() {
    let (_, exact) = logits(in_bf16(None));
    let mut table = Table::new("KL divergence  top-1");
    for form in forms() {
        let folder = form.published(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo"));
        let folder = folder.as_ref().map(|place| place.path().join(MODEL));
        for (options, [measured, agreed, ..], line) in form.each_activations() {
            let load = LoadOptions { weights: options, ..LoadOptions::default() };
            let (model, rounded) = logits_of_joined(1, load, folder.as_deref());
            let (divergence, agreement) = divergence_and_agreement(&exact, &rounded);
            table.line(&line, &format!("{divergence:<14.2e} {:.1} %", 100.0 * agreement));
            form.assert_is_of(model.decoder().precision());
            assert_quantized(&model.decoder().kernels(), &options);
            table.check(&line, divergence, measured);
            if (agreement - agreed).abs() > OF_TOKENS {
                table.wrong.push(format!("{line}: {agreement} agree, {agreed} did"));
            }
            table.cost(&form, &options, divergence);
        }
    }
    table.finish();
}

/// The root mean square of the differences of logits, in units of the exact ones' standard deviation.
fn rms(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> f64 {
    let pairs = || exact.iter().flatten().zip(rounded.iter().flatten()).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let count = pairs().count() as f64;
    let mean = pairs().map(|(a, _)| a).sum::<f64>() / count;
    let variance = pairs().map(|(a, _)| (a - mean).powi(2)).sum::<f64>();
    (pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>() / variance).sqrt()
}

/// Caches, and how far what the bundled model gives with them may be from what it gives with one in f32.
const CACHES: [(DType, f64, f64); 4] =
    [(DType::BF16, 1e-4, 0.99), (DType::F16, 1e-4, 0.99), (DType::I8, 1e-3, 0.98), (DType::F8E4M3, 1e-2, 0.95)];

#[test]
fn answers_with_a_quantized_cache_are_near_those_with_an_exact_one() {
    let (_, exact) = logits(in_bf16(Some(DType::F32)));
    let mut table = "cache    bytes per token  KL divergence  top-1   RMS\n".to_owned();
    for (kv, most, least) in CACHES {
        let (model, rounded) = logits(in_bf16(Some(kv)));
        let (divergence, agreement) = divergence_and_agreement(&exact, &rounded);
        let (bytes, rms) = (model.cache().bytes_per_token(), rms(&exact, &rounded));
        writeln!(table, "{kv:<8} {bytes:<16} {divergence:<14.2e} {:.1} %  {rms:.2e}", 100.0 * agreement)
            .expect("written");
        assert!(divergence > 0.0, "{kv}: nothing was rounded");
        assert!(divergence <= most && agreement >= least, "{kv}: {divergence:e}, {agreement}");
    }
    print!("{table}");
}

/// How far what the bundled model gives with some of its cache in int8 or fp8 may be from what it gives with all in f32.
const OLD: [(DType, f64); 2] = [(DType::I8, 1e-3), (DType::F8E4M3, 1e-2)];

#[test]
fn answers_with_old_tokens_quantized_are_nearer_than_with_all() {
    // Most of the model's 256 positions.
    const JOINED: usize = 15;
    const RECENT: usize = 64;
    let (_, exact) = logits_of_joined(JOINED, in_bf16(Some(DType::F32)), None);
    let mut table = "cache                     KL divergence  top-1\n".to_owned();
    for (dtype, most) in OLD {
        let (_, all) = logits_of_joined(JOINED, in_bf16(Some(dtype)), None);
        let old_kv = Some(OldKv { dtype, recent: RECENT });
        let (_, old) = logits_of_joined(JOINED, LoadOptions { old_kv, ..in_bf16(Some(DType::F32)) }, None);
        let [all, old] = [all, old].map(|rounded| divergence_and_agreement(&exact, &rounded));
        for (name, (divergence, agreement)) in
            [(format!("{dtype}"), all), (format!("{dtype} before {RECENT}, f32"), old)]
        {
            writeln!(table, "{name:<25} {divergence:<14.2e} {:.1} %", 100.0 * agreement).expect("written");
        }
        assert!(old.0 > 0.0, "{dtype}: nothing was rounded");
        assert!(old.0 < all.0 && old.0 <= most && old.1 >= 0.95, "{dtype}: {old:?}, {all:?}");
    }
    print!("{table}");
}

/// Where all-MiniLM-L6-v2 is.
fn minilm() -> PathBuf {
    PathBuf::from(std::env::var_os("SINEW_MINILM").expect("SINEW_MINILM names a folder"))
}

/// The vectors of [`TEXTS`].
fn vectors(folder: &Path, options: &WeightOptions) -> (EmbeddingModel, Vec<Vec<f32>>) {
    let mut model = EmbeddingModel::load(folder, options).expect("MiniLM loads");
    let texts: Vec<&str> = TEXTS.lines().collect();
    let vectors = model.embed(&texts).expect("the texts embed");
    (model, vectors)
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2, in the folder SINEW_MINILM"]
fn embeddings_with_quantized_weights_are_as_near_to_those_with_exact_ones_as_they_were() {
    let in_dtype = |dtype| WeightOptions { dtype: Some(dtype), ..WeightOptions::default() };
    let (_, exact) = vectors(&minilm(), &in_dtype(DType::F32));
    let mut table = Table::new("mean cosine  least cosine");
    let compare = |table: &mut Table, line: &str, rounded: &[Vec<f32>]| {
        let [mean, least] = quality::cosines(&exact, rounded);
        table.line(line, &format!("{mean:<12.5} {least:.5}"));
        [mean, least]
    };
    let (_, rounded) = vectors(&minilm(), &in_dtype(DType::BF16));
    let [mean, least] = compare(&mut table, &line_start("bf16", "Bf16", 16.0), &rounded);
    assert!(mean >= BF16[0] && (BF16[1]..1.0 - 1e-9).contains(&least), "bf16: {mean}, {least}");
    // It has no head.
    for form in forms().into_iter().filter(|form| !form.name.contains("head")) {
        let folder = form.published(&minilm());
        let folder = folder.as_ref().map_or_else(minilm, |place| place.path().join(MODEL));
        for (options, [.., mean, least], line) in form.each_activations() {
            let (model, rounded) = vectors(&folder, &options);
            let found = compare(&mut table, &line, &rounded).map(|cosine| 1.0 - cosine);
            table.check(&line, found[0], mean);
            table.check(&line, found[1], least);
            form.assert_is_of(model.precision());
            assert_quantized(&model.kernels(), &options);
            table.cost(&form, &options, found[0]);
        }
    }
    table.finish();
}

#[test]
fn the_exact_model_runs_once_for_all_that_are_held_against_it() {
    let ctx = || Arc::new(Context::cpu().expect("the CPU is there"));
    let load = |options: &LoadOptions| demo::load(ctx(), options).expect("the bundled model loads");
    let texts = [vec![1, 5, 9, 17], vec![3], vec![20, 41, 8, 30, 62, 7, 77]];
    let mut exact = Exact::new(load(&in_bf16(None)), &texts);
    let mut steps = |other: &mut LanguageModel| {
        let mut steps = 0;
        let mut count = || {
            steps += 1;
            ControlFlow::Continue(())
        };
        (exact.divergence(other, &mut count).expect("the models run"), steps)
    };
    let how = quality::formats().expect("known")[0];
    let weights = WeightOptions { quantize: Some(how), ..WeightOptions::default() };
    let mut int8 = load(&LoadOptions { weights, ..in_bf16(None) });
    let (first, of_both) = steps(&mut int8);
    let (again, of_one) = steps(&mut int8);
    assert_eq!((first, of_both), (again, 2 * of_one));
    assert!(first.mean() > 0.0, "{first:?}");
    let (same, _) = steps(&mut load(&in_bf16(None)));
    assert_eq!((same.mean(), same.agreement()), (0.0, 1.0));
}

#[test]
fn activations_in_int8_are_refused_where_no_weight_is_quantized() {
    let alone = WeightOptions { activations: Some(Activations::Int8), ..WeightOptions::default() };
    let options = LoadOptions { weights: alone, ..LoadOptions::default() };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let refused = demo::load(ctx, &options).expect_err("no weight is quantized").to_string();
    assert!(refused.contains("activations in int8 with floats"), "{refused}");
}
