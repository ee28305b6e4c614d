//! A Llama of any size: its config, and the header of its weights, tied, in bf16 or quantized. And a GPT-NeoX and a gpt-oss.
#![allow(dead_code, reason = "not every file of tests needs all of it")]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

#[derive(Clone, Copy)]
pub struct Llama {
    pub hidden: usize,
    pub width: usize,
    pub layers: usize,
    pub vocab: usize,
}

/// A GPT-NeoX of the same sizes, whose queries, keys and values take turns in one tensor, those of each head of 64.
#[derive(Clone, Copy)]
pub struct Neox(pub Llama);

/// A gpt-oss of the same sizes, in heads of 64, with four experts in MXFP4 in each layer and all else in bf16.
#[derive(Clone, Copy)]
pub struct GptOss(pub Llama);

/// How the weights of products are stored: those of 4 bits in groups of 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    Bf16,
    Gptq,
    /// With the inputs of a group all over a row.
    ActOrder,
    Awq,
}

const GROUP: usize = 128;
/// The group of each input.
const INDEX: &str = "g_idx";
/// Exponents of groups of [`MX_GROUP`].
const EXPONENTS: &str = "_scales";
const MX_GROUP: usize = 32;

/// A tensor: its name, its dtype with the bytes of an element, and its shape.
type Entry = (String, (&'static str, usize), Vec<usize>);

const BF16: (&str, usize) = ("BF16", 2);
const F16: (&str, usize) = ("F16", 2);
const I32: (&str, usize) = ("I32", 4);
const U8: (&str, usize) = ("U8", 1);

impl Stored {
    /// What a config says of it.
    fn config(self) -> Option<Value> {
        match self {
            Self::Bf16 => None,
            Self::Gptq | Self::ActOrder => {
                let desc_act = self == Self::ActOrder;
                Some(json!({ "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": desc_act }))
            }
            Self::Awq => Some(json!({ "quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm" })),
        }
    }

    /// The tensors of a weight `[n, k]`.
    fn tensors(self, name: &str, [n, k]: [usize; 2]) -> Vec<Entry> {
        let entry = |tensor: &str, dtype, shape: [usize; 2]| (format!("{name}.{tensor}"), dtype, shape.to_vec());
        let codes = match self {
            Self::Bf16 => return vec![entry("weight", BF16, [n, k])],
            Self::Gptq | Self::ActOrder => [k / 8, n],
            Self::Awq => [k, n / 8],
        };
        let groups = k / GROUP;
        let mut tensors = vec![
            entry("qweight", I32, codes),
            entry("qzeros", I32, [groups, n / 8]),
            entry("scales", F16, [groups, n]),
        ];
        if self == Self::ActOrder {
            tensors.push((format!("{name}.{INDEX}"), I32, vec![k]));
        }
        tensors
    }
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

    fn tensors(self, stored: Stored) -> Vec<Entry> {
        let Self { hidden, width, layers, vocab } = self;
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), BF16, vec![vocab, hidden]),
            ("model.norm.weight".into(), BF16, vec![hidden]),
        ];
        for layer in 0..layers {
            let sizes = [
                ("self_attn.q_proj", [hidden, hidden]),
                ("self_attn.k_proj", [hidden / 4, hidden]),
                ("self_attn.v_proj", [hidden / 4, hidden]),
                ("self_attn.o_proj", [hidden, hidden]),
                ("mlp.gate_proj", [width, hidden]),
                ("mlp.up_proj", [width, hidden]),
                ("mlp.down_proj", [hidden, width]),
            ];
            let weights =
                sizes.iter().flat_map(|(name, shape)| stored.tensors(&format!("model.layers.{layer}.{name}"), *shape));
            tensors.extend(weights);
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                tensors.push((format!("model.layers.{layer}.{norm}.weight"), BF16, vec![hidden]));
            }
        }
        tensors
    }

    /// The beginning of `model.safetensors`, and the bytes of tensors that follow.
    pub fn header(self, stored: Stored) -> (Vec<u8>, usize) {
        header(&self.tensors(stored))
    }

    /// Writes it into a folder, with values that are finite numbers. Gives the bytes of its tensors.
    pub fn write(self, folder: &Path, stored: Stored) -> io::Result<u64> {
        write(folder, stored, self.config(), &self.tensors(stored))
    }
}

impl Neox {
    fn config(self) -> Value {
        let Llama { hidden, width, layers, vocab } = self.0;
        json!({
            "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": hidden,
            "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": hidden / 64,
            "vocab_size": vocab, "max_position_embeddings": 256, "layer_norm_eps": 1e-5, "rotary_pct": 0.25,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "gelu",
        })
    }

