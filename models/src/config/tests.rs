use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;
use crate::Folder;
use safetensors::Dtype;
use serde_json::{Value, json};
use sinew_ops::layers::Activation;

fn tiny(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100
    })
}

fn with(model_type: &str, changes: Value) -> Result<ModelConfig> {
    let mut value = tiny(model_type);
    for (name, change) in changes.as_object().expect("an object") {
        value[name] = change.clone();
    }
    ModelConfig::from_json(&value.to_string())
}

fn decoder(model_type: &str, changes: Value) -> DecoderConfig {
    match with(model_type, changes).expect("a valid config") {
        ModelConfig::Decoder(config) => config,
        other => panic!("{other:?} is no decoder"),
    }
}

fn windows(config: &DecoderConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

fn refusal(model_type: &str, changes: Value) -> String {
    let line = with(model_type, changes.clone()).expect_err(&changes.to_string()).one_line();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn llama_reads_its_biases_and_defaults() {
    let config = decoder("llama", json!({}));
    assert_eq!((config.head_dim, config.num_key_value_heads), (16, 2));
    assert!(!config.qkv_bias && !config.o_bias && !config.mlp_bias && config.qk_norm.is_none());
    assert_eq!((config.bos_token_id, config.eos_token_ids.as_slice()), (Some(1), &[2][..]));
    assert_eq!(windows(&config), [None; 4]);
    let config = decoder(
        "llama",
        json!({"attention_bias": true, "mlp_bias": true, "head_dim": 32, "num_key_value_heads": null,
               "eos_token_id": [3, 5], "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}),
    );
    assert!(config.qkv_bias && config.o_bias && config.mlp_bias);
    assert_eq!((config.head_dim, config.num_key_value_heads), (32, 4));
    assert_eq!(config.eos_token_ids, [3, 5]);
    assert_eq!(config.dtype, Some(Dtype::BF16));
    assert_eq!(config.norm_eps, 1e-5);
}

#[test]
fn qwen2_has_qkv_biases_and_qwen3_has_head_norms() {
    let qwen2 = decoder("qwen2", json!({"dtype": "float16"}));
    assert!(qwen2.qkv_bias && !qwen2.o_bias && qwen2.qk_norm.is_none());
    assert_eq!((qwen2.head_dim, qwen2.dtype), (16, Some(Dtype::F16)));
    let qwen3 = decoder("qwen3", json!({}));
    assert!(!qwen3.qkv_bias && !qwen3.o_bias && qwen3.qk_norm == Some(QkNorm::Head));
    assert_eq!(qwen3.head_dim, 128, "Qwen3's heads do not follow from hidden_size");
}

#[test]
fn windows_need_use_sliding_window_and_start_at_max_window_layers() {
    let on = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3});
    assert_eq!(windows(&decoder("qwen2", on.clone())), [None, None, None, Some(8)]);
    assert_eq!(windows(&decoder("llama", on)), [None; 4], "llama has no windows");
    let off = json!({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0});
    assert_eq!(windows(&decoder("qwen2", off)), [None; 4]);
    let types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    let by_type = json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": types});
    assert_eq!(windows(&decoder("qwen3", by_type)), [Some(8), None, Some(8), None]);

    assert!(refusal("qwen2", json!({"layer_types": types})).contains("give no window"));
    assert!(refusal("qwen2", json!({"layer_types": ["full_attention"]})).contains("1 entries for 4 layers"));
    let chunked = json!({"layer_types": ["chunked_attention", "a", "b", "c"]});
    assert!(refusal("qwen2", chunked).contains("chunked_attention"));
    let zero = json!({"use_sliding_window": true, "sliding_window": 0});
    assert!(refusal("qwen2", zero).contains("sliding_window"));
}

#[test]
fn end_tokens_are_those_of_both_files() {
    let mut config = decoder("qwen2", json!({"eos_token_id": 7, "bos_token_id": null}));
    let generation = json!({"eos_token_id": [9, 7], "bos_token_id": 4});
    let fields = Fields::of(&generation, "generation_config.json", "").expect("an object");
    config.add_generation_config(&fields).expect("valid");
    assert_eq!(config.eos_token_ids, [7, 9]);
    assert_eq!(config.bos_token_id, Some(4));
    let mut config = decoder("llama", json!({"eos_token_id": [-1, 100, 99], "bos_token_id": -1}));
    assert_eq!(config.eos_token_ids, [99], "ids outside the vocabulary are dropped");
    assert_eq!(config.bos_token_id, None);
    assert!(refusal("llama", json!({"eos_token_id": "</s>"})).contains("eos_token_id"));
    let many = json!({"eos_token_id": vec![1; 5000]});
    assert!(refusal("llama", many).contains("has 5000 tokens, expected up to 4096"));
    let many = json!({"eos_token_id": vec![1; 5000]});
    let fields = Fields::of(&many, "generation_config.json", "").expect("an object");
    assert!(config.add_generation_config(&fields).is_err());
}

#[test]
fn a_folder_is_read_with_its_generation_config() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = Folder::new(folder.path()).config().expect_err("empty");
    assert!(missing.one_line().contains("config.json"), "{}", missing.one_line());
    std::fs::write(folder.path().join("config.json"), tiny("llama").to_string()).expect("written");
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": 42}"#).expect("written");
    let folder = Folder::new(folder.path());
    let config = folder.config().and_then(ModelConfig::as_decoder).expect("valid");
    assert_eq!(config.eos_token_ids, [2, 42]);
}

#[test]
fn bert_is_read_and_what_is_not_bert_is_refused() {
    let config = with("bert", json!({"pad_token_id": 3, "hidden_act": "gelu_new"})).expect("valid");
    let ModelConfig::Encoder(config) = config else {
        panic!("bert is an encoder");
    };
    assert_eq!((config.head_dim, config.type_vocab_size, config.max_position_embeddings), (16, 2, 512));
    assert_eq!((config.layer_norm_eps, config.pad_token_id), (1e-12, Some(3)));
    assert_eq!(config.hidden_act, Activation::GeluTanh);
    let relative = refusal("bert", json!({"position_embedding_type": "relative_key"}));
    assert!(relative.contains("relative_key") && relative.contains("absolute"), "{relative}");
    assert!(refusal("bert", json!({"is_decoder": true})).contains("is_decoder"));
    assert!(refusal("bert", json!({"num_attention_heads": 5})).contains("does not divide hidden_size, 64"));
}

#[test]
fn what_is_not_implemented_is_refused_in_one_line_that_says_what_is() {
    for (changes, found, supported) in [
        (json!({"model_type": "mamba"}), "mamba", "llama, mistral,"),
        (json!({"hidden_act": "gelu_10"}), "gelu_10", "silu"),
        (json!({"hidden_act": "swigluoai"}), "swigluoai", "silu"),
        (json!({"rope_scaling": {"type": "proportional", "factor": 2.0}}), "proportional", "dynamic"),
        (json!({"rope_parameters": {"rope_type": "axial"}}), "axial", "longrope"),
        (json!({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}), "mrope", "yarn"),
        (json!({"rope_scaling": {"rope_type": "mrope", "mrope_section": [16, 24, 24]}}), "mrope", "yarn"),
        (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}), "full_attention", "all layers"),
        (json!({"partial_rotary_factor": 0.5}), "0.5", "1"),
        (json!({"quantization_config": {"quant_method": "own", "bits": 4}}), "own", "gptq"),
        (json!({"torch_dtype": "int7"}), "int7", "bfloat16"),
        (json!({"is_causal": false}), "bidirectional", "causal"),
    ] {
        let line = refusal("qwen2", changes);
        assert!(line.contains(found) && line.contains("not supported") && line.contains(supported), "{line}");
    }
    assert!(with("qwen2", json!({"quantization_config": null})).is_ok());
}

