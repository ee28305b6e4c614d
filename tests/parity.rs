//! The committed checkpoints, which transformers saved, against what transformers computed on them.
//!
//! The rules are those that `tests/fixtures/make_fixtures.py` explains: in f32 every logit within 2e-4 of the logits'
//! standard deviation; in 16 bits no worse than transformers in the same dtype (RMS 1.0 times, maximum 1.5 times).

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use sinew::models::ModelConfig;
use sinew::models::load::main_dtype;
use sinew::models::{Checkpoint, Load};
use sinew::prelude::*;

/// Share of the logits' standard deviation that an f32 logit may be off.
const F32_TOLERANCE: f64 = 2e-4;
const RMS_FACTOR: f64 = 1.0;
const MAX_FACTOR: f64 = 1.5;
/// An embedding's component may be off by this.
const EMBEDDING_TOLERANCE: f32 = 5e-6;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root)
        .expect("the fixtures are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").exists())
        .collect();
    folders.sort();
    assert!(folders.len() >= 10, "only {} fixtures", folders.len());
    folders
}

fn name(folder: &Path) -> String {
    folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

struct Expectation {
    tokens: Vec<u32>,
    values: Vec<f64>,
    /// RMS and largest error of transformers in 16 bits.
    sixteen_bit_errors: Option<(f64, f64)>,
    embeddings: Option<Vec<f32>>,
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32, "{name}");
    Some(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

fn expectation(folder: &Path) -> Expectation {
    let bytes = std::fs::read(folder.join("expected.safetensors")).expect("every fixture has expected values");
    let file = SafeTensors::deserialize(&bytes).expect("the file is valid");
    let tokens = file.tensor("tokens").expect("tokens").data().as_chunks::<8>().0.iter();
    let values = floats(&file, "logits_f32").or_else(|| floats(&file, "last_hidden_state")).expect("values");
    let scalar = |dtype: &str, what: &str| floats(&file, &format!("{dtype}_{what}_error")).map(|v| f64::from(v[0]));
    let sixteen_bit_errors = ["bf16", "f16"].iter().find_map(|d| Some((scalar(d, "rms")?, scalar(d, "max")?)));
    Expectation {
        tokens: tokens.map(|b| i64::from_le_bytes(*b) as u32).collect(),
        values: values.into_iter().map(f64::from).collect(),
        sixteen_bit_errors,
        embeddings: floats(&file, "embeddings"),
    }
}

/// All logits or hidden states of a fixture's tokens.
fn run(folder: &Path, tokens: &[u32], dtype: Option<DType>) -> Vec<f64> {
    let weights = WeightOptions { dtype, ..WeightOptions::default() };
    let values: Vec<f32> = match ModelConfig::from_folder(folder).expect("the config is valid") {
        ModelConfig::Encoder(_) => {
            let mut model = EmbeddingModel::load(folder, &weights).expect("the fixture loads");
            model.hidden_states(tokens).expect("the tokens are valid")
        }
        _ => {
            let options = LoadOptions { weights, max_logits: 64, ..LoadOptions::default() };
            let mut model = LanguageModel::load(folder, &options).expect("the fixture loads");
            let mut all = Vec::new();
            model
                .logits(tokens, &mut |rows| {
                    all.extend_from_slice(rows);
                    Ok(())
                })
                .expect("the tokens are valid");
            all
        }
    };
    values.into_iter().map(f64::from).collect()
}

/// RMS and largest difference.
fn errors(got: &[f64], expected: &[f64]) -> (f64, f64) {
    assert_eq!(got.len(), expected.len());
    let squares: f64 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    let largest = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    ((squares / got.len() as f64).sqrt(), largest)
}

fn standard_deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn in_f32_every_value_is_that_of_transformers() {
    let mut failures = Vec::new();
    for folder in fixtures() {
        let expected = expectation(&folder);
        let (_, largest) = errors(&run(&folder, &expected.tokens, Some(DType::F32)), &expected.values);
        let relative = largest / standard_deviation(&expected.values);
        println!("{:<56} f32 {relative:.1e} of {F32_TOLERANCE:.0e}", name(&folder));
        // Written so that NaN fails.
        if relative.is_nan() || relative > F32_TOLERANCE {
            failures.push(format!("{}: {relative:e}", name(&folder)));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn in_16_bits_errors_are_no_larger_than_those_of_transformers() {
    let mut failures = Vec::new();
    let mut checked = 0;
    for folder in fixtures() {
        let expected = expectation(&folder);
        let Some((rms_allowed, max_allowed)) = expected.sixteen_bit_errors else { continue };
        checked += 1;
        let checkpoint = Checkpoint::open(&folder, Load::Mmap).expect("the fixture opens");
        let stored = main_dtype(&checkpoint).expect("it has weights");
        assert_ne!(stored, DType::F32, "{} is a 16-bit fixture", name(&folder));
        let (rms, largest) = errors(&run(&folder, &expected.tokens, None), &expected.values);
        let (rms, largest) = (rms / rms_allowed, largest / max_allowed);
        println!("{:<56} {stored} rms {rms:.2}, max {largest:.2} of transformers' error", name(&folder));
        if !(rms <= RMS_FACTOR && largest <= MAX_FACTOR) {
            failures.push(format!("{}: rms {rms:.3}, max {largest:.3}", name(&folder)));
        }
    }
    assert_eq!(checked, 10, "fixtures in 16 bits");
    assert!(failures.is_empty(), "{failures:#?}");
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

#[test]
fn tokenizers_encode_and_decode_as_transformers_does() {
    for (folder, expected) in with_text() {
        let tokenizer = sinew::models::Tokenizer::from_folder(&folder).expect("the tokenizer loads");
        for case in expected.encode {
            let ids = tokenizer.encode(&case.text, true).expect("the text encodes");
            assert_eq!(ids, case.ids, "{}: {:?}", name(&folder), case.text);
            if let Some(decoded) = case.decoded {
                assert_eq!(tokenizer.decode(&ids, true).expect("the ids decode"), decoded);
            }
        }
    }
}

#[test]
fn greedy_answers_are_those_of_transformers() {
    let mut generated = 0;
    for (folder, expected) in with_text() {
        let Some(expected) = expected.generate else { continue };
        let weights = WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        let mut model = LanguageModel::load(&folder, &options).expect("the fixture loads");
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

#[test]
fn embeddings_are_those_of_transformers() {
    let mut compared = 0;
    for (folder, expected) in with_text() {
        let Some(expected_texts) = expected.embed else { continue };
        let values = expectation(&folder).embeddings.expect("an encoder with texts has embeddings");
        let options = WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() };
        let mut model = EmbeddingModel::load(&folder, &options).expect("the fixture loads");
        let vectors = model.embed(&expected_texts.texts).expect("the texts embed");
        for (i, (text, vector)) in expected_texts.texts.iter().zip(&vectors).enumerate() {
            let expected = &values[i * vector.len()..(i + 1) * vector.len()];
            let largest = vector.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(largest <= EMBEDDING_TOLERANCE, "{text:?} is off by {largest:e}");
            compared += 1;
        }
    }
    assert!(compared > 0, "a fixture has expected embeddings");
}
