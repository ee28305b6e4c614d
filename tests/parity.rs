//! The committed checkpoints, which transformers saved, against what transformers computed on them.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use sinew::models::precision::Quantize;
use sinew::models::{Load, OldKv};
use sinew::ops::layers::Encoding;
use sinew::prelude::*;
use sinew::tensor::BlockFormat;
use sinew_conformance::parity::{self, Comparison, Expectation, name};

/// An embedding's component may be off by this.
const EMBEDDING_TOLERANCE: f32 = 5e-6;

fn fixtures() -> Vec<PathBuf> {
    parity::fixtures(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")).expect("the fixtures are there")
}

fn embedding_model(ctx: &Arc<Context>, folder: &Path, options: &WeightOptions) -> EmbeddingModel {
    EmbeddingModel::load_on(ctx.clone(), &Folder::new(folder), options, &mut |_, _| {}).expect("the fixture loads")
}

fn decoder(ctx: &Arc<Context>, folder: &Path, options: &LoadOptions) -> LanguageModel {
    LanguageModel::load_on(ctx.clone(), &Folder::new(folder), options, &mut |_, _| {}).expect("the fixture loads")
}

fn in_f32_every_value_is_that_of_transformers() {
    every_value(&common::cpu());
}

fn in_f32_every_value_is_that_of_transformers_by_wgpu() {
    common::on_wgpu(every_value);
}

fn in_f32_every_value_is_that_of_transformers_by_the_least_wgpu() {
    common::on_least_wgpu(every_value);
}

fn every_value(ctx: &Arc<Context>) {
    assert_pass(fixtures().into_iter().map(|folder| (name(&folder), parity::in_f32(ctx, &folder).map(Some))));
}

fn in_16_bits_errors_are_no_larger_than_those_of_transformers() {
    errors_in_16_bits(&common::cpu());
}

fn in_16_bits_errors_are_no_larger_than_those_of_transformers_by_wgpu() {
    common::on_wgpu(errors_in_16_bits);
}

fn in_16_bits_errors_are_no_larger_than_those_of_transformers_by_the_least_wgpu() {
    common::on_least_wgpu(errors_in_16_bits);
}

fn errors_in_16_bits(ctx: &Arc<Context>) {
    let compared = assert_pass(fixtures().into_iter().map(|folder| (name(&folder), parity::in_16_bits(ctx, &folder))));
    assert!(compared.len() > 25, "{} fixtures in 16 bits", compared.len());
    assert!(compared.iter().all(|comparison| comparison.dtype != DType::F32));
}

fn quantized() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    parity::quantized_fixtures(&root).expect("the fixtures are there")
}

fn dequantized_weights_give_every_value_of_transformers() {
    let compared = assert_pass(
        quantized().into_iter().map(|folder| (name(&folder), parity::in_f32(&common::cpu(), &folder).map(Some))),
    );
    assert!(compared.len() > 15, "{} quantized fixtures", compared.len());
}

fn quantized_weights_as_they_are_err_no_more_than_transformers_in_16_bits() {
    let compared =
        assert_pass(quantized().into_iter().map(|folder| (name(&folder), parity::in_16_bits(&common::cpu(), &folder))));
    assert!(compared.len() > 15, "{} quantized fixtures", compared.len());
}

fn quantized_weights_by_wgpu() {
    common::on_wgpu(|ctx| {
        assert_pass(quantized().into_iter().map(|folder| (name(&folder), parity::in_f32(ctx, &folder).map(Some))));
        assert_pass(quantized().into_iter().map(|folder| (name(&folder), parity::in_16_bits(ctx, &folder))));
        let quantize = Some(Quantize { format: BlockFormat::INT8, per_channel: false, head: true });
        let weights = WeightOptions { quantize, ..WeightOptions::default() };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        let folder = Folder::new(&quantized()[0]);
        let refused = LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {}).expect_err("on a GPU");
        assert!(refused.to_string().contains("on wgpu"), "{refused}");
        let options = LoadOptions { kv: Some(DType::I8), ..LoadOptions::default() };
        let refused = LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {}).expect_err("on a GPU");
        assert!(refused.to_string().contains("a KV cache of dtype i8 on wgpu"), "{refused}");
        let old_kv = Some(OldKv { dtype: DType::I8, recent: 64 });
        let options = LoadOptions { old_kv, ..LoadOptions::default() };
        let refused = LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {}).expect_err("on a GPU");
        assert!(refused.to_string().contains("with old tokens in i8 on wgpu"), "{refused}");
    });
}

