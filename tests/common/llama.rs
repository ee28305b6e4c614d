//! A Llama of any size: its config, and the header of its weights in bf16, tied.

use serde_json::{Map, Value, json};

#[derive(Clone, Copy)]
pub struct Llama {
    pub hidden: usize,
    pub width: usize,
    pub layers: usize,
    pub vocab: usize,
}

impl Llama {
    pub fn config(self) -> Value {
        json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": self.hidden,
            "intermediate_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": 16,
            "num_key_value_heads": 4, "vocab_size": self.vocab, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "silu",
        })
    }

    /// The beginning of `model.safetensors`, and the bytes of tensors that follow.
    pub fn header(self) -> (Vec<u8>, usize) {
        let Self { hidden, width, layers, vocab } = self;
        let mut tensors =
            vec![("embed_tokens.weight".to_owned(), vec![vocab, hidden]), ("norm.weight".into(), vec![hidden])];
        for layer in 0..layers {
            let sizes: [(&str, Vec<usize>); 9] = [
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.k_proj", vec![hidden / 4, hidden]),
                ("self_attn.v_proj", vec![hidden / 4, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("mlp.gate_proj", vec![width, hidden]),
                ("mlp.up_proj", vec![width, hidden]),
                ("mlp.down_proj", vec![hidden, width]),
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
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
        let mut text = Value::Object(header).to_string();
        text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
        ([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat(), end)
    }
}
