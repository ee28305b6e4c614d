//! Tensors that nobody reads, beside those of quantized modules.

use super::*;
use crate::checkpoint::Checkpoint;

const NAME: &str = "model.layers.0.mlp.up_proj";

/// The tensors of a module in a format, `[8, 64]` or of two experts of four rows.
fn module(method: &str) -> (Value, Vec<Made>) {
    let named = |end: &str| format!("{NAME}.{end}").leak() as &str;
    let scales = |end: &str| f16s(named(end), &[1, 8], &[1.0; 8]);
    let words = |end: &str, shape: &[usize]| i32s(named(end), shape, &vec![0x8888_8888; shape.iter().product()]);
    match method {
        "gptq" => {
            let tensors = vec![words("qweight", &[8, 8]), words("qzeros", &[1, 1]), scales("scales")];
            (json!({ "quant_method": "gptq", "bits": 4, "group_size": -1 }), tensors)
        }
        "awq" => {
            let tensors = vec![words("qweight", &[64, 1]), words("qzeros", &[1, 1]), scales("scales")];
            (json!({ "quant_method": "awq", "bits": 4, "group_size": -1 }), tensors)
        }
        "compressed-tensors" => {
            let weights = json!({ "num_bits": 4, "type": "int", "strategy": "channel" });
            let groups = json!({ "g": { "targets": ["Linear"], "weights": weights } });
            let scale = f16s(named("weight_scale"), &[8, 1], &[1.0; 8]);
            let config = json!({ "quant_method": method, "format": "pack-quantized", "config_groups": groups });
            (config, vec![words("weight_packed", &[8, 8]), scale])
        }
        _ => {
            let weight = Made(named("weight"), Dtype::F8_E4M3, vec![8, 64], vec![0x38; 512]);
            let scale = f16s(named("weight_scale"), &[1], &[1.0]);
            (json!({ "quant_method": "modelopt", "quant_algo": "FP8" }), vec![weight, scale])
        }
    }
}

/// What is said of a checkpoint with one more tensor once the module is loaded, or is not.
fn outcome(method: &str, more: Made, loaded: bool) -> Result<()> {
    let (config, mut tensors) = module(method);
    tensors.push(more);
    let stored = Checkpoint::new(checkpoint(&tensors), Some(quantization(config)?));
    let module = stored.module(NAME)?.expect("quantized");
    if loaded {
        module.rows(&stored, 0..8)?;
    }
    let [first, again] = [0; 2].map(|_| stored.refuse_unread(&["rotary_emb.inv_freq"]));
    assert_eq!(first.is_ok(), again.is_ok(), "to look at a tensor is not to use it");
    first
}

#[test]
fn tensors_that_may_change_a_quantized_module_are_read_or_refused() {
    let name = |end: &str| format!("{NAME}.{end}").leak() as &'static str;
    for method in ["gptq", "awq", "compressed-tensors", "modelopt"] {
        let of = |end: &str, value: f32, loaded| outcome(method, f16s(name(end), &[1], &[value]), loaded);
        for end in
            ["bias", "pre_quant_scale", "weight_global_scale", "weight_scale_2", "had_K", "lora_A.default.weight"]
        {
            let error = of(end, 2.0, true).expect_err("it may change something").to_string();
            assert!(error.contains(&format!("`{NAME}`")) && error.contains(name(end)), "{method}: {error}");
            of(end, 2.0, false).unwrap_or_else(|error| panic!("{method}, {end}, which nobody needs: {error}"));
        }
        for (end, value) in
            [("bias", 0.0), ("input_scale", 2.0), ("act_scale", 2.0), ("k_scale", 2.0), ("rotary_emb.inv_freq", 2.0)]
        {
            of(end, value, true).unwrap_or_else(|error| panic!("{method}, {end}: {error}"));
        }
    }
}

#[test]
fn what_was_let_be_is_judged_again_once_its_module_is_read() {
    let (config, mut tensors) = module("gptq");
    tensors.push(f16s("model.layers.0.mlp.up_proj.pre_quant_scale", &[1], &[2.0]));
    let stored = Checkpoint::new(checkpoint(&tensors), Some(quantization(config).expect("known")));
    let module = stored.module(NAME).expect("it fits").expect("quantized");
    stored.refuse_unread(&[]).expect("nobody needs it");
    module.rows(&stored, 0..8).expect("it can be read");
    stored.refuse_unread(&[]).expect_err("it may change what was read");
}

#[test]
fn activations_that_awq_scales_are_refused() {
    let of = |method: &str, name| outcome(method, f16s(name, &[1], &[2.0]), true);
    let error = of("awq", "model.layers.0.mlp.act.scales").expect_err("it is a factor").to_string();
    assert!(error.contains("`model.layers.0.mlp.act.scales`") && error.contains("AWQ"), "{error}");
    of("gptq", "model.layers.0.mlp.act.scales").expect("of nothing that it knows");
    of("awq", "model.layers.0.mlp.act.shifts").expect("of nothing that it knows");
}
