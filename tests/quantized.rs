//! What quantization costs: answers of the bundled model with its weights rounded to each format, beside those in bf16.
//! `cargo test --test quantized -- --nocapture` prints the table of the README.

use std::sync::Arc;

use serde::Deserialize;
use sinew::demo;
use sinew::models::load::{Activations, Quantize};
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues, DType};

/// Prompts whose answers are compared.
const PROMPTS: usize = 60;

#[derive(Deserialize)]
struct HeldOut {
    prompt: String,
    answer: String,
}

/// Rows of logits behind every token of the prompts and their answers.
fn logits(weights: WeightOptions) -> (LanguageModel, Vec<Vec<f32>>) {
    let held_out: Vec<HeldOut> =
        serde_json::from_str(include_str!("../src/demo/held_out.json")).expect("the prompts are valid JSON");
    let options = LoadOptions { weights, max_logits: 64, ..LoadOptions::default() };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let mut model = demo::load(ctx, &options).expect("the bundled model loads");
    let vocab = model.decoder().config().vocab_size;
    let mut rows = Vec::new();
    for HeldOut { prompt, answer } in &held_out[..PROMPTS] {
        let tokens = model.encode(&format!("{prompt}{answer}")).expect("the text encodes");
        model
            .logits(&tokens, &mut |some| {
                rows.extend(some.chunks(vocab).map(<[f32]>::to_vec));
                Ok(())
            })
            .expect("the model runs");
    }
    (model, rows)
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
fn compare(exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> (f64, f64) {
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
    let (_, exact) = logits(WeightOptions { dtype: Some(DType::BF16), ..WeightOptions::default() });
    println!("format               activations  bits  KL divergence  top-1");
    // (values, group, zero points, allowed divergence, least agreement), with activations in bf16.
    let formats = [
        (BlockValues::Int8, 32, false, 1e-3, 0.99),
        (BlockValues::Int8, 128, false, 1e-3, 0.99),
        (BlockValues::F8E4M3, 128, false, 1e-2, 0.97),
        (BlockValues::Int4, 32, false, 1e-1, 0.9),
        (BlockValues::Int4, 32, true, 1e-1, 0.9),
        (BlockValues::Int4, 128, true, 2e-1, 0.85),
    ];
    let alone = WeightOptions { activations: Some(Activations::Int8), ..WeightOptions::default() };
    let options = LoadOptions { weights: alone, ..LoadOptions::default() };
    let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
    let refused = demo::load(ctx, &options).expect_err("no weight is quantized").to_string();
    assert!(refused.contains("not quantized"), "{refused}");
    for (values, group, zero_points, allowed, least) in formats {
        let format = BlockFormat::new(values, group, DType::BF16, zero_points).expect("a format");
        for activations in [Activations::Bf16, Activations::Int8] {
            if activations == Activations::Int8 && !values.is_integer() {
                continue;
            }
            let quantize = Some(Quantize { format, per_channel: false, head: true });
            let weights = WeightOptions { quantize, activations: Some(activations), ..WeightOptions::default() };
            let (model, rounded) = logits(weights);
            let (divergence, agreement) = compare(&exact, &rounded);
            let name = model.decoder().precision().main_encoding().to_string();
            let bits = 8.0 * format.layout(32, 1 << 10).expect("a layout").bytes() as f64 / f64::from(32 << 10);
            println!("{name:<20} {activations:<12?} {bits:<5.2} {divergence:<14.2e} {:.1} %", 100.0 * agreement);
            assert!(divergence > 0.0, "{name}: nothing was rounded");
            assert!(divergence <= allowed && agreement >= least, "{name}: {divergence:e}, {agreement}");
            let named = model
                .decoder()
                .kernels()
                .iter()
                .flat_map(|(_, rows)| rows)
                .any(|row| row.contains("blocks") || row.contains("int8"));
            assert!(named, "{name} ran {:?}", model.decoder().kernels());
        }
    }
}
