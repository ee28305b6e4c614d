"""PyTorch's side of models.py (transformers, sdpa): FOLDER DTYPE THREADS."""

import sys
import time

import torch
from transformers import AutoModelForCausalLM

from measures import SHORT, compete
from round_robin import ready
from shapes import tokens

folder, dtype, threads = sys.argv[1:4]
torch.set_num_threads(int(threads))
ids = tokens(folder)
ready()
start = time.perf_counter()
dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
model = AutoModelForCausalLM.from_pretrained(
    folder, dtype=dtypes[dtype], attn_implementation="sdpa", local_files_only=True
).eval()
past = None


@torch.inference_mode()
def forward(batch, cache):
    global past
    out = model(input_ids=torch.tensor(batch), past_key_values=cache, use_cache=True, logits_to_keep=1)
    past = out.past_key_values
    return int(out.logits[0, -1].argmax())


def clear():
    global past
    past = None


forward([ids[:SHORT]], None)
loaded = time.perf_counter() - start
compete(ids, clear, lambda sequences: forward(sequences, None), lambda row: forward([[t] for t in row], past), loaded)
