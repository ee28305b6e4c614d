//! Quantized checkpoints that are written: their weights are those of quantizing while loading, and nothing else changes.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use sinew::models::precision::{Quantize, main_dtype};
use sinew::models::quantize::{Quantized, quantize};
use sinew::models::{self, Error, Load};
use sinew::prelude::*;
use sinew::tensor::{BlockFormat, BlockValues};
use tempfile::TempDir;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, refused, run, sinew, stdout};
use fixtures::{
    Tensors, bits, copy, copy_with_transformer_in, fixture, fixture_path, save, tensors, with_field, with_tensors,
};

const SHARDED: &str = "qwen2_gqa3_hd12_f16_untied_3shards";
const TIED: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";

/// A model whose rows are divided by groups of 128, untied, with biases.
fn model() -> TempDir {
    model_of(128, 256, 300)
}

fn model_of(hidden: usize, width: usize, vocab: usize) -> TempDir {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        ("lm_head.weight".to_owned(), vec![vocab, hidden]),
    ];
    for layer in 0..2 {
        let sizes: [(&str, Vec<usize>); 12] = [
            ("input_layernorm.weight", vec![hidden]),
            ("post_attention_layernorm.weight", vec![hidden]),
            ("self_attn.q_proj.weight", vec![hidden, hidden]),
            ("self_attn.q_proj.bias", vec![hidden]),
            ("self_attn.k_proj.weight", vec![hidden / 2, hidden]),
            ("self_attn.k_proj.bias", vec![hidden / 2]),
            ("self_attn.v_proj.weight", vec![hidden / 2, hidden]),
            ("self_attn.v_proj.bias", vec![hidden / 2]),
            ("self_attn.o_proj.weight", vec![hidden, hidden]),
            ("mlp.gate_proj.weight", vec![width, hidden]),
            ("mlp.up_proj.weight", vec![width, hidden]),
            ("mlp.down_proj.weight", vec![hidden, width]),
        ];
        shapes.extend(sizes.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    let mut state = 1u64;
    let mut value = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // The upper half of an f32, which is a bf16, between -0.25 and 0.25.
        (((state >> 40) as f32 / (1 << 24) as f32 - 0.5) / 2.0).to_le_bytes()
    };
    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, shape)| (0..shape.iter().product()).flat_map(|_| [value()[2], value()[3]]).collect())
        .collect();
    let views = shapes.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).expect("a file"))
        .expect("written");
    let config = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": hidden, "vocab_size": vocab,
        "intermediate_size": width, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    folder
}

fn how(values: BlockValues, group: Option<usize>, zero_points: bool, head: bool) -> Quantize {
    let format = BlockFormat::new(values, group.unwrap_or(128), DType::BF16, zero_points).expect("a format");
    Quantize { format, per_channel: group.is_none(), head }
}

/// The model in a folder, quantized into another.
fn written(source: &Path, how: Quantize) -> (TempDir, Quantized) {
    let folder = tempfile::tempdir().expect("a folder");
    let (ctx, mut last) = (Context::cpu().expect("the CPU is there"), (0, 0));
    let report = &mut |done, total| {
        assert!(done > last.0 && done <= total, "{done} of {total} after {last:?}");
        last = (done, total);
        ControlFlow::Continue(())
    };
    let written = quantize(&ctx, &Folder::new(source), folder.path(), how, Load::Mmap, report);
    let written = written.unwrap_or_else(|error| panic!("{}: {}", source.display(), error.one_line()));
    assert_eq!(last.0, last.1, "all is done at the end");
    (folder, written)
}

/// What the model in a folder says of some tokens: logits or hidden states.
fn outputs(folder: &Path, weights: WeightOptions) -> Vec<u32> {
    let tokens: Vec<u32> = (0..23).map(|i| (i * 7919 + 3) % 299).collect();
    let source = Folder::new(folder);
    if source.embeds().expect("a model") {
        let mut model = EmbeddingModel::load(folder, &weights).expect("the model loads");
        return bits(&model.hidden_states(&tokens).expect("the model runs"));
    }
    let mut model = LanguageModel::load(folder, &LoadOptions { weights, ..LoadOptions::default() })
        .unwrap_or_else(|error| panic!("{}: {}", folder.display(), error.one_line()));
    let mut all = Vec::new();
    model
        .logits(&tokens, &mut |rows| {
            all.extend(bits(rows));
            Ok(())
        })
        .expect("the model runs");
    all
}

/// Those of quantizing it while it is loaded, in the dtype of its files.
fn while_loading(folder: &Path, how: Quantize) -> Vec<u32> {
    let dtype = Some(main_dtype(&models::Tensors::open(folder, Load::Mmap).expect("a checkpoint")).expect("floats"));
    outputs(folder, WeightOptions { dtype, quantize: Some(how), ..WeightOptions::default() })
}

fn config(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).expect("a config")).expect("valid JSON")
}

/// What is not quantized has the same bytes, and modules that are have no others than theirs.
fn assert_others_are_as_they_were(source: &Path, quantized: &Path, modules: usize) {
    let (before, mut after) = (tensors(source), tensors(quantized));
    let mut replaced = 0;
    for (name, tensor) in &before {
        let module = name.strip_suffix(".weight").unwrap_or_default();
        if after.remove(&format!("{module}.weight_scale")).is_none() {
            assert!(after.remove(name).as_ref() == Some(tensor), "{name}");
            continue;
        }
        replaced += 1;
        let packed = after.remove(&format!("{module}.weight_packed"));
        match &packed {
            Some(_) => {
                let shape: Vec<u8> = tensor.1.iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
                assert!(after.remove(&format!("{module}.weight_shape")).is_some_and(|(.., bytes)| bytes == shape));
            }
            None => {
                let (dtype, shape, _) = after.remove(name).expect("the codes");
                assert_eq!((dtype, &shape), (Dtype::F8_E4M3, &tensor.1), "{name}");
            }
        }
        after.remove(&format!("{module}.weight_zero_point"));
    }
    assert_eq!(replaced, modules);
    assert!(after.is_empty(), "{:?}", after.keys());
    let (before, mut after) = (config(source), config(quantized));
    assert!(after.as_object_mut().expect("an object").remove("quantization_config").is_some());
    assert_eq!(before, after);
}

