//! Which modules a config means.

use super::*;

#[test]
fn what_a_config_leaves_out_stays_and_is_refused_where_it_is_quantized() {
    const NAME: &str = "model.layers.1.mlp.gate";
    let codes = |tensor, dtype, shape: &[usize], bytes| {
        Made(
            format!("{NAME}.{tensor}").leak(),
            dtype,
            shape.to_vec(),
            vec![bytes; shape.iter().product::<usize>() * if dtype == Dtype::I32 { 4 } else { 1 }],
        )
    };
    let scales = |tensor, shape: &[usize]| {
        let name = format!("{NAME}.{tensor}").leak();
        f16s(name, shape, &vec![1.0; shape.iter().product()])
    };
    let words = || {
        let qweight = codes("qweight", Dtype::I32, &[8, 8], 0x88);
        checkpoint(&[qweight, codes("qzeros", Dtype::I32, &[1, 1], 0x88), scales("scales", &[1, 8])])
    };
    let interleaved = || {
        let qweight = codes("qweight", Dtype::I32, &[32, 1], 0x88);
        checkpoint(&[qweight, codes("qzeros", Dtype::I32, &[1, 1], 0x88), scales("scales", &[1, 8])])
    };
    let floats = || checkpoint(&[codes("weight", Dtype::F8_E4M3, &[3, 4], 0x38), scales("weight_scale", &[1])]);
    let cases: [(Value, &str, Tensors); 6] = [
        (json!({ "quant_method": "awq", "bits": 4, "group_size": 32 }), "modules_to_not_convert", interleaved()),
        (json!({ "quant_method": "gptq", "bits": 4, "group_size": 64 }), "modules_to_not_convert", words()),
        (json!({ "quant_method": "fp8" }), "modules_to_not_convert", floats()),
        (json!({ "quant_method": "fp8" }), "ignored_layers", floats()),
        (json!({ "quant_method": "modelopt", "quant_algo": "FP8" }), "ignore", floats()),
        (json!({ "quant_method": "modelopt", "quant_algo": "FP8" }), "exclude_modules", floats()),
    ];
    let plain = checkpoint(&[f16s(format!("{NAME}.weight").leak(), &[2, 4], &[1.0; 8])]);
    for (config, list, stored) in &cases {
        let with = |entries: Value| {
            let mut config = config.clone();
            config[list] = entries;
            quantization(config)
        };
        let globs = ["*mlp.g*", "*.gate", "model.layers.1*", "*ayers*ate"];
        let names = [NAME, "model.layers.1", "model.layers.1.", "model.layers.*.mlp", "mlp.gate", "gate", "re:.*gate$"];
        for entry in names.into_iter().chain(globs) {
            let quantization = with(json!(["lm_head", entry])).expect("known");
            let error = quantization.module(stored, NAME).expect_err("left out").to_string();
            for part in [NAME, list, entry.trim_start_matches("re:")] {
                assert!(error.contains(part), "{error} does not say {part}");
            }
            assert!(quantization.module(&plain, NAME).expect("stays").is_none());
            quantization.check_floats(&plain, NAME).expect("stays");
        }
        // What one program takes for it, and another does not.
        for entries in [
            json!(["model.layers.1.mlp.gate_proj", "ate", "mlp", "layers.1", "model.layers.10", "*.gat", "g*"]),
            json!(null),
        ] {
            let quantization = with(entries).expect("known");
            assert!(quantization.module(stored, NAME).expect("fits").is_some(), "{config}");
            quantization.check_floats(&plain, NAME).expect("no scales");
        }
        let error = with(json!([1])).expect_err("no name").to_string();
        assert!(error.contains(list) && error.contains("strings"), "{error}");
    }
    let skipped = json!({ "quant_method": "bitsandbytes", "llm_int8_skip_modules": ["q_proj"] });
    let Fixture { stored, .. } = Fixture::open("bitsandbytes_4bit");
    let error = quantization(skipped).expect("known").module(&stored, "model.layers.0.self_attn.q_proj");
    assert!(error.expect_err("left out").to_string().contains("llm_int8_skip_modules"));
}

