//! What quantization costs: answers of the bundled model with its weights rounded to each format, beside those in bf16,
//! and embeddings by all-MiniLM-L6-v2, beside those in f32.
//!
//! `SINEW_MINILM=FOLDER cargo test --test quantized -- --include-ignored --nocapture` prints the figures of the README;
//! without `--include-ignored` those of the bundled model alone. `.ci/minilm.py --unpack` leaves such a folder.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use sinew::demo;
use sinew::models::OldKv;
use sinew::models::load::{Activations, Quantize};
use sinew::ops::layers::{Encoding, WeightPacker};
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues, DType};

/// Prompts whose answers are compared.
const PROMPTS: usize = 60;

/// Texts whose embeddings are compared.
const SENTENCES: [&str; 48] = [
    "The train to the coast leaves at a quarter past seven.",
    "She planted tomatoes, basil and two rows of beans behind the house.",
    "Interest rates rose for the third time this year.",
    "A cat slept on the warm bonnet of the car.",
    "How do I reset the password of my account?",
    "The recipe asks for three eggs and a pinch of salt.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The committee postponed its decision until the report is complete.",
    "My phone does not charge when the cable is bent.",
    "In 1969 two people walked on the Moon for the first time.",
    "The river burst its banks after a week of heavy rain, and the lower town had to be evacuated during the night.",
    "He plays the cello in an orchestra of amateurs.",
    "Which medicine helps against hay fever without making one tired?",
    "The bridge was closed to lorries because of cracks in a pier.",
    "A matrix is singular when its determinant is zero.",
    "The children built a dam of stones across the stream.",
    "Our flight was cancelled, so we spent the night at the airport.",
    "The museum shows Dutch paintings of the seventeenth century.",
    "Please find attached the invoice for last month's work.",
    "The striker scored twice in the last ten minutes and won the match.",
    "Bees dance to tell each other where flowers are.",
    "The patient complains of a dull pain in the left knee that grows worse on stairs.",
    "Water boils at a lower temperature on a mountain than at the sea.",
    "She translated the novel from Portuguese in less than a year.",
    "The court ruled that the contract had never been valid.",
    "A good pair of boots matters more than an expensive tent.",
    "The compiler reports an error when a value is used after it was moved.",
    "Unemployment fell slightly, while wages stayed where they were.",
    "Do not open the oven while the cake is rising.",
    "The old lighthouse was turned into a small hotel.",
    "Mice were given the drug for six weeks, and their blood pressure was measured every morning before they were fed.",
    "He forgot the tickets on the kitchen table.",
    "Volcanic ash makes for fertile soil.",
    "The shop on the corner sells second-hand books and maps.",
    "What is the difference between a virus and a bacterium?",
    "The glacier has lost a third of its length since it was first surveyed.",
    "The new tax is meant to make flying more expensive than the train.",
    "I would like to return the jacket, as it is too small.",
    "The moons of Jupiter were seen by Galileo in 1610.",
    "The battery lasts about nine hours if the screen is not too bright.",
    "The farmer sold his cows and grows lavender now.",
    "A queue grows at its back and shrinks at its front; of a stack, both happen at the top.",
    "The minister resigned after the newspaper had published the letters.",
    "The violin was made in Cremona around 1720 and has hardly been played.",
    "Turn left at the church and follow the road to the mill.",
    "Whales sing songs that change a little from year to year.",
    "The vaccine has to be kept at minus seventy degrees.",
    "He counted the money twice, and it was still ten euros short.",
];

/// A format, and how far what it gives may be from what exact weights give, whatever the activations.
struct Format {
    values: BlockValues,
    group: usize,
    zero_points: bool,
    /// The most of [`divergence_and_agreement`] with the bundled model, and the least.
    divergence: f64,
    agreement: f64,
    /// The least of the mean of MiniLM's cosines, and of each.
    cosines: [f64; 2],
}

const fn format(
    values: BlockValues,
    group: usize,
    zero_points: bool,
    divergence: f64,
    agreement: f64,
    cosines: [f64; 2],
) -> Format {
    Format { values, group, zero_points, divergence, agreement, cosines }
}