#[test]
fn every_format_gives_the_logits_of_quantizing_while_loading() {
    use BlockValues::{F8E4M3, Int4, Int8};
    let source = model();
    let plain = outputs(source.path(), WeightOptions::default());
    let mut seen = vec![plain];
    for (values, group, zero_points, head, format) in [
        (Int4, Some(32), false, true, "pack-quantized"),
        (Int4, Some(64), true, true, "pack-quantized"),
        (Int4, Some(128), false, false, "pack-quantized"),
        (Int4, None, false, true, "pack-quantized"),
        (Int4, None, true, false, "pack-quantized"),
        (Int8, Some(32), true, true, "pack-quantized"),
        (Int8, Some(128), false, true, "pack-quantized"),
        (Int8, None, false, true, "pack-quantized"),
        (Int8, None, true, true, "pack-quantized"),
        (F8E4M3, None, false, true, "float-quantized"),
        (F8E4M3, Some(32), false, false, "float-quantized"),
    ] {
        let how = how(values, group, zero_points, head);
        let (folder, written) = written(source.path(), how);
        let found = outputs(folder.path(), WeightOptions::default());
        assert!(found == while_loading(source.path(), how), "{how:?}");
        assert!(!seen.contains(&found), "{how:?} is rounded in another way than the others");
        seen.push(found);
        assert_others_are_as_they_were(source.path(), folder.path(), written.modules);

        let kept: &[&str] = if head { &[] } else { &["lm_head"] };
        assert_eq!(written.modules, 14 + usize::from(head));
        assert_eq!(written.kept, kept);
        let config = &config(folder.path())["quantization_config"];
        assert_eq!((&config["format"], &config["ignore"]), (&json!(format), &json!(kept)));
        let weights = &config["config_groups"]["group_0"]["weights"];
        assert_eq!(weights["strategy"], if group.is_some() { "group" } else { "channel" });
        assert_eq!(weights["group_size"], json!(group));
        assert_eq!(weights["symmetric"], !zero_points);
        let bytes: usize = tensors(folder.path()).values().map(|(.., bytes)| bytes.len()).sum();
        assert_eq!(written.bytes_after, bytes as u64);
        assert!(written.bytes_after < written.bytes_before);
    }
}

#[test]
fn weights_larger_than_a_slice_are_written_whole() {
    use BlockValues::{F8E4M3, Int4, Int8};
    // The embedding, which is copied, and the head have a slice of 16 MiB each, and some odd rows more.
    let source = model_of(512, 128, (16 << 10) + 117);
    for how in [how(Int4, Some(128), true, true), how(Int8, None, true, true), how(F8E4M3, None, false, true)] {
        let (folder, written) = written(source.path(), how);
        assert_others_are_as_they_were(source.path(), folder.path(), written.modules);
        let found = outputs(folder.path(), WeightOptions::default());
        assert!(found == while_loading(source.path(), how), "{how:?}");
    }
}

#[test]
fn a_quantized_head_is_used_whatever_the_config_says() {
    let source = model();
    let (folder, _) = written(source.path(), how(BlockValues::Int4, Some(32), false, true));
    let expected = outputs(folder.path(), WeightOptions::default());
    with_field(folder.path(), "tie_word_embeddings", &json!(true));
    assert!(outputs(folder.path(), WeightOptions::default()) == expected);
}

#[test]
fn quantized_embeddings_are_looked_up_and_multiplied_by() {
    let (embedding, head) = ("model.embed_tokens.", "lm_head.");
    let how = how(BlockValues::Int4, Some(32), false, true);
    let source = model();
    let (folder, _) = written(source.path(), how);
    let mut section = config(folder.path())["quantization_config"].take();
    section["config_groups"]["group_0"]["targets"] = json!(["Linear", "Embedding"]);
    with_field(folder.path(), "quantization_config", &section);
    // The head becomes the embedding, beside itself.
    for path in [source.path(), folder.path()] {
        let mut all = tensors(path);
        all.retain(|name, _| !name.starts_with(embedding));
        let of_head = all.iter().filter_map(|(name, tensor)| Some((name.strip_prefix(head)?, tensor)));
        let of_head: Tensors = of_head.map(|(end, tensor)| (format!("{embedding}{end}"), tensor.clone())).collect();
        all.extend(of_head);
        save(path, &all);
    }
    assert!(tensors(folder.path()).contains_key("model.embed_tokens.weight_packed"));
    let found = outputs(folder.path(), WeightOptions::default());
    let stored = Folder::new(folder.path()).checkpoint(Load::Mmap).expect("a checkpoint");
    let module = stored.module("model.embed_tokens").expect("it fits").expect("it is quantized");
    let floats = module.dequantized(&stored, 0..module.shape()[0]).expect("floats");
    let mut dense = tensors(folder.path());
    dense.retain(|name, _| !name.starts_with(embedding));
    dense.insert(format!("{embedding}weight"), (Dtype::BF16, module.shape().to_vec(), floats));
    let plain = tempfile::tempdir().expect("a folder");
    fs::copy(folder.path().join("config.json"), plain.path().join("config.json")).expect("copied");
    save(plain.path(), &dense);
    assert!(outputs(plain.path(), WeightOptions::default()) == found);
    // And in the place of itself.
    for path in [source.path(), folder.path()] {
        let mut all = tensors(path);
        all.retain(|name, _| !name.starts_with(head));
        save(path, &all);
        with_field(path, "tie_word_embeddings", &json!(true));
    }
    let quantized = while_loading(source.path(), how);
    for targets in [json!(["Linear", "Embedding"]), json!(["re:.*"])] {
        section["config_groups"]["group_0"]["targets"] = targets;
        with_field(folder.path(), "quantization_config", &section);
        assert!(outputs(folder.path(), WeightOptions::default()) == quantized);
    }
    section["config_groups"]["group_0"]["targets"] = json!(["Linear"]);
    with_field(folder.path(), "quantization_config", &section);
    let refused = LanguageModel::load(folder.path(), &LoadOptions::default()).expect_err("no target").one_line();
    assert!(refused.contains("embed_tokens") && refused.contains("no target"), "{refused}");
}

