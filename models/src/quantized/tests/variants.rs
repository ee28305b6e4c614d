//! What a config may say in another way, or of another kind of it.

use super::*;

/// A weight `[8, 64]` of 4 bits, whose codes are all 9, and zero points that are stored as 7.
fn gptq_tensors() -> Tensors {
    checkpoint(&[
        i32s("m.qweight", &[8, 8], &[0x9999_9999; 64]),
        i32s("m.qzeros", &[1, 1], &[0x7777_7777]),
        f16s("m.scales", &[1, 8], &[1.0; 8]),
    ])
}

/// What a config makes of them: 1 in version 1, whose zero points are one more than they say, and 2 in version 2.
fn version(fields: Value) -> Result<usize> {
    let mut config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 64 });
    fields.as_object().expect("fields").iter().for_each(|(name, value)| config[name] = value.clone());
    let stored = gptq_tensors();
    let module = quantization(config)?.module(&stored, "m")?.expect("quantized");
    let values = values(&module, &stored);
    assert!(values.iter().all(|&value| value == values[0]));
    Ok(values[0] as usize)
}

fn refused_config(fields: Value, parts: &[&str]) {
    let error = version(fields.clone()).expect_err("refused").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{fields}: {error} does not say {parts:?}");
}

#[test]
fn both_names_of_the_format_of_gptq_say_the_same() {
    for (fields, expected) in [
        (json!({}), 1),
        (json!({ "format": "gptq_v2" }), 2),
        (json!({ "checkpoint_format": "gptq_v2" }), 2),
        (json!({ "checkpoint_format": "gptq_v2", "format": "GPTQ_V2" }), 2),
        (json!({ "checkpoint_format": "gptq", "format": "gptq" }), 1),
        (json!({ "pack_dtype": "int32", "rotation": null }), 1),
        (json!({ "pack_dtype": "torch.int32" }), 1),
    ] {
        assert_eq!(version(fields.clone()).expect("known"), expected, "{fields}");
    }
    for [older, newer] in [["gptq_v2", "gptq"], ["gptq", "gptq_v2"]] {
        let fields = json!({ "checkpoint_format": older, "format": newer });
        refused_config(fields, &["format", "checkpoint_format", older, newer]);
    }
    refused_config(json!({ "checkpoint_format": "gptq", "format": "marlin" }), &["format", "marlin"]);
}

#[test]
fn auto_round_says_the_version_of_its_zero_points_by_names() {
    for (packing, expected) in [
        ("auto_round:auto_gptq", 1),
        ("auto_round:gptq", 1),
        ("auto_round:gptq:exllamav2", 1),
        ("gptq:exllamav2", 1),
        ("auto_gptq:cuda", 1),
        ("auto_round", 2),
        ("auto_round:exllamav2", 2),
        ("autoround:exllamav2", 2),
        ("auto-round:exllamav2", 2),
        ("auto_round:tritonv2", 2),
        ("AUTO_ROUND:gptqmodel", 2),
    ] {
        for method in ["auto-round", "intel/auto-round"] {
            let of = |name: &str| version(json!({ "quant_method": method, name: packing })).expect("known");
            assert_eq!([of("packing_format"), of("backend")], [expected; 2], "{packing}");
        }
    }
    let auto_round = |fields: Value| {
        let mut fields = fields;
        fields["quant_method"] = "auto-round".into();
        fields
    };
    // Where tensors are said to be packed in a way, a backend is a kernel.
    let kernel = auto_round(json!({ "packing_format": "auto_round:auto_gptq", "backend": "auto_round:exllamav2" }));
    assert_eq!(version(kernel).expect("known"), 1);
    assert_eq!(version(auto_round(json!({ "packing_format": "auto" }))).expect("known"), 1);
    for (fields, parts) in [
        (json!({}), &["packing_format", "backend", "missing"][..]),
        (json!({ "backend": "auto" }), &["backend", "auto", "auto_round:auto_gptq", "auto_round:gptqmodel"]),
        (
            json!({ "packing_format": "auto_round:auto_awq", "extra_config": { "n": { "bits": 8 } } }),
            &["extra_config", "n"],
        ),
        (json!({ "packing_format": "auto_round:fp8_static" }), &["packing_format", "fp8_static"]),
        (json!({ "backend": "gptq:marlin" }), &["backend", "gptq:marlin"]),
        (json!({ "backend": "auto_round", "pack_dtype": "int16" }), &["pack_dtype", "int16"]),
        (json!({ "backend": "auto_round", "rotation_config": { "block_size": 32 } }), &["rotation_config"]),
    ] {
        refused_config(auto_round(fields), parts);
    }
}

