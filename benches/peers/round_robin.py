"""Contenders take turns, and compare by medians: on a shared machine only figures of the same second compare.

A contender is a process that prints JSON lines. One that loads says {"ready": true} before its clock starts and waits
for a line, while its files and memory are made ready. What comes but once follows, as the time of loading: {"what":
"load to first token", "value": 0.4, "unit": "s"}. Then what it can measure: {"items": [{"what": "prefill 512", "unit":
"tokens/s", "library": ""}, ...]}, with a library where one process measures several. From then on it answers: a line on
its standard input is the number of an item, and it prints {"value": 123.4}, or with what the machine's limits allow in
that moment {"value": 123.4, "limit": 150.0}; the limits are those of Sinew's turn, up to seconds away from the others'.
Before the clock it works for nothing for WARM_UP seconds, or a step of a model. It ends with its input. serve() is that
in Python, and `benches/src/contender.rs` in Rust.
"""

import ctypes
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Seconds before each turn, in which threads of the one before that still spin go to sleep.
PAUSE = 0.05
# Seconds of work before the clock, in which cores come awake.
WARM_UP = 0.05


def ready():
    """Says that loading comes next, and waits until it may."""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()


def put(what, value, unit):
    print(json.dumps({"what": what, "value": value, "unit": unit}), flush=True)


def serve(items, measure):
    """`items`: (what, unit, library, and whatever else `measure` wants of them)."""
    described = [dict(zip(["what", "unit", "library"], item)) for item in items]
    print(json.dumps({"items": described}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"value": measure(*items[int(line)])}), flush=True)


def mean_seconds(run, runs):
    """Of `runs` runs, each told its number, after some for nothing."""
    start, number = time.perf_counter(), 0
    while number == 0 or time.perf_counter() - start < WARM_UP:
        run(number % runs)
        number += 1
    start = time.perf_counter()
    for number in range(runs):
        run(number)
    return (time.perf_counter() - start) / runs


def build(*options):
    # Contenders are started from where a build lies that is told nothing else.
    env = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    subprocess.run(["cargo", "build", "--release", "--quiet", *map(str, options)], check=True, cwd=ROOT, env=env)


def environment(threads):
    env = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    env["OPENBLAS_NUM_THREADS"] = env["MATMUL_NUM_THREADS"] = str(threads)
    # Pinned to another CPU's kernels, OpenBLAS runs at half its speed.
    for name in ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"]:
        env.pop(name, None)
    return env


class Warm:
    """What is alike for all that load: files in the page cache, which are kept there where the system lets this
    process lock so much, and memory that is there. A virtual machine gives back what has been free for some seconds,
    and page cache with it; whoever touches that next waits for its host."""

    def __init__(self, files, memory):
        self.files, self.memory, self.locked = files, memory, []

    def __enter__(self):
        for file in self.files:
            with open(file, "rb", buffering=0) as f:
                while f.read(1 << 24):
                    pass
                span = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            address = np.frombuffer(span, np.uint8).ctypes.data
            if ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(span))):
                print(f"{file} is in the page cache, but may leave it: it cannot be locked", file=sys.stderr)
            self.locked.append(span)
        return self

    def __exit__(self, *error):
        self.locked.clear()

    def touch(self):
        """Right before a clock starts."""
        if not self.memory:
            return
        with mmap.mmap(-1, self.memory, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as span:
            span.madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, self.memory, mmap.PAGESIZE):
                span[at] = 1