#[test]
fn weights_that_are_no_numbers_are_not_quantized() {
    // The largest of bf16 is a number, and twice as much is none.
    let largest = f32::from_bits(0x7f7f_0000);
    let mut place = 0;
    for (name, value) in [
        ("mlp.down_proj", f32::NAN),
        ("self_attn.k_proj", f32::INFINITY),
        ("mlp.up_proj", -f32::INFINITY),
        ("mlp.gate_proj", -largest),
    ] {
        let source = model();
        let weight = format!("model.layers.1.{name}.weight");
        let mut all = tensors(source.path());
        let bytes = &mut all.get_mut(&weight).expect("it is there").2;
        // In another row and column each time.
        place += 2 * 131;
        bytes[place..place + 2].copy_from_slice(&value.to_le_bytes()[2..]);
        save(source.path(), &all);
        outputs(source.path(), WeightOptions::default());
        for (values, zero_points) in
            [(BlockValues::Int4, true), (BlockValues::Int8, false), (BlockValues::F8E4M3, false)]
        {
            let how = how(values, None, zero_points, true);
            let words = [weight.as_str(), "cannot be quantized"];
            let weights = WeightOptions { quantize: Some(how), ..WeightOptions::default() };
            let options = LoadOptions { weights, ..LoadOptions::default() };
            let loading = LanguageModel::load(source.path(), &options).expect_err("not finite").one_line();
            let output = tempfile::tempdir().expect("a folder");
            let (ctx, folder, go_on) =
                (Context::cpu().expect("the CPU is there"), Folder::new(source.path()), &mut |_, _| {
                    ControlFlow::Continue(())
                });
            let writing = quantize(&ctx, &folder, output.path(), how, Load::Mmap, go_on).expect_err("not finite");
            for error in [loading, writing.one_line()] {
                assert!(words.iter().all(|word| error.contains(word)), "{error}");
            }
            assert!(names_in(output.path()).is_empty());
        }
    }
    // Half as much, in a row of both signs, is the most that is quantized: all that it becomes is a number.
    let source = model();
    let weight = "model.layers.1.mlp.gate_proj.weight";
    let mut all = tensors(source.path());
    let [half, less] = [0x7eff_0000u32, 0xfeff_0000].map(|bits| bits.to_le_bytes());
    let row = &mut all.get_mut(weight).expect("it is there").2[..256];
    row.chunks_exact_mut(4).for_each(|pair| pair.copy_from_slice(&[half[2], half[3], less[2], less[3]]));
    save(source.path(), &all);
    for values in [BlockValues::Int4, BlockValues::Int8] {
        for group in [Some(32), None] {
            let (folder, _) = written(source.path(), how(values, group, true, true));
            let stored = Folder::new(folder.path()).checkpoint(Load::Mmap).expect("a checkpoint");
            let module = stored.module("model.layers.1.mlp.gate_proj").expect("it fits").expect("it is quantized");
            let row = module.dequantized(&stored, 0..1).expect("a row of finite scales");
            let row = row.as_chunks().0.iter().map(|&[low, high]| f32::from_le_bytes([0, 0, low, high]));
            assert!(row.clone().all(|x| (1.5e38..f32::MAX).contains(&x.abs())), "{row:?}");
        }
    }
    // A tensor that lies column after column.
    let source = copy("gpt2_no_prefix_hd12_f32_with_masks_old_config");
    let mut all = tensors(source.path());
    let name = all.keys().find(|name| name.ends_with("mlp.c_fc.weight")).expect("it is there").clone();
    let bytes = &mut all.get_mut(&name).expect("it is there").2;
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    save(source.path(), &all);
    let weights =
        WeightOptions { quantize: Some(how(BlockValues::Int8, None, false, true)), ..WeightOptions::default() };
    let options = LoadOptions { weights, ..LoadOptions::default() };
    let error = LanguageModel::load(source.path(), &options).expect_err("not finite").one_line();
    assert!(error.contains(&name) && error.contains("cannot be quantized"), "{error}");
}

#[test]
fn every_architecture_gives_the_outputs_of_quantizing_while_loading() {
    let kept_head: &[&str] = &["lm_head"];
    let images = [
        "lm_head",
        r"re:(.*\.)?vision_tower\.embeddings\.position_embedding$",
        r"re:(.*\.)?vision_tower\.encoder\.layers\.0\.mlp\.fc1$",
    ];
    let routers = ["lm_head", "model.layers.0.block_sparse_moe.gate", "model.layers.1.block_sparse_moe.gate"];
    let masked = ["cls.predictions.decoder", r"re:(.*\.)?cls\.predictions\.transform\.dense$"];
    for (name, values, modules, kept) in [
        (TIED, BlockValues::Int4, 14, kept_head),
        (SHARDED, BlockValues::Int8, 15, &[]),
        ("phi3_plain_rope_gqa3_hd12_f16_untied", BlockValues::Int4, 9, &[]),
        ("gpt_neox_parallel_quarter_rotary_hd16_bf16", BlockValues::Int8, 9, &[]),
        ("mixtral_5experts_window_gqa3_hd20_bf16", BlockValues::Int4, 38, &routers),
        ("gemma3_with_images_gqa3_hd20_bf16_old_config", BlockValues::F8E4M3, 14, &images),
        // The config ties a head that the files have: transformers would not know it if it were quantized.
        ("llama_linear_rope_gqa3_hd12_bf16_tied_config_own_head", BlockValues::Int4, 14, kept_head),
        ("qwen3_embedding_no_prefix_gqa3_hd20_bf16", BlockValues::Int4, 14, kept_head),
        ("bert_masked_lm_prefix_hd12_bf16_3shards", BlockValues::Int8, 12, &masked),
        ("modernbert_hd20_f16_all_biases", BlockValues::F8E4M3, 16, &[]),
    ] {
        let source = fixture_path(name);
        let quantized = how(values, None, false, true);
        let (folder, written) = written(&source, quantized);
        assert_others_are_as_they_were(&source, folder.path(), modules);
        assert_eq!(written.modules, modules, "{name}: {:?}", written.kept);
        assert!(kept.iter().all(|&kept| written.kept.iter().any(|other| other == kept)), "{name}: {:?}", written.kept);
        assert!(written.kept.len() == kept.len() || kept.len() == images.len(), "{name}: {:?}", written.kept);
        // A tied head is not rounded in the files.
        let head = !written.kept.iter().any(|kept| kept == "lm_head");
        let expected = while_loading(&source, Quantize { head, ..quantized });
        assert!(outputs(folder.path(), WeightOptions::default()) == expected, "{name}");
        for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "1_Pooling/config.json"] {
            let [before, after] = [&*source, folder.path()].map(|folder| fs::read(folder.join(file)).ok());
            assert!(before == after, "{name}: {file}");
        }
    }
}

