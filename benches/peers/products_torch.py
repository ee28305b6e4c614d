"""PyTorch (F.linear) and OpenBLAS (numpy) in products.py: THREADS M,N,K."""

import sys
import time

import torch
import torch.nn.functional as F

from round_robin import serve

# As in Rust's contender.rs.
FEW_ROWS, ROTATE = 16, 256 << 20
m, n, k = map(int, sys.argv[2].split(","))
torch.set_num_threads(int(sys.argv[1]))


def copies(size):
    return 1 if m > FEW_ROWS else -(-ROTATE // (n * k * size))


def seconds(what, unit, library, count, run):
    runs = max(min(max(int(4e9 / (2 * m * n * k)), 1), 64), count)
    run(count - 1)
    start = time.perf_counter()
    for turn in range(runs):
        run(turn % count)
    return (time.perf_counter() - start) / runs


with torch.inference_mode():
    x, weights = torch.randn(m, k), [torch.randn(n, k) * 0.02 for _ in range(copies(4))]
    a, ws = x.numpy(), [w.numpy() for w in weights]
    half_x = x.bfloat16()
    halves = [weights[i % len(weights)].to(torch.bfloat16, copy=True) for i in range(copies(2))]
    shape = f"{m},{n},{k}"
    serve([
        (f"f32 {shape}", "s", "torch", len(weights), lambda i: F.linear(x, weights[i])),
        (f"f32 {shape}", "s", "openblas", len(weights), lambda i: a @ ws[i].T),
        (f"bf16 {shape}", "s", "torch", len(halves), lambda i: F.linear(half_x, halves[i])),
    ], seconds)
