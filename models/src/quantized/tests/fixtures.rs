//! Modules that formats' own packages have dequantized.

use super::*;

const FIXTURES: [&str; 24] = [
    "awq_g128_qwen2_f16",
    "awq_g32_not_all_llama_f16",
    "ct_fp8_channel_regex_llama_bf16",
    "ct_fp8_tensor_static_qwen2_bf16",
    "ct_int4_g128_llama_bf16",
    "ct_int4_g32_asym_actorder_llama_f16",
    "ct_int4_g32_asym_untied_qwen2_bf16",
    "ct_int8_channel_packed_llama_f16",
    "ct_int8_w8a8_qwen2_bf16",
    "ct_mixed_fp8_int4_llama_bf16",
    "fp8_block_ragged_qwen2_bf16",
    "fp8_channel_qwen2_bf16",
    "fp8_tensor_weight_scale_inv_llama_bf16",
    "fp8_tensor_weight_scale_llama_bf16",
    "gptq_4bit_g128_llama_f16",
    "gptq_4bit_g32_asym_desc_act_qwen2_f16_2layers",
    "gptq_4bit_g32_asym_gpt2_f16",
    "gptq_4bit_one_group_zero_biases_llama_f16",
    "gptq_8bit_g64_qwen2_f16_2layers",
    "gptq_v2_4bit_g32_asym_untied_llama_f16",
    "modelopt_fp8_qwen2_bf16",
    "mxfp4_llama_bf16",
    "nf4_nested_llama_bf16",
    "nf4_not_all_qwen2_f16",
];

#[test]
fn every_module_of_every_fixture_has_the_bits_of_its_own_code() {
    for fixture in FIXTURES {
        let Fixture { quantization, stored, dequantized } = &Fixture::open(fixture);
        let mut count = 0;
        for tensor in dequantized.names() {
            let name = tensor.strip_suffix(".weight").expect("a weight");
            let module = quantization.module(stored, name).expect("fits").unwrap_or_else(|| panic!("{fixture} {name}"));
            let expected = dequantized.tensor(tensor).expect("there");
            assert_eq!(module.shape(), expected.shape, "{fixture} {name}");
            assert_eq!(crate::safetensors::tensor_dtype(expected.dtype), Some(module.dtype()), "{fixture} {name}");
            check_module(&module, stored, &expected.bytes, &format!("{fixture} {name}"));
            count += 1;
        }
        assert!(count >= 4, "{fixture} has {count} quantized modules");
        for tensor in stored.names() {
            // What is quantized is found, and nothing else is taken for it.
            if let Some(name) = tensor.strip_suffix(".weight").filter(|_| !dequantized.contains(tensor)) {
                assert!(quantization.module(stored, name).expect("fits").is_none(), "{fixture} {name}");
                stored.tensor(tensor).expect("there");
            }
        }
        let unused: Vec<&str> = stored.unused().filter(|name| !quantization.is_spare(stored, name)).collect();
        // Biases are read with the weight that they belong to.
        let is_of_weight = |module: &str| {
            stored.contains(&format!("{module}.weight")) || quantization.module(stored, module).expect("fits").is_some()
        };
        let is_bias = |name: &&str| name.strip_suffix(".bias").is_some_and(is_of_weight);
        let unused: Vec<&str> = unused.into_iter().filter(|name| !is_bias(name)).collect();
        assert!(unused.is_empty(), "{fixture} leaves {unused:?}");
    }
}

#[test]
fn experts_of_mxfp4_are_one_module_of_all_their_rows() {
    for fixture in ["mxfp4_experts", "mxfp4_gpt_oss_bf16"] {
        experts_are_one_module(fixture);
    }
}

fn experts_are_one_module(fixture: &str) {
    let Fixture { quantization, stored, dequantized } = &Fixture::open(fixture);
    for tensor in dequantized.names() {
        let module = quantization.module(stored, tensor).expect("fits").expect("quantized");
        let expected = dequantized.tensor(tensor).expect("there");
        let [experts, k, rows] = *expected.shape else { panic!("{:?}", expected.shape) };
        assert_eq!(module.shape(), [experts * rows, k]);
        let format = BlockFormat::new(BlockValues::F4E2M1, 32, DType::BF16, false).expect("a format");
        assert_eq!(module.encoding(), Encoding::Blocks(format));
        // transformers' are [experts, k, rows].
        let mut transposed = Vec::new();
        for expert in 0..experts {
            for row in 0..rows {
                for column in 0..k {
                    transposed.extend_from_slice(&expected.bytes[((expert * k + column) * rows + row) * 2..][..2]);
                }
            }
        }
        check_module(&module, stored, &transposed, tensor);
    }
}

