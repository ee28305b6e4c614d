//! Decoders, with what their configs leave out, against what transformers makes of them.

use serde_json::{Map, Value, json};

use crate::config::{DecoderConfig, ExpertsConfig, FeedForward, NormKind, QkNorm, RopeScaling};
use sinew_ops::layers::Activation;

use crate::ModelConfig;

fn decoder(config: Value) -> DecoderConfig {
    match ModelConfig::from_json(&config.to_string()).expect("a published config") {
        ModelConfig::Decoder(config) => config,
        other => panic!("{other:?} is no decoder"),
    }
}

fn refusal(config: Value) -> String {
    ModelConfig::from_json(&config.to_string()).expect_err("refused").one_line()
}

fn windows(config: &DecoderConfig, layers: usize) -> Vec<Option<usize>> {
    config.layers.iter().take(layers).map(|layer| layer.window).collect()
}

#[test]
fn gemma_3_inside_a_model_that_sees_images_leaves_out_what_is_usual() {
    let config = decoder(json!({
        "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "tie_word_embeddings": false
        }
    }));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads, config.head_dim), (8, 4, 256));
    assert_eq!((config.vocab_size, config.max_position_embeddings), (262_208, 131_072));
    assert_eq!(config.ropes.len(), 2);
    assert_eq!((config.ropes[0].theta, config.ropes[1].theta), (1e6, 1e4));
    assert_eq!(config.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(config.ropes[1].scaling, RopeScaling::None);
    let window = Some(1024);
    assert_eq!(windows(&config, 7), [window, window, window, window, window, None, window]);
    assert_eq!((config.layers[5].rope, config.layers[6].rope), (Some(0), Some(1)));
    assert_eq!((config.norm, config.qk_norm), (NormKind::RmsOffset, Some(QkNorm::Head)));
    assert_eq!((config.attention_softcap, config.logit_softcap), (None, None));
    assert!(config.tie_word_embeddings);
    assert_eq!(config.layers[0].attention_scale, 1.0 / 16.0);
    assert_eq!(config.eos_token_ids, [1, 106]);
}

#[test]
fn gemma_2_bounds_scores_and_logits_unless_told_not_to() {
    let published = json!({
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256_000,
        "hidden_act": "gelu", "query_pre_attn_scalar": 144
    });
    let config = decoder(published.clone());
    assert_eq!((config.attention_softcap, config.logit_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(windows(&config, 4), [Some(4096), None, Some(4096), None]);
    assert_eq!(config.layers[0].attention_scale, 1.0 / 12.0);
    assert_eq!(config.hidden_act, Activation::GeluTanh, "hidden_act is not what counts");
    assert_eq!(config.embedding_scale, Some(48.0));
    let mut without = published;
    without["final_logit_softcapping"] = Value::Null;
    assert_eq!(decoder(without).logit_softcap, None);
}

fn mixtral() -> Value {
    json!({
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": null,
        "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6, "rms_norm_eps": 1e-5
    })
}

#[test]
fn mixtral_has_experts_everywhere_and_no_window() {
    let config = decoder(mixtral());
    let experts = ExpertsConfig { count: 8, per_token: 2, width: 14336, renormalize: true, bias: false };
    assert!(config.layers.iter().all(|layer| layer.feed_forward == FeedForward::Experts(experts)));
    assert_eq!(windows(&config, 1), [None]);
    let mut more = mixtral();
    more["num_experts_per_tok"] = json!(9);
    assert!(refusal(more).contains("`num_experts_per_tok` is 9, and must be from 1 to the number of experts, 8"));
}

#[test]
fn heads_that_the_config_leaves_out_are_those_of_the_class() {
    // As transformers' classes have them; `null` is as many as there are of queries.
    for (model_type, usual) in [
        ("llama", 16),
        ("mistral", 8),
        ("ministral", 8),
        ("mixtral", 8),
        ("qwen3_moe", 4),
        ("gemma2", 4),
        ("smollm3", 4),
    ] {
        let mut config = mixtral();
        let fields = config.as_object_mut().expect("an object");
        fields.insert("model_type".to_owned(), json!(model_type));
        fields.insert("num_attention_heads".to_owned(), json!(16));
        fields.remove("num_key_value_heads");
        // Gemma 2 has to have one.
        fields.insert("sliding_window".to_owned(), json!(8));
        assert_eq!(decoder(config.clone()).num_key_value_heads, usual, "{model_type}");
        config["num_key_value_heads"] = Value::Null;
        assert_eq!(decoder(config).num_key_value_heads, 16, "{model_type}");
    }
}

#[test]
fn mistral_has_a_window_unless_told_not_to() {
    let mut published = mixtral();
    published["model_type"] = json!("mistral");
    assert_eq!(windows(&decoder(published.clone()), 2), [None, None]);
    published["sliding_window"] = json!(8);
    let mut ministral = published.clone();
    ministral["num_hidden_layers"] = json!(2);
    ministral["layer_types"] = json!(["sliding_attention", "full_attention"]);
    assert_eq!(windows(&decoder(ministral), 2), [Some(8), None]);
    published.as_object_mut().expect("an object").remove("sliding_window");
    assert_eq!(windows(&decoder(published), 2), [Some(4096); 2]);
}

#[test]
fn qwen3_moe_takes_either_name_of_its_experts() {
    let published = json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [2], "max_window_layers": 48
    });
    let config = decoder(published.clone());
    let experts = ExpertsConfig { count: 128, per_token: 8, width: 768, renormalize: true, bias: false };
    let experts = FeedForward::Experts(experts);
    let kinds: Vec<FeedForward> = config.layers.iter().map(|layer| layer.feed_forward).collect();
    assert_eq!(kinds, [experts, experts, FeedForward::Dense { width: 6144 }, experts]);
    let mut newer = published.clone();
    newer["num_local_experts"] = newer["num_experts"].take();
    assert_eq!(decoder(newer).layers, config.layers);
    let mut every_second = published;
    every_second["decoder_sparse_step"] = json!(2);
    every_second["mlp_only_layers"] = json!([]);
    let dense = FeedForward::Dense { width: 6144 };
    let kinds: Vec<FeedForward> = decoder(every_second).layers.iter().map(|layer| layer.feed_forward).collect();
    assert_eq!(kinds, [dense, experts, dense, experts]);
}