#[test]
fn floats_beside_parts_of_a_quantized_weight_are_refused() {
    for (method, part) in [
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("gptq", "g_idx"),
        ("awq", "scales"),
        ("awq", "qzeros"),
        ("bitsandbytes", "weight.absmax"),
        ("bitsandbytes", "weight.quant_map"),
        ("bitsandbytes", "weight.nested_absmax"),
        ("bitsandbytes", "weight.nested_quant_map"),
        ("compressed-tensors", "weight_scale"),
        ("compressed-tensors", "weight_zero_point"),
        ("compressed-tensors", "weight_g_idx"),
        ("mxfp4", "weight_scale"),
    ] {
        let config = match method {
            "compressed-tensors" => json!({ "quant_method": method, "format": "float-quantized" }),
            _ => json!({ "quant_method": method, "bits": 4, "group_size": 128, "load_in_4bit": true }),
        };
        let check = |module: &str, of: &str| {
            let name = |end: &str| format!("{module}.{end}").leak() as &'static str;
            let stored = checkpoint(&[f16s(name("weight"), &[2, 4], &[1.0; 8]), f16s(name(of), &[1, 2], &[1.0; 2])]);
            quantization(config.clone()).expect("known").check_floats(&stored, module)
        };
        let error = check("model.layers.1.mlp.up_proj", part).expect_err("refused").to_string();
        assert!(error.contains(&format!("`model.layers.1.mlp.up_proj.{part}`")), "{method}: {error}");
        check("model.layers.1.mlp.up_proj", "bias").expect("no part of a quantized weight");
        check("lm_head", part).expect_err("refused");
    }
    let name = "model.layers.1.mlp.experts.down_proj";
    let stored = checkpoint(&[f16s(name, &[1, 2, 4], &[1.0; 8]), f16s(format!("{name}_scales").leak(), &[1], &[1.0])]);
    let error = quantization(json!({ "quant_method": "mxfp4" })).expect("known").check_floats(&stored, name);
    assert!(error.expect_err("refused").to_string().contains("down_proj_scales"));
}

#[test]
fn floats_beside_blocks_of_mxfp4_are_refused() {
    const NAME: &str = "model.layers.1.mlp.experts.gate_up_proj";
    let mxfp4 = quantization(json!({ "quant_method": "mxfp4" })).expect("known");
    let module = |floats: &str| {
        let of = |end: &str, shape: &[usize]| {
            let bytes = vec![127; shape.iter().product()];
            Made(format!("{NAME}{end}").leak(), Dtype::U8, shape.to_vec(), bytes)
        };
        let floats = f16s(format!("{NAME}{floats}").leak(), &[1, 32, 2], &[1.0; 64]);
        mxfp4.module(&checkpoint(&[of("_blocks", &[1, 2, 1, 16]), of("_scales", &[1, 2, 1]), floats]), NAME)
    };
    for floats in ["", ".weight"] {
        let error = module(floats).expect_err("which of both").to_string();
        assert!([floats, "_blocks"].iter().all(|end| error.contains(&format!("`{NAME}{end}`"))), "{error}");
    }
    assert!(module("_bias").expect("it fits").is_some());
}

