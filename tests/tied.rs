//! Checkpoints of tied models that have the shared tensor under the head's name alone. safetensors' `save_model` keeps
//! one name of a shared tensor, the first by the alphabet: `lm_head.weight` comes before `model.embed_tokens.weight`.
//! transformers 5 loads each of these files to the logits of the whole one (`AutoModelForCausalLM`,
//! `AutoModelForMaskedLM`).

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sinew::models::precision::Quantize;
use sinew::models::{Load, quantize};
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues};
use tempfile::TempDir;

#[path = "common/fixtures.rs"]
mod fixtures;

use fixtures::{bits, copy_of, fixture_path, tensors, with_tensors};

/// The embedding's name in a model of some type, less what stands before the whole model, and the names that a head's
/// weight has had.
fn names(model_type: &str) -> (&'static str, &'static [&'static str]) {
    match model_type {
        "bert" => ("embeddings.word_embeddings.weight", &["cls.predictions.decoder.weight"]),
        "roberta" | "xlm-roberta" => ("embeddings.word_embeddings.weight", &["lm_head.decoder.weight"]),
        "modernbert" => ("embeddings.tok_embeddings.weight", &["decoder.weight"]),
        "gpt2" => ("wte.weight", &["lm_head.weight"]),
        "gpt_neox" => ("embed_in.weight", &["embed_out.weight", "lm_head.weight"]),
        "gemma3" => ("embed_tokens.weight", &["lm_head.weight", "language_model.lm_head.weight"]),
        _ => ("embed_tokens.weight", &["lm_head.weight"]),
    }
}

/// A fixture whose head is tied, and the same with the shared tensor under each name of the head.
struct Tied {
    name: String,
    whole: TempDir,
    without_embedding: Vec<TempDir>,
}

fn config(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).expect("a config")).expect("valid JSON")
}