class Contender:
    """A process that has said what it can measure; `why` it has not, where it could not."""

    def __init__(self, name, command, env, warm):
        self.name, self.once, self.items, self.why = name, [], [], None
        self.errors = tempfile.TemporaryFile("w+")
        try:
            self.process = subprocess.Popen([str(c) for c in command], env=env, text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=self.errors)
        except OSError as error:
            self.why = str(error)
            return
        while "items" not in (line := self.line()):
            if self.why:
                return
            if "ready" in line:
                warm.touch()
                self.say("")
            else:
                self.once.append(line)
        self.items = line["items"]

    def line(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        self.why = (self.errors.read().strip().splitlines() or ["no message"])[-1]
        return {}

    def measure(self, number):
        time.sleep(PAUSE)
        self.say(number)
        return self.line()

    def say(self, line):
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def end(self):
        if not self.why:
            self.process.communicate()


class Results:
    """`values`: {what: {name: [each turn's]}}; `limits`: {what: [each turn's]}; `units`: {what: unit}."""

    def __init__(self):
        self.values, self.limits, self.units = defaultdict(lambda: defaultdict(list)), defaultdict(list), {}


def run(groups, rounds, threads, starts=1, warm=lambda name: Warm([], 0)):
    """`groups`: a list of {name: command}; those of one group take turns, `rounds` times at each thing that one of them
    measures, after a turn that is not counted, in an order that is drawn for each turn; 0 only starts them. `starts`: how
    many times they are started, another one first each time. `warm` is given a name and says what is warm when it loads."""
    results, absent, env = Results(), {}, environment(threads)
    for group in groups:
        for start in range(starts):
            contenders = []
            names = [name for name in group if name not in absent]
            first = start % max(len(names), 1)
            for name in names[first:] + names[:first]:
                with warm(name) as what:
                    contender = Contender(name, group[name], env, what)
                if contender.why:
                    absent[name] = contender.why
                else:
                    contenders.append(contender)
            contenders.sort(key=lambda contender: list(group).index(contender.name))
            take_turns(contenders, rounds, results)
            for contender in contenders:
                contender.end()
                if contender.why:
                    absent[contender.name] = contender.why
        print(f"{', '.join(results.values)[-60:]} done", file=sys.stderr)
    for name, why in absent.items():
        print(f"{name} did not run, or not to its end: {why}", file=sys.stderr)
    return results


def take_turns(contenders, rounds, results):
    for contender in contenders:
        for line in contender.once:
            results.values[line["what"]][contender.name].append(line["value"])
            results.units[line["what"]] = line["unit"]
    if rounds == 0:
        return
    turns, pick = defaultdict(list), random.Random(1)
    for contender in contenders:
        for number, item in enumerate(contender.items):
            library = item["library"] or contender.name
            turns[item["what"]].append((contender, number, library))
            results.values[item["what"]][library]  # The order of columns.
            results.units[item["what"]] = item["unit"]
    for what, sides in turns.items():
        for turn in range(rounds + 1):
            for contender, number, library in pick.sample(sides, len(sides)):
                if contender.why:
                    continue
                answer = contender.measure(number)
                if turn == 0 or not answer:
                    continue
                results.values[what][library].append(answer["value"])
                if "limit" in answer:
                    results.limits[what].append(answer["limit"])


def table(results, lower_is_better=()):
    """Prints a Markdown table: medians and, in parentheses, shares of the limit, then Sinew's ratio to the best peer;
    shares and ratios turn by turn."""
    names = list(dict.fromkeys(name for row in results.values.values() for name in row))
    peers = [name for name in names if name != "sinew"]
    head = ["", *names, "to the best peer"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for what, row in results.values.items():
        if not row.get("sinew"):
            continue
        less, limit = what in lower_is_better, results.limits.get(what)

        def ratios(ours, theirs):
            return statistics.median(b / a if less else a / b for a, b in zip(ours, theirs))

        def cell(name):
            if not row.get(name):
                return ""
            median = statistics.median(row[name])
            number = f"{median:.0f}" if median >= 1000 else f"{median:.3g}"
            return number + (f" ({100 * ratios(row[name], limit):.0f} %)" if limit else "")

        cells = [cell(name) for name in names]
        # The best peer is the one to which Sinew's ratio is the least.
        rated = [(ratios(row["sinew"], row[name]), name) for name in peers if row.get(name)]
        cells.append("{:.2f}x {}".format(*min(rated)) if rated else "")
        print(f"| {what}, {results.units[what]} | " + " | ".join(cells) + " |")