#[test]
fn auto_round_may_pack_as_awq() {
    let stored = checkpoint(&[
        i32s("m.qweight", &[8, 1], &[0x9999_9999; 8]),
        i32s("m.qzeros", &[1, 1], &[0x7777_7777]),
        f16s("m.scales", &[1, 8], &[1.0; 8]),
    ]);
    let config = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": -1, "sym": false,
        "extra_config": { "n": { "bits": 16 } },
    });
    let module = quantization(config).expect("known").module(&stored, "m").expect("fits").expect("quantized");
    assert_eq!(values(&module, &stored), [2.0; 64]);
}

#[test]
fn what_changes_inputs_or_is_packed_otherwise_is_refused_by_its_field() {
    for rotation in ["hadamard", "random"] {
        refused_config(json!({ "rotation": rotation }), &["rotation", rotation, "checkpoints without"]);
    }
    for dtype in ["int8", "int16", "int64"] {
        refused_config(json!({ "pack_dtype": dtype }), &["pack_dtype", dtype, "int32"]);
    }
    let transform = |transforms: Value| {
        json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {},
                "transform_config": transforms })
    };
    let awq = json!({ "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": false });
    for (config, parts) in [
        (transform(json!({ "config_groups": { "u": { "type": "hadamard" } } })), ["transform_config", "hadamard"]),
        (transform(json!([1])), ["transform_config", "[1]"]),
        (awq, ["zero_point", "false"]),
        (json!({ "quant_method": "fp8", "fmt": "e5m2" }), ["fmt", "e5m2"]),
        (
            json!({ "quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "int8" }),
            ["bnb_4bit_quant_storage", "int8"],
        ),
    ] {
        let error = quantization(config.clone()).expect_err("refused").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{config}: {error} does not say {parts:?}");
    }
    for none in [json!(null), json!({}), json!({ "config_groups": {} })] {
        quantization(transform(none.clone())).unwrap_or_else(|error| panic!("{none}: {error}"));
    }
    for said in ["uint8", "torch.uint8"] {
        let config = json!({ "quant_method": "bitsandbytes", "bnb_4bit_quant_storage": said });
        assert_eq!(quantization(config).is_ok(), said == "uint8", "{said}");
    }
}

/// A weight of ones in a format, less its scales.
fn ones(format: &str, [n, k]: [usize; 2]) -> Made {
    match format {
        "int4" => i32s("m.weight_packed", &[n, k / 8], &vec![0x9999_9999; n * k / 8]),
        "int8" => Made("m.weight", Dtype::I8, vec![n, k], vec![1; n * k]),
        _ => Made("m.weight", Dtype::F8_E4M3, vec![n, k], vec![0x38; n * k]),
    }
}

#[test]
fn schemes_of_compressed_tensors_have_scales_of_their_shape_and_no_other() {
    let groups = |weights: Value| json!({ "g": { "targets": ["Linear"], "weights": weights } });
    let preset = |name: &str| json!({ name: ["Linear"] });
    let block = |structure: Value| {
        groups(json!({ "num_bits": 8, "type": "float", "strategy": "block", "block_structure": structure }))
    };
    let of_rows = |bits: usize, kind: &str| groups(json!({ "num_bits": bits, "type": kind, "strategy": "channel" }));
    let (int, float, packed) = ("int-quantized", "float-quantized", "pack-quantized");
    // A format, groups, the weight, and how many rows and columns have a scale in common.
    let cases = [
        (float, block(json!([2, 32])), "fp8", [4, 64], [2, 32]),
        (float, block(json!("2x32")), "fp8", [4, 64], [2, 32]),
        ("naive-quantized", of_rows(8, "int"), "int8", [4, 64], [1, 64]),
        ("naive-quantized", of_rows(8, "float"), "fp8", [4, 64], [1, 64]),
        (float, preset("FP8_BLOCK"), "fp8", [256, 256], [128, 128]),
        (float, preset("FP8_DYNAMIC"), "fp8", [4, 64], [1, 64]),
        (float, preset("FP8"), "fp8", [4, 64], [4, 64]),
        (packed, preset("W4A16"), "int4", [8, 256], [1, 128]),
        (packed, preset("W4A8"), "int4", [8, 256], [1, 128]),
        (packed, preset("w4a16_asym"), "int4", [8, 256], [1, 128]),
        (int, preset("W8A8"), "int8", [4, 64], [1, 64]),
        (int, preset("W8A16"), "int8", [4, 64], [1, 64]),
        (int, preset("W4A8"), "int8", [4, 256], [1, 128]),
        (int, of_rows(4, "int"), "int8", [4, 64], [1, 64]),
    ];
    for (format, groups, weight, shape, shared) in cases {
        let what = format!("{format} {groups}");
        let config = json!({ "quant_method": "compressed-tensors", "format": format, "config_groups": groups });
        let of = quantization(config).unwrap_or_else(|error| panic!("{what}: {error}"));
        let [rows, columns] = [shape[0] / shared[0], shape[1] / shared[1]];
        let scales: Vec<f32> = (0..rows * columns).map(|i| 1.0 + i as f32).collect();
        let with = |shape: &[usize], scales: &[f32]| {
            let mut tensors =
                vec![ones(weight, [shape[0], shape[1]]), f16s("m.weight_scale", &[rows, columns], scales)];
            // Of zero points in the middle nothing is left.
            tensors.extend(
                what.contains("asym").then(|| i32s("m.weight_zero_point", &[1, columns], &vec![0x8888_8888; columns])),
            );
            tensors
        };
        let stored = checkpoint(&with(&shape, &scales));
        let module = of.module(&stored, "m").unwrap_or_else(|error| panic!("{what}: {error}")).expect("quantized");
        let scale = |row: usize, column: usize| scales[row / shared[0] * columns + column / shared[1]];
        let expected = (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |column| (row, column)));
        assert!(values(&module, &stored).into_iter().eq(expected.map(|(row, column)| scale(row, column))), "{what}");
        // Of a weight of twice the size in both there are too few.
        if shared != shape {
            refused(&of, &with(&[2 * shape[0], 2 * shape[1]], &scales), &["m.weight_scale", "expected"]);
        }
        if what.contains("asym") {
            refused(&of, &with(&shape, &scales)[..2], &["m.weight_zero_point"]);
        }
    }
    let unknown = json!({ "quant_method": "compressed-tensors", "format": packed, "config_groups": preset("W3A16") });
    assert!(quantization(unknown).expect_err("unknown").to_string().contains("FP8_BLOCK"));
    let structure =
        json!({ "quant_method": "compressed-tensors", "format": float, "config_groups": block(json!(null)) });
    assert!(quantization(structure).expect_err("of what size").to_string().contains("block_structure"));
}

