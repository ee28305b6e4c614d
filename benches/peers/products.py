"""Matrix products beside other libraries, run in turn: GFLOP/s, and for few rows GB/s of weights.

    python benches/peers/products.py [--rounds 5] [--threads 2] [--contenders sinew,rust,rust-v4,candle,python]

Builds Sinew's side (`product-rates`) and benches/peers/rust (gemm, faer, matrixmultiply; `rust-v4` is gemm with its
512-bit kernels, `candle` takes minutes to build); `python` is PyTorch and numpy's OpenBLAS. They take turns at every
shape, and Sinew measures the limits anew at each. `SINEW_SIMD=avx2` caps Sinew alone.
"""

import argparse
import subprocess
import sys

import round_robin
from round_robin import HERE, ROOT

# Of few rows what counts is bytes of weights: they are rotated over more than the caches hold, as in a model.
FEW_ROWS = 16
ROTATE = 256 << 20
SIZES = {"f32": 4, "f16": 2, "bf16": 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--contenders", default="sinew,rust,rust-v4,candle,python")
    a = parser.parse_args()
    wanted = a.contenders.split(",")

    def build(*options):
        subprocess.run(["cargo", "build", "--release", "--quiet", *map(str, options)], check=True, cwd=ROOT)

    builds = {
        "sinew": ["-p", "sinew-benches", "--bin", "product-rates"],
        "rust": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products"],
        "candle": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "candle_products", "--features", "candle"],
        "rust-v4": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products", "--features", "x86-v4",
                    "--target-dir", HERE / "rust/target/v4"],
    }
    for name in dict.fromkeys(["sinew", *wanted]):
        if name in builds:
            build(*builds[name])

    sinew = ROOT / "target/release/product-rates"

    # `M,N,K` of x [M, K] · Wᵀ with W [N, K].
    def turn(shape):
        m, n, k = map(int, shape.split(","))
        copies = max(1, ROTATE // (n * k * 4)) if m <= FEW_ROWS else 1
        numbers = [a.threads, a.repeat, m, n, k, copies]
        every = {
            "sinew": [sinew, "--threads", a.threads, "--json", shape],
            "rust": [HERE / "rust/target/release/products", *numbers],
            "rust-v4": [HERE / "rust/target/v4/release/products", *numbers],
            "candle": [HERE / "rust/target/release/candle_products", *numbers],
            "python": [sys.executable, HERE / "products_torch.py", *numbers],
        }
        return {name: every[name] for name in wanted}

    shapes = subprocess.run([sinew, "--shapes"], check=True, capture_output=True, text=True).stdout.split()
    values, limits, _ = round_robin.run([turn(shape) for shape in shapes], a.rounds, a.threads)
    print(f"\n{a.threads} threads, medians of {a.rounds} rounds\n")
    for few in [False, True]:
        rates, units, bounds = {}, {}, {}
        for what, row in values.items():
            dtype, shape = what.split()
            m, n, k = map(int, shape.split(","))
            if (m <= FEW_ROWS) != few:
                continue
            work = SIZES[dtype] * n * k if few else 2 * m * n * k
            rates[what] = {name: [work / seconds / 1e9 for seconds in all_seconds] for name, all_seconds in row.items()}
            bounds[what] = [work / seconds / 1e9 for seconds in limits[what]]
            units[what] = "GB/s" if few else "GFLOP/s"
        round_robin.table(rates, units, limits=bounds)
        print()


if __name__ == "__main__":
    main()