/// Weights that are kept as they are stored run on rows for blocks, and are as small as that.
fn quantized_weights_stay_quantized() {
    let mut places = 0;
    for folder in quantized() {
        let mut weights = Vec::new();
        for dtype in [None, Some(DType::BF16)] {
            let weights_options = WeightOptions { dtype, ..WeightOptions::default() };
            let options = LoadOptions { weights: weights_options, ..LoadOptions::default() };
            let model = decoder(&common::cpu(), &folder, &options);
            let rows = model.decoder().kernels();
            let blocks = rows.iter().flat_map(|(_, rows)| rows).any(|row| reads_blocks(row));
            assert_eq!(blocks, dtype.is_none(), "{}: {rows:?}", name(&folder));
            if blocks {
                places += assert_in_blocks(&folder, &rows);
            }
            // Those of weights that are multiplied together are in one order in one fixture, and not in the other.
            for (of, together) in [("desc_act", false), ("actorder", true)] {
                let in_blocks = |of: &str| {
                    let mut of = rows.iter().filter(|(place, _)| *place == of).flat_map(|(_, rows)| rows);
                    of.all(|row| reads_blocks(row))
                };
                if blocks && name(&folder).contains(of) {
                    let found = ["qkv", "output", "gate and up", "down"].map(in_blocks);
                    assert_eq!(found, [together, true, together, true], "{}: {rows:?}", name(&folder));
                }
            }
            let encoding = model.decoder().precision().main_encoding().to_string();
            assert_eq!(blocks, encoding.contains("-g"), "{} is said to be {encoding}", name(&folder));
            weights.push((blocks, model.decoder().weight_bytes()));
        }
        if weights[0].0 {
            assert!(weights[0].1 < weights[1].1, "{}: {weights:?}", name(&folder));
        }
    }
    assert!(places > 60, "{places} products");
}

/// Tells if a kernel multiplies quantized blocks with activations other than int8. CPUs without fast bf16 dot products take
/// them as int16.
fn reads_blocks(kernel: &str) -> bool {
    kernel.ends_with(".blocks") || kernel.ends_with(".int16")
}

/// A product runs on rows for blocks just where all its modules are stored in the same. Returns how many were looked at.
fn assert_in_blocks(folder: &Path, rows: &[(&str, Vec<&str>)]) -> usize {
    let checkpoint = Folder::new(folder).checkpoint(Load::default()).expect("a checkpoint");
    let mut looked_at = 0;
    for (place, modules) in [
        ("qkv", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..]),
        ("output", &["self_attn.o_proj"]),
        ("gate and up", &["mlp.gate_proj", "mlp.up_proj"]),
        ("down", &["mlp.down_proj"]),
    ] {
        let stored = modules.iter().map(|module| checkpoint.module(&format!("model.layers.0.{module}")).expect("fits"));
        let stored: Vec<_> = stored.flatten().collect();
        let Some(first) = stored.first() else { continue };
        // Columns of several in orders of their own: what the caller looks at.
        if stored.iter().any(|module| module.order() != first.order()) {
            continue;
        }
        let alike = stored.len() == modules.len() && stored.iter().all(|module| module.encoding() == first.encoding());
        let expected = alike && matches!(first.encoding(), Encoding::Blocks(_));
        let of_place = rows.iter().filter(|(of, _)| *of == place).flat_map(|(_, rows)| rows);
        for row in of_place {
            assert_eq!(reads_blocks(row), expected, "{} {place}: {row}", name(folder));
            looked_at += 1;
        }
    }
    looked_at
}

