"""PyTorch's scaled_dot_product_attention in attention.py, as JSON lines: THREADS REPEATS."""

import json
import sys
import time

import torch
import torch.nn.functional as F

HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
# Caches are rotated, so that keys and values come from memory as over the layers of a model.
CACHES = 32

threads, repeats = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)


def report(what, inner, run):
    run(), run()
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            run()
        value = (time.perf_counter() - start) / inner * 1e3
        print(json.dumps({"what": what, "value": value, "unit": "ms"}), flush=True)


with torch.inference_mode():
    for name, dtype in [("bf16", torch.bfloat16), ("f32", torch.float32)]:
        for length in [512, 2048, 8192]:
            q = torch.randn(1, HEADS, length, HEAD_DIM, dtype=dtype)
            # Expanded keys are PyTorch's faster way; the expansion is not counted.
            k, v = (torch.randn(1, KV_HEADS, length, HEAD_DIM, dtype=dtype).repeat_interleave(7, 1) for _ in "kv")
            report(f"prefill {length} {name}", 4 if length == 512 else 1,
                   lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        q = torch.randn(1, HEADS, 1, HEAD_DIM, dtype=dtype)
        caches = [[torch.randn(1, KV_HEADS, 4096, HEAD_DIM, dtype=dtype) for _ in "kv"] for _ in range(CACHES)]
        turn = iter(range(1 << 30))

        def decode():
            k, v = caches[next(turn) % CACHES]
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        report(f"decode over 4096 {name}", CACHES, decode)