#[test]
fn as_many_files_as_before_and_an_index_of_them() {
    let source = fixture_path(SHARDED);
    let (folder, written) = written(&source, how(BlockValues::Int4, None, true, true));
    let index = fs::read_to_string(folder.path().join("model.safetensors.index.json")).expect("an index");
    let index: Value = serde_json::from_str(&index).expect("valid JSON");
    assert_eq!(index["metadata"]["total_size"], written.bytes_after);
    let map = index["weight_map"].as_object().expect("an object");
    assert!(map.keys().eq(tensors(folder.path()).keys()));
    for shard in 1..=3 {
        let name = format!("model-0000{shard}-of-00003.safetensors");
        assert!(map.values().any(|file| *file == *name), "{name}");
        let bytes = fs::read(folder.path().join(&name)).expect("a file");
        let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        assert_eq!(metadata.metadata().as_ref().and_then(|all| all.get("format")).map(String::as_str), Some("pt"));
        // As readers that map files want them.
        for (tensor, info) in metadata.tensors() {
            let at = 8 + header + info.data_offsets.0;
            assert!((at * 8).is_multiple_of(info.dtype.bitsize()), "{tensor} at {at}");
        }
    }
    assert!(!folder.path().join("model.safetensors").exists());
}

/// What is in the folder where an output would be.
fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.into_string().expect("UTF-8")).collect()
}

#[test]
fn the_command_writes_a_folder_that_loads() {
    let place = tempfile::tempdir().expect("a folder");
    let output = place.path().join("int4");
    let output = output.to_str().expect("UTF-8");
    let common =
        ["quantize", "--model", &fixture(TIED), "--output", output, "--dtype", "int4", "--group-size", "channel"];
    let summary: Value = serde_json::from_str(&stdout(&sinew(&[&common[..], &["--json"]].concat()))).expect("JSON");
    assert_eq!((&summary["modules"], &summary["kept"]), (&json!(14), &json!(["lm_head"])));
    assert_eq!(summary["tied_head_kept"], true);
    assert!(summary["bytes_after"].as_u64() < summary["bytes_before"].as_u64());
    assert_eq!(names_in(place.path()), ["int4"]);
    let text = |model: &str, more: &[&str]| {
        stdout(&sinew(&[&["generate", "--model", model, "--prompt", "Hello", "--max-new-tokens", "8"], more].concat()))
    };
    let loading = ["--dtype", "int4", "--group-size", "channel", "--keep-head"];
    assert_eq!(text(output, &[]), text(&fixture(TIED), &loading));

    // What is there is not overwritten, and what is quantized is not quantized again.
    refused(&sinew(&common), &["int4", "is not empty"]);
    let again = place.path().join("again");
    let again = again.to_str().expect("UTF-8");
    refused(&sinew(&["quantize", "--model", output, "--output", again, "--dtype", "int8"]), &["quantized already"]);
    let fp8 = ["quantize", "--model", &fixture(TIED), "--output", again, "--dtype", "fp8"];
    let text = stdout(&sinew(&fp8));
    assert!(text.starts_with("14 modules quantized, 1 as they are"), "{text}");
    assert!(text.contains("the config ties the head to the embedding") && text.contains("--dtype fp8"), "{text}");
    // Groups are the same by default, whichever of both rounds.
    let logits = |model: &str, more: &[&str]| {
        let file = place.path().join("logits.safetensors");
        let to = ["logits", "--model", model, "--tokens", "1,2,3", "--output", file.to_str().expect("UTF-8")];
        stdout(&sinew(&[&to[..], more].concat()));
        fs::read(file).expect("logits")
    };
    assert!(logits(again, &[]) == logits(&fixture(TIED), &["--dtype", "fp8", "--keep-head"]));
    let kept = place.path().join("kept");
    let kept = ["quantize", "--model", &fixture(TIED), "--output", kept.to_str().expect("UTF-8"), "--dtype", "fp8"];
    let text = stdout(&sinew(&[&kept[..], &["--keep-head"]].concat()));
    assert!(!text.contains("ties the head"), "{text}");
}

#[test]
fn settings_count_as_where_models_are_loaded() {
    let (source, place) = (model(), tempfile::tempdir().expect("a folder"));
    let source = source.path().to_str().expect("UTF-8");
    let weights = |dtype: &str, variables: &[(&str, &str)], more: &[&str]| {
        let output = tempfile::tempdir_in(place.path()).expect("a folder");
        let to = output.path().to_str().expect("UTF-8");
        let arguments = [&["quantize", "--model", source, "--output", to, "--dtype", dtype], more].concat();
        stdout(&run(command().args(arguments).envs(variables.iter().copied()), ""));
        let config = config(output.path())["quantization_config"].clone();
        let weights = &config["config_groups"]["group_0"]["weights"];
        (weights["group_size"].clone(), weights["symmetric"].clone(), config["ignore"].clone())
    };
    let all = [("SINEW_GROUP_SIZE", "64"), ("SINEW_ZERO_POINTS", "true"), ("SINEW_KEEP_HEAD", "true")];
    assert_eq!(weights("int4", &[], &[]), (json!(32), json!(true), json!([])));
    assert_eq!(weights("int4", &all, &[]), (json!(64), json!(false), json!(["lm_head"])));
    assert_eq!(weights("int4", &all, &["--set", "group_size=128"]).0, 128);
    assert_eq!(weights("int4", &all, &["--group-size", "channel", "--keep-head=false"]).2, json!([]));
    // What a variable says there is for other commands as well.
    let limit = [all[0], all[1], ("SINEW_MEMORY_LIMIT", "1KiB")];
    assert_eq!(weights("fp8", &limit, &[]), (json!(64), json!(true), json!([])));
}

