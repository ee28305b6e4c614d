"""PyTorch's scaled_dot_product_attention in attention.py: THREADS."""

import itertools
import sys

import torch
import torch.nn.functional as F

from round_robin import mean_seconds, serve

HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
# Bytes of caches that are rotated, so that keys and values come from memory as over the layers of a model.
ROTATE = 64 << 20

torch.set_num_threads(int(sys.argv[1]))


def milliseconds(what, unit, library, inner, run):
    return mean_seconds(lambda turn: run(), inner) * 1e3


def prefill(length, dtype):
    q = torch.randn(1, HEADS, length, HEAD_DIM, dtype=dtype)
    # Expanded keys are PyTorch's faster way; the expansion is not counted.
    k, v = (torch.randn(1, KV_HEADS, length, HEAD_DIM, dtype=dtype).repeat_interleave(7, 1) for _ in "kv")
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def decode(length, dtype):
    q = torch.randn(1, HEADS, 1, HEAD_DIM, dtype=dtype)
    count = ROTATE // (2 * KV_HEADS * length * HEAD_DIM * dtype.itemsize)
    caches = [[torch.randn(1, KV_HEADS, length, HEAD_DIM, dtype=dtype) for _ in "kv"] for _ in range(count)]
    turn = itertools.cycle(caches)
    return lambda: F.scaled_dot_product_attention(q, *next(turn), enable_gqa=True)


with torch.inference_mode():
    items = []
    for name, dtype in [("bf16", torch.bfloat16), ("f32", torch.float32)]:
        for length in [512, 2048, 8192]:
            items.append((f"prefill {length} {name}", "ms", "", 4 if length == 512 else 1, prefill(length, dtype)))
        items.append((f"decode over 4096 {name}", "ms", "", 32, decode(4096, dtype)))
    serve(items, milliseconds)