#[test]
fn scales_of_fp8_may_be_powers_of_two_alone() {
    let of_blocks =
        quantization(json!({ "quant_method": "fp8", "weight_block_size": [2, 32], "fmt": "float8_e4m3fn" }));
    // 2^-1, 2^0, 2^1 and 2^3.
    let exponents = Made("m.weight_scale_inv", Dtype::F8_E8M0, vec![2, 2], vec![126, 127, 128, 130]);
    let stored = checkpoint(&[ones("fp8", [4, 64]), exponents]);
    let module = of_blocks.expect("known").module(&stored, "m").expect("fits").expect("quantized");
    let scales = [[0.5, 1.0], [2.0, 8.0]];
    let expected = (0..4).flat_map(|row| (0..64).map(move |column| scales[row / 2][column / 32]));
    assert!(values(&module, &stored).into_iter().eq(expected));
}

#[test]
fn channels_of_modelopt_are_rows() {
    let config = json!({ "quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN" });
    let of = quantization(config).expect("known");
    let stored = checkpoint(&[ones("fp8", [2, 4]), f32s("m.weight_scale", &[2], &[1.0, 3.0])]);
    let module = of.module(&stored, "m").expect("fits").expect("quantized");
    assert_eq!(values(&module, &stored), [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0]);
    refused(&of, &[ones("fp8", [2, 4]), f32s("m.weight_scale", &[1], &[1.0])], &["m.weight_scale", "[1]", "[2]"]);
}
