"""Train the model that is bundled with Sinew.

A decoder of about a million parameters (Llama architecture: grouped-query
attention, RMSNorm, SwiGLU, rotary embeddings, tied embeddings) that reads and
writes single characters and does small jobs whose answers can be checked:

    add 417+85=            502
    copy rotary=           rotary
    count a in banana=     3
    reverse tensor=        rosnet
    sort 52918=            12589

The answer ends with the end-of-sequence token. Words hold 2 to 8 lowercase
letters, numbers up to three digits, `sort` takes 2 to 7 digits, and a letter is counted
up to five times.

All data is made here, from a fixed seed. A prompt belongs to the held-out side
when a hash of it says so (or when it is one of SHOWCASE), and the training data
never holds such a prompt, so the two sides are disjoint by construction.
`add a+b=` and `add b+a=` are hashed as one.

    python train.py            make the data, train, write the files, check them
    python train.py --check    check the files that are here

Training writes, beside this script: model.safetensors (bf16), config.json,
generation_config.json, tokenizer.json, tokenizer_config.json and held_out.json.
The check loads those files with transformers, decodes the held-out prompts
greedily, computing once in f32 and once in bf16, and fails below REQUIRED.

Needs torch, transformers, tokenizers and safetensors. The bits of the result
depend on the versions of these and on the CPU.
"""

import argparse
import hashlib
import json
import math
import random
import string
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

HERE = Path(__file__).resolve().parent

SEED = 20
THREADS = 1

# The vocabulary: four special tokens, then the newline and printable ASCII.
PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL = [PAD, BOS, EOS, UNK]
CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
VOCABULARY = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
PAD_ID, BOS_ID, EOS_ID, UNK_ID = (VOCABULARY[token] for token in SPECIAL)

# The model.
HIDDEN = 192
INTERMEDIATE = 384
LAYERS = 4
HEADS = 6
KV_HEADS = 2
CONTEXT = 256
ROPE_THETA = 10000.0

# The training.
STEPS = 2000
BATCH = 192
WARMUP = 100
MUON_RATE = 0.02
ADAM_RATE = 3e-3
WEIGHT_DECAY = 0.05
CLIP = 1.0
REPORT_EVERY = 50

# The examples.
MAX_WORD = 8
MAX_DIGITS = 7
MAX_COUNT = 5
HELD_OUT_SHARE = 1 / 16
HELD_OUT_PER_TASK = 40
IGNORED = -100  # the label of a position without a loss

# The check.
MAX_NEW_TOKENS = 16
REQUIRED = 0.98
REQUIRED_PER_TASK = 0.95


# ---------------------------------------------------------------- the examples


def word(rng):
    """A word of 2 to MAX_WORD letters: any letters, few letters, or syllables."""
    length = rng.randint(2, MAX_WORD)
    kind = rng.random()
    if kind < 0.5:
        letters = string.ascii_lowercase
    elif kind < 0.75:
        letters = rng.sample(string.ascii_lowercase, rng.randint(1, 5))
    else:
        pairs = (rng.choice("bcdfghjklmnpqrstvwxyz") + rng.choice("aeiou") for _ in range(length))
        return "".join(pairs)[:length]
    return "".join(rng.choice(letters) for _ in range(length))


def number(rng):
    """A number of up to three digits; each count of digits has its share."""
    digits = rng.choices((1, 2, 3), (1, 2, 4))[0]
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def add(rng):
    return f"{number(rng)}+{number(rng)}"


def copy(rng):
    return word(rng)


def count(rng):
    """A letter and a word that holds it any number of times, up to MAX_COUNT."""
    letter = rng.choice(string.ascii_lowercase)
    letters = list(word(rng))
    times = rng.randint(0, min(len(letters), MAX_COUNT))
    others = sorted(set(letters) - {letter}) or ["a" if letter != "a" else "b"]
    letters = [rng.choice(others) if c == letter else c for c in letters]
    for place in rng.sample(range(len(letters)), times):
        letters[place] = letter
    return f"{letter} in {''.join(letters)}"


def digits(rng):
    return "".join(rng.choice(string.digits) for _ in range(rng.randint(2, MAX_DIGITS)))


def answer_count(text):
    letter, where = text.split(" in ")
    return str(where.count(letter))


# task: (share of the training data, what to ask, its answer)
TASKS = {
    "add": (5, add, lambda text: str(sum(map(int, text.split("+"))))),
    "copy": (1, copy, lambda text: text),
    "count": (4, count, answer_count),
    "reverse": (2, copy, lambda text: text[::-1]),
    "sort": (2, digits, lambda text: "".join(sorted(text))),
}

# Prompts to show; always held out, and the first of their task in held_out.json.
SHOWCASE = {
    "add": ["417+85"],
    "copy": ["rotary"],
    "count": ["a in banana"],
    "reverse": ["tensor"],
    "sort": ["52918"],
}


