//! Checkpoints of public shapes with random weights in bf16: what speed is measured on where no checkpoint is at hand.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use sinew::kernels::harness::case::{Generator, Values, encode};
use sinew::tensor::DType;

/// Sizes of a Llama.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// As it is asked for.
    pub name: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
}

/// Every shape: Llama 3.1 8B, Llama 3.2 1B, and one that is written in no time.
pub const SHAPES: [Shape; 3] = [
    Shape {
        name: "llama-8b",
        hidden: 4096,
        intermediate: 14336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128256,
    },
    Shape {
        name: "llama-1b",
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128256,
    },
    Shape { name: "tiny", hidden: 64, intermediate: 160, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512 },
];

/// Values that weights are drawn from: enough that no two rows are alike.
const DRAWN: usize = 1 << 16;
/// The standard deviation with which transformers initialises weights.
const DEVIATION: f64 = 0.02;

impl Shape {
    fn config(&self) -> String {
        let Self { hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, .. } = self;
        format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {hidden},
 "intermediate_size": {intermediate}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
 "num_key_value_heads": {kv_heads}, "head_dim": {head_dim}, "vocab_size": {vocab}, "hidden_act": "silu",
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false,
 "eos_token_id": 1, "torch_dtype": "bfloat16"}}
"#
        )
    }

    /// Names and shapes of all tensors.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let &Self { hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, .. } = self;
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
        for layer in 0..layers {
            let parts = [
                ("input_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![heads * head_dim, hidden]),
                ("self_attn.k_proj", vec![kv_heads * head_dim, hidden]),
                ("self_attn.v_proj", vec![kv_heads * head_dim, hidden]),
                ("self_attn.o_proj", vec![hidden, heads * head_dim]),
                ("post_attention_layernorm", vec![hidden]),
                ("mlp.gate_proj", vec![intermediate, hidden]),
                ("mlp.up_proj", vec![intermediate, hidden]),
                ("mlp.down_proj", vec![hidden, intermediate]),
            ];
            all.extend(parts.into_iter().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        all.push(("lm_head.weight".to_owned(), vec![vocab, hidden]));
        all
    }

    /// Writes `config.json` and `model.safetensors` into a folder, which is made if need be.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("config.json"), self.config())?;
        let tensors = self.tensors();
        let mut end = 0;
        let entries: Vec<String> = tensors
            .iter()
            .map(|(name, shape)| {
                let start = end;
                end += shape.iter().product::<usize>() * DType::BF16.size();
                format!(r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
            })
            .collect();
        let mut header = format!("{{{}}}", entries.join(","));
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;

        let mut random = Generator::new(1234);
        let drawn: Vec<f64> = (0..DRAWN).map(|_| DEVIATION * random.value(Values::Normal, DType::F64)).collect();
        let drawn = encode(DType::BF16, &drawn);
        let ones = encode(DType::BF16, &[1.0]);
        for (_, shape) in &tensors {
            let mut left = shape.iter().product::<usize>() * DType::BF16.size();
            if shape.len() == 1 {
                file.write_all(&ones.repeat(left / ones.len()))?;
                continue;
            }
            // Runs of the drawn values from random places.
            while left > 0 {
                let start = random.below(DRAWN / 2) * DType::BF16.size();
                let run = (drawn.len() - start).min(left);
                file.write_all(&drawn[start..start + run])?;
                left -= run;
            }
        }
        Ok(file.flush()?)
    }
}