#[test]
fn nf4_of_whole_blocks_is_read_and_the_rest_refused() {
    let Fixture { quantization, stored, dequantized } = &Fixture::open("bitsandbytes_4bit");
    let format = BlockFormat::new(BlockValues::Nf4, 64, DType::F32, false).expect("a format");
    for (module, refused) in [
        ("self_attn.q_proj", None),
        ("self_attn.o_proj", None),
        ("mlp.up_proj", Some("FP4 of bitsandbytes")),
        ("mlp.down_proj", Some("rows of 70 are not whole blocks of 64")),
    ] {
        let name = format!("model.layers.0.{module}");
        let found = quantization.module(stored, &name);
        if let Some(words) = refused {
            let error = found.expect_err("it is refused").to_string();
            assert!(error.contains(words) && error.contains(module), "{error}");
            continue;
        }
        let module = found.expect("fits").expect("quantized");
        assert_eq!(module.encoding(), Encoding::Blocks(format));
        let expected = dequantized.tensor(&format!("{name}.weight")).expect("there");
        assert_eq!(module.shape(), expected.shape);
        check_module(&module, stored, &expected.bytes, &name);
    }
    assert!(quantization.module(stored, "model.layers.0.mlp.gate_proj").expect("not there").is_none());
}

#[test]
fn fixtures_are_packed_in_the_blocks_that_they_have() {
    let blocks = |values, group, scale, zeros| {
        Encoding::Blocks(BlockFormat::new(values, group, scale, zeros).expect("a format"))
    };
    use BlockValues::{F8E4M3, Int4, Int8};
    let cases = [
        ("gptq_4bit_g128_llama_f16", blocks(Int4, 128, DType::F16, false)),
        ("gptq_4bit_one_group_zero_biases_llama_f16", blocks(Int4, 128, DType::F16, false)),
        ("gptq_8bit_g64_qwen2_f16_2layers", blocks(Int8, 64, DType::F16, false)),
        ("gptq_v2_4bit_g32_asym_untied_llama_f16", blocks(Int4, 32, DType::F16, true)),
        ("gptq_4bit_g32_asym_desc_act_qwen2_f16_2layers", blocks(Int4, 32, DType::F16, true)),
        ("awq_g128_qwen2_f16", blocks(Int4, 128, DType::F16, true)),
        ("ct_int4_g32_asym_actorder_llama_f16", blocks(Int4, 32, DType::F16, true)),
        ("ct_int8_channel_packed_llama_f16", blocks(Int8, 128, DType::F16, false)),
        ("fp8_block_ragged_qwen2_bf16", blocks(F8E4M3, 128, DType::F32, false)),
    ];
    for (fixture, encoding) in cases {
        let module = Fixture::open(fixture).module("model.layers.0.mlp.gate_proj");
        assert_eq!(module.encoding(), encoding, "{fixture}");
    }
}

#[test]
fn biases_of_zeros_are_spare_and_others_are_not() {
    let zeros = Fixture::open("gptq_4bit_one_group_zero_biases_llama_f16");
    let bias = "model.layers.0.mlp.down_proj.bias";
    assert!(zeros.quantization.is_spare(&zeros.stored, bias));
    for (values, is_spare) in [([0.0, -0.0, 0.0], true), ([0.0, -0.0, 1e-7], false), ([f32::NAN, 0.0, 0.0], false)] {
        for made in [f16s("m.bias", &[3], &values), f32s("m.bias", &[3], &values)] {
            assert_eq!(zeros.quantization.is_spare(&checkpoint(&[made]), "m.bias"), is_spare, "{values:?}");
        }
    }
    // Bytes that are no floats.
    let words = checkpoint(&[i32s("m.bias", &[1], &[0])]);
    assert!(!zeros.quantization.is_spare(&words, "m.bias"));
    let others = Fixture::open("gptq_8bit_g64_qwen2_f16_2layers");
    assert!(!others.quantization.is_spare(&others.stored, "model.layers.0.self_attn.q_proj.bias"));
    assert!(!others.quantization.is_spare(&others.stored, "model.norm.weight"));
    let modelopt = Fixture::open("modelopt_fp8_qwen2_bf16");
    assert!(modelopt.quantization.is_spare(&modelopt.stored, "model.layers.0.self_attn.k_proj.k_scale"));
}