def is_held_out(task, text):
    if text in SHOWCASE[task]:
        return True
    if task == "add":
        text = "+".join(sorted(text.split("+")))
    digest = hashlib.sha256(f"{task} {text}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def draw(rng, task, held_out):
    """One (prompt, answer) of a task, on the side that is asked for."""
    _, ask, answer = TASKS[task]
    while True:
        text = ask(rng)
        if is_held_out(task, text) == held_out:
            return f"{task} {text}=", answer(text)


def held_out_examples(seed):
    """HELD_OUT_PER_TASK different held-out prompts of every task."""
    rng = random.Random(f"held out {seed}")
    examples = []
    for task, (_, _, answer) in TASKS.items():
        chosen = {f"{task} {text}=": answer(text) for text in SHOWCASE[task]}
        while len(chosen) < HELD_OUT_PER_TASK:
            prompt, answered = draw(rng, task, held_out=True)
            chosen[prompt] = answered
        examples += [{"task": task, "prompt": p, "answer": a} for p, a in chosen.items()]
    return examples


def to_tensors(examples):
    """Token ids and labels [n, longest]; only answers and their end have labels."""
    rows = []
    for prompt, answer in examples:
        asked = [BOS_ID, *(VOCABULARY[c] for c in prompt)]
        answered = [*(VOCABULARY[c] for c in answer), EOS_ID]
        rows.append((asked + answered, [IGNORED] * len(asked) + answered))
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [PAD_ID] * (longest - len(row)) for row, _ in rows])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for _, row in rows])
    return ids, labels


# ---------------------------------------------------------------- the training


def make_model():
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    return LlamaForCausalLM(config)


def make_optimizers(model):
    """Muon for the matrices inside the layers, Adam for everything else."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    rest = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "layers" in n)]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step):
    """The share of the full learning rate: a linear warm-up, then a cosine to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def loss_of(model, ids, labels):
    """The sum of the examples' mean losses, and which examples are all right."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    wanted = labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none"
    )
    answered = (wanted != IGNORED).sum(-1)
    right = ((logits.argmax(-1) == wanted) | (wanted == IGNORED)).all(-1)
    return (losses.sum(-1) / answered).sum(), right


def train():
    rng = random.Random(f"train {SEED}")
    shares = [share for share, _, _ in TASKS.values()]
    model = make_model()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizers = make_optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, rate) for o in optimizers]
    # A set to watch: held out as well, but other prompts than held_out.json's.
    watched = held_out_examples(SEED + 1)
    started = time.time()
    running = 0.0
    for step in range(1, STEPS + 1):
        tasks = rng.choices(list(TASKS), shares, k=BATCH)
        examples = [draw(rng, task, held_out=False) for task in tasks]
        # Short ones and long ones apart, so that little is padded.
        examples.sort(key=lambda example: len(example[0]) + len(example[1]))
        halves = [to_tensors(examples[: BATCH // 2]), to_tensors(examples[BATCH // 2 :])]
        for ids, labels in halves:
            loss = loss_of(model, ids, labels)[0] / BATCH
            loss.backward()
            running += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            with torch.no_grad():
                pairs = [(e["prompt"], e["answer"]) for e in watched]
                right = loss_of(model, *to_tensors(pairs))[1]
            by_task = Counter(e["task"] for e, ok in zip(watched, right) if ok)
            scores = " ".join(f"{t} {by_task[t] / HELD_OUT_PER_TASK:.2f}" for t in TASKS)
            minutes = (time.time() - started) / 60
            print(f"step {step} {minutes:.1f} min loss {running / REPORT_EVERY:.4f} {scores}", flush=True)
            running = 0.0
    return model


# ------------------------------------------------------------------- the files


def make_tokenizer():
    """Every character is one token: byte-pair encoding with nothing to merge."""
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token=UNK))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS}:1 $B:1",
        special_tokens=[(BOS, BOS_ID)],
    )
    tokenizer.decoder = decoders.Fuse()  # with no decoder, tokens are joined by spaces
    return tokenizer


def save(model):
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=False,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    model.save_pretrained(HERE)
    (HERE / "model.safetensors").chmod(0o644)
    make_tokenizer().save(str(HERE / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (HERE / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
    lines = ",\n".join(json.dumps(example) for example in held_out_examples(SEED))
    (HERE / "held_out.json").write_text(f"[\n{lines}\n]\n")


# ------------------------------------------------------------------- the check


@torch.no_grad()
def check():
    """Decode held_out.json greedily with the files that are here; is it good enough?"""
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    examples = json.loads((HERE / "held_out.json").read_text())
    size = (HERE / "model.safetensors").stat().st_size
    print(f"model.safetensors holds {size:,} bytes; {len(examples)} held-out prompts")
    good = True
    for dtype in (torch.float32, torch.bfloat16):
        model = LlamaForCausalLM.from_pretrained(HERE, dtype=dtype).eval()
        asked, right = Counter(), Counter()
        for example in examples:
            prompt = tokenizer(example["prompt"], return_tensors="pt")
            output = model.generate(**prompt, max_new_tokens=MAX_NEW_TOKENS)
            new = output[0, prompt.input_ids.shape[1] :]
            answer = tokenizer.decode(new, skip_special_tokens=True)
            ended = new[-1].item() == EOS_ID
            asked[example["task"]] += 1
            if ended and answer == example["answer"]:
                right[example["task"]] += 1
            else:
                print(f"  wrong: {example['prompt']}{answer} instead of {example['answer']}")
        print(f"computing in {dtype}: {right.total()} of {asked.total()} right")
        for task in asked:
            print(f"  {task:8} {right[task]:3} of {asked[task]}")
        good &= right.total() >= REQUIRED * asked.total()
        good &= all(right[task] >= REQUIRED_PER_TASK * asked[task] for task in asked)
    return good


def main():
    parser = argparse.ArgumentParser(description="Train or check the bundled model.")
    parser.add_argument("--check", action="store_true", help="only check the files that are here")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    transformers_logging.set_verbosity_error()
    if not arguments.check:
        save(train())
    if not check():
        sys.exit("the model is not good enough")


if __name__ == "__main__":
    main()
