use serde_json::{Value, json};

use super::*;
use crate::tokenizer::tests::folder_of;

fn module(class: &str, path: &str) -> Value {
    json!({"type": format!("sentence_transformers.models.{class}"), "path": path})
}

fn modules() -> Value {
    json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")])
}

/// Reads a `config_sentence_transformers.json` beside the modules of a usual model.
fn read_own(own: Value) -> Result<EmbeddingConfig> {
    let pooling = json!({"pooling_mode": "mean"});
    let own = ("config_sentence_transformers.json", own);
    let folder = folder_of(&[("modules.json", modules()), ("1_Pooling/config.json", pooling), own]);
    EmbeddingConfig::read(&Documents::new(folder.path()))
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
    // sentence-transformers 6.2 reads this file only beside modules.json.
    let own = json!({"truncate_dim": 7, "prompts": {"q": "Q: "}, "default_prompt_name": "q", "model_type": "Other"});
    let alone = folder_of(&[("config_sentence_transformers.json", own)]);
    assert_eq!(EmbeddingConfig::read(&Documents::new(alone.path())).expect("valid"), EmbeddingConfig::default());
}

#[test]
fn what_would_give_other_vectors_is_refused_by_name() {
    let refused = |modules, pooling| read(modules, pooling).expect_err("not supported").one_line();
    let both = json!({"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true});
    assert!(refused(modules(), both).contains("max+mean"));
    assert!(refused(modules(), json!({"pooling_mode": "weightedmean"})).contains("weightedmean"));
    for (pooling, words) in [
        (json!({"pooling_mode": []}), "`pooling_mode` names no mode"),
        (json!({"pooling_mode": null, "pooling_mode_max_tokens": true}), "`pooling_mode` names no mode"),
        (json!({"pooling_mode": "mean_tokens"}), "pooling `mean_tokens`"),
        (json!({"pooling_mode": ["cls_token"]}), "pooling `cls_token`"),
        (json!({"pooling_mode_mean": true}), "pooling `pooling_mode_mean`"),
    ] {
        let line = refused(modules(), pooling);
        assert!(line.contains(words), "{line}");
    }
    assert!(refused(modules(), json!({"pooling_mode_mean_sqrt_len_tokens": true})).contains("mean_sqrt_len"));
    let dense = json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]);
    assert!(refused(dense, json!({})).contains("Dense"));
    let unpooled = json!([module("Transformer", ""), module("Normalize", "1_Normalize")]);
    assert!(refused(unpooled, json!({})).contains("Transformer, Normalize"));
    let mut many = modules();
    many.as_array_mut().expect("a list").extend((3..9).map(|i| module("Normalize", &format!("{i}_Normalize"))));
    assert!(refused(many.clone(), json!({})).contains("found Transformer, Pooling, Normalize, Normalize"));
    many.as_array_mut().expect("a list").truncate(8);
    assert!(read(many, json!({})).expect("eight modules").normalize);
    let between =
        json!([module("Transformer", ""), module("Normalize", "1_Normalize"), module("Pooling", "1_Pooling")]);
    assert!(refused(between, json!({})).contains("Transformer, Normalize, Pooling"));
    let outside = json!([module("Transformer", ""), module("Pooling", "../elsewhere")]);
    assert!(refused(outside, json!({})).contains("outside"));
    assert!(read(json!({}), json!({})).is_err());
}