#[test]
fn floats_of_a_module_that_the_config_names_are_refused() {
    const NAME: &str = "model.layers.1.self_attn.q_proj";
    let plain = |scale: bool| {
        let mut tensors = vec![f16s("model.layers.1.self_attn.q_proj.weight", &[2, 4], &[1.0; 8])];
        tensors.extend(scale.then(|| f16s("model.layers.1.self_attn.q_proj.weight_scale", &[2, 1], &[1.0; 2])));
        tensors.push(f16s("lm_head.weight", &[2, 4], &[1.0; 8]));
        checkpoint(&tensors)
    };
    let check =
        |config: &Value, scale: bool| quantization(config.clone()).expect("known").check_floats(&plain(scale), NAME);
    let refused = |config: Value, scale: bool, words: &str| {
        let error = check(&config, scale).expect_err("refused").to_string();
        assert!(error.contains(NAME) && error.contains(words), "{error} does not say {words}");
        quantization(config).expect("known").check_floats(&plain(scale), "lm_head").expect("of no layer");
    };
    let gptq = |blocks: Value, dynamic: Value| json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": blocks, "dynamic": dynamic });
    refused(
        gptq(json!([["self_attn.k_proj", "self_attn.q_proj"], ["mlp.up_proj"]]), json!({})),
        false,
        "modules_in_block_to_quantize",
    );
    refused(gptq(json!(["self_attn.q_proj"]), json!({ "-:.*\\.0\\.": {} })), false, "`self_attn.q_proj`");
    for config in [
        gptq(json!(null), json!({})),
        gptq(json!([["self_attn.k_proj"], ["mlp.q_proj"]]), json!({})),
        gptq(json!([["self_attn.q_proj"]]), json!({ "-:.*\\.1\\.": {} })),
    ] {
        check(&config, false).unwrap_or_else(|error| panic!("{config}: {error}"));
    }
    let compressed = |targets: Value, format: &str, ignore: Value| {
        let weights = json!({ "num_bits": 8, "type": "float", "strategy": "channel" });
        json!({ "quant_method": "compressed-tensors", "format": format, "ignore": ignore,
                "config_groups": { "g": { "targets": targets, "weights": weights } } })
    };
    let [none, named] = [json!([]), json!([NAME])];
    for targets in [json!(["re:.*q_proj"]), named.clone(), json!(["Linear", "re:.*self_attn.*"])] {
        refused(compressed(targets.clone(), "float-quantized", none.clone()), false, "its group `g`");
        let ignored = compressed(targets.clone(), "float-quantized", named.clone());
        check(&ignored, false).expect("ignored");
        refused(ignored, true, "weight_scale");
        check(&compressed(targets, "dense", none.clone()), true).expect("stored as it is");
    }
    let of_class = compressed(json!(["Linear"]), "float-quantized", none);
    check(&of_class, false).expect("other classes have floats too");
    refused(of_class, true, "weight_scale");
    let head = compressed(json!(["Linear", "lm_head"]), "float-quantized", json!([]));
    let error = quantization(head).expect("known").check_floats(&plain(false), "lm_head").expect_err("named");
    assert!(error.to_string().contains("its group `g`"), "{error}");
    for field in ["lm_head", "quant_lm_head"] {
        let of = |dynamic: Value| {
            let mut config = gptq(json!(null), dynamic);
            config[field] = true.into();
            quantization(config).expect("known").check_floats(&plain(false), "lm_head")
        };
        assert!(of(json!({})).expect_err("named").to_string().contains(field));
        of(json!({ "-:lm_head": {} })).expect("left out");
    }
    refused(json!({ "quant_method": "fp8" }), true, "weight_scale");
    check(&json!({ "quant_method": "fp8" }), false).expect("no scales");
}

#[test]
fn modules_that_blocks_of_gptq_do_not_have_are_not_quantized() {
    let of = |blocks: Value, name: &str| {
        let named = |tensor: &str| format!("{name}.{tensor}").leak() as &str;
        let stored = checkpoint(&[
            i32s(named("qweight"), &[8, 8], &[0x8888_8888; 64]),
            i32s(named("qzeros"), &[1, 1], &[0x7777_7777]),
            f16s(named("scales"), &[1, 8], &[1.0; 8]),
        ]);
        let config =
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 64, "modules_in_block_to_quantize": blocks });
        quantization(config).expect("known").module(&stored, name)
    };
    let name = "model.layers.0.mlp.experts.3.up_proj";
    let error = of(json!([["self_attn.q_proj"]]), name).expect_err("not one of them").to_string();
    assert!(error.contains(name) && error.contains("modules_in_block_to_quantize"), "{error}");
    for blocks in [json!(null), json!([]), json!([["self_attn.q_proj"], ["mlp.experts.3.up_proj"]]), json!(["up_proj"])]
    {
        assert!(of(blocks, name).expect("one of them").is_some());
    }
    assert!(of(json!([["self_attn.q_proj"]]), "lm_head").expect("of no layer").is_some());
    let wrong = json!({ "quant_method": "gptq", "bits": 4, "group_size": 64, "modules_in_block_to_quantize": [[1]] });
    let error = quantization(wrong).expect_err("no name").to_string();
    assert!(error.contains("modules_in_block_to_quantize") && error.contains("strings"), "{error}");
}

