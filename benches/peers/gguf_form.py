"""A checkpoint as llama.cpp reads it: FOLDER TYPE FILE. Norms and biases stay f32; the vocabulary is made up.

TYPE is f32, f16, bf16, q8_0 or q4_0; the tied head has the type of the other weights.
"""

import json
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, quants
from safetensors import safe_open

folder, kind, path = sys.argv[1:4]
TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}
PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
element, file_type = TYPES[kind]
with open(f"{folder}/config.json") as file:
    config = json.load(file)
arch, vocab, layers = config["model_type"], config["vocab_size"], config["num_hidden_layers"]
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
names |= {f"model.layers.{i}.{ours}": f"blk.{i}.{theirs}" for i in range(layers) for ours, theirs in PARTS.items()}


def interleaved(weight, heads):
    """Rotary pairs side by side, as llama.cpp's llama has them."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


writer = gguf.GGUFWriter(path, arch)
writer.add_name(arch)
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_block_count(layers)
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_file_type(file_type)
writer.add_vocab_size(vocab)
writer.add_rope_dimension_count(config["hidden_size"] // heads)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("qwen2" if arch == "qwen2" else "llama-bpe")
writer.add_token_list([f"<t{i}>" for i in range(vocab)])
writer.add_token_types([1] * vocab)
writer.add_token_merges(["< t"])
writer.add_bos_token_id(0)
writer.add_eos_token_id(1)
writer.add_quantization_version(2)
with safe_open(f"{folder}/model.safetensors", "pt") as tensors:
    for key in tensors.keys():
        base, suffix = key.rsplit(".", 1)
        name, values = f"{names[base]}.{suffix}", tensors.get_tensor(key).float().numpy()
        if arch == "llama" and "attn_q." in name:
            values = interleaved(values, heads)
        if arch == "llama" and "attn_k." in name:
            values = interleaved(values, kv_heads)
        if values.ndim == 1 or kind == "f32":
            writer.add_tensor(name, values.astype(np.float32))
        elif kind == "f16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            packed = quants.quantize(values, element)
            writer.add_tensor(name, packed, raw_shape=packed.shape, raw_dtype=element)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
