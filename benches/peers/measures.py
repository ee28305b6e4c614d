"""What models.py has its contenders measure: the sizes, for all of them, and how one in Python measures, given how it
runs a step."""

import json
import resource
import time

# Tokens of a short prompt and of a long one; steps behind one sequence; sequences at once and steps behind them.
SHORT = 16
PREFILL = 512
STEPS = 64
BATCH = 8
BATCH_STEPS = 32
REPEAT = 2


def put(what, value, unit="tokens/s"):
    print(json.dumps({"what": what, "value": value, "unit": unit}), flush=True)


def measure(ids, prefill, step, loaded_s):
    """`prefill(sequences)` starts anew from token lists; `step(tokens)` appends one token to each sequence."""
    put("load to first token", loaded_s, "s")

    def decode(prompt, batch, steps):
        prefill([ids[b : b + prompt] for b in range(batch)])
        start = time.perf_counter()
        for i in range(steps):
            step([ids[1000 + i + 70 * b] for b in range(batch)])
        return batch * steps / (time.perf_counter() - start)

    def prompt():
        start = time.perf_counter()
        prefill([ids[:PREFILL]])
        return PREFILL / (time.perf_counter() - start)

    prompt(), decode(SHORT, 1, 4)
    for _ in range(REPEAT):
        put(f"prefill {PREFILL}", prompt())
        for length in [SHORT, PREFILL]:
            put(f"decode after {length}", decode(length, 1, STEPS))
    put("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, "MB")
    for length in [SHORT, PREFILL]:
        put(f"batch {BATCH}, decode after {length}", decode(length, BATCH, BATCH_STEPS))