#[test]
fn tables_of_embeddings_are_of_a_class_of_their_own() {
    let scheme = |target: &str, bits: usize| json!({ "targets": [target], "weights": { "num_bits": bits, "type": "int", "strategy": "channel" } });
    let config = |groups: Value| {
        quantization(
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups }),
        )
        .expect("known")
    };
    for (name, expected) in [("model.embed_tokens", 32), ("lm_head", 64), ("embed_out", 64)] {
        let [packed, scale] = ["weight_packed", "weight_scale"].map(|tensor| format!("{name}.{tensor}").leak() as &str);
        let tensors = checkpoint(&[i32s(packed, &[2, 8], &[0; 16]), f16s(scale, &[2, 1], &[1.0, 2.0])]);
        let both = config(json!({ "x": scheme("Linear", 4), "y": scheme("Embedding", 8) }));
        let module = both.module(&tensors, name).expect("fits").expect("quantized");
        assert_eq!(module.shape()[1], expected, "{name}");
        let other = config(json!({ "x": scheme(if expected == 64 { "Embedding" } else { "Linear" }, 4) }));
        assert!(other.module(&tensors, name).is_err(), "{name}");
        assert!(config(json!({ "x": scheme("re:.*", 4) })).module(&tensors, name).is_ok(), "{name}");
    }
}

#[test]
fn names_win_over_expressions_and_those_over_classes() {
    let scheme = |target: &str, bits: usize| {
        let weights = json!({ "num_bits": bits, "type": "int", "strategy": "channel" });
        json!({ "targets": [target], "weights": weights })
    };
    let config = |groups: Value, ignore: Value| {
        json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": groups, "ignore": ignore })
    };
    let tensors =
        checkpoint(&[i32s("a.b.weight_packed", &[2, 8], &[0; 16]), f16s("a.b.weight_scale", &[2, 1], &[1.0, 2.0])]);
    let k = |groups, ignore| {
        let module = quantization(config(groups, ignore)).expect("known").module(&tensors, "a.b");
        module.map(|module| module.expect("quantized").shape()[1])
    };
    let (class, four, eight) = (scheme("Linear", 8), scheme("re:a\\.", 4), scheme("a.b", 8));
    assert_eq!(k(json!({ "x": class, "y": four }), json!([])).expect("fits"), 64);
    assert_eq!(k(json!({ "x": four, "y": eight }), json!([])).expect("fits"), 32);
    // Anchored at the start, and nowhere else.
    assert_eq!(k(json!({ "x": class, "y": scheme("re:b", 4) }), json!([])).expect("fits"), 32);
    assert_eq!(k(json!({ "x": class, "y": scheme("re:.*b$", 4) }), json!(["b", "a"])).expect("fits"), 64);
    assert!(k(json!({ "x": scheme("re:b", 4) }), json!([])).is_err());
    for ignore in ["a.b", "re:a", "Linear"] {
        let error = k(json!({ "x": class }), json!([ignore])).expect_err("ignored").to_string();
        assert!(error.contains("`a.b`") && error.contains("ignore"), "{error}");
    }
}

