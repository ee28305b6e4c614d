//! Embeddings: the same bits in any company, prompts, decoders over long texts, and the command on files of texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde::Deserialize;
use serde_json::Value;
use sinew::models::precision::{Activations, Quantize};
use sinew::models::{Load, Tensors};
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues};
use tempfile::TempDir;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, refused, run, stdout};
use fixtures::{copy, copy_with_transformer_in, fixture_path};

const ENCODER: &str = "bert_hd20_f32_wordpiece";
const DECODER: &str = "qwen3_embedding_no_prefix_gqa3_hd20_bf16";
/// Encoders with learned positions, and with turned ones in windows.
const OTHERS: [&str; 3] =
    ["roberta_masked_lm_prefix_hd20_bf16", "modernbert_hd12_bf16", "modernbert_masked_lm_prefix_hd10_f32_old_config"];

fn model(folder: &Path, dtype: Option<DType>) -> EmbeddingModel {
    let options = WeightOptions { dtype, ..WeightOptions::default() };
    EmbeddingModel::load(folder, &options).expect("the model loads")
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| fixtures::bits(vector)).collect()
}

/// Texts of one word to `words`, long after short and short after long.
fn texts(count: usize, words: usize) -> Vec<String> {
    const WORDS: [&str; 7] = ["license", "the", "work", "of", "grants", "rights", "copyright"];
    let text = |i: usize| -> Vec<&str> { (0..=i * 37 % words).map(|j| WORDS[(i + j * j) % WORDS.len()]).collect() };
    (0..count).map(|i| text(i).join(" ")).collect()
}

fn assert_alone_as_in_a_batch(folder: &Path, dtype: Option<DType>) {
    let mut model = model(folder, dtype);
    let texts = texts(64, 60);
    let together = bits(&model.embed(&texts).expect("the texts embed"));
    for (text, expected) in texts.iter().zip(&together) {
        assert_eq!(&bits(&model.embed(&[text]).expect("the text embeds"))[0], expected, "{text:?}");
    }
    let backwards: Vec<&String> = texts.iter().rev().collect();
    let mut backwards = bits(&model.embed(&backwards).expect("the texts embed"));
    backwards.reverse();
    assert!(backwards == together, "the order of the texts changes bits");
    let distinct = together.iter().filter(|&vector| *vector == together[0]).count();
    assert_eq!(distinct, 1, "the texts have vectors of their own");
}

#[test]
fn sixty_four_texts_have_the_bits_of_each_alone() {
    for folder in [ENCODER, DECODER].map(fixture_path) {
        for dtype in [Some(DType::F32), Some(DType::BF16)] {
            assert_alone_as_in_a_batch(&folder, dtype);
        }
    }
}

#[test]
fn a_transformer_in_a_folder_of_its_own_gives_the_same_bits() {
    let texts = texts(6, 30);
    for name in [ENCODER, DECODER] {
        let expected = bits(&model(&fixture_path(name), None).embed(&texts).expect("the texts embed"));
        for transformer in ["0_Transformer", "./0_Transformer/", "models/transformer"] {
            let folder = copy_with_transformer_in(transformer, name);
            let found = bits(&model(folder.path(), None).embed(&texts).expect("the texts embed"));
            assert!(found == expected, "{name} in {transformer}");
            for arguments in [&["inspect"][..], &["plan"], &["inspect", "--json"]] {
                let path = folder.path().to_str().expect("UTF-8");
                let shown = stdout(&run(command().args(arguments).arg(path), ""));
                assert!(!shown.is_empty());
            }
        }
    }
    // Shards are found there as well.
    let sharded = copy_with_transformer_in("0_Transformer", "bert_masked_lm_prefix_hd12_bf16_3shards");
    assert!(!model(sharded.path(), None).hidden_states(&[1, 2, 3]).expect("the tokens run").is_empty());
}

