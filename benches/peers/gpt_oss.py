"""Writes six of gpt-oss-20b's 24 layers, with a vocabulary of 32,768, as they are published: experts in MXFP4, all else in
bf16, random. `python benches/peers/gpt_oss.py FOLDER`; then `sinew bench --model FOLDER`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, EXPERTS, HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 6, 32, 2880, 2880, 32768, 64, 8, 64

CONFIG = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "attention_bias": True,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(1234)

    def normal(*shape, scale=0.02):
        return (torch.randn(*shape, generator=random) * scale).bfloat16()

    tensors = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "lm_head.weight": normal(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN).bfloat16()
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = torch.ones(HIDDEN).bfloat16()
        attention = {"q_proj": (queries, HIDDEN), "k_proj": (keys, HIDDEN), "v_proj": (keys, HIDDEN)}
        for name, (rows, columns) in {**attention, "o_proj": (HIDDEN, queries)}.items():
            tensors[f"{at}self_attn.{name}.weight"] = normal(rows, columns)
            tensors[f"{at}self_attn.{name}.bias"] = normal(rows)
        tensors[f"{at}self_attn.sinks"] = normal(HEADS, scale=1.0)
        tensors[f"{at}mlp.router.weight"] = normal(EXPERTS, HIDDEN, scale=0.1)
        tensors[f"{at}mlp.router.bias"] = normal(EXPERTS)
        for name, (rows, columns) in {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}.items():
            of, groups = f"{at}mlp.experts.{name}", columns // 32
            blocks = torch.randint(0, 256, (EXPERTS, rows, groups, 16), dtype=torch.uint8, generator=random)
            tensors[f"{of}_blocks"] = blocks
            scales = torch.randint(117, 120, (EXPERTS, rows, groups), dtype=torch.uint8, generator=random)
            tensors[f"{of}_scales"] = scales
            tensors[f"{of}_bias"] = normal(EXPERTS, rows)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main()
