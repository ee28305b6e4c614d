"""Matrix products beside other libraries, run in turn: GFLOP/s, and for few rows GB/s of weights.

    python benches/peers/products.py [--rounds 5] [--threads 2] [--contenders sinew,rust,rust-v4,python]

Builds Sinew's side (`gemm_rate`) and benches/peers/rust (gemm, faer, matrixmultiply; `rust-v4` is gemm with its 512-bit
kernels); `python` is PyTorch and numpy's OpenBLAS. `SINEW_SIMD=avx2` caps Sinew alone.
"""

import argparse
import json
import statistics
import subprocess
import sys

import round_robin
from product_shapes import FEW_ROWS
from round_robin import HERE, ROOT

SIZES = {"f32": 4, "f16": 2, "bf16": 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--contenders", default="sinew,rust,rust-v4,python")
    a = parser.parse_args()
    wanted = a.contenders.split(",")

    def build(*options):
        subprocess.run(["cargo", "build", "--release", "--quiet", *map(str, options)], check=True, cwd=ROOT)

    every = {
        "sinew": [ROOT / "target/release/examples/gemm_rate", "--json", "--threads", a.threads],
        "rust": [HERE / "rust/target/release/products", a.threads, a.repeat],
        "rust-v4": [HERE / "rust/target/v4/release/products", a.threads, a.repeat],
        "python": [sys.executable, HERE / "products_torch.py", a.threads, a.repeat],
    }
    builds = {
        "sinew": ["-p", "sinew-kernels", "--example", "gemm_rate"],
        "rust": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products"],
        "rust-v4": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products", "--features", "x86-v4",
                    "--target-dir", HERE / "rust/target/v4"],
    }
    for name in wanted:
        if name in builds:
            build(*builds[name])
    values, _ = round_robin.run({name: [every[name]] for name in wanted}, a.rounds, a.threads)
    peaks = {what: statistics.median(values.pop(what)["sinew"]) for what in list(values) if what.startswith("peak ")}
    print(f"\n{a.threads} threads, medians of {a.rounds} rounds; measured limits: {json.dumps(peaks)}\n")
    for few in [False, True]:
        rates, units, limits = {}, {}, {}
        for what, row in values.items():
            dtype, shape = what.split()
            m, n, k = map(int, shape.split(","))
            if (m <= FEW_ROWS) != few:
                continue
            work = SIZES[dtype] * n * k if few else 2 * m * n * k
            rates[what] = {name: [work / seconds / 1e9 for seconds in all_seconds] for name, all_seconds in row.items()}
            units[what] = "GB/s" if few else "GFLOP/s"
            arithmetic = peaks["peak bf16" if dtype == "bf16" else "peak f32"]
            # Each value is read once, and multiplied with every row.
            limits[what] = min(peaks["peak read"], arithmetic * SIZES[dtype] / (2 * m)) if few else arithmetic
        round_robin.table(rates, units, limits=limits)
        print()


if __name__ == "__main__":
    main()