#[test]
fn gpt_oss_has_experts_with_biases_sinks_and_a_window_in_every_other_layer() {
    let published = json!({
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088,
        "attention_bias": true, "hidden_act": "silu", "num_local_experts": 32, "num_experts_per_tok": 4,
        "experts_per_token": 4, "initial_context_length": 4096, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5, "rope_theta": 150_000, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "eos_token_id": 200_002, "pad_token_id": 199_999,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
            "original_max_position_embeddings": 4096, "truncate": false},
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
            "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    });
    let config = decoder(published.clone());
    let experts = ExpertsConfig { count: 32, per_token: 4, width: 2880, renormalize: true, bias: true };
    assert!(config.layers.iter().all(|layer| layer.feed_forward == FeedForward::Experts(experts)));
    assert_eq!(windows(&config, 4), [Some(128), None, Some(128), None]);
    assert!(config.has_sinks() && config.qkv_bias && config.o_bias);
    assert_eq!(config.hidden_act, Activation::SwigluOai, "hidden_act is not what counts");
    assert!(matches!(config.ropes[0].scaling, RopeScaling::Yarn { factor: 32.0, truncate: false, .. }));
    let with = |field: &str, value: Value| {
        let mut config = published.clone();
        config[field] = value;
        config
    };
    let types = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    assert_eq!(windows(&decoder(with("layer_types", types)), 4), [None, None, Some(128), None]);
    assert_eq!(decoder(with("hidden_act", json!("swigluoai"))).hidden_act, Activation::SwigluOai);
    assert!(refusal(with("swiglu_limit", json!(6.5))).contains("swiglu_limit 6.5 in a gpt_oss model"));
    assert!(refusal(with("swiglu_alpha", json!(1.0))).contains("swiglu_alpha 1 in a gpt_oss model"));
    decoder(with("swiglu_alpha", json!(1.702)));
    let without = decoder(with("attention_bias", json!(false)));
    assert!(!without.qkv_bias && !without.o_bias && without.has_sinks());
    // An older name, and what transformers takes where there is neither.
    let experts = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut config = published.clone();
        change(config.as_object_mut().expect("an object"));
        decoder(config).experts().expect("it has experts")
    };
    let named = experts(&|config| {
        config.remove("num_local_experts");
        config.insert("num_experts".to_owned(), json!(16));
    });
    assert_eq!(named, ExpertsConfig { count: 16, ..experts(&|_| ()) });
    let defaults = experts(&|config| {
        for name in ["num_local_experts", "num_experts_per_tok", "intermediate_size", "attention_bias"] {
            config.remove(name);
        }
    });
    assert_eq!((defaults.count, defaults.per_token, defaults.width), (128, 4, 2880));
    assert!(decoder(with("attention_bias", Value::Null)).qkv_bias);
    assert!(refusal(with("rope_scaling", Value::Null)).contains("`rope_scaling` is missing"));
}

fn phi3() -> Value {
    json!({
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200_064, "partial_rotary_factor": 0.75,
        "max_position_embeddings": 131_072, "original_max_position_embeddings": 4096, "sliding_window": 262_144,
        "rope_scaling": {"type": "longrope", "short_factor": vec![1.0; 48], "long_factor": vec![2.0; 48]}
    })
}

