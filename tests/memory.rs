//! What loading a model costs in memory: weights are read once, and never held twice.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

#[path = "common/command.rs"]
mod command;

use command::{command, run, stdout};

const HIDDEN: usize = 1024;
const WIDTH: usize = 4096;
const LAYERS: usize = 6;
const VOCAB: usize = 16_000;

/// Peak memory beyond the packed weights: a share of them, or this much.
const SHARE: f64 = 1.15;
const SPARE_BYTES: u64 = 128 << 20;

/// A Llama of 230 MB in bf16, tied, with small weights.
fn write_checkpoint(folder: &Path) -> std::io::Result<u64> {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "silu",
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let mut tensors =
        vec![("embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]), ("norm.weight".into(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        let sizes: [(&str, Vec<usize>); 9] = [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![HIDDEN / 4, HIDDEN]),
            ("self_attn.v_proj", vec![HIDDEN / 4, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![WIDTH, HIDDEN]),
            ("mlp.up_proj", vec![WIDTH, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, WIDTH]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ];
        tensors.extend(sizes.map(|(name, shape)| (format!("layers.{layer}.{name}.weight"), shape)));
    }
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in &tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("model.{name}"), entry);
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // 0x3c… is a bf16 of about 0.01, of either sign.
    let values: Vec<u8> = (0..1 << 16).flat_map(|i: u32| [(i * 37) as u8, 0x3c | ((i & 1) << 7) as u8]).collect();
    let mut left = end;
    while left > 0 {
        let n = left.min(values.len());
        file.write_all(&values[..n])?;
        left -= n;
    }
    file.flush()?;
    Ok(end as u64)
}

#[test]
fn a_model_is_loaded_and_run_in_little_more_memory_than_its_packed_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = write_checkpoint(folder.path()).expect("the checkpoint is written");
    for load in ["mmap", "read"] {
        let bench = ["bench", "--prompt-tokens", "32", "--new-tokens", "4", "--repeat", "1", "--json", "--load", load];
        let output = run(command().args(bench).arg("--model").arg(folder.path()), "");
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let (peak, weights) = (report["peak_rss_bytes"].as_u64(), report["weight_bytes"].as_u64());
        let (peak, weights) = (peak.expect("a peak"), weights.expect("packed weights"));
        println!("--load {load}: file {bytes}, packed weights {weights}, peak {peak} bytes");
        assert!(weights < bytes + bytes / 50, "packed weights take {weights} bytes for {bytes} in the file");
        let most = ((SHARE * weights as f64) as u64).max(weights + SPARE_BYTES);
        assert!(
            peak <= most,
            "--load {load}: the peak is {peak} bytes, at most {most} for {weights} of packed weights"
        );
    }
}