#[cfg(unix)]
#[test]
fn folders_whose_names_are_no_utf_8_are_read_and_written() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let place = tempfile::tempdir().expect("a folder");
    let [source, output] = [&b"s\xffurce"[..], b"int8\xfe"].map(|name| place.path().join(OsStr::from_bytes(name)));
    std::os::unix::fs::symlink(fixture_path(TIED), &source).expect("a link");
    let mut command = command();
    command.args(["quantize", "--dtype", "int8", "--group-size", "channel", "--json", "--model"]).arg(source);
    let summary: Value = serde_json::from_str(&stdout(&run(command.arg("--output").arg(&output), ""))).expect("JSON");
    assert!(summary["output"].as_str().expect("a text").ends_with("int8\u{fffd}"), "{summary}");
    assert!(output.join("config.json").is_file());
}

#[test]
fn what_cannot_be_written_is_refused_and_leaves_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, "").expect("written");
    let at = |name: &str| place.path().join(name).into_os_string().into_string().expect("UTF-8");
    let tied = copy(TIED);
    let path = tied.path().to_str().expect("UTF-8");
    let quantize = |model: &str, output: &str, more: &[&str], words: &[&str]| {
        refused(&sinew(&[&["quantize", "--model", model, "--output", output], more].concat()), words);
    };
    let channel = ["--dtype", "int4", "--group-size", "channel"];
    quantize(path, &at("new"), &["--dtype", "int4"], &["q_proj", "groups of 32", "rows of 36", "channel"]);
    quantize(path, path, &channel, &["the model itself"]);
    quantize(path, &at("file"), &channel, &["is a file"]);
    quantize(path, &at("no/such/place"), &channel, &["cannot create", "no/such/place:"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(at("nowhere"), at("link")).expect("a link");
        quantize(path, &at("link"), &channel, &["/link", "a link to nothing"]);
        quantize(path, &at("link/"), &channel, &["/link", "a link to nothing"]);
        fs::remove_file(at("link")).expect("removed");
    }
    quantize(path, &at("new"), &["--dtype", "bf16"], &["int4, int8 and fp8"]);
    quantize(path, &at("new"), &["--dtype", "fp8", "--zero-points"], &["--zero-points", "int8 and int4"]);
    quantize(path, &at("new"), &["--dtype", "int4", "--group-size", "96"], &["32, 64, 128 and channel"]);
    let transposed = fixture("gpt2_hd10_bf16_scaled_by_layer_alone");
    quantize(&transposed, &at("new"), &channel, &["c_attn", "[inputs, outputs]", "--dtype"]);
    let experts = fixture("mixtral_5experts_window_gqa3_hd20_bf16");
    let with_zero_points = [&channel[..], &["--zero-points"]].concat();
    quantize(&experts, &at("new"), &with_zero_points, &["experts with zero points"]);
    let published = fixture("quantized/gptq_4bit_g128_llama_f16");
    quantize(&published, &at("new"), &channel, &["quantized already", "GPTQ"]);
    with_field(tied.path(), "quantization_config", &json!({}));
    quantize(path, &at("new"), &channel, &["quantization_config", "take it out"]);
    with_field(tied.path(), "quantization_config", &Value::Null);
    with_field(tied.path(), "intermediate_size", &json!(48));
    quantize(path, &at("new"), &channel, &["shape"]);
    assert_eq!(names_in(place.path()), ["file"]);
}

#[test]
fn what_loading_refuses_beside_the_weights_is_not_quantized() {
    // A module whose weights are in a file of its own.
    let modules = ["Transformer", "Pooling", "Dense"].map(|class| {
        json!({ "type": format!("sentence_transformers.models.{class}"), "path": if class == "Pooling" { "1_Pooling" } else { "" } })
    });
    let place = tempfile::tempdir().expect("a folder");
    let output = place.path().join("new").into_os_string().into_string().expect("UTF-8");
    let fixture = "bert_hd20_f32_wordpiece";
    for (file, text, word) in [
        ("modules.json", json!(modules).to_string(), "`Dense`"),
        ("tokenizer_config.json", json!({ "model_max_length": "many" }).to_string(), "model_max_length"),
        ("tokenizer.json", "{".to_owned(), "tokenizer.json"),
    ] {
        let source = copy(fixture);
        let pooling = source.path().join("1_Pooling");
        fs::create_dir_all(&pooling).expect("a folder");
        fs::write(pooling.join("config.json"), "{}").expect("written");
        fs::write(source.path().join(file), text).expect("written");
        let model = source.path().to_str().expect("UTF-8");
        refused(&sinew(&["embed", "--model", model, "a text"]), &[word]);
        let quantize =
            ["quantize", "--model", model, "--output", &output, "--dtype", "int8", "--group-size", "channel"];
        refused(&sinew(&quantize), &[word]);
        assert!(names_in(place.path()).is_empty());
    }
}