const FORMATS: [Format; 6] = [
    format(BlockValues::Int8, 32, false, 1e-3, 0.99, [0.999, 0.998]),
    format(BlockValues::Int8, 128, false, 1e-3, 0.99, [0.998, 0.997]),
    format(BlockValues::F8E4M3, 128, false, 1e-2, 0.97, [0.997, 0.995]),
    format(BlockValues::Int4, 32, false, 1e-1, 0.9, [0.95, 0.93]),
    format(BlockValues::Int4, 32, true, 1e-1, 0.9, [0.95, 0.93]),
    format(BlockValues::Int4, 128, true, 2e-1, 0.85, [0.93, 0.91]),
];

impl Format {
    fn blocks(&self) -> BlockFormat {
        BlockFormat::new(self.values, self.group, DType::BF16, self.zero_points).expect("a format")
    }

    /// Weights in it, once for each kind of activations that it has, and what begins a line of their figures.
    fn each_activations(&self) -> impl Iterator<Item = (WeightOptions, String)> {
        let format = self.blocks();
        let ctx = Context::cpu().expect("a context");
        let bytes = WeightPacker::bytes(&ctx, format, 1, 32, 1 << 10, false);
        let bits = 8.0 * bytes as f64 / f64::from(32 << 10);
        let all = [Activations::Bf16, Activations::Int8];
        let of_format = all.into_iter().filter(move |&a| a == Activations::Bf16 || format.values().is_integer());
        of_format.map(move |activations| {
            let quantize = Some(Quantize { format, per_channel: false, head: true });
            let options = WeightOptions { quantize, activations: Some(activations), ..WeightOptions::default() };
            (options, line_start(&Encoding::Blocks(format).to_string(), &format!("{activations:?}"), bits))
        })
    }
}

fn line_start(format: &str, activations: &str, bits: f64) -> String {
    format!("{format:<18} {activations:<12} {bits:<5.2}")
}

/// Every product of a model ran on rows for quantized weights, with these activations.
fn assert_quantized(kernels: &[(&str, Vec<&str>)], options: &WeightOptions) {
    let end = if options.activations == Some(Activations::Int8) { ".int8" } else { ".blocks" };
    let products: Vec<_> = kernels.iter().filter(|(place, _)| ["qkv", "output", "down"].contains(place)).collect();
    assert!(products.len() >= 3, "{kernels:?}");
    for (place, rows) in products {
        assert!(rows.iter().all(|row| row.ends_with(end)), "{place} ran {rows:?}");
    }
}

#[derive(Deserialize)]
struct HeldOut {
    prompt: String,
    answer: String,
}

/// Rows of logits behind every token of the prompts and their answers.
fn logits(options: LoadOptions) -> (LanguageModel, Vec<Vec<f32>>) {
    logits_of_joined(1, options)
}

/// The same of so many prompts and answers at a time, one behind the other.
fn logits_of_joined(joined: usize, options: LoadOptions) -> (LanguageModel, Vec<Vec<f32>>) {
    let held_out: Vec<HeldOut> =
        serde_json::from_str(include_str!("../src/demo/held_out.json")).expect("the prompts are valid JSON");
    let options = LoadOptions { max_logits: 64, ..options };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let mut model = demo::load(ctx, &options).expect("the bundled model loads");
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

fn probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|x| x / sum).collect()
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0)
}

