"""PyTorch (F.linear) and OpenBLAS (numpy) in products.py, as JSON lines: THREADS REPEATS."""

import json
import sys
import time

import torch
import torch.nn.functional as F

from product_shapes import FEW_ROWS, ROTATE, SHAPES

threads, repeats = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
with torch.inference_mode():
    for m, n, k in SHAPES:
        copies = max(1, ROTATE // (n * k * 4)) if m <= FEW_ROWS else 1
        x, weights = torch.randn(m, k), [torch.randn(n, k) * 0.02 for _ in range(copies)]
        inner = max(min(max(int(1e9 / (2 * m * n * k)), 1), 64), min(copies, 64))
        def report(library, dtype, run):
            run(0), run(0)
            turn = 0
            for _ in range(repeats):
                start = time.perf_counter()
                for _ in range(inner):
                    run(turn % copies)
                    turn += 1
                seconds = (time.perf_counter() - start) / inner
                print(json.dumps({"library": library, "what": f"{dtype} {m},{n},{k}", "value": seconds}), flush=True)

        report("torch", "f32", lambda i: F.linear(x, weights[i]))
        a, ws = x.numpy(), [w.numpy() for w in weights]
        report("openblas", "f32", lambda i: a @ ws[i].T)
        x, weights = x.bfloat16(), [w.bfloat16() for w in weights]
        report("torch", "bf16", lambda i: F.linear(x, weights[i]))