#[test]
fn classes_of_other_code_are_refused_by_name() {
    let pooled = json!({"pooling_mode": "mean"});
    let with = |at: usize, class: &str| {
        let mut modules = modules();
        modules[at]["type"] = json!(class);
        read(modules, pooled.clone())
    };
    for (at, class) in [
        (0, "custom_st.Transformer"),
        (0, "Transformer"),
        (0, "modeling.sentence_transformers.models.Transformer"),
        (0, "sentence_transformers_models.Transformer"),
        (0, "sentence_transformers.Transformer"),
        (0, "sentence_transformers.custom.Transformer"),
        (0, "sentence_transformers.models.custom.Transformer"),
        (0, "sentence_transformers.models.transformer"),
        (0, "sentence_transformers.sparse_encoder.models.MLMTransformer"),
        (1, "custom_pooling.Pooling"),
        (1, "sentence_transformers.base.modules.pooling.Pooling"),
        (1, "sentence_transformers.sparse_encoder.models.SpladePooling"),
        (2, "custom.models.Normalize"),
        (2, "sentence_transformers.models.Normalize.Other"),
    ] {
        let line = with(at, class).expect_err(class).one_line();
        let name = class.strip_prefix("sentence_transformers.models.").unwrap_or(class);
        let name = name.strip_prefix("sentence_transformers.base.modules.").unwrap_or(name);
        assert!(line.starts_with(&format!("the module `{name}` in modules.json is not supported")), "{class}: {line}");
    }
    // Versions up to 6.2 save or import these names.
    for (at, class) in [
        (0, "models.Transformer.Transformer"),
        (0, "base.modules.transformer.Transformer"),
        (0, "sentence_transformer.modules.Transformer"),
        (1, "models.Pooling.Pooling"),
        (1, "sentence_transformer.modules.pooling.Pooling"),
        (2, "base.modules.normalize.Normalize"),
        (2, "sentence_transformer.modules.normalize.Normalize"),
    ] {
        let config = with(at, &format!("sentence_transformers.{class}")).expect(class);
        assert_eq!((config.pooling, config.normalize), (Some(Pooling::Mean), true), "{class}");
    }
    let mut modules = modules();
    modules[0]["path"] = json!("0_Transformer");
    assert!(read(modules, pooled.clone()).is_ok(), "a transformer may have a folder of its own");
    for wrong in [json!(1), json!(null), json!(["custom_st.Transformer"])] {
        let mut modules = self::modules();
        modules[0]["type"] = wrong;
        assert!(read(modules, pooled.clone()).expect_err("no name").one_line().contains("`type`"));
    }
}

#[test]
fn files_of_other_kinds_of_models_are_refused() {
    let read = |file: &str, value: Value| {
        let pooling = json!({"pooling_mode": "mean"});
        let files = [("modules.json", modules()), ("1_Pooling/config.json", pooling), (file, value)];
        EmbeddingConfig::read(&Documents::new(folder_of(&files).path()))
    };
    let (text, messages) = (
        json!({"method": "forward", "method_output_name": "last_hidden_state"}),
        json!({"method": "forward", "method_output_name": "last_hidden_state", "format": "flat"}),
    );
    let (bert, own) = ("sentence_bert_config.json", "config_sentence_transformers.json");
    for (file, value, words) in [
        (
            own,
            json!({"model_type": "SparseEncoder"}),
            "model_type \"SparseEncoder\" in config_sentence_transformers.json",
        ),
        (bert, json!({"transformer_task": "fill-mask"}), "transformer_task \"fill-mask\" in sentence_bert_config.json"),
        (bert, json!({"modality_config": {"text": text, "message": messages}}), "modality_config"),
        (bert, json!({"modality_config": {"image": text}}), "modality_config"),
        (bert, json!({"modality_config": {"text": {"method": "get_text_features"}}}), "modality_config"),
        (bert, json!({"module_output_name": "sentence_embedding"}), "module_output_name"),
        (bert, json!({"processing_kwargs": {"text": {"max_length": 8}}}), "processing_kwargs"),
        ("2_Normalize/config.json", json!({"module_input_name": "token_embeddings"}), "module_input_name"),
    ] {
        let line = read(file, value).expect_err(words).one_line();
        assert!(line.contains(words) && line.contains(file), "{line}");
    }
    let saved = json!({"modality_config": {"text": text}, "transformer_task": null, "processing_kwargs": {}});
    assert!(read(bert, saved).is_ok());
}

#[test]
fn dimensions_are_a_count() {
    let read = |value: Value| read_own(json!({"truncate_dim": value})).map(|config| config.truncate_dim);
    assert_eq!(read(json!(7)).expect("a count"), Some(7));
    assert_eq!(read(json!(null)).expect("none"), None);
    assert!(read(json!(7.0)).expect_err("a float").one_line().contains("`truncate_dim` must be an integer, found 7.0"));
    for wrong in [json!(0), json!(-1), json!(true), json!("7"), json!([7])] {
        let line = read(wrong).expect_err("no count").one_line();
        assert!(line.contains("config_sentence_transformers.json: `truncate_dim` must be an integer from 1"), "{line}");
    }
}

#[test]
fn prompts_have_names_and_one_may_be_the_default() {
    let prompts = json!({"query": "Query: ", "document": ""});
    let read = read_own;
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
    // sentence-transformers gives every model empty prompts for queries and documents.
    let config = read(json!({"prompts": {"title": "Title: "}, "default_prompt_name": "document"})).expect("valid");
    assert_eq!((config.prompt(None).expect("empty"), config.prompt(Some("query")).expect("empty")), ("", ""));
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