/// Shows every comparison, and fails where one does or could not be made.
fn assert_pass(
    results: impl Iterator<Item = (String, Result<Option<Comparison>, Box<dyn std::error::Error>>)>,
) -> Vec<Comparison> {
    let (mut compared, mut failed) = (Vec::new(), Vec::new());
    for (fixture, result) in results {
        match result {
            Ok(Some(comparison)) => {
                common::harness::show(&comparison);
                if !comparison.passes() {
                    failed.push(comparison.to_string());
                }
                compared.push(comparison);
            }
            Ok(None) => {}
            Err(error) => failed.push(format!("{fixture}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    compared
}

#[derive(Deserialize)]
struct ExpectedText {
    encode: Vec<Encoded>,
    generate: Option<Generated>,
    embed: Option<Embedded>,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
    decoded: Option<String>,
}

#[derive(Deserialize)]
struct Generated {
    prompt: String,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    text: String,
}

#[derive(Deserialize)]
struct Embedded {
    texts: Vec<String>,
    prompted: Option<Prompted>,
}

#[derive(Deserialize)]
struct Prompted {
    name: String,
}

fn with_text() -> Vec<(PathBuf, ExpectedText)> {
    let all: Vec<_> = fixtures()
        .into_iter()
        .filter_map(|folder| {
            let text = std::fs::read_to_string(folder.join("expected_text.json")).ok()?;
            Some((folder, serde_json::from_str(&text).expect("the file is valid")))
        })
        .collect();
    assert!(all.len() >= 2, "a decoder and an encoder have tokenizers");
    all
}

fn tokenizers_encode_and_decode_as_transformers_does() {
    for (folder, expected) in with_text() {
        let tokenizer = Folder::new(&folder).tokenizer().expect("the tokenizer loads").expect("there is one");
        for case in expected.encode {
            let ids = tokenizer.encode(&case.text, true).expect("the text encodes");
            assert_eq!(ids, case.ids, "{}: {:?}", name(&folder), case.text);
            if let Some(decoded) = case.decoded {
                assert_eq!(tokenizer.decode(&ids, true).expect("the ids decode"), decoded);
            }
        }
    }
}

fn greedy_answers_are_those_of_transformers() {
    greedy_answers(&common::cpu());
}

fn greedy_answers_are_those_of_transformers_by_wgpu() {
    common::on_wgpu(greedy_answers);
}

fn greedy_answers(ctx: &Arc<Context>) {
    let mut generated = 0;
    for (folder, expected) in with_text() {
        let Some(expected) = expected.generate else { continue };
        let weights = WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        let mut model = decoder(ctx, &folder, &options);
        let prompt = model.encode(&expected.prompt).expect("the prompt encodes");
        assert_eq!(prompt, expected.ids);
        let options =
            GenerateOptions { max_new_tokens: expected.greedy.len(), ignore_eos: true, ..GenerateOptions::default() };
        let (mut streamed, mut pieces) = (String::new(), 0);
        let answer = model
            .generate(&prompt, &options, &mut |text| {
                streamed.push_str(text);
                pieces += usize::from(!text.is_empty());
                std::ops::ControlFlow::Continue(())
            })
            .expect("the prompt is answered");
        assert_eq!(answer.tokens, expected.greedy);
        assert_eq!(answer.text, expected.text);
        assert_eq!(streamed, expected.text);
        assert!(pieces > 1, "the text came in {pieces} pieces");
        generated += 1;
    }
    assert!(generated > 0, "a fixture has an expected answer");
}

fn embeddings_are_those_of_transformers() {
    embeddings(&common::cpu());
}

fn embeddings_are_those_of_transformers_by_wgpu() {
    common::on_wgpu(embeddings);
}

fn embeddings(ctx: &Arc<Context>) {
    let (mut plain, mut prompted) = (0, 0);
    for (folder, expected) in with_text() {
        let Some(Embedded { texts, prompted: prompt }) = expected.embed else { continue };
        let expected = Expectation::read(&folder).expect("expected values");
        let options = WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() };
        let mut model = embedding_model(ctx, &folder, &options);
        let vectors = model.embed(&texts).expect("the texts embed");
        assert_near(&vectors, &expected.embeddings.expect("a model with texts has embeddings"));
        plain += 1;
        if let Some(Prompted { name }) = prompt {
            let vectors = model.embed_as(&name, &texts).expect("the texts embed");
            assert_near(&vectors, &expected.embeddings_prompted.expect("a prompt has embeddings"));
            prompted += 1;
        }
    }
    assert!(plain >= 2 && prompted > 0, "an encoder and a decoder have embeddings, one of them with a prompt");
}

fn assert_near(vectors: &[Vec<f32>], expected: &[f32]) {
    let vectors = vectors.concat();
    assert_eq!(vectors.len(), expected.len());
    let largest = vectors.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest <= EMBEDDING_TOLERANCE && vectors.iter().all(|x| x.is_finite()), "off by {largest:e}");
}

fn main() -> std::process::ExitCode {
    common::harness::run(
        common::harness::trials![
            in_f32_every_value_is_that_of_transformers,
            in_16_bits_errors_are_no_larger_than_those_of_transformers,
            dequantized_weights_give_every_value_of_transformers,
            quantized_weights_as_they_are_err_no_more_than_transformers_in_16_bits,
            quantized_weights_stay_quantized,
            tokenizers_encode_and_decode_as_transformers_does,
            greedy_answers_are_those_of_transformers,
            embeddings_are_those_of_transformers,
        ],
        common::harness::trials![
            in_f32_every_value_is_that_of_transformers_by_wgpu,
            in_f32_every_value_is_that_of_transformers_by_the_least_wgpu,
            in_16_bits_errors_are_no_larger_than_those_of_transformers_by_wgpu,
            in_16_bits_errors_are_no_larger_than_those_of_transformers_by_the_least_wgpu,
            quantized_weights_by_wgpu,
            greedy_answers_are_those_of_transformers_by_wgpu,
            embeddings_are_those_of_transformers_by_wgpu,
        ],
    )
}
