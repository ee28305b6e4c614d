//! Encoders.

use serde_json::{Value, json};
use sinew_ops::layers::Activation;

use crate::config::LearnedPositions;
use crate::{EncoderConfig, ModelConfig, Result};

fn read(model_type: &str, changes: Value) -> Result<EncoderConfig> {
    let mut value = json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 100
    });
    for (name, change) in changes.as_object().expect("an object") {
        value[name] = change.clone();
    }
    match ModelConfig::from_json(&value.to_string())? {
        ModelConfig::Encoder(config) => Ok(config),
        other => panic!("{other:?} is no encoder"),
    }
}

fn refusal(model_type: &str, changes: Value) -> String {
    read(model_type, changes.clone()).expect_err(&changes.to_string()).one_line()
}

#[test]
fn roberta_counts_positions_from_after_the_padding() {
    for model_type in ["roberta", "xlm-roberta"] {
        let config = read(model_type, json!({"max_position_embeddings": 514, "type_vocab_size": 1})).expect("valid");
        assert_eq!((config.model_type.as_str(), config.max_position_embeddings), (model_type, 512));
        assert_eq!(config.learned_positions, Some(LearnedPositions { first: 2, padding: Some(1) }));
        assert_eq!((config.type_vocab_size, config.norm_first, config.gated), (1, false, false));
        let other = read(model_type, json!({"pad_token_id": 5})).expect("valid");
        assert_eq!(
            (other.learned_positions, other.max_position_embeddings),
            (Some(LearnedPositions { first: 6, padding: Some(5) }), 506)
        );
        assert!(refusal(model_type, json!({"max_position_embeddings": 2})).contains("positions begin at 2"));
        assert!(refusal(model_type, json!({"pad_token_id": null})).contains("pad_token_id"));
        assert!(refusal(model_type, json!({"position_embedding_type": "relative_key"})).contains("relative_key"));
        assert!(refusal(model_type, json!({"is_decoder": true})).contains("is_decoder"));
    }
}

/// Of layers that see all tokens, and of those with a window.
fn thetas(config: &EncoderConfig) -> [f64; 2] {
    assert_eq!(config.learned_positions, None);
    assert!(config.layers.iter().all(|layer| layer.rope == Some(usize::from(layer.window.is_some()))));
    [0, 1].map(|rope| config.ropes[rope].theta)
}

fn windows(config: &EncoderConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn modernbert_is_read_in_both_spellings() {
    let plain = read("modernbert", json!({})).expect("valid");
    assert_eq!(windows(&plain), [None, Some(65), Some(65), None, Some(65)]);
    assert_eq!((thetas(&plain), plain.max_position_embeddings), ([160_000.0, 10_000.0], 8192));
    assert_eq!((plain.layer_norm_eps, plain.hidden_act, plain.type_vocab_size), (1e-5, Activation::Gelu, 0));
    assert!(plain.norm_first && plain.gated && !plain.norm_bias && !plain.attention_bias && !plain.mlp_bias);

    let old = json!({
        "global_rope_theta": 5e4, "local_rope_theta": null, "local_attention": 8, "global_attn_every_n_layers": 2,
        "norm_bias": true, "attention_bias": true, "mlp_bias": true, "position_embedding_type": "absolute",
        "hidden_activation": "silu", "norm_eps": 1e-6
    });
    let old = read("modernbert", old).expect("valid");
    assert_eq!(windows(&old), [None, Some(5), None, Some(5), None]);
    assert_eq!((thetas(&old), old.layer_norm_eps, old.hidden_act), ([5e4, 5e4], 1e-6, Activation::Silu));
    assert!(old.norm_bias && old.attention_bias && old.mlp_bias);

    let new = json!({
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 3e4}, "sliding_attention": {"rope_theta": 20.0}
        },
        "local_attention": 7
    });
    let new = read("modernbert", new).expect("valid");
    assert_eq!(windows(&new), [Some(4), None, None, Some(4), None]);
    assert_eq!(thetas(&new), [3e4, 20.0]);
}

#[test]
fn modernbert_takes_the_window_of_one_side_before_that_of_both() {
    let window = |changes: Value| read("modernbert", changes).expect("valid").layers[1].window;
    assert_eq!(window(json!({"sliding_window": 3})), Some(4));
    assert_eq!(window(json!({"sliding_window": 7, "local_attention": 8})), Some(8));
    assert_eq!(window(json!({"sliding_window": 0, "local_attention": 8})), Some(1));
    assert_eq!(window(json!({"sliding_window": null, "local_attention": 8})), Some(5));
    assert!(refusal("modernbert", json!({"sliding_window": -1})).contains("sliding_window"));
}

#[test]
fn what_modernbert_does_not_have_is_refused() {
    let scaled = |kind: &str| json!({"sliding_attention": {"rope_type": kind, "factor": 4.0}});
    assert!(refusal("modernbert", json!({"rope_parameters": scaled("spiral")})).contains("spiral"));
    assert!(refusal("modernbert", json!({"rope_parameters": scaled("dynamic")})).contains("length of a text"));
    assert!(read("modernbert", json!({"rope_parameters": scaled("linear")})).is_ok());
    assert!(refusal("modernbert", json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).contains("rope_scaling"));
    assert!(refusal("modernbert", json!({"hidden_activation": "gelu_10"})).contains("gelu_10"));
    assert!(refusal("modernbert", json!({"layer_types": ["full_attention"]})).contains("1 entries for 5 layers"));
    let chunked = json!({"layer_types": vec!["chunked_attention"; 5]});
    assert!(refusal("modernbert", chunked).contains("chunked_attention"));
    assert!(refusal("modernbert", json!({"num_attention_heads": 64})).contains("must be even"));
    assert!(refusal("modernbert", json!({"global_attn_every_n_layers": 0})).contains("global_attn_every_n_layers"));
    assert!(refusal("modernbert", json!({"quantization_config": {"quant_method": "own"}})).contains("own"));
}

#[test]
fn work_counts_the_tokens_that_are_seen() {
    let bert = read("bert", json!({})).expect("valid");
    let products = 2.0 * 5.0 * (4.0 * 64.0 * 64.0 + 2.0 * 64.0 * 96.0);
    assert_eq!(bert.flops_per_token(300.0), products + 2.0 * 2.0 * 64.0 * 5.0 * 300.0);
    let modern = read("modernbert", json!({"local_attention": 8})).expect("valid");
    let products = 2.0 * 5.0 * (4.0 * 64.0 * 64.0 + 3.0 * 64.0 * 96.0);
    assert_eq!(modern.flops_per_token(300.0), products + 2.0 * 2.0 * 64.0 * (2.0 * 300.0 + 3.0 * 9.0));
}
