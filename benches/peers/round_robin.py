"""Runs contenders in turn, each in a process of its own, and compares medians: on a shared machine only figures of the
same minutes compare.

A contender prints JSON lines: {"what": "prefill 512", "value": 123.4, "unit": "tokens/s"}, one of a kind or several.
A line may name a "library", where one process measures several.
"""

import json
import mmap
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def environment(threads):
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    env["OPENBLAS_NUM_THREADS"] = env["MATMUL_NUM_THREADS"] = str(threads)
    # Pinned to another CPU's kernels, OpenBLAS runs at half its speed.
    for name in ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"]:
        env.pop(name, None)
    return env


def lines_of(command, env):
    """The JSON lines of a run, or None and a word on why there are none."""
    try:
        done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True)
    except OSError as error:
        return None, str(error)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], None


def warm(files, memory=0):
    """Reads files into the page cache, and touches as many bytes of memory as `memory` says: a virtual machine may have
    given back what was free, and then whoever touches it next waits for its host."""
    for file in files:
        with open(file, "rb", buffering=0) as f:
            while f.read(1 << 24):
                pass
    if memory:
        with mmap.mmap(-1, memory, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as span:
            span.madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, memory, mmap.PAGESIZE):
                span[at] = 1


def run(turns, rounds, threads, before=lambda name: None):
    """`turns`: a list of {name: command}; the contenders of one turn run one after the other, and a round is every turn
    once. `before` is called with a name before its command runs. Returns {what: {name: [median of each round]}}, and
    units. Sinew's lines that begin with "limit " come apart: {what: [median of each round]}."""
    values, limits, units, absent = defaultdict(lambda: defaultdict(list)), defaultdict(list), {}, {}
    env = environment(threads)
    for number in range(1, rounds + 1):
        of_round = defaultdict(list)  # by (what, library)
        for turn in turns:
            for name, command in turn.items():
                if name in absent:
                    continue
                before(name)
                lines, why = lines_of(command, env)
                if lines is None:
                    absent[name] = why
                    continue
                for line in lines:
                    of_round[line["what"], line.get("library", name)].append(line["value"])
                    units[line["what"]] = line.get("unit", "")
        for (what, library), of_what in of_round.items():
            of_all = limits[what.removeprefix("limit ")] if what.startswith("limit ") else values[what][library]
            of_all.append(statistics.median(of_what))
        print(f"round {number} of {rounds} done", file=sys.stderr)
    for name, why in absent.items():
        print(f"{name} did not run: {why}", file=sys.stderr)
    return values, limits, units


def table(values, units, lower_is_better=(), limits=None):
    """Prints a Markdown table: medians and, in parentheses, shares of the limit, then Sinew's ratio to the best peer;
    shares and ratios by round."""
    limits = limits or {}
    names = list(dict.fromkeys(name for row in values.values() for name in row))
    peers = [name for name in names if name != "sinew"]
    head = ["", *names, "to the best peer"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for what, row in values.items():
        if "sinew" not in row:
            continue
        less = what in lower_is_better

        def ratios(ours, theirs):
            return statistics.median(b / a if less else a / b for a, b in zip(ours, theirs))

        def cell(name):
            if not row.get(name):
                return ""
            median = statistics.median(row[name])
            number = f"{median:.0f}" if median >= 1000 else f"{median:.3g}"
            share = f" ({100 * ratios(row[name], limits[what]):.0f} %)" if limits.get(what) else ""
            return number + share

        cells = [cell(name) for name in names]
        there = [name for name in peers if row.get(name)]
        if there:
            best = (min if less else max)(there, key=lambda name: statistics.median(row[name]))
            cells.append(f"{ratios(row['sinew'], row[best]):.2f}x {best}")
        else:
            cells.append("")
        print(f"| {what}, {units[what]} | " + " | ".join(cells) + " |")