#[test]
fn dynamic_bits_are_those_of_the_modules_that_match() {
    let config = |dynamic: Value| {
        let mut config = json!({ "quant_method": "gptq", "bits": 4, "group_size": -1, "format": "gptq_v2" });
        config["dynamic"] = dynamic;
        config
    };
    let checkpoint = checkpoint(&[
        i32s("m.qweight", &[8, 8], &[0x8181_8181; 64]),
        i32s("m.qzeros", &[1, 2], &[0x8080_8080; 2]),
        f16s("m.scales", &[1, 8], &[1.0; 8]),
    ]);
    let open = |dynamic| quantization(config(dynamic)).expect("known").module(&checkpoint, "m");
    let module = open(json!({ "+:m": { "bits": 8 }, "-:lm": {} })).expect("fits").expect("quantized");
    assert!(values(&module, &checkpoint).iter().all(|&value| value == 1.0));
    assert!(open(json!({ "-:m": {} })).is_err());
    // The first in the file wins, whatever the order of their texts is.
    for first in [json!({ "m.*": { "bits": 8 }, "m": { "bits": 4 } }), json!({ "m": { "bits": 8 }, "-:m": {} })] {
        assert!(open(first).expect("fits").is_some());
    }
    assert!(open(json!({ "m.*": { "bits": 4 }, "m": { "bits": 8 } })).is_err());
    assert!(open(json!({ "-:m": {}, "+:m": { "bits": 8 } })).is_err());
    // transformers sorts what it writes; GPTQModel's own file has the order.
    let [sorted, ordered] =
        [r#"{ "m": { "bits": 4 }, "m.*": { "bits": 8 } }"#, r#"{ "m.*": { "bits": 8 }, "m": { "bits": 4 } }"#]
            .map(|dynamic| config(serde_json::from_str(dynamic).expect("JSON")));
    let of = |own: Option<&Value>| {
        let sorted = json!({ "quantization_config": sorted });
        let own = own.map(|own| (own, "quantize_config.json"));
        Quantization::parse(&sorted, "config.json", own).expect("known").expect("quantized").module(&checkpoint, "m")
    };
    assert!(of(Some(&ordered)).expect("fits").is_some());
    let other = config(json!({ "m.*": { "bits": 8 } }));
    assert!(of(None).is_err() && of(Some(&other)).is_err());
}

#[test]
fn extra_config_of_auto_round_is_of_modules_by_their_names_or_expressions() {
    let of = |extra: Value| {
        quantization(json!({
            "quant_method": "auto-round", "packing_format": "auto_round:gptqmodel", "bits": 4, "group_size": -1,
            "extra_config": extra,
        }))
    };
    let stored = checkpoint(&[
        i32s("a.m.qweight", &[8, 8], &[0x8181_8181; 64]),
        i32s("a.m.qzeros", &[1, 2], &[0x8080_8080; 2]),
        f16s("a.m.scales", &[1, 8], &[1.0; 8]),
        f16s("a.n.weight", &[8, 8], &[1.0; 64]),
    ]);
    let (four, eight) = (json!({ "bits": 4 }), json!({ "bits": 8, "data_type": "int" }));
    let floats = json!({ "bits": 16, "data_type": "float" });
    for extra in [json!({ "a.m": eight }), json!({ ".*\\.m": eight }), json!({ ".*m": four, "a.m": eight })] {
        let module = of(extra).expect("known").module(&stored, "a.m").expect("fits").expect("quantized");
        assert!(values(&module, &stored).iter().all(|&value| value == 1.0));
    }
    for extra in [json!({}), json!({ "m": eight }), json!({ "a.m": floats })] {
        of(extra).expect("known").module(&stored, "a.m").expect_err("of other bits, or left out");
    }
    of(json!({ "a.n": floats })).expect("known").check_floats(&stored, "a.n").expect("left out");
    let error = of(json!({ "a.n": eight })).expect("known").check_floats(&stored, "a.n").expect_err("named");
    assert!(error.to_string().contains("extra_config"), "{error}");
    assert!(of(json!({ "a.m": { "bits": 3 } })).expect_err("of 3 bits").to_string().contains("bits"));
    assert!(of(json!({ "a.m": 8 })).is_err());
}

#[test]
fn ends_of_names_are_those_of_python() {
    let left_out = |entry: &str| {
        let config = json!({ "quant_method": "fp8", "ignored_layers": [entry] });
        let stored = checkpoint(&[
            Made("lm_head.weight", Dtype::F8_E4M3, vec![1, 4], vec![0x38; 4]),
            f32s("lm_head.weight_scale", &[1], &[1.0]),
        ]);
        quantization(config)?.module(&stored, "lm_head")
    };
    for entry in [r"re:.*lm_head\Z", r"re:.*lm_head$", r"re:lm_hea[d]\Z", r"re:lm_head(?!\Z.)\Z"] {
        let error = left_out(entry).expect_err("left out").to_string();
        assert!(error.contains("leaves it out"), "{entry}: {error}");
    }
    for entry in [r"re:.*lm_hea\Z", r"re:lm_head\\Z", r"re:.*lm_hea$"] {
        assert!(left_out(entry).expect("another").is_some(), "{entry}");
    }
}

#[test]
fn expressions_of_a_config_share_what_they_may_take() {
    let config = |count: usize, part: &str| {
        let ignore: Vec<String> = (0..count).map(|i| format!("re:x{i}{part}")).collect();
        quantization(json!({ "quant_method": "compressed-tensors", "format": "dense", "ignore": ignore }))
    };
    // As many as a config has for each module of a large model; a few that are long; automata behind each other.
    let looked = r"(?=\w\w)\w".repeat(100);
    for (count, part, words) in [
        (1000, r".*\.mlp\.(gate|up)_proj$", None),
        (100_000, r"\.mlp", Some(["more than 16 MiB"; 2])),
        (10, ".{900}", None),
        (1000, ".{900}", Some(["more than 16 MiB"; 2])),
        (1, &looked[..100], None),
        (1, &looked, Some(["more than 16 MiB"; 2])),
        (1, r"(?=a)\w{4000}", Some(["more than 16 MiB"; 2])),
        (16, r"(?!.*\.lm_head).*\.\d+\.mlp", None),
        (17, r"(?!.*\.lm_head).*\.\d+\.mlp", Some(["`x16", "at most 16 with look-around"])),
        (17, r"(\w+)\1", Some(["`x16", "at most 16 with look-around, references"])),
        (16, r"\b.*mlp\b", None),
        (17, r"\b.*mlp\b", Some(["`x16", r"references, `\b`"])),
        (17, "(?m)^.*mlp$", None),
    ] {
        match (config(count, part), words) {
            (Ok(_), words) => assert_eq!(words, None, "{count} of {part}"),
            (Err(error), None) => panic!("{count} of {part}: {error}"),
            (Err(error), Some(words)) => {
                let error = error.to_string();
                let says = |word: &&str| error.contains(*word);
                assert!(says(&".ignore`") && words.iter().all(says), "{part}: {error}");
            }
        }
    }
    // All lists of a config do, and so do the expressions of `dynamic`.
    let some = |start: &str| (0..10).map(|i| format!("{start}x{i}.{{900}}")).collect::<Vec<_>>();
    let [lists, keys] = ["re:", "+:"].map(some);
    let gptq = |ignore: Value, dynamic: Value| {
        quantization(
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 64, "ignore": ignore, "dynamic": dynamic }),
        )
    };
    let keys: serde_json::Map<String, Value> = keys.into_iter().map(|key| (key, json!({}))).collect();
    gptq(json!(lists), json!({})).expect("they fit");
    gptq(json!([]), json!(keys)).expect("they fit");
    assert!(gptq(json!(lists), json!(keys)).expect_err("too many").to_string().contains("more than 16 MiB"));
}

#[test]
fn names_have_no_limit_and_those_with_any_are_few_and_short() {
    let of = |names: Vec<String>| quantization(json!({ "quant_method": "fp8", "modules_to_not_convert": names }));
    let refused = |names: Vec<String>, words: &str| {
        let error = of(names).expect_err("too many").to_string();
        assert!(error.contains("modules_to_not_convert") && error.contains(words), "{error}");
    };
    let many = |end: &str, count: usize| (0..count).map(|i| format!("model.layers.{i}{end}")).collect::<Vec<_>>();
    let patterns = of(many(".mlp", 50_000)).expect("none is an expression").left_out;
    let left_out = |name: &str| patterns.iter().any(|(_, of)| of.leaving_out(name).expect("no steps").is_some());
    assert!(left_out("model.layers.7.mlp.up_proj") && !left_out("model.layers.7.self_attn.q_proj"));
    of(many(".*", 4096)).expect("as many as may be");
    refused(many(".*", 4097), "the 4096 that a config may have");
    of(vec!["*".repeat(16)]).expect("as many as a name has");
    refused(vec!["*".repeat(17)], "17 `*`");
    refused(vec![format!("*{}", "x".repeat(4096))], "4097 bytes");
}
