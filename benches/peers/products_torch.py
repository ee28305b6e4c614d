"""PyTorch and OpenBLAS (numpy) in products.py: THREADS M,N,K."""

import sys

import numpy as np
import torch

from round_robin import mean_seconds, serve

# As in Rust's contender.rs.
FEW_ROWS, ROTATE = 16, 256 << 20
m, n, k = map(int, sys.argv[2].split(","))
torch.set_num_threads(int(sys.argv[1]))


def copies(size):
    return 1 if m > FEW_ROWS else -(-ROTATE // (n * k * size))


def seconds(what, unit, library, count, run):
    runs = max(min(max(int(4e9 / (2 * m * n * k)), 1), 64), count)
    return mean_seconds(lambda turn: run(turn % count), runs)


with torch.inference_mode():
    x, weights, y = torch.randn(m, k), [torch.randn(n, k) * 0.02 for _ in range(copies(4))], torch.zeros(m, n)
    a, ws, out = x.numpy(), [w.numpy() for w in weights], y.numpy()
    half_x, half_y = x.bfloat16(), y.bfloat16()
    halves = [weights[i % len(weights)].to(torch.bfloat16, copy=True) for i in range(copies(2))]
    shape = f"{m},{n},{k}"
    serve([
        (f"f32 {shape}", "s", "torch", len(weights), lambda i: torch.mm(x, weights[i].t(), out=y)),
        (f"f32 {shape}", "s", "openblas", len(weights), lambda i: np.matmul(a, ws[i].T, out=out)),
        (f"bf16 {shape}", "s", "torch", len(halves), lambda i: torch.mm(half_x, halves[i].t(), out=half_y)),
    ], seconds)