/// Gives a file tensors without elements, whose shapes or names are long, until its header has so many bytes but for a few.
/// Their names begin with `letter`.
fn pad(path: &Path, letter: &str, most: usize, long_shapes: bool) {
    let bytes = fs::read(path).expect("it is there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("it is valid");
    let shape = [vec![0], vec![usize::MAX; if long_shapes { 63 } else { 0 }]].concat();
    let with = |count: usize, filler: usize| {
        let names = (0..count).map(|i| format!("{letter}{i:06}")).chain([letter.repeat(filler)]);
        let pads = names.map(|name| (name, TensorView::new(Dtype::U8, shape.clone(), &[]).expect("no elements")));
        safetensors::serialize(file.tensors().into_iter().chain(pads), None).expect("a file")
    };
    let header = |file: &[u8]| u64::from_le_bytes(*file.first_chunk().expect("a header")) as usize;
    // A header is filled up to a multiple of 8.
    let of_one = (header(&with(8, 1)) - header(&with(0, 1))) / 8;
    let count = if long_shapes { (most - header(&with(0, 1))) / of_one } else { 0 };
    let left = most - header(&with(count, 1));
    fs::write(path, with(count, 1 + left / 8 * 8)).expect("written");
}

#[test]
fn what_would_not_be_read_again_is_refused_before_anything_is_written() {
    let place = tempfile::tempdir().expect("a folder");
    let (ctx, output) = (Context::cpu().expect("the CPU is there"), place.path().join("output"));
    let refused = |source: &Path, words: &[&str]| {
        outputs(source, WeightOptions::default());
        let how = how(BlockValues::Int4, None, false, true);
        let written = quantize(&ctx, &Folder::new(source), &output, how, Load::Mmap, &mut |_, _| {
            panic!("{words:?}: the model is read");
        });
        let refused = written.expect_err("it could not be read").one_line();
        assert!(words.iter().all(|word| refused.contains(word)), "{words:?}: {refused}");
        assert!(names_in(place.path()).is_empty());
    };
    let source = model();
    pad(&source.path().join("model.safetensors"), "z", 16 << 20, true);
    refused(source.path(), &["model.safetensors", "the header of", "tensors has", "at most 16777216"]);
    let shards = [("x", 1), ("y", 2), ("z", 3)];
    let shards = shards.map(|(letter, shard)| (letter, format!("model-0000{shard}-of-00003.safetensors")));
    for (most, words) in [
        (20 << 20, ["with headers of", "tensors", "20971520"]),
        (18 << 20, ["with an index of", "tensors", "16777216"]),
    ] {
        let source = copy(SHARDED);
        shards.iter().for_each(|(letter, shard)| pad(&source.path().join(shard), letter, most / 3, false));
        refused(source.path(), &words);
    }
}

#[test]
fn what_is_of_other_weights_is_not_copied_nor_a_config_over_the_one_that_is_written() {
    let source = copy("bert_hd20_f32_wordpiece");
    for index in ["model.safetensors.index.json", "pytorch_model.bin.index.json", "tf_model.h5.index.json"] {
        fs::write(source.path().join(index), "{}").expect("written");
    }
    fs::create_dir_all(source.path().join("1_Pooling")).expect("a folder");
    fs::write(source.path().join("1_Pooling/config.json"), "{}").expect("written");
    let modules = [("Transformer", "."), ("Pooling", "./1_Pooling/")]
        .map(|(class, path)| json!({ "type": format!("sentence_transformers.models.{class}"), "path": path }));
    fs::write(source.path().join("modules.json"), json!(modules).to_string()).expect("written");
    let (folder, _) = written(source.path(), how(BlockValues::Int8, None, false, true));
    assert!(config(folder.path()).get("quantization_config").is_some());
    assert!(folder.path().join("1_Pooling/config.json").is_file());
    assert!(!names_in(folder.path()).iter().any(|name| name.ends_with(".index.json")));
}

#[test]
fn a_transformer_in_a_folder_of_its_own_stays_there() {
    for name in ["bert_hd20_f32_wordpiece", "bert_masked_lm_prefix_hd12_bf16_3shards"] {
        let source = copy_with_transformer_in("0_Transformer", name);
        let how = how(BlockValues::Int8, None, false, true);
        let (folder, _) = written(source.path(), how);
        let inside = folder.path().join("0_Transformer");
        assert!(config(&inside).get("quantization_config").is_some());
        assert!(!folder.path().join("config.json").exists() && folder.path().join("modules.json").is_file());
        assert!(folder.path().join("1_Pooling/config.json").is_file());
        let files = |folder: &Path| names_in(folder).iter().filter(|name| name.ends_with(".safetensors")).count();
        assert_eq!(files(&inside), files(&source.path().join("0_Transformer")));
        let same = copy(name);
        assert_eq!(outputs(folder.path(), WeightOptions::default()), while_loading(same.path(), how), "{name}");
    }
}

#[test]
fn what_a_killed_run_has_left_is_not_in_the_way() {
    let (source, place) = (fixture_path(TIED), tempfile::tempdir().expect("a folder"));
    let (ctx, folder, how) =
        (Context::cpu().expect("the CPU is there"), Folder::new(source), how(BlockValues::Int8, None, false, true));
    let [new, empty] = ["new", "empty"].map(|name| place.path().join(name));
    // In containers it often has the same id.
    for id in [0, std::process::id()] {
        fs::create_dir_all(place.path().join(format!(".new.{id}.unfinished"))).expect("a folder");
        fs::create_dir_all(empty.join(format!(".empty.{id}.unfinished"))).expect("a folder");
    }
    for output in [new, empty] {
        let written = quantize(&ctx, &folder, &output, how, Load::Mmap, &mut |_, _| ControlFlow::Continue(()));
        written.unwrap_or_else(|error| panic!("{}", error.one_line()));
        outputs(&output, WeightOptions::default());
    }
    let mut left = names_in(place.path());
    left.retain(|name| name.ends_with(".unfinished"));
    assert_eq!(left.len(), 2, "others may be at work: {left:?}");

    // It is named where the output cannot be written to.
    let model = fixture(TIED);
    let output = place.path().join("empty").into_os_string().into_string().expect("UTF-8");
    let again = ["quantize", "--model", &model, "--output", &output, "--dtype", "fp8"];
    refused(&sinew(&again), &["is not empty", "and", ".empty.0.unfinished", "can be removed"]);
}

#[test]
fn what_a_killed_run_has_left_in_a_model_is_named() {
    let output = tempfile::tempdir().expect("a folder");
    let to = output.path().to_str().expect("UTF-8");
    let left = format!(".{}.7.unfinished", output.path().file_name().expect("a name").to_str().expect("UTF-8"));
    fs::create_dir(output.path().join(&left)).expect("a folder");
    let quantize = |output: &str| sinew(&["quantize", "--model", &fixture(TIED), "--output", output, "--dtype", "fp8"]);
    let written = quantize(to);
    let warning = String::from_utf8_lossy(&written.stderr).into_owned();
    assert!(written.status.success() && warning.starts_with("warning: "), "{warning}");
    assert!([to, &left, "can be removed"].iter().all(|word| warning.contains(word)), "{warning}");
    assert!(output.path().join(&left).is_dir() && output.path().join("config.json").is_file());
    let other = output.path().join("other").into_os_string().into_string().expect("UTF-8");
    let written = quantize(&other);
    assert!(written.status.success() && !String::from_utf8_lossy(&written.stderr).contains("unfinished"));
    // Beside a new output, too.
    let third = output.path().join("third");
    fs::create_dir(output.path().join(".third.0.unfinished")).expect("a folder");
    let written = quantize(third.to_str().expect("UTF-8"));
    let warning = String::from_utf8_lossy(&written.stderr).into_owned();
    assert!(written.status.success() && third.join("config.json").is_file());
    assert!([to, ".third.0.unfinished", "can be removed"].iter().all(|word| warning.contains(word)), "{warning}");
}

#[test]
fn names_may_be_as_long_as_file_systems_have_them() {
    let place = tempfile::tempdir().expect("a folder");
    // Of two and of three bytes, which are not cut.
    for name in ["n".repeat(255), "é".repeat(127), format!("a{}", "漢".repeat(84))] {
        let output = place.path().join(&name);
        let how = how(BlockValues::Int8, None, false, true);
        let (ctx, go_on) = (Context::cpu().expect("the CPU is there"), &mut |_, _| ControlFlow::Continue(()));
        let written = quantize(&ctx, &Folder::new(fixture_path(TIED)), &output, how, Load::Read, go_on);
        written.unwrap_or_else(|error| panic!("{}", error.one_line()));
        assert_eq!(names_in(place.path()), [name]);
        fs::remove_dir_all(output).expect("removed");
    }
}

#[cfg(unix)]
#[test]
fn links_that_lead_out_of_the_model_are_not_copied() {
    use std::os::unix::fs::symlink;
    let place = tempfile::tempdir().expect("a folder");
    let secret = place.path().join("secret");
    fs::create_dir(&secret).expect("a folder");
    for name in ["text", "config.json", "a.jinja"] {
        fs::write(secret.join(name), fs::read(fixture_path(TIED).join("config.json")).expect("a config"))
            .expect("written");
    }
    let output = place.path().join("output");
    let quantize = |source: &Path| {
        let arguments = ["quantize", "--dtype", "fp8", "--output", output.to_str().expect("UTF-8"), "--model"];
        sinew(&[&arguments[..], &[source.to_str().expect("UTF-8")]].concat())
    };
    for (link, target) in [
        ("notes.txt", "text"),
        ("creds.json", "text"),
        ("config.json", "config.json"),
        ("tokenizer_config.json", "config.json"),
        ("additional_chat_templates", ""),
    ] {
        let source = copy(TIED);
        let _ = fs::remove_file(source.path().join(link));
        symlink(secret.join(target), source.path().join(link)).expect("a link");
        refused(&quantize(source.path()), &[link, "is a link to", "outside the model's folder"]);
        assert_eq!(names_in(place.path()), ["secret"], "{link}");
    }
    // Those inside are, and those of the hub's cache.
    let source = place.path().join("models--a--b/snapshots/main");
    let blobs = place.path().join("models--a--b/blobs");
    [&source, &blobs].into_iter().for_each(|folder| fs::create_dir_all(folder).expect("a folder"));
    for entry in fs::read_dir(fixture_path(TIED)).expect("the fixture is there") {
        let name = entry.expect("the fixture is there").file_name();
        fs::copy(fixture_path(TIED).join(&name), blobs.join(&name)).expect("copied");
        symlink(Path::new("../../blobs").join(&name), source.join(&name)).expect("a link");
    }
    symlink("config.json", source.join("other.json")).expect("a link");
    stdout(&quantize(&source));
    for name in ["tokenizer.json", "other.json"] {
        let [before, after] = [&source, &output].map(|folder| fs::read(folder.join(name)).expect("it is there"));
        assert!(before == after && !output.join(name).is_symlink(), "{name}");
    }
    outputs(&output, WeightOptions::default());
}

#[test]
fn tensors_that_would_be_read_with_the_codes_are_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let name = "model.layers.1.mlp.up_proj";
    let ctx = Context::cpu().expect("the CPU is there");
    let packed = how(BlockValues::Int4, None, true, true);
    let floats = how(BlockValues::F8E4M3, None, false, true);
    for end in ["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "pre_quant_scale"]
    {
        let source = model();
        let mut all = tensors(source.path());
        all.insert(format!("{name}.{end}"), (Dtype::I32, vec![1], vec![0; 4]));
        save(source.path(), &all);
        outputs(source.path(), WeightOptions::default());
        for how in [packed, floats] {
            let go_on = &mut |_, _| ControlFlow::Continue(());
            let output = place.path().join("output");
            let refused = quantize(&ctx, &Folder::new(source.path()), &output, how, Load::Read, go_on);
            let refused = refused.expect_err("it would be another weight").one_line();
            assert!(refused.contains(&format!("`{name}.{end}`")), "{refused}");
            assert!(names_in(place.path()).is_empty());
        }
    }
    // Those of activations, and of other modules.
    let source = model();
    let mut all = tensors(source.path());
    for other in [format!("{name}.input_scale"), "model.layers.1.mlp.weight_scale".to_owned()] {
        all.insert(other, (Dtype::F32, vec![1], vec![0; 4]));
    }
    save(source.path(), &all);
    let (folder, _) = written(source.path(), packed);
    outputs(folder.path(), WeightOptions::default());
}

#[test]
fn tensors_that_may_change_a_quantized_module_are_refused_by_plans_and_loading() {
    let ctx = Context::cpu().expect("the CPU is there");
    for name in [TIED, "bert_hd20_f16", "modernbert_hd20_f16_all_biases", "qwen3_embedding_no_prefix_gqa3_hd20_bf16"] {
        let (folder, _) = written(&fixture_path(name), how(BlockValues::Int4, None, false, true));
        let mut more = String::new();
        with_tensors(folder.path(), |all| {
            let module = all.keys().find_map(|name| name.strip_suffix(".weight_packed")).expect("a module");
            more = format!("{module}.pre_quant_scale");
            all.insert(more.clone(), (Dtype::F32, vec![1], 2f32.to_le_bytes().to_vec()));
        });
        let source = Folder::new(folder.path());
        let checkpoint = source.checkpoint(Load::Read).expect("a checkpoint");
        let config = source.config().expect("a config");
        let refused = if source.embeds().expect("a model") {
            let options = WeightOptions::default();
            let plan = EmbeddingModel::plan(config, &checkpoint, &options, &ctx).map(drop);
            [plan, EmbeddingModel::load(folder.path(), &options).map(drop)]
        } else {
            let (config, options) = (config.as_decoder().expect("a decoder"), LoadOptions::default());
            let plan = LanguageModel::plan(config, &checkpoint, &options, &ctx).map(drop);
            [plan, LanguageModel::load(folder.path(), &options).map(drop)]
        };
        for refused in refused {
            let refused = refused.expect_err("it may change what the module gives").one_line();
            assert!(refused.contains(&more), "{name}: {refused}");
        }
    }
}

#[test]
fn a_file_system_that_was_just_made_is_empty() {
    let output = tempfile::tempdir().expect("a folder");
    let found = output.path().join("lost+found");
    fs::create_dir(&found).expect("a folder");
    let (model, to) = (fixture(TIED), output.path().to_str().expect("UTF-8"));
    let arguments = ["quantize", "--model", &model, "--output", to, "--dtype", "fp8"];
    fs::write(found.join("#12"), "a file").expect("written");
    refused(&sinew(&arguments), &["is not empty", "lost+found"]);
    fs::remove_file(found.join("#12")).expect("removed");
    stdout(&sinew(&arguments));
    outputs(output.path(), WeightOptions::default());
    assert!(found.is_dir());
}

#[test]
fn a_folder_that_is_there_is_filled_and_not_replaced() {
    let (source, output) = (fixture_path(TIED), tempfile::tempdir().expect("a folder"));
    let (ctx, folder, how) =
        (Context::cpu().expect("the CPU is there"), Folder::new(source), how(BlockValues::Int8, None, false, true));
    let other = output.path().join("config.json");
    let refused = quantize(&ctx, &folder, output.path(), how, Load::Mmap, &mut |_, _| {
        fs::write(&other, "{}").expect("written");
        ControlFlow::Continue(())
    });
    let refused = refused.expect_err("somebody else writes there").one_line();
    assert!(refused.contains("is not empty"), "{refused}");
    assert_eq!(names_in(output.path()), ["config.json"]);
    assert_eq!(fs::read_to_string(&other).expect("it is there"), "{}");
    fs::remove_file(&other).expect("removed");

    // As what is mounted there has to be.
    #[cfg(unix)]
    let id = |folder: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(folder).expect("it is there"));
    #[cfg(unix)]
    let before = id(output.path());
    let mut during = Vec::new();
    let written = quantize(&ctx, &folder, output.path(), how, Load::Mmap, &mut |_, _| {
        during = names_in(output.path());
        ControlFlow::Continue(())
    });
    written.unwrap_or_else(|error| panic!("{}", error.one_line()));
    assert!(during.len() == 1 && during[0].ends_with(".unfinished"), "{during:?}");
    #[cfg(unix)]
    assert_eq!(id(output.path()), before);
    assert!(names_in(output.path()).iter().all(|name| !name.ends_with(".unfinished")));
    outputs(output.path(), WeightOptions::default());
}

