"""Whole models beside PyTorch, llama.cpp and candle: random weights of public shapes, run in turn.

    python benches/peers/models.py [--shape qwen2.5-0.5b] [--dtype bf16] [--rounds 5] [--threads 2]
        [--contenders sinew,torch,llama,candle] [--sinew target/release/sinew] [--data target/peers]

Makes the checkpoint in the data folder once (988 MB for the 0.5B shape in bf16), and llama.cpp's form of it. Needs
torch and transformers; llama-cpp-python and gguf for llama.cpp; a build of benches/peers/rust with the feature `candle`.
A contender that is not there is left out, and said so. Files are in the page cache when a contender starts. `prefill
512` is a prompt of that length, `decode after N` 64 steps of one token behind N, `batch 8` the sum over 8 sequences;
limits are those that Sinew measures in its own process. `SINEW_SIMD=avx2` caps Sinew alone.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import round_robin
from measures import BATCH, BATCH_STEPS, PREFILL, REPEAT, SHORT, STEPS, put
from round_robin import HERE, ROOT
from shapes import SHAPES, make_checkpoint


def sinew(binary, folder, dtype, threads):
    """Sinew's figures from its own `bench`, as JSON lines: run as `models.py --as-sinew …`."""
    def bench(prompt, new, batch, repeat):
        command = [binary, "bench", "--model", folder, "--dtype", dtype, "--threads", threads, "--prompt-tokens", prompt,
                   "--new-tokens", new, "--batch", batch, "--repeat", repeat, "--json"]
        line = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
        return json.loads(line)

    short, long = bench(SHORT, STEPS, 1, REPEAT), bench(PREFILL, STEPS, 1, REPEAT)
    put("load to first token", short["load_s"] + short["time_to_first_token_s"], "s")
    put(f"prefill {PREFILL}", long["prefill_tokens_per_s"])
    put(f"decode after {SHORT}", short["decode_tokens_per_s"])
    put(f"decode after {PREFILL}", long["decode_tokens_per_s"])
    put("peak memory", long["peak_rss_bytes"] / 1e6, "MB")
    put(f"limit prefill {PREFILL}", long["prefill_tokens_per_s"] / long["prefill_share_of_limit"])
    put(f"limit decode after {SHORT}", short["decode_tokens_per_s"] / short["decode_share_of_limit"])
    put(f"limit decode after {PREFILL}", long["decode_tokens_per_s"] / long["decode_share_of_limit"])
    for prompt in [SHORT, PREFILL]:
        put(f"batch {BATCH}, decode after {prompt}", bench(prompt, BATCH_STEPS, BATCH, 1)["decode_tokens_per_s"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contenders", default="sinew,torch,llama,candle")
    parser.add_argument("--sinew", default=str(ROOT / "target/release/sinew"))
    parser.add_argument("--data", default=str(ROOT / "target/peers"))
    parser.add_argument("--as-sinew", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    folder = Path(a.data) / f"{a.shape}-shape"
    if a.as_sinew:
        return sinew(a.sinew, folder, a.dtype, a.threads)
    if not (folder / "config.json").exists():
        make_checkpoint(a.shape, folder)
    wanted = a.contenders.split(",")
    gguf = Path(a.data) / f"{a.shape}-{a.dtype}.gguf"
    if "llama" in wanted and not gguf.exists():
        subprocess.run([sys.executable, HERE / "gguf_form.py", folder, a.dtype, gguf])
    candle = HERE / "rust/target/release/candle_models"
    every = {
        "sinew": [sys.executable, __file__, *sys.argv[1:], "--as-sinew"],
        "torch": [sys.executable, HERE / "models_torch.py", folder, a.dtype, a.threads],
        "llama": [sys.executable, HERE / "models_llama.py", gguf, folder, a.threads],
        "candle": [candle, folder, a.dtype, SHORT, PREFILL, STEPS, BATCH, BATCH_STEPS],
    }
    weights = {name: [gguf] if name == "llama" else list(folder.glob("*.safetensors")) for name in wanted}
    size = max(sum(file.stat().st_size for file in files) for files in weights.values())
    turn = {name: every[name] for name in wanted}
    values, limits, units = round_robin.run(
        [turn], a.rounds, a.threads, lambda name: round_robin.warm(weights[name], size * 5 // 4)
    )
    print(f"\n{a.shape}'s shape, {a.dtype}, {a.threads} threads, medians of {a.rounds} rounds\n")
    round_robin.table(values, units, ("load to first token", "peak memory"), limits)


if __name__ == "__main__":
    main()