/// The mean of `Σ p log(p / q)` over all rows, and the share of rows whose likeliest token is the same.
fn divergence_and_agreement(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> (f64, f64) {
    assert_eq!(exact.len(), rounded.len());
    let divergence = |(exact, rounded): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let pairs = probabilities(exact).into_iter().zip(probabilities(rounded));
        pairs.map(|(p, q)| if p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum()
    };
    let all: f64 = exact.iter().zip(rounded).map(divergence).sum();
    let agree = exact.iter().zip(rounded).filter(|(a, b)| largest(a) == largest(b)).count();
    (all / exact.len() as f64, agree as f64 / exact.len() as f64)
}

#[test]
fn answers_with_quantized_weights_are_near_those_with_exact_ones() {
    let (_, exact) = logits(in_bf16(None));
    let mut table = "format             activations  bits  KL divergence  top-1\n".to_owned();
    for format in FORMATS {
        for (options, line) in format.each_activations() {
            let (model, rounded) = logits(LoadOptions { weights: options, ..LoadOptions::default() });
            let (divergence, agreement) = divergence_and_agreement(&exact, &rounded);
            writeln!(table, "{line} {divergence:<14.2e} {:.1} %", 100.0 * agreement).expect("written");
            assert!(divergence > 0.0, "{line}: nothing was rounded");
            let near = divergence <= format.divergence && agreement >= format.agreement;
            assert!(near, "{line}: {divergence:e}, {agreement}");
            assert_quantized(&model.decoder().kernels(), &options);
        }
    }
    // At once: other tests print too.
    print!("{table}");
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
    let (_, exact) = logits_of_joined(JOINED, in_bf16(Some(DType::F32)));
    let mut table = "cache                     KL divergence  top-1\n".to_owned();
    for (dtype, most) in OLD {
        let (_, all) = logits_of_joined(JOINED, in_bf16(Some(dtype)));
        let old_kv = Some(OldKv { dtype, recent: RECENT });
        let (_, old) = logits_of_joined(JOINED, LoadOptions { old_kv, ..in_bf16(Some(DType::F32)) });
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

/// The vectors of [`SENTENCES`], of length 1.
fn vectors(options: &WeightOptions) -> (EmbeddingModel, Vec<Vec<f32>>) {
    let folder = PathBuf::from(std::env::var_os("SINEW_MINILM").expect("SINEW_MINILM names a folder"));
    let mut model = EmbeddingModel::load(folder, options).expect("MiniLM loads");
    let vectors = model.embed(&SENTENCES).expect("the texts embed");
    (model, vectors)
}

/// The mean of the cosines between the vectors of each text, and the least.
fn cosines(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> [f64; 2] {
    assert_eq!(exact.len(), rounded.len());
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let pairs = exact.iter().zip(rounded);
    let all: Vec<f64> = pairs.map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).collect();
    [all.iter().sum::<f64>() / all.len() as f64, all.into_iter().fold(1.0, f64::min)]
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2, in the folder SINEW_MINILM"]
fn embeddings_with_quantized_weights_are_near_those_with_exact_ones() {
    let (_, exact) = vectors(&WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() });
    let mut table = "format             activations  bits  mean cosine  least cosine\n".to_owned();
    let mut compare = |line: &str, rounded: &[Vec<f32>], [mean, least]: [f64; 2]| {
        let found = cosines(&exact, rounded);
        writeln!(table, "{line} {:<12.5} {:.5}", found[0], found[1]).expect("written");
        assert!(found[1] < 1.0 - 1e-9, "{line}: nothing was rounded");
        assert!(found[0] >= mean && found[1] >= least, "{line}: {found:?}");
    };
    let (_, rounded) = vectors(&WeightOptions { dtype: Some(DType::BF16), ..WeightOptions::default() });
    compare(&line_start("bf16", "Bf16", 16.0), &rounded, [0.9999, 0.9999]);
    for format in FORMATS {
        for (options, line) in format.each_activations() {
            let (model, rounded) = vectors(&options);
            compare(&line, &rounded, format.cosines);
            assert_quantized(&model.kernels(), &options);
        }
    }
    print!("{table}");
}

#[test]
fn activations_in_int8_are_refused_where_no_weight_is_quantized() {
    let alone = WeightOptions { activations: Some(Activations::Int8), ..WeightOptions::default() };
    let options = LoadOptions { weights: alone, ..LoadOptions::default() };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let refused = demo::load(ctx, &options).expect_err("no weight is quantized").to_string();
    assert!(refused.contains("not quantized"), "{refused}");
}