#[cfg(unix)]
#[test]
fn a_copy_that_finds_no_room_names_where_it_goes() {
    let (source, place) = (copy(TIED), tempfile::tempdir().expect("a folder"));
    fs::write(source.path().join("merges.txt"), vec![b' '; 8 << 20]).expect("written");
    // Files of up to 2 or 4 MiB, as shells count blocks.
    let limited = r#"trap '' XFSZ; ulimit -f 4096; exec "$0" "$@""#;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_sinew"), "quantize", "--dtype", "fp8", "--model"]);
    let output = run(command.arg(source.path()).arg("--output").arg(place.path().join("new")), "");
    let words = ["cannot copy", "/merges.txt to", "/.new.0.unfinished/merges.txt:"];
    refused(&output, &words);
    assert!(names_in(place.path()).is_empty());
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let (source, place) = (copy(SHARDED), tempfile::tempdir().expect("a folder"));
    let (ctx, folder, output) =
        (Context::cpu().expect("the CPU is there"), Folder::new(source.path()), place.path().join("output"));
    fs::create_dir(&output).expect("a folder");
    let how = how(BlockValues::Int8, None, false, true);
    let mut calls = 0;
    let ended = quantize(&ctx, &folder, &output, how, Load::Mmap, &mut |_, _| {
        calls += 1;
        if calls == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(ended, Err(Error::Cancelled)) && calls == 9, "{ended:?} after {calls}");
    assert_eq!((names_in(place.path()), names_in(&output).len()), (vec!["output".to_owned()], 0));

    // A file that shrinks meanwhile.
    let last = source.path().join("model-00003-of-00003.safetensors");
    let failed = quantize(&ctx, &folder, &output, how, Load::Read, &mut |_, _| {
        let file = fs::OpenOptions::new().write(true).open(&last).expect("it is there");
        file.set_len(100).expect("truncated");
        ControlFlow::Continue(())
    });
    assert!(matches!(failed, Err(Error::Io { .. } | Error::Checkpoint { .. })), "{failed:?}");
    assert_eq!((names_in(place.path()), names_in(&output).len()), (vec!["output".to_owned()], 0));
}