#[test]
fn a_transformer_outside_the_folder_is_refused() {
    let outside = copy(ENCODER);
    for path in ["../elsewhere", "/etc", "a/../../b", "..", "0_Transformer/../../x"] {
        let folder = copy_with_transformer_in("0_Transformer", ENCODER);
        let modules = format!(r#"[{{"type": "a.Transformer", "path": "{path}"}}, {{"type": "a.Pooling"}}]"#);
        fs::write(folder.path().join("modules.json"), modules).expect("written");
        for arguments in [&["embed", "a text", "--model"][..], &["inspect"], &["plan"]] {
            let output = run(command().args(arguments).arg(folder.path()), "");
            refused(&output, &["modules.json", "outside the model's folder"]);
        }
    }
    #[cfg(unix)]
    {
        let folder = copy_with_transformer_in("0_Transformer", ENCODER);
        fs::remove_dir_all(folder.path().join("0_Transformer")).expect("removed");
        std::os::unix::fs::symlink(outside.path(), folder.path().join("0_Transformer")).expect("linked");
        let output = run(command().args(["embed", "a text", "--model"]).arg(folder.path()), "");
        refused(&output, &["0_Transformer", "outside the model's folder"]);
    }
    // A folder that is not there is what is missing.
    let folder = copy_with_transformer_in("0_Transformer", ENCODER);
    fs::rename(folder.path().join("0_Transformer"), folder.path().join("other")).expect("moved");
    let output = run(command().args(["embed", "a text", "--model"]).arg(folder.path()), "");
    refused(&output, &["0_Transformer", "config.json"]);
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2, in the folder SINEW_MINILM"]
fn sixty_four_texts_have_the_bits_of_each_alone_by_minilm() {
    let folder = std::env::var_os("SINEW_MINILM").expect("SINEW_MINILM names a folder");
    assert_alone_as_in_a_batch(Path::new(&folder), None);
}

#[test]
fn sixty_four_texts_as_tokens_have_the_bits_of_each_alone() {
    for name in OTHERS {
        let mut model = model(&fixture_path(name), None);
        let texts: Vec<Vec<u32>> =
            (0..64usize).map(|i| (0..=i * 37 % 60).map(|j| ((i * 31 + j * 17) % 300) as u32).collect()).collect();
        let together = bits(&model.embed_tokens(&texts).expect("the texts embed"));
        for (text, expected) in texts.iter().zip(&together) {
            let alone = model.embed_tokens(std::slice::from_ref(text)).expect("the text embeds");
            assert_eq!(&bits(&alone)[0], expected, "{name}: {} tokens", text.len());
        }
    }
}

/// A copy of a fixture in which files are others.
fn changed(name: &str, files: &[(&str, &str)]) -> TempDir {
    let copy = copy(name);
    for (file, text) in files {
        let path = copy.path().join(file);
        fs::create_dir_all(path.parent().expect("inside")).expect("created");
        fs::write(path, text).expect("written");
    }
    copy
}

const PROMPTS: &str = r#"{"prompts": {"query": "the work of ", "none": ""}, "default_prompt_name": "query"}"#;

#[test]
fn a_prompt_stands_before_the_text_and_may_be_left_out_of_the_pooling() {
    let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]"#;
    let of_prompts = |pooling: &str| {
        let files = [("config_sentence_transformers.json", PROMPTS), ("modules.json", modules)];
        changed(ENCODER, &[files[0], files[1], ("1_Pooling/config.json", pooling)])
    };
    let folder = of_prompts(r#"{"pooling_mode": "mean"}"#);
    let mut with = model(folder.path(), None);
    let spelled = bits(&with.embed_as("none", &["the work of rights"]).expect("the text embeds"));
    assert_eq!(bits(&with.embed_as("query", &["rights"]).expect("the text embeds")), spelled);
    assert_eq!(bits(&with.embed(&["rights"]).expect("the text embeds")), spelled);
    assert_ne!(bits(&with.embed_as("none", &["rights"]).expect("the text embeds")), spelled);
    assert!(with.embed_as("title", &["rights"]).expect_err("no such prompt").to_string().contains("title"));

    let folder = of_prompts(r#"{"pooling_mode": "mean", "include_prompt": false}"#);
    let mut without = model(folder.path(), None);
    let files = Folder::new(folder.path());
    assert!(!files.embedding().expect("valid").include_prompt);
    let tokenizer = files.tokenizer().expect("the tokenizer loads").expect("there is one");
    let tokens = tokenizer.encode("the work of rights", true).expect("the text encodes");
    // [CLS] and the prompt, without its [SEP].
    let prompt = tokenizer.encode("the work of ", true).expect("the prompt encodes").len() - 1;
    let width = without.hidden_size();
    let states = without.hidden_states(&tokens).expect("the tokens are valid");
    let vector = &without.embed(&["rights"]).expect("the text embeds")[0];
    for (i, x) in vector.iter().enumerate() {
        let rows = states.chunks_exact(width).skip(prompt).map(|row| f64::from(row[i]));
        let mean = rows.sum::<f64>() / (tokens.len() - prompt) as f64;
        assert!((f64::from(*x) - mean).abs() < 1e-6, "{x} for {mean}");
    }
}

/// A model by other files, and the vectors that sentence-transformers gives for it (`make_embedding_files.py`).
#[derive(Deserialize)]
struct Case {
    name: String,
    model: String,
    files: BTreeMap<String, Value>,
    tokenizer: BTreeMap<String, Value>,
    prompt_name: Option<String>,
    texts: Vec<String>,
    vectors: Vec<Vec<f32>>,
}

impl Case {
    fn all() -> Vec<Self> {
        let text = fs::read_to_string(fixture_path("embedding_files/expected.json")).expect("the cases are there");
        serde_json::from_str(&text).expect("valid cases")
    }

    fn folder(&self) -> TempDir {
        let folder = copy(&self.model);
        for (file, content) in &self.files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("inside")).expect("created");
            fs::write(path, content.to_string()).expect("written");
        }
        let path = folder.path().join("tokenizer.json");
        let mut tokenizer: Value =
            serde_json::from_str(&fs::read_to_string(&path).expect("a tokenizer")).expect("valid JSON");
        for (field, value) in &self.tokenizer {
            tokenizer[field] = value.clone();
        }
        fs::write(path, tokenizer.to_string()).expect("written");
        folder
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers_by_every_file() {
    let mut wrong = Vec::new();
    for case in Case::all() {
        let mut model = model(case.folder().path(), Some(DType::F32));
        let vectors = match &case.prompt_name {
            Some(name) => model.embed_as(name, &case.texts).expect("the texts embed"),
            None => model.embed(&case.texts).expect("the texts embed"),
        };
        for ((text, found), expected) in case.texts.iter().zip(&vectors).zip(&case.vectors) {
            assert_eq!((found.len(), model.dimensions()), (expected.len(), expected.len()), "{}", case.name);
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let of = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let cosine = of(found, expected) / (of(found, found) * of(expected, expected)).sqrt();
            let scale = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
            if off > 1e-5 * scale || cosine < 1.0 - 1e-5 {
                wrong.push(format!("{}, {text:?}: {off} off, a cosine of {cosine}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_caller_may_keep_other_dimensions() {
    let cases = Case::all();
    let case = &cases[0];
    let mut model = model(case.folder().path(), Some(DType::F32));
    let short = model.embed(&case.texts).expect("the texts embed");
    model.truncate_to(None).expect("all are some");
    let whole = model.embed(&case.texts).expect("the texts embed");
    assert_eq!((short[0].len(), whole[0].len()), (7, model.hidden_size()));
    assert_eq!(bits(&[whole[0][..7].to_vec()]), bits(&short[..1]));
    for most in [3, 1000] {
        model.truncate_to(Some(most)).expect("some");
        let vectors = model.embed(&case.texts).expect("the texts embed");
        let most = most.min(whole[0].len());
        assert_eq!(bits(&vectors), bits(&[whole[0][..most].to_vec(), whole[1][..most].to_vec()]));
    }
    assert!(model.truncate_to(Some(0)).expect_err("none").one_line().contains("0 dimensions"));
}

#[test]
fn texts_are_in_lower_case_where_the_model_was_trained_on_such() {
    let lower = |lower: &str| changed(DECODER, &[("sentence_bert_config.json", lower)]);
    let [with, without] = [r#"{"do_lower_case": true}"#, r#"{"do_lower_case": false}"#].map(lower);
    let [mut with, mut without] = [&with, &without].map(|folder| model(folder.path(), None));
    let [mixed, small] = ["The LICENSE of Écrins", "the license of écrins"];
    let expected = bits(&without.embed(&[small]).expect("the text embeds"));
    assert_eq!(bits(&with.embed(&[mixed]).expect("the text embeds")), expected);
    assert_ne!(bits(&without.embed(&[mixed]).expect("the text embeds")), expected);
}

/// A text of several steps against the logits of a language model with the same weights, whose head is the embedding.
#[test]
fn a_decoder_embeds_a_text_longer_than_a_pass() {
    const TOKENS: usize = 2500;
    let config = fs::read_to_string(fixture_path(DECODER).join("config.json")).expect("the config is there");
    let config = config
        .replace(r#""max_position_embeddings": 256"#, r#""max_position_embeddings": 4096"#)
        .replace(r#""tie_word_embeddings": false"#, r#""tie_word_embeddings": true"#);
    let folder = changed(DECODER, &[("config.json", &config)]);
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|i| (i * 7919 + 3) % 1003).collect();
    let mut embedding = model(folder.path(), Some(DType::F32));
    let width = embedding.hidden_size();
    // A short text before and after: the cache grows in between.
    let short = bits(&embedding.embed_tokens(&[tokens[..9].to_vec()]).expect("the text embeds"));
    let states = embedding.hidden_states(&tokens).expect("the tokens are valid");
    assert_eq!(states.len(), TOKENS * width);
    let vectors = embedding.embed_tokens(&[tokens.clone(), tokens[..9].to_vec()]).expect("the texts embed");
    assert_eq!(bits(&vectors[1..]), short);
    let last = &states[(TOKENS - 1) * width..];
    let norm = last.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let expected: Vec<f32> = last.iter().map(|x| (f64::from(*x) / norm) as f32).collect();
    assert_eq!(vectors[0], expected);

    let checkpoint = Tensors::open(folder.path(), Load::Mmap).expect("the fixture opens");
    let table = checkpoint.tensor("embed_tokens.weight").expect("the embedding is there");
    let table: Vec<f64> = table
        .bytes
        .as_chunks::<2>()
        .0
        .iter()
        .map(|b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)))
        .collect();
    let weights = WeightOptions { dtype: Some(DType::F32), ..WeightOptions::default() };
    let options = LoadOptions { weights, context: Some(TOKENS), ..LoadOptions::default() };
    let mut language = LanguageModel::load(folder.path(), &options).expect("the fixture loads");
    let mut row = 0;
    language
        .logits(&tokens, &mut |logits| {
            for logits in logits.chunks_exact(1003) {
                let state = &states[row * width..(row + 1) * width];
                // Every row would take long; these are on both sides of where steps meet.
                if row % 512 < 2 || row + 1 == TOKENS {
                    for (token, logit) in logits.iter().enumerate() {
                        let vector = &table[token * width..(token + 1) * width];
                        let product: f64 = vector.iter().zip(state).map(|(a, b)| a * f64::from(*b)).sum();
                        assert!((product - f64::from(*logit)).abs() < 1e-4, "row {row}: {product} for {logit}");
                    }
                }
                row += 1;
            }
            Ok(())
        })
        .expect("the tokens are valid");
    assert_eq!(row, TOKENS);
}

#[test]
fn weights_that_are_no_numbers_make_no_vector() {
    let folder = copy(ENCODER);
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).expect("the weights");
    let (length, _) = bytes.split_first_chunk().expect("a length");
    let data = 8 + u64::from_le_bytes(*length) as usize;
    bytes[data..].fill(0xff);
    fs::write(&path, bytes).expect("written");
    let error = model(folder.path(), None).embed(&["the work"]).expect_err("every weight is NaN");
    assert!(error.one_line().contains("text 0"), "{}", error.one_line());
}

#[test]
fn a_decoder_that_no_file_calls_an_embedding_model_is_refused() {
    let folder = fixture_path("qwen3_gqa3_hd80_bf16_tied");
    assert!(!Folder::new(&folder).embeds().expect("the config is valid"));
    let error = EmbeddingModel::load(&folder, &WeightOptions::default()).expect_err("nothing says how to pool");
    assert!(error.one_line().contains("qwen3") && error.one_line().contains("modules.json"), "{}", error.one_line());
}

fn embed(arguments: &[&str], input: &str) -> Output {
    run(command().args(["embed", "--model"]).arg(fixture_path(DECODER)).args(arguments), input)
}

fn lines(output: &Output) -> Vec<String> {
    stdout(output).lines().map(str::to_owned).collect()
}

#[test]
fn the_command_takes_texts_from_a_file_or_standard_input() {
    let expected = lines(&embed(&["--", "first text", "second", "", "fourth, longer than the others"], ""));
    assert_eq!(expected.len(), 4);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("texts");
    fs::write(&file, "second\r\n\nfourth, longer than the others").expect("written");
    let file = file.to_str().expect("the path is UTF-8");
    assert_eq!(lines(&embed(&["--file", file, "first text"], "")), expected);
    let input = "first text\nsecond\n\nfourth, longer than the others\n";
    assert_eq!(lines(&embed(&["--file", "-"], input)), expected);

    // More texts than are read at once, the last of them without an end.
    let many = lines(&embed(
        &["--file", "-", "first text"],
        &format!("{}fourth, longer than the others", "second\n".repeat(1100)),
    ));
    assert_eq!((many.len(), &many[0], &many[1100], &many[1101]), (1102, &expected[0], &expected[1], &expected[3]));

    let prompted = lines(&embed(&["--prompt-name", "query", "second"], ""));
    assert_ne!(prompted[0], expected[1]);
    let short = lines(&embed(&["--truncate-dim", "5", "second"], ""));
    assert_eq!(short[0], expected[1].split(' ').take(5).collect::<Vec<_>>().join(" "));
    let refusal = embed(&["--truncate-dim", "0", "second"], "");
    assert!(!refusal.status.success() && String::from_utf8_lossy(&refusal.stderr).contains("--truncate-dim"));
    for (arguments, word) in [
        (&["--prompt-name", "title", "x"][..], "title"),
        (&["--file", "/nowhere/texts"], "/nowhere/texts"),
        (&["--file", "/"], "cannot read /"),
        (&[], "TEXT"),
    ] {
        refused(&embed(arguments, ""), &[word]);
    }
}

#[test]
fn the_command_embeds_with_weights_that_it_quantizes() {
    let texts = ["first text", "second", "fourth, longer than the others"];
    let exact = lines(&embed(&[&["--"][..], &texts].concat(), ""));
    let format = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false).expect("a format");
    for (name, activations) in [("bf16", Activations::Bf16), ("int8", Activations::Int8)] {
        let form = ["--dtype", "int4", "--activations", name, "--"];
        let printed = lines(&embed(&[&form[..], &texts].concat(), ""));
        let quantize = Some(Quantize { format, per_channel: false, head: true });
        let options = WeightOptions { quantize, activations: Some(activations), ..WeightOptions::default() };
        let mut model = EmbeddingModel::load(fixture_path(DECODER), &options).expect("the model loads");
        let vectors = model.embed(&texts).expect("the texts embed");
        let expected: Vec<String> =
            vectors.iter().map(|vector| vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(printed, expected, "{name}");
        assert_ne!(printed, exact, "{name}");
    }
}