    fn tensors(self, stored: Stored) -> Vec<Entry> {
        let Llama { hidden, width, layers, vocab } = self.0;
        let mut tensors = vec![("gpt_neox.embed_in.weight".to_owned(), BF16, vec![vocab, hidden])];
        let vector = |name: &str, n: usize| (format!("gpt_neox.{name}"), BF16, vec![n]);
        let norm = |name: &str| ["weight", "bias"].map(|of| vector(&format!("{name}.{of}"), hidden));
        for layer in 0..layers {
            for (name, shape) in [
                ("attention.query_key_value", [3 * hidden, hidden]),
                ("attention.dense", [hidden, hidden]),
                ("mlp.dense_h_to_4h", [width, hidden]),
                ("mlp.dense_4h_to_h", [hidden, width]),
            ] {
                tensors.extend(stored.tensors(&format!("gpt_neox.layers.{layer}.{name}"), shape));
                tensors.push(vector(&format!("layers.{layer}.{name}.bias"), shape[0]));
            }
            for name in ["input_layernorm", "post_attention_layernorm"] {
                tensors.extend(norm(&format!("layers.{layer}.{name}")));
            }
        }
        tensors.extend(norm("final_layer_norm"));
        tensors
    }

    /// As a [`Llama`] is written.
    pub fn write(self, folder: &Path, stored: Stored) -> io::Result<u64> {
        write(folder, stored, self.config(), &self.tensors(stored))
    }
}

impl GptOss {
    const EXPERTS: usize = 4;

    fn config(self) -> Value {
        let Llama { hidden, width, layers, vocab } = self.0;
        json!({
            "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": hidden,
            "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": hidden / 64,
            "num_key_value_heads": hidden / 256, "head_dim": 64, "num_local_experts": Self::EXPERTS,
            "num_experts_per_tok": 2, "vocab_size": vocab, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "attention_bias": true,
            "rope_scaling": { "rope_type": "linear", "factor": 2.0 },
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"],
            },
        })
    }

    fn tensors(self) -> Vec<Entry> {
        let Llama { hidden, width, layers, vocab } = self.0;
        let of = |name: String, shape: &[usize]| (name, BF16, shape.to_vec());
        let mut tensors = vec![
            of("model.embed_tokens.weight".to_owned(), &[vocab, hidden]),
            of("model.norm.weight".to_owned(), &[hidden]),
        ];
        for layer in 0..layers {
            let at = |name: &str| format!("model.layers.{layer}.{name}");
            for (name, [n, k]) in [
                ("self_attn.q_proj", [hidden, hidden]),
                ("self_attn.k_proj", [hidden / 4, hidden]),
                ("self_attn.v_proj", [hidden / 4, hidden]),
                ("self_attn.o_proj", [hidden, hidden]),
                ("mlp.router", [Self::EXPERTS, hidden]),
            ] {
                tensors.extend([of(at(&format!("{name}.weight")), &[n, k]), of(at(&format!("{name}.bias")), &[n])]);
            }
            for (name, [n, k]) in [("gate_up_proj", [2 * width, hidden]), ("down_proj", [hidden, width])] {
                let (name, groups) = (at(&format!("mlp.experts.{name}")), k / MX_GROUP);
                tensors.push((format!("{name}_blocks"), U8, vec![Self::EXPERTS, n, groups, MX_GROUP / 2]));
                tensors.push((format!("{name}{EXPONENTS}"), U8, vec![Self::EXPERTS, n, groups]));
                tensors.push(of(format!("{name}_bias"), &[Self::EXPERTS, n]));
            }
            tensors.push(of(at("self_attn.sinks"), &[hidden / 64]));
            tensors
                .extend(["input", "post_attention"].map(|norm| of(at(&format!("{norm}_layernorm.weight")), &[hidden])));
        }
        tensors
    }

    /// As a [`Llama`] is written.
    pub fn write(self, folder: &Path) -> io::Result<u64> {
        write(folder, Stored::Bf16, self.config(), &self.tensors())
    }
}

fn header(tensors: &[Entry]) -> (Vec<u8>, usize) {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, (dtype, size), shape) in tensors {
        let start = end;
        end += size * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
    }
    let mut text = Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    ([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat(), end)
}

fn write(folder: &Path, stored: Stored, mut config: Value, tensors: &[Entry]) -> io::Result<u64> {
    if let Some(quantization) = stored.config() {
        config["quantization_config"] = quantization;
    }
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let (header, end) = header(tensors);
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&header)?;
    // 0x3c… is a bf16 of about 0.01, or an f16 of about 1, of either sign.
    let values: Vec<u8> = (0..1 << 16).flat_map(|i: u32| [(i * 37) as u8, 0x3c | ((i & 1) << 7) as u8]).collect();
    for (name, (_, size), shape) in tensors {
        if name.ends_with(INDEX) {
            // A prime, which divides no width.
            let groups = (0..shape[0]).map(|i| (i * 7919 % shape[0] / GROUP) as i32);
            file.write_all(&groups.flat_map(i32::to_le_bytes).collect::<Vec<_>>())?;
            continue;
        }
        let mut left = size * shape.iter().product::<usize>();
        if name.ends_with(EXPONENTS) {
            // As 127 stands for 1.
            file.write_all(&vec![122; left])?;
            continue;
        }
        while left > 0 {
            let n = left.min(values.len());
            file.write_all(&values[..n])?;
            left -= n;
        }
    }
    file.flush()?;
    Ok(end as u64)
}
