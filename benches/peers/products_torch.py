"""PyTorch (F.linear) and OpenBLAS (numpy) in products.py, as JSON lines: THREADS REPEATS M N K COPIES."""

import json
import sys
import time

import torch
import torch.nn.functional as F

threads, repeats, m, n, k, copies = map(int, sys.argv[1:])
torch.set_num_threads(threads)
inner = min(max(int(1e9 / (2 * m * n * k)), 1, copies), 64)


def report(library, dtype, run):
    for turn in range(copies + 1):
        run(turn % copies)
    turn = 0
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            run(turn % copies)
            turn += 1
        seconds = (time.perf_counter() - start) / inner
        print(json.dumps({"library": library, "what": f"{dtype} {m},{n},{k}", "value": seconds}), flush=True)


with torch.inference_mode():
    x, weights = torch.randn(m, k), [torch.randn(n, k) * 0.02 for _ in range(copies)]
    report("torch", "f32", lambda i: F.linear(x, weights[i]))
    a, ws = x.numpy(), [w.numpy() for w in weights]
    report("openblas", "f32", lambda i: a @ ws[i].T)
    x, weights = x.bfloat16(), [w.bfloat16() for w in weights]
    report("torch", "bf16", lambda i: F.linear(x, weights[i]))
