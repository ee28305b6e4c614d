"""Matrix products beside other libraries, in turns of a fraction of a second: GFLOP/s, and for few rows GB/s of
weights.

    python benches/peers/products.py [--rounds 9] [--threads 2] [--contenders sinew,rust,rust-v4,candle,python]
                                     [--shape M,N,K]

Builds Sinew's side (`product-rates`) and benches/peers/rust (gemm, faer, matrixmultiply; `rust-v4` is gemm with its
512-bit kernels, `candle` takes minutes to build); `python` is PyTorch and numpy's OpenBLAS. All but candle write into
memory that is there before. Operands and results are all of the dtype that is named. Sinew measures the limits around
each of its turns. `SINEW_SIMD=avx2` caps Sinew alone.
"""

import argparse
import subprocess
import sys

import round_robin
from round_robin import HERE, ROOT

# Up to so many rows what counts is bytes of weights.
FEW_ROWS = 16
SIZES = {"f32": 4, "f16": 2, "bf16": 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contenders", default="sinew,rust,rust-v4,candle,python")
    parser.add_argument("--shape", action="append", help="M,N,K; as often as wanted; all those of product-rates without")
    a = parser.parse_args()
    wanted = a.contenders.split(",")
    if "sinew" not in wanted:
        parser.error("sinew has to be among the contenders")
    builds = {
        "sinew": ["-p", "sinew-benches", "--bin", "product-rates"],
        "rust": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products"],
        "candle": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "candle_products", "--features", "candle"],
        "rust-v4": ["--manifest-path", HERE / "rust/Cargo.toml", "--bin", "products", "--features", "x86-v4",
                    "--target-dir", HERE / "rust/target/v4"],
    }
    for name in wanted:
        if name in builds:
            round_robin.build(*builds[name])
    sinew = ROOT / "target/release/product-rates"

    # `M,N,K` of x [M, K] · Wᵀ with W [N, K].
    def group(shape):
        every = {
            "sinew": [sinew, "--threads", a.threads, "--serve", shape],
            "rust": [HERE / "rust/target/release/products", a.threads, shape],
            "rust-v4": [HERE / "rust/target/v4/release/products", a.threads, shape],
            "candle": [HERE / "rust/target/release/candle_products", a.threads, shape],
            "python": [sys.executable, HERE / "products_torch.py", a.threads, shape],
        }
        return {name: every[name] for name in wanted}

    shapes = a.shape or subprocess.run([sinew, "--shapes"], check=True, capture_output=True, text=True).stdout.split()
    seconds = round_robin.run([group(shape) for shape in shapes], a.rounds, a.threads)
    print(f"\n{a.threads} threads, medians of {a.rounds} turns\n")
    for few in [False, True]:
        rates = round_robin.Results()
        for what, row in seconds.values.items():
            dtype, shape = what.split()
            m, n, k = map(int, shape.split(","))
            if (m <= FEW_ROWS) != few:
                continue
            work = (SIZES[dtype] * n * k if few else 2 * m * n * k) / 1e9
            rates.values[what] = {name: [work / s for s in turns] for name, turns in row.items()}
            rates.limits[what] = [work / s for s in seconds.limits[what]]
            rates.units[what] = "GB/s" if few else "GFLOP/s"
        round_robin.table(rates)
        print()


if __name__ == "__main__":
    main()
