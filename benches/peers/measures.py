"""What models.py has its contenders measure: the sizes, for all of them, and how one in Python measures, given how it
runs a step."""

import time
from pathlib import Path

from round_robin import put, serve

# Tokens of a short prompt and of a long one; steps in a turn behind one sequence; sequences at once, and their steps.
SHORT = 16
PREFILL = 512
STEPS = 16
BATCH = 8
BATCH_STEPS = 8
SIZES = [SHORT, PREFILL, STEPS, BATCH, BATCH_STEPS]
# Turns behind one prompt that the contexts have room for.
MAX_ROUNDS = 29


def compete(ids, clear, prefill, step, loaded_s):
    """`clear()` forgets all sequences; `prefill(sequences)` starts them from token lists; `step(tokens)` appends a token
    to each. Both return once the logits are there. Sequences go on from turn to turn, where a turn is a step that is
    not counted and then those that are."""
    put("load to first token", loaded_s, "s")
    clear()
    prefill([ids[:PREFILL]])
    # Not that of getrusage, which counts what the process was before it became this program.
    status = Path("/proc/self/status").read_text().split()
    put("peak memory", int(status[status.index("VmHWM:") + 1]) * 1024 / 1e6, "MB")
    items = [(f"prefill {PREFILL}", "tokens/s", "", PREFILL, 1, 0)]
    # The last as requests of a scheduler, where there is one: of others they are the batch once more.
    for beginning, batch, steps in [("", 1, STEPS), (f"batch {BATCH}, ", BATCH, BATCH_STEPS),
                                    (f"{BATCH} requests, ", BATCH, BATCH_STEPS)]:
        for prompt in [SHORT, PREFILL]:
            items.append((f"{beginning}decode after {prompt}", "tokens/s", "", prompt, batch, steps))
    last, done = None, 0

    def measure(what, unit, library, prompt, batch, steps):
        nonlocal last, done
        if steps == 0 or last != what:
            clear()
            start = time.perf_counter()
            prefill([ids[b : b + prompt] for b in range(batch)])
            last, done = what, 0
            if steps == 0:
                return prompt / (time.perf_counter() - start)
        for number in range(steps + 1):
            if number == 1:
                start = time.perf_counter()
            step([ids[1000 + done + 70 * b] for b in range(batch)])
            done += 1
        return batch * steps / (time.perf_counter() - start)

    serve(items, measure)
