use serde_json::{Value, json};

use super::*;
use crate::tokenizer::tests::folder_of;

fn module(class: &str, path: &str) -> Value {
    json!({"type": format!("sentence_transformers.models.{class}"), "path": path})
}

fn modules() -> Value {
    json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")])
}

fn read(modules: Value, pooling: Value) -> Result<EmbeddingConfig> {
    let folder = folder_of(&[("modules.json", modules), ("1_Pooling/config.json", pooling)]);
    EmbeddingConfig::read(&Documents::new(folder.path()))
}

#[test]
fn pooling_and_normalisation_come_from_the_modules() {
    let flags =
        json!({"word_embedding_dimension": 384, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    let config = read(modules(), flags).expect("valid");
    assert_eq!((config.pooling, config.normalize, config.include_prompt), (Some(Pooling::Cls), true, true));
    let bare = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]);
    let config = read(bare, json!({"pooling_mode": "lasttoken", "include_prompt": false})).expect("valid");
    assert_eq!((config.pooling, config.normalize, config.include_prompt), (Some(Pooling::LastToken), false, false));
    for (flag, pooling) in [("max_tokens", Pooling::Max), ("mean_tokens", Pooling::Mean)] {
        let config = read(modules(), json!({format!("pooling_mode_{flag}"): true})).expect("valid");
        assert_eq!(config.pooling, Some(pooling));
    }
    let lower = folder_of(&[("sentence_bert_config.json", json!({"do_lower_case": true}))]);
    assert!(EmbeddingConfig::read(&Documents::new(lower.path())).expect("valid").do_lower_case);
    let none = tempfile::tempdir().expect("a folder");
    let config = EmbeddingConfig::read(&Documents::new(none.path())).expect("valid");
    assert_eq!(config, EmbeddingConfig::default());
    assert!(config.normalize && config.pooling.is_none());
}

#[test]
fn what_would_give_other_vectors_is_refused_by_name() {
    let refused = |modules, pooling| read(modules, pooling).expect_err("not supported").one_line();
    let both = json!({"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true});
    assert!(refused(modules(), both).contains("max_tokens+mean_tokens"));
    assert!(refused(modules(), json!({"pooling_mode": "weightedmean"})).contains("weightedmean"));
    assert!(refused(modules(), json!({"pooling_mode_mean_sqrt_len_tokens": true})).contains("mean_sqrt_len"));
    let dense = json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]);
    assert!(refused(dense, json!({})).contains("Dense"));
    let unpooled = json!([module("Transformer", ""), module("Normalize", "1_Normalize")]);
    assert!(refused(unpooled, json!({})).contains("Transformer, Normalize"));
    let outside = json!([module("Transformer", ""), module("Pooling", "../elsewhere")]);
    assert!(refused(outside, json!({})).contains("outside"));
    assert!(read(json!({}), json!({})).is_err());
}

#[test]
fn prompts_have_names_and_one_may_be_the_default() {
    let file = "config_sentence_transformers.json";
    let prompts = json!({"query": "Query: ", "document": ""});
    let read = |value: Value| EmbeddingConfig::read(&Documents::new(folder_of(&[(file, value)]).path()));
    let config = read(json!({"prompts": prompts, "default_prompt_name": null})).expect("valid");
    assert_eq!(config.prompt(None).expect("none"), "");
    assert_eq!(config.prompt(Some("query")).expect("there"), "Query: ");
    let unknown = config.prompt(Some("title")).expect_err("not there").one_line();
    assert!(unknown.contains("title") && unknown.contains("document, query"), "{unknown}");
    let config = read(json!({"prompts": prompts, "default_prompt_name": "query"})).expect("valid");
    assert_eq!(config.prompt(None).expect("the default"), "Query: ");
    assert_eq!(config.prompt(Some("document")).expect("there"), "");
    assert!(read(json!({"prompts": prompts, "default_prompt_name": "title"})).is_err());
    assert!(read(json!({"prompts": {"query": 1}})).is_err());
}

#[test]
fn states_are_pooled_and_scaled_to_length_1() {
    let states = [1.0, -2.0, 3.0, 5.0, -4.0, 3.0];
    for (pooling, expected) in [
        (Pooling::Mean, [0.0, 2.0]),
        (Pooling::Max, [3.0, 5.0]),
        (Pooling::Cls, [1.0, -2.0]),
        (Pooling::LastToken, [-4.0, 3.0]),
    ] {
        let found = pooling.pool(&states, 2);
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{pooling:?}: {found:?}");
    }
    let mut vector = [3.0, -4.0];
    normalize(&mut vector);
    assert_eq!(vector, [0.6, -0.8]);
    normalize(&mut [0.0, 0.0]);
}
