"""Attention beside PyTorch's, in turn: 14 heads over 2 of 64, as in Qwen2.5-0.5B; causal prefill, and one step.

    python benches/peers/attention.py [--rounds 9] [--threads 2]
"""

import argparse
import sys

import round_robin
from round_robin import HERE, ROOT


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    round_robin.build("--workspace", "--bin", "attention-rates")
    contenders = {
        "sinew": [ROOT / "target/release/attention-rates", "--serve", "--threads", a.threads],
        "torch": [sys.executable, HERE / "attention_torch.py", a.threads],
    }
    results = round_robin.run([contenders], a.rounds, a.threads)
    print(f"\n{a.threads} threads, medians of {a.rounds} turns\n")
    round_robin.table(results, lower_is_better=results.values)


if __name__ == "__main__":
    main()
