"""Checkpoints with random weights of public shapes, in bf16, and the tokens that the Python contenders get. Sinew's
and candle's side make tokens of their own, in prompts of the same lengths."""

SHAPES = {
    "qwen2.5-0.5b": ("Qwen2", dict(
        hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
        vocab_size=151936, max_position_embeddings=32768, rms_norm_eps=1e-6, use_sliding_window=False,
        bos_token_id=151643, eos_token_id=151643, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )),
    "llama-3.2-1b": ("Llama", dict(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5,
        bos_token_id=128000, eos_token_id=128001, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )),
}


def make_checkpoint(shape, folder):
    import torch
    import transformers

    torch.set_default_dtype(torch.bfloat16)
    family, sizes = SHAPES[shape]
    config = getattr(transformers, f"{family}Config")(**sizes, tie_word_embeddings=True, dtype=torch.bfloat16)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    model.tie_weights()
    model.save_pretrained(folder)


def tokens(folder, count=4096):
    import json
    import random

    with open(f"{folder}/config.json") as file:
        vocab = json.load(file)["vocab_size"]
    pick = random.Random(7)
    return [pick.randrange(vocab) for _ in range(count)]