#[test]
fn phi_4_mini_turns_three_quarters_of_a_head_by_longrope() {
    let config = decoder(phi3());
    let rope = &config.ropes[0];
    assert_eq!(rope.rotary_dim(config.head_dim), 96);
    let (within, scale) = rope.frequencies(config.head_dim, 4096);
    let (beyond, _) = rope.frequencies(config.head_dim, 4097);
    assert!((scale - (1.0 + 32f64.ln() / 4096f64.ln()).sqrt()).abs() < 1e-15);
    assert!((within[1] - 10_000f64.powf(-2.0 / 96.0)).abs() < 1e-15);
    assert_eq!(beyond[1] * 2.0, within[1]);
    assert_eq!((config.usual_context(), config.longest_context()), (4096, 131_072));
    let mut short = phi3();
    short["rope_scaling"]["long_factor"] = json!([1.0]);
    assert!(refusal(short).contains("`long_factor` has 1 entries for 48 pairs"));
    let mut yarn = phi3();
    yarn["rope_scaling"] = json!({"type": "yarn", "factor": 4.0});
    assert!(refusal(yarn).contains("longrope"));
    let mut negative = phi3();
    negative["rope_scaling"]["short_factor"] = json!([-1.0]);
    assert!(refusal(negative).contains("positive"));
}

#[test]
fn dynamic_ropes_reach_beyond_the_context_in_training() {
    let config = decoder(json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 2048,
        "rope_scaling": {"type": "dynamic", "factor": 4.0}
    }));
    assert_eq!((config.usual_context(), config.longest_context()), (2048, 8192));
    let (within, _) = config.ropes[0].frequencies(16, 2048);
    let (beyond, _) = config.ropes[0].frequencies(16, 4096);
    // 4 · 2 - 3 = 5, to the power of 16 / 14.
    assert!((within[7] / beyond[7] - 5f64.powf(16.0 / 14.0).powf(14.0 / 16.0)).abs() < 1e-12);
    assert_eq!(within[0], beyond[0]);
}

#[test]
fn gpt_2_and_pythia_have_their_own_names_for_things() {
    let gpt2 = decoder(json!({
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_ctx": 1024,
        "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5
    }));
    assert_eq!((gpt2.layers[0].feed_forward.width(), gpt2.head_dim), (3072, 64));
    assert!(gpt2.learned_positions && gpt2.tie_word_embeddings && gpt2.ropes.is_empty());
    assert_eq!((gpt2.eos_token_ids.as_slice(), gpt2.layers[3].rope), (&[50256][..], None));
    let pythia = decoder(json!({
        "model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
        "num_attention_heads": 8, "vocab_size": 50304, "rotary_pct": 0.25, "rotary_emb_base": 10000,
        "layer_norm_eps": 1e-5, "use_parallel_residual": true, "hidden_act": "gelu", "bos_token_id": 0,
        "eos_token_id": 0, "max_position_embeddings": 2048
    }));
    assert_eq!(pythia.ropes[0].rotary_dim(pythia.head_dim), 16);
    assert!(pythia.parallel_residual && pythia.qkv_bias && !pythia.tie_word_embeddings);
    assert_eq!(pythia.hidden_act, Activation::Gelu);
}

fn olmo3() -> Value {
    json!({
        "model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8,
        "num_attention_heads": 32, "vocab_size": 100_278, "rope_theta": 500_000, "sliding_window": 4096,
        "max_position_embeddings": 65536,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    })
}

#[test]
fn olmo_3_scales_only_the_layers_without_a_window() {
    let config = decoder(olmo3());
    assert_eq!(windows(&config, 4), [Some(4096), Some(4096), Some(4096), None]);
    assert!(matches!(config.ropes[0].scaling, RopeScaling::Yarn { factor: 8.0, .. }));
    assert_eq!((&config.ropes[1].scaling, config.ropes[1].theta), (&RopeScaling::None, 500_000.0));
    assert_eq!((config.layers[2].rope, config.layers[3].rope), (Some(1), Some(0)));
    assert_eq!(config.qk_norm, Some(QkNorm::Token));
    let mut other = olmo3();
    other["rope_theta"] = json!(1e6);
    assert!(refusal(other).contains("rope_theta"));
    let mut both = olmo3();
    both["rope_parameters"] = json!({"full_attention": {"rope_type": "default"}});
    assert!(refusal(both).contains("contradicts rope_parameters"));
}

#[test]
fn smollm3_leaves_every_fourth_layer_unturned() {
    let published = json!({
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128_256, "rope_theta": 5e6,
        "no_rope_layer_interval": 4, "use_sliding_window": false, "sliding_window": null
    });
    let turned = |config: &DecoderConfig| config.layers.iter().map(|layer| layer.rope.is_some()).collect::<Vec<_>>();
    let config = decoder(published.clone());
    assert_eq!(turned(&config), [true, true, true, false, true, true, true, false]);
    assert!(config.tie_word_embeddings);
    let mut listed = published.clone();
    listed["no_rope_layers"] = json!([1, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(turned(&decoder(listed)), [true, false, true, true, true, true, true, true]);
    let mut few = published.clone();
    few["no_rope_layers"] = json!([1]);
    assert!(refusal(few).contains("1 entries for 8 layers"));
    let mut two = published;
    two["no_rope_layers"] = json!([1, 2, 1, 1, 1, 1, 1, 1]);
    assert!(refusal(two).contains("0 and 1"));
}
