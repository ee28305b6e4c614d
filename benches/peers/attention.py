"""Attention beside PyTorch's, run in turn: 14 heads over 2 of 64, as in Qwen2.5-0.5B; causal prefill, and one step.

    python benches/peers/attention.py [--rounds 5] [--threads 2]
"""

import argparse
import subprocess
import sys

import round_robin
from round_robin import HERE, ROOT


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    build = ["cargo", "build", "--release", "--quiet", "-p", "sinew-benches", "--bin", "attention-rates"]
    subprocess.run(build, check=True, cwd=ROOT)
    contenders = {
        "sinew": [ROOT / "target/release/attention-rates", "--json", "--threads", a.threads],
        "torch": [sys.executable, HERE / "attention_torch.py", a.threads, 3],
    }
    values, limits, units = round_robin.run([contenders], a.rounds, a.threads)
    print(f"\n{a.threads} threads, medians of {a.rounds} rounds\n")
    round_robin.table(values, units, lower_is_better=set(values), limits=limits)


if __name__ == "__main__":
    main()