fn set_tied(folder: &Path, tied: bool) {
    let mut config = config(folder);
    config["tie_word_embeddings"] = json!(tied);
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

fn tied(path: &Path) -> Tied {
    let model_type = config(path)["model_type"].as_str().expect("a name").to_owned();
    let (embedding, heads) = names(&model_type);
    let whole = copy_of(path);
    set_tied(whole.path(), true);
    with_tensors(whole.path(), |all| all.retain(|name, _| !heads.contains(&name.as_str())));
    let renamed = |head: &&str| {
        let folder = copy_of(whole.path());
        with_tensors(folder.path(), |all| {
            let found = all.keys().find(|name| name.ends_with(embedding)).expect("an embedding").clone();
            let table = all.remove(&found).expect("it is there");
            all.insert((*head).to_owned(), table);
        });
        folder
    };
    let without_embedding = heads.iter().map(renamed).collect();
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    Tied { name, whole, without_embedding }
}

/// All fixtures of floats.
fn models() -> Vec<PathBuf> {
    let folder = fixture_path("");
    let mut all: Vec<PathBuf> =
        folder.read_dir().expect("fixtures").map(|entry| entry.expect("readable").path()).collect();
    all.retain(|path| path.join("expected.safetensors").exists());
    all.sort();
    all
}

/// Logits, or hidden states, of some tokens.
fn outputs(folder: &Path, weights: WeightOptions) -> sinew::models::Result<Vec<u32>> {
    let tokens: Vec<u32> = (0..13).map(|i| (i * 7919 + 3) % 299).collect();
    if Folder::new(folder).embeds()? {
        return Ok(bits(&EmbeddingModel::load(folder, &weights)?.hidden_states(&tokens)?));
    }
    let options = LoadOptions { weights, context: Some(32), ..LoadOptions::default() };
    let mut all = Vec::new();
    LanguageModel::load(folder, &options)?.logits(&tokens, &mut |rows| {
        all.extend(bits(rows));
        Ok(())
    })?;
    Ok(all)
}

/// What a model would take.
fn plan(folder: &Path, ctx: &Context) -> usize {
    let source = Folder::new(folder);
    let (config, checkpoint) = (source.config().expect("valid"), source.checkpoint(Load::Read).expect("a checkpoint"));
    let total = match source.embeds().expect("valid") {
        true => EmbeddingModel::plan(config, &checkpoint, &WeightOptions::default(), ctx).expect("a plan").total(),
        false => {
            let config = config.as_decoder().expect("a decoder");
            LanguageModel::plan(config, &checkpoint, &LoadOptions::default(), ctx).expect("a plan").total()
        }
    };
    let unused: Vec<&str> = checkpoint.unused().filter(|name| name.ends_with("head.weight")).collect();
    assert!(unused.is_empty(), "{unused:?}");
    total
}

#[test]
fn a_head_alone_is_the_embedding_of_tied_models() {
    let ctx = Context::cpu().expect("the CPU");
    let mut families = std::collections::BTreeSet::new();
    for path in models() {
        let Tied { name, whole, without_embedding } = tied(&path);
        let expected = outputs(whole.path(), WeightOptions::default()).expect("the fixture loads");
        let taken = plan(whole.path(), &ctx);
        for folder in &without_embedding {
            let found = outputs(folder.path(), WeightOptions::default())
                .unwrap_or_else(|error| panic!("{name}: {}", error.one_line()));
            assert!(found == expected, "{name} gives other values");
            assert_eq!(plan(folder.path(), &ctx), taken, "{name}");
        }
        families.insert(config(whole.path())["model_type"].as_str().expect("a name").to_owned());
    }
    assert!(families.len() > 18, "{families:?}");
}

/// As transformers 5 holds experts, so that `save_model` writes them: one tensor for gate and up, and one for down.
#[test]
fn experts_in_one_tensor_are_those_of_each() {
    for (name, experts, router, [gate, up, down]) in [
        (
            "mixtral_4experts_gqa3_hd12_f32_old_config",
            "block_sparse_moe.experts",
            "block_sparse_moe.gate",
            ["w1", "w3", "w2"],
        ),
        ("qwen3_moe_4experts_window_hd20_bf16", "mlp.experts", "mlp.gate", ["gate_proj", "up_proj", "down_proj"]),
    ] {
        let Tied { whole, without_embedding, .. } = tied(&fixture_path(name));
        let folder = &without_embedding[0];
        with_tensors(folder.path(), |all| {
            for layer in 0..2 {
                let at = |end: &str| format!("model.layers.{layer}.{end}");
                let mut expert = |e: usize, matrix: &str| all.remove(&at(&format!("{experts}.{e}.{matrix}.weight")));
                let (mut gates, mut downs) = (Vec::new(), Vec::new());
                let (mut dtype, mut shapes, mut count) = (None, [vec![], vec![]], 0);
                while let Some(first) = expert(count, gate) {
                    let [second, third] = [up, down].map(|matrix| expert(count, matrix).expect("it is there"));
                    shapes = [vec![2 * first.1[0], first.1[1]], third.1.clone()];
                    dtype = Some(first.0);
                    gates.extend([first.2, second.2].concat());
                    downs.extend(third.2);
                    count += 1;
                }
                let (Some(dtype), [of_gates, of_downs]) = (dtype, shapes) else { continue };
                let stacked = |shape: Vec<usize>| [vec![count], shape].concat();
                all.insert(at("mlp.experts.gate_up_proj"), (dtype, stacked(of_gates), gates));
                all.insert(at("mlp.experts.down_proj"), (dtype, stacked(of_downs), downs));
                let weight = all.remove(&at(&format!("{router}.weight"))).expect("a router");
                all.insert(at("mlp.gate.weight"), weight);
            }
        });
        assert!(tensors(folder.path()).keys().any(|name| name.ends_with("experts.gate_up_proj")), "{name}");
        let format = BlockFormat::new(BlockValues::Int8, 32, DType::BF16, false).expect("a format");
        let how = Quantize { format, per_channel: true, head: true };
        for quantize in [None, Some(how)] {
            let weights = WeightOptions { quantize, ..WeightOptions::default() };
            let expected = outputs(whole.path(), weights).expect("the fixture loads");
            assert!(outputs(folder.path(), weights).expect("it loads") == expected, "{name} gives other values");
        }
        let (ctx, output) = (Context::cpu().expect("the CPU"), tempfile::tempdir().expect("a folder"));
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let refused = quantize::quantize(&ctx, &Folder::new(folder.path()), output.path(), how, Load::Read, go_on);
        assert!(refused.expect_err("no words for it").one_line().contains("one tensor of several experts"), "{name}");
    }
}

#[test]
fn a_head_alone_is_quantized_as_the_embedding_is() {
    let format = BlockFormat::new(BlockValues::Int8, 32, DType::BF16, false).expect("a format");
    for name in
        ["qwen2_gqa3_hd20_bf16_tied_old_config", "gpt2_hd12_bf16_scaled_by_layer", "roberta_hd12_f32_old_config"]
    {
        let Tied { whole, without_embedding, .. } = tied(&fixture_path(name));
        for head in [true, false] {
            let how = Quantize { format, per_channel: true, head };
            let weights = WeightOptions { quantize: Some(how), ..WeightOptions::default() };
            let expected = outputs(whole.path(), weights).expect("the fixture loads");
            for folder in &without_embedding {
                assert!(outputs(folder.path(), weights).expect("it loads") == expected, "{name}");
            }
        }
        if name.starts_with("gpt2") {
            // Its matrices are stored the other way round, which compressed-tensors has no words for.
            continue;
        }
        let ctx = Context::cpu().expect("the CPU");
        let written = |folder: &Path| {
            let output = tempfile::tempdir().expect("a folder");
            let how = Quantize { format, per_channel: true, head: true };
            let go_on = &mut |_, _| ControlFlow::Continue(());
            let written = quantize::quantize(&ctx, &Folder::new(folder), output.path(), how, Load::Read, go_on);
            (written.expect("written"), output)
        };
        let (of_whole, output) = written(whole.path());
        let expected = outputs(output.path(), WeightOptions::default()).expect("it loads");
        for folder in &without_embedding {
            let (found, output) = written(folder.path());
            assert_eq!((found.modules, &found.kept), (of_whole.modules, &of_whole.kept), "{name}");
            assert!(outputs(output.path(), WeightOptions::default()).expect("it loads") == expected, "{name}");
            assert!(
                tensors(output.path())
                    .keys()
                    .any(|name| name.ends_with("head.weight") || name == "lm_head.decoder.weight")
            );
        }
    }
}

#[test]
fn an_untied_head_alone_is_no_embedding() {
    for name in ["qwen2_gqa3_hd20_bf16_tied_old_config", "gpt2_hd12_bf16_scaled_by_layer", "modernbert_hd12_bf16"] {
        let Tied { without_embedding, .. } = tied(&fixture_path(name));
        for folder in without_embedding {
            set_tied(folder.path(), false);
            let line = outputs(folder.path(), WeightOptions::default()).expect_err("no embedding").one_line();
            assert!(line.contains("no tensor `") && line.contains("mbed") || line.contains("wte"), "{line}");
        }
    }
}
