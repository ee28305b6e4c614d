"""Whole models beside PyTorch, llama.cpp and candle, in turns of a second: random weights of public shapes.

    python benches/peers/models.py [--shape qwen2.5-0.5b] [--dtype bf16] [--activations bf16] [--starts 3]
        [--rounds 5] [--threads 2] [--contenders sinew,torch,llama,candle] [--data target/peers]

Makes the checkpoint in the data folder once (988 MB for the 0.5B shape in bf16), and llama.cpp's form of it, and builds
Sinew's side (`model-rates`) and candle's, which takes minutes. Needs torch and transformers; llama-cpp-python and gguf
for llama.cpp. A contender that is not there is left out, and said so. Memory has to hold all models at once. Files are
in the page cache when a contender loads, and half as much memory again as its weights take has just been touched.
`prefill 512` is a prompt of that length, `decode after N` steps of a token behind N and those of the turns before,
sixteen in a turn (two for candle in bf16, which is that slow), `batch 8` the sum over 8 sequences, eight steps in a
turn; in `8 requests` Sinew's scheduler runs them. Sinew measures the limits around each of its turns. In int8 and int4
Sinew quantizes the checkpoint as it loads, in groups of 32, and llama.cpp has it as Q8_0 and Q4_0; both take as many
bits. `--activations int8` is Sinew's alone. `SINEW_SIMD=avx2` caps Sinew alone. llama.cpp builds a vocabulary as it
loads, which it cannot be loaded without; the others load no tokenizer.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import round_robin
from measures import MAX_ROUNDS, SIZES
from round_robin import HERE, ROOT
from shapes import SHAPES, make_checkpoint


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32", "int8", "int4"])
    parser.add_argument("--activations", default="bf16", choices=["bf16", "int8"])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contenders", default="sinew,torch,llama,candle")
    parser.add_argument("--data", default=str(ROOT / "target/peers"))
    a = parser.parse_args()
    wanted = a.contenders.split(",")
    quantized = {"int8": "q8_0", "int4": "q4_0"}.get(a.dtype)
    if quantized and not set(wanted) <= {"sinew", "llama"} or a.activations == "int8" and not quantized:
        parser.error("int8 and int4 are of sinew and llama, and so are activations in int8")
    form = quantized or a.dtype
    if a.rounds > MAX_ROUNDS or "sinew" not in wanted:
        parser.error(f"at most {MAX_ROUNDS} rounds, and sinew among the contenders")
    folder = Path(a.data) / f"{a.shape}-shape"
    if not (folder / "config.json").exists():
        make_checkpoint(a.shape, folder)
    gguf = Path(a.data) / f"{a.shape}-{form}.gguf"
    if "llama" in wanted and not gguf.exists():
        subprocess.run([sys.executable, HERE / "gguf_form.py", folder, form, gguf])
    if "llama" in wanted and not gguf.exists():
        print("llama is left out: its form of the checkpoint could not be made", file=sys.stderr)
        wanted.remove("llama")
    round_robin.build("--workspace", "--bin", "model-rates")
    if "candle" in wanted:
        rust = ["--manifest-path", HERE / "rust/Cargo.toml", "--features", "candle"]
        round_robin.build(*rust, "--bin", "candle_models")
    every = {
        "sinew": [ROOT / "target/release/model-rates", folder,
                  a.dtype + ("+int8" if a.activations == "int8" else ""), a.threads, *SIZES],
        "torch": [sys.executable, HERE / "models_torch.py", folder, a.dtype, a.threads],
        "llama": [sys.executable, HERE / "models_llama.py", gguf, folder, a.threads],
        "candle": [HERE / "rust/target/release/candle_models", folder, a.dtype, *SIZES],
    }
    tensors = list(folder.glob("*.safetensors"))
    weights = {name: [gguf] if name == "llama" else tensors for name in wanted}
    # The checkpoint is in bf16.
    size = sum(file.stat().st_size for file in tensors) * (2 if a.dtype == "f32" else 1)
    results = round_robin.run([{name: every[name] for name in wanted}], a.rounds, a.threads, a.starts,
                              lambda name: round_robin.Warm(weights[name], size * 3 // 2))
    dtype = f"{a.dtype}, activations in {a.activations}" if quantized else a.dtype
    print(f"\n{a.shape}'s shape, {dtype}, {a.threads} threads, medians of {a.starts} times {a.rounds} turns\n")
    round_robin.table(results, ("load to first token", "peak memory"))


if __name__ == "__main__":
    main()
