"""llama.cpp's side of models.py, through llama-cpp-python's low-level interface: GGUF FOLDER THREADS."""

import sys
import time

import numpy as np

import llama_cpp as llama
from measures import BATCH, PREFILL, SHORT, compete
from round_robin import ready
from shapes import tokens

gguf, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = tokens(folder)
quiet = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(quiet, None)
ready()
start = time.perf_counter()
llama.llama_backend_init()
model_params = llama.llama_model_default_params()
model_params.n_gpu_layers = 0
model = llama.llama_model_load_from_file(gguf.encode(), model_params)
params = llama.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 1024 * BATCH, PREFILL, PREFILL, BATCH
params.n_threads = params.n_threads_batch = threads
if hasattr(params, "flash_attn_type"):
    params.flash_attn_type = 1
else:
    params.flash_attn = True
context = llama.llama_init_from_model(model, params)
memory = llama.llama_get_memory(context)
batch = llama.llama_batch_init(PREFILL, 0, 1)
vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
lengths = []


def run(entries):
    """`entries`: (token, position, sequence, whether its logits are wanted)."""
    batch.n_tokens = len(entries)
    for i, (token, position, sequence, wanted) in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
        batch.seq_id[i][0], batch.logits[i] = sequence, wanted
    if llama.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    logits = llama.llama_get_logits_ith(context, len(entries) - 1)
    return int(np.ctypeslib.as_array(logits, (vocab,)).argmax())


def clear():
    llama.llama_memory_clear(memory, True)


def prefill(sequences):
    lengths[:] = [len(sequence) for sequence in sequences]
    for s, sequence in enumerate(sequences):
        run([(token, i, s, i + 1 == len(sequence)) for i, token in enumerate(sequence)])


def step(row):
    run([(token, lengths[s], s, True) for s, token in enumerate(row)])
    lengths[:] = [n + 1 for n in lengths]


prefill([ids[:SHORT]])
compete(ids, clear, prefill, step, time.perf_counter() - start)