#[test]
fn sections_of_mrope_leave_text_as_it_is() {
    // transformers 5.24 gives the logits of a config without them, and knows no `mrope` in models of text.
    for model_type in ["llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "olmo2"] {
        let rope = |changes| with(model_type, changes).expect("valid").as_decoder().expect("a decoder").ropes.clone();
        let plain = rope(json!({}));
        for section in [
            json!({"rope_type": "default", "mrope_section": [2, 3, 3]}),
            json!({"type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": true}),
            json!({"rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3]}),
            json!({"mrope_section": [2, 3, 3]}),
        ] {
            assert_eq!(rope(json!({"rope_scaling": section})), plain, "{model_type}: {section}");
            assert_eq!(rope(json!({"rope_parameters": section})), plain, "{model_type}: {section}");
        }
    }
    let rope = |section| with("qwen2", json!({"rope_scaling": section})).expect("valid");
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    let sections = json!({"rope_type": "linear", "factor": 2.0, "mrope_section": [2, 3, 3]});
    assert_eq!(rope(sections), rope(linear));
}

#[test]
fn impossible_sizes_are_errors() {
    for name in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "head_dim",
        "max_position_embeddings",
    ] {
        for value in [json!(0), json!(-1), json!(1u64 << 40), json!(1.5), json!("64"), json!([64]), json!(1e300)] {
            assert!(refusal("llama", json!({name: value.clone()})).contains(name), "{name} {value}");
        }
    }
    for name in ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"] {
        assert!(refusal("llama", json!({name: null})).contains("is missing"), "{name}");
    }
    assert!(refusal("llama", json!({"num_key_value_heads": 3})).contains("does not divide"));
    assert!(refusal("llama", json!({"num_attention_heads": 3})).contains("does not divide"));
    assert!(refusal("llama", json!({"head_dim": 15})).contains("even"));
    assert!(refusal("llama", json!({"rms_norm_eps": -1.0})).contains("rms_norm_eps"));
    assert!(refusal("llama", json!({"rope_theta": 0})).contains("rope_theta"));
    let huge =
        json!({"head_dim": 64, "hidden_size": 1 << 30, "intermediate_size": 1 << 30, "num_hidden_layers": 60000});
    assert!(refusal("llama", huge).contains("more weights than can be addressed"));
    for text in ["", "[]", "3", "{}", "{\"model_type\": 5}", "{\"model_type\": \"llama\"", "nul"] {
        assert!(ModelConfig::from_json(text).is_err(), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(ModelConfig::from_json(&deep).is_err(), "deep nesting is an error, not a stack overflow");
}

/// What `ROPE_INIT_FUNCTIONS` of transformers 5 computes, in f32, for `head_dim = 16`.
#[track_caller]
fn assert_frequencies(config: &DecoderConfig, expected: [f64; 8], scale: f64) {
    /// f32 powers with a few roundings.
    const RELATIVE: f64 = 1e-6;
    let (inv_freq, attention_scale) = config.ropes[0].frequencies(config.head_dim, 4096);
    assert_eq!(inv_freq.len(), expected.len());
    for (i, (ours, theirs)) in inv_freq.iter().zip(expected).enumerate() {
        assert!((ours / theirs - 1.0).abs() < RELATIVE, "{i}: {ours} and {theirs}");
    }
    assert!((attention_scale - scale).abs() < 1e-15, "{attention_scale} and {scale}");
}

#[test]
fn plain_and_linear_frequencies_are_those_of_the_formula() {
    let (inv_freq, scale) = decoder("llama", json!({"rope_theta": 100.0})).ropes[0].frequencies(16, 4096);
    let formula: Vec<f64> = (0..8).map(|i| 100f64.powf(-2.0 * f64::from(i) / 16.0)).collect();
    for (ours, formula) in inv_freq.iter().zip(formula) {
        assert!((ours / formula - 1.0).abs() < 1e-15);
    }
    assert_eq!(scale, 1.0);
    let linear = decoder("llama", json!({"rope_scaling": {"type": "linear", "factor": 4}}));
    assert_frequencies(
        &linear,
        [0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.0,
    );
}

#[test]
fn llama3_frequencies_equal_transformers_in_both_spellings() {
    let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192});
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(500000.0);
    let expected =
        [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000429556705, 8.57025589e-06, 1.66196742e-06, 3.22293289e-07];
    let old = decoder("llama", json!({"rope_theta": 500000, "rope_scaling": scaling}));
    let new = decoder("llama", json!({"rope_parameters": parameters}));
    assert_eq!(old.ropes, new.ropes);
    assert_frequencies(&old, expected, 1.0);
}

#[test]
fn yarn_frequencies_and_attention_factor_equal_transformers() {
    let yarn = |theta: f64, context: usize, mut changes: Value| {
        changes["rope_type"] = json!("yarn");
        decoder("qwen2", json!({"rope_theta": theta, "max_position_embeddings": context, "rope_scaling": changes}))
    };
    let config = yarn(1e6, 32768, json!({"factor": 4.0, "original_max_position_embeddings": 32768}));
    assert_frequencies(
        &config,
        [1.0, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05, 7.90569356e-06, 1.40585337e-06],
        1.138629436111989,
    );
    // Without the original context, it is the context of the config.
    let config = yarn(1e6, 32768, json!({"factor": 4.0, "truncate": false}));
    assert_frequencies(
        &config,
        [1.0, 0.177827939, 0.0316227786, 0.00551727042, 0.000607408001, 4.44569851e-05, 7.90569356e-06, 1.40585337e-06],
        1.138629436111989,
    );
    let config = yarn(
        1e4,
        163840,
        json!({"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 1.0,
               "beta_fast": 16, "beta_slow": 2}),
    );
    assert_frequencies(
        &config,
        [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00674999924, 0.00110679714, 2.49999994e-05, 7.90569447e-06],
        0.9210423553163399,
    );
    // Without the factor, it is the ratio of the contexts: 40.
    let config = yarn(
        1e4,
        163840,
        json!({"factor": null, "original_max_position_embeddings": 4096, "attention_factor": 1.25, "beta_fast": 0}),
    );
    assert_frequencies(
        &config,
        [1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05, 7.90569447e-06],
        1.25,
    );
    // A context so short that the ramp has no width.
    let config = yarn(1e4, 16, json!({"factor": 2.0, "original_max_position_embeddings": 4}));
    assert_frequencies(
        &config,
        [1.0, 0.158113882, 0.0500000007, 0.0158113893, 0.00499999989, 0.00158113893, 0.000500000024, 0.000158113893],
        1.0693147180559945,
    );
}

#[test]
fn impossible_rope_parameters_are_errors() {
    for (scaling, field) in [
        (json!({"type": "linear"}), "factor"),
        (json!({"type": "linear", "factor": 0.0}), "factor"),
        (json!({"type": "linear", "factor": "2"}), "factor"),
        (json!({"type": "yarn", "factor": -4.0}), "factor"),
        (json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}), "original_max"),
        (json!({"type": "yarn", "factor": 4.0, "rope_theta": 1.0}), "rope_theta"),
        (json!({"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2}), "beta_fast"),
        (json!({"type": "yarn", "factor": 4.0, "attention_factor": -1.0}), "attention_factor"),
        (json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}), "high_freq_factor"),
        (json!({"type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}), "factor"),
        (json!("yarn"), "rope_scaling"),
    ] {
        let line = refusal("llama", json!({"rope_scaling": scaling}));
        assert!(line.contains(field), "{line}");
    }
}

proptest::proptest! {
    #[test]
    fn no_change_to_one_field_panics(
        model in 0usize..64,
        field in 0usize..24,
        value in 0usize..12,
    ) {
        let fields = [
            "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "vocab_size", "rms_norm_eps", "layer_norm_eps", "rope_theta", "rope_scaling",
            "rope_parameters", "hidden_act", "eos_token_id", "bos_token_id", "pad_token_id", "layer_types",
            "sliding_window", "max_window_layers", "use_sliding_window", "max_position_embeddings",
            "type_vocab_size", "dtype", "attention_bias",
        ];
        let values = [
            json!(null), json!(0), json!(1), json!(-1), json!(u64::MAX), json!(i32::MAX), json!(1e308),
            json!(true), json!("yarn"), json!([]), json!({}), json!({"rope_type": "yarn", "factor": 1e-300}),
        ];
        let types: Vec<&str> = crate::architectures::all().flat_map(|(_, types)| types).copied().collect();
        let model = types[model % types.len()];
        if let Ok(ModelConfig::Decoder(config)) = with(model, json!({fields[field]: values[value].clone()})) {
            let head_dim = config.head_dim.min(256);
            for rope in &config.ropes {
                let (inv_freq, _) = rope.frequencies(head_dim, 4096);
                assert_eq!(inv_freq.len(), rope.rotary_dim(head_dim).div_ceil(2));
            }
        }
    }
}

/// Every field of the committed configs, as a value that only Python's `json` reads: whoever reads the field names it.
#[test]
fn fields_that_python_alone_reads_are_named_or_unread() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let folders = [fixtures.join("quantized"), fixtures].map(|folder| fs::read_dir(folder).expect("fixtures"));
    let configs = folders.into_iter().flatten().map(|entry| entry.expect("readable").path().join("config.json"));
    let (mut read, mut unread) = (BTreeSet::new(), BTreeSet::new());
    for path in configs.filter(|path| path.exists()) {
        let text = fs::read_to_string(&path).expect("a config");
        let config: Value = serde_json::from_str(&text).expect("valid JSON");
        if ModelConfig::from_json(&text).is_err() {
            continue;
        }
        let outer = config.as_object().expect("an object").iter().map(|(name, value)| (None, name, value));
        let inner = outer.clone().filter_map(|(_, section, value)| Some((section, value.as_object()?)));
        let inner =
            inner.flat_map(|(section, fields)| fields.iter().map(move |(name, value)| (Some(section), name, value)));
        for (section, name, _) in outer.chain(inner) {
            for python in ["Infinity", "NaN", "1e400", r#""\ud800""#] {
                let mut config = config.clone();
                let object = match section {
                    Some(section) => &mut config[section.as_str()],
                    None => &mut config,
                };
                object[name.as_str()] = json!("@");
                let text = config.to_string().replace(r#""@""#, python);
                match ModelConfig::from_json(&text) {
                    Ok(_) => unread.insert(name.clone()),
                    Err(error) => {
                        let line = error.one_line();
                        assert!(line.contains(name.as_str()), "{}: {name}, {python}: {line}", path.display());
                        assert!(line.contains(python), "{}: {name}, {python}: {line}", path.display());
                        read.insert(name.clone())
                    }
                };
            }
        }
    }
    for name in ["vocab_size", "rope_theta", "eos_token_id", "model_type", "rope_parameters", "tie_word_embeddings"] {
        assert!(read.contains(name), "{name}");
    }
    for name in ["initializer_range", "transformers_version", "use_cache"] {
        assert!(unread.contains(name) && !read.contains(name), "{name}");
    }
}
