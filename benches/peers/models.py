"""Sinew beside PyTorch on a whole model: random weights of Qwen2.5-0.5B's shape, run in turn, medians and ratios.

    python benches/peers/models.py --sinew target/release/sinew [--dtype bf16] [--repeat 5] [--threads 2] [--data DIR]

Needs torch, transformers and safetensors; makes the checkpoint (988 MB in bf16) in DIR (default: target/peers) once.
Each round runs Sinew, then PyTorch (transformers, sdpa), each in a process of its own, so that both see the same
machine. `prefill` is a prompt of 512 tokens, `decode` 64 steps after it, in tokens per second.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = 512
STEPS = 64


def make_checkpoint(folder):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    config = Qwen2Config(
        hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
        vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768, rms_norm_eps=1e-6,
        use_sliding_window=False, bos_token_id=151643, eos_token_id=151643,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, dtype=torch.bfloat16,
    )
    model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    model.tie_weights()
    model.save_pretrained(folder)


def run_torch(folder, dtype, threads):
    import resource

    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype={"bf16": torch.bfloat16, "f32": torch.float32}[dtype], attn_implementation="sdpa",
        local_files_only=True,
    ).eval()
    load = time.perf_counter() - start
    tokens = torch.randint(0, 150000, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(7))

    @torch.inference_mode()
    def step(ids, past):
        return model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1).past_key_values

    def once():
        start = time.perf_counter()
        past = step(tokens[:, :PROMPT], None)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for i in range(STEPS):
            past = step(tokens[:, PROMPT + i : PROMPT + i + 1], past)
        return PROMPT / prefill, STEPS / (time.perf_counter() - start)

    once()
    prefill, decode = zip(*(once() for _ in range(3)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"prefill": statistics.median(prefill), "decode": statistics.median(decode), "load": load, "peak": peak}))


def run_sinew(binary, folder, dtype, threads):
    line = subprocess.run(
        [binary, "bench", "--model", folder, "--dtype", dtype, "--threads", str(threads), "--prompt-tokens", str(PROMPT),
         "--new-tokens", str(STEPS), "--repeat", "3", "--json"],
        check=True, capture_output=True, text=True,
    ).stdout
    result = json.loads(line)
    return {
        "prefill": result["prefill_tokens_per_s"], "decode": result["decode_tokens_per_s"], "load": result["load_s"],
        "peak": result["peak_rss_bytes"], "prefill_limit": result["prefill_share_of_limit"],
        "decode_limit": result["decode_share_of_limit"], "weights": result["weight_bytes"],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sinew", default="target/release/sinew")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", default="target/peers")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = str(Path(arguments.data) / "qwen2.5-0.5b-shape")
    if arguments.torch:
        return run_torch(folder, arguments.dtype, arguments.threads)
    if not (Path(folder) / "config.json").exists():
        make_checkpoint(folder)
    sinew, torch = [], []
    for round in range(arguments.repeat):
        sinew.append(run_sinew(arguments.sinew, folder, arguments.dtype, arguments.threads))
        line = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--torch"], check=True, capture_output=True, text=True)
        torch.append(json.loads(line.stdout.splitlines()[-1]))
        print(f"round {round + 1}: sinew {sinew[-1]}, torch {torch[-1]}", file=sys.stderr)
    median = lambda runs, key: statistics.median(run[key] for run in runs)
    print(f"Qwen2.5-0.5B's shape, {arguments.dtype}, {arguments.threads} threads, medians of {arguments.repeat} rounds")
    print(f"{'':24}{'Sinew':>12}{'PyTorch':>12}{'ratio':>8}{'of limit':>10}")
    for key in ["prefill", "decode"]:
        ratio = statistics.median(a[key] / b[key] for a, b in zip(sinew, torch))
        limit = 100 * median(sinew, key + "_limit")
        print(f"{key + ', tokens/s':24}{median(sinew, key):12.1f}{median(torch, key):12.1f}{ratio:8.2f}{limit:9.1f}%")
    print(f"{'load, s':24}{median(sinew, 'load'):12.2f}{median(torch, 'load'):12.2f}")
    print(f"{'peak memory, MB':24}{median(sinew, 'peak') / 1e6:12.0f}{median(torch, 'peak') / 1e6:12.0f}")
    print(f"packed weights {median(sinew, 'weights') / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
