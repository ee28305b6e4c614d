"""Compares `sinew logits` with a live transformers, by the logit rules of SPEC.md.

    python .ci/parity.py --sinew target/release/sinew [--quick] [--only TEXT] [--keep DIR]

Builds checkpoints with random weights and awkward shapes in a temporary folder, lets transformers save and
run them, and judges what `sinew logits` writes for the same tokens:

    f32             largest error within 2e-4 of transformers' f32, in standard deviations of its logits
    bf16, f16       RMS error at most 1.0x and maximum at most 1.5x that of transformers in that dtype, both
                    against transformers in f32 with the same (rounded) weights
    auto            the rule of the checkpoint's own dtype
    chunk N         the same bits with `--prefill-chunk N` as without
    500 steps       512 tokens, the last 500 of which transformers sampled, teacher-forced one at a time
                    (`--prefill-chunk 1`): the rules above over the 500 outputs
    500 steps greedy  likewise, and in f32 alone, as 16 bits move logits by more than the margin: the greedy
                    token equal wherever the top-two margin exceeds 1e-3 standard deviations, at most 1 % of
                    the steps left out for that

One line per comparison, then `N passed, N failed`; exits with 1 where one failed.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import common
from common import Checkpoint, Failed, Table, sinew

VOCAB = 1003
PROMPT = 12
STEPS = 500
# Enough positions for the scaled ropes to leave their original length, few enough to stay quick.
SEQUENCE = 100
ORIGINAL = 64
# Divides neither the sequence nor a kernel's tile.
CHUNK = 7

ROPES = {
    "plain": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    # Every option of the kind set.
    "yarn_options": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "truncate": False,
        "mscale": 0.8,
        "mscale_all_dim": 0.4,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": ORIGINAL,
    },
}

# (hidden, heads, KV heads, head_dim): 3 heads over 1, head_dim 80 and 20, and an odd hidden size.
HD80 = (240, 3, 1, 80)
HD20 = (60, 3, 1, 20)
ODD = (99, 3, 1, 20)
MHA = (108, 3, 3, 36)
WIDE = (100, 5, 1, 80)


def checkpoint(name, model, dtype, shape, rope=None, shards=1, spelling="new", head_in_files=False, **options):
    hidden, heads, kv_heads, head_dim = shape
    config = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "max_position_embeddings": 1024,
        "intermediate_size": 333,
        **options,
    }
    if not model.startswith("bert"):
        config["num_key_value_heads"] = kv_heads
        config["rope_parameters"] = dict(rope or {"rope_type": "default", "rope_theta": 1e6})
    # Qwen2's config has no head_dim, and its heads share out the hidden size.
    if model in ("llama", "qwen3"):
        config["head_dim"] = head_dim
    return Checkpoint(f"{name}_{dtype}", model, dtype, config, shards, spelling, head_in_files)


def checkpoints():
    """The quick set comes first: each architecture in each dtype."""
    quick, more = [], []
    tied = {"tie_word_embeddings": True}
    biases = {"attention_bias": True, "mlp_bias": True}
    for dtype in common.DTYPES:
        quick += [
            checkpoint("llama_llama3_hd80_tied", "llama", dtype, HD80, ROPES["llama3"], **tied),
            checkpoint("qwen2_hd80_3shards", "qwen2", dtype, HD80, shards=3),
            checkpoint("qwen3_hd80_odd_tied", "qwen3", dtype, (99, 3, 1, 80), **tied),
            checkpoint("bert_hd80", "bert", dtype, HD80),
        ]
        more += [
            checkpoint("llama_plain_mha_minimal", "llama", dtype, MHA, ROPES["plain"], spelling="minimal"),
            checkpoint("llama_llama3_hd20_3shards_old", "llama", dtype, ODD, ROPES["llama3"], 3, "old"),
            checkpoint("llama_linear_hd20_biases", "llama", dtype, HD20, ROPES["linear"], **biases),
            checkpoint("llama_linear_hd80_older", "llama", dtype, WIDE, ROPES["linear"], 1, "older"),
            checkpoint("llama_yarn_hd80_3shards_tied", "llama", dtype, WIDE, ROPES["yarn"], 3, **tied),
            checkpoint("llama_yarn_hd20_older", "llama", dtype, ODD, ROPES["yarn"], 1, "older"),
            checkpoint("llama_yarn_options_hd80", "llama", dtype, HD80, ROPES["yarn_options"]),
            checkpoint("llama_own_head_tied_config", "llama", dtype, ODD, ROPES["plain"], head_in_files=True),
            checkpoint("qwen2_hd20_tied_old", "qwen2", dtype, HD20, None, 1, "old", **tied),
            checkpoint("qwen2_yarn_hd80", "qwen2", dtype, HD80, ROPES["yarn"]),
            checkpoint("qwen3_hd20_3shards_old", "qwen3", dtype, ODD, None, 3, "old"),
            checkpoint("qwen3_hd80_biases", "qwen3", dtype, WIDE, None, attention_bias=True),
            checkpoint("bert_masked_lm_hd20_3shards", "bert_masked_lm", dtype, HD20, None, 3),
        ]
    more += [
        checkpoint("llama_yarn_options_hd20_old", "llama", "f32", HD20, ROPES["yarn_options"], 1, "old"),
        checkpoint("llama_yarn_attention_factor", "llama", "f32", HD20, ROPES["yarn_attention_factor"]),
    ]
    return quick, more


class Parity:
    def __init__(self, binary, work, only):
        self.binary, self.work, self.only = binary, work, only
        self.built = set()
        self.table = Table(42, 5, 17, 22, 19)
        self.table.head("checkpoint", "dtype", "rule", "error", "allowed")

    def wanted(self, case):
        return self.only in case.name

    def folder(self, case):
        folder = self.work / case.name
        if case.name not in self.built:
            common.build(case, folder)
            self.built.add(case.name)
        return folder

    def outputs(self, case, tokens, dtype, *options):
        """What `sinew logits` writes, `[seq, vocab]`."""
        file = self.work / f"{case.name}.output.safetensors"
        file.unlink(missing_ok=True)
        listed = ",".join(map(str, tokens))
        arguments = ["--model", self.folder(case), "--tokens", listed, "--output", file, "--dtype", dtype]
        sinew(self.binary, "logits", *arguments, *options)
        if not file.exists():
            raise Failed("wrote no output file")
        try:
            written = load_file(file)
        except SafetensorError as cause:
            raise Failed(f"wrote no safetensors: {cause}") from None
        if case.output not in written:
            raise Failed(f"wrote {', '.join(written) or 'nothing'}, not {case.output}")
        output = written[case.output]
        if output.dtype != torch.float32 or output.ndim != 3 or output.shape[0] != 1:
            raise Failed(f"wrote {case.output} as {output.dtype} {list(output.shape)}, not f32 [1, seq, n]")
        return output[0]

    def line(self, case, dtype, rule, decide):
        try:
            verdict = decide()
        except Failed as failure:
            verdict = common.Verdict(str(failure), "", False)
        self.table.line([case.name, dtype, rule, verdict.error, verdict.allowed], verdict.passed)

    def judge(self, case):
        """Each dtype whose rule can be asked of this checkpoint, `auto`, and chunking."""
        folder, tokens = self.folder(case), case.tokens(SEQUENCE)
        exact = common.run(case, folder, tokens, "f32")
        yardsticks = {"f32": None}
        if case.dtype != "f32":
            yardsticks[case.dtype] = common.transformers_error(case, folder, tokens, case.dtype, exact)
        for dtype in [*yardsticks, "auto"]:
            yardstick = yardsticks[case.dtype if dtype == "auto" else dtype]
            self.line(case, dtype, "logits", lambda: common.judge(self.outputs(case, tokens, dtype), exact, yardstick))
        if not case.is_encoder:
            self.line(case, "auto", f"chunk {CHUNK}", lambda: self.same_bits(case, tokens))

    def same_bits(self, case, tokens):
        whole = self.outputs(case, tokens, "auto")
        chunked = self.outputs(case, tokens, "auto", "--prefill-chunk", CHUNK)
        if whole.shape != chunked.shape:
            return common.Verdict(f"shape {list(chunked.shape)}", f"shape {list(whole.shape)}", False)
        different = int((whole.view(torch.int32) != chunked.view(torch.int32)).sum())
        return common.Verdict(f"{different} values differ", "0 values differ", different == 0)

    def judge_rounded(self, case, dtype):
        """A checkpoint kept in f32, run in 16 bits: the reference is f32 with the weights rounded."""
        wide = self.folder(case)
        rounded = self.work / f"{case.name}.{dtype}"
        common.load(case, wide, dtype).save_pretrained(rounded)
        tokens = case.tokens(SEQUENCE)
        exact = common.run(case, rounded, tokens, "f32")
        yardstick = common.transformers_error(case, rounded, tokens, dtype, exact)
        self.line(
            case, dtype, "logits, rounded", lambda: common.judge(self.outputs(case, tokens, dtype), exact, yardstick)
        )

    def judge_steps(self, case):
        folder = self.folder(case)
        tokens = continuation(case, folder)
        exact = common.run(case, folder, tokens, "f32")
        steps = slice(PROMPT - 1, PROMPT - 1 + STEPS)

        def forced(dtype):
            output = self.outputs(case, tokens, dtype, "--prefill-chunk", 1)
            if output.shape != exact.shape:
                raise Failed(f"shape {list(output.shape)}, not {list(exact.shape)}")
            return output[steps]

        yardsticks = {"f32": None}
        if case.dtype != "f32":
            yardsticks[case.dtype] = common.transformers_error(case, folder, tokens, case.dtype, exact, steps)
        for dtype, yardstick in yardsticks.items():
            self.line(case, dtype, f"{STEPS} steps", lambda: common.judge(forced(dtype), exact[steps], yardstick))
        self.line(case, "f32", f"{STEPS} steps greedy", lambda: common.judge_greedy(forced("f32"), exact[steps]))


@torch.no_grad()
def continuation(case, folder):
    """A prompt and 500 tokens that transformers samples after it, step by step with its cache."""
    model = common.load(case, folder, "f32")
    torch.manual_seed(0)
    prompt = torch.tensor([case.tokens(PROMPT)])
    # What ends a text must not end this one.
    lengths = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "eos_token_id": None}
    tokens = model.generate(prompt, do_sample=True, top_k=0, pad_token_id=0, **lengths)[0].tolist()
    assert len(tokens) == PROMPT + STEPS
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sinew", type=Path, required=True, help="the command to test")
    parser.add_argument("--quick", action="store_true", help="each architecture in each dtype, and no more")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checkpoints whose name contains this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build in DIR and leave the checkpoints there")
    options = parser.parse_args()

    with contextlib.ExitStack() as stack:
        work = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sinew-parity-")))
        work.mkdir(parents=True, exist_ok=True)
        parity = Parity(options.sinew.resolve(), work, options.only)
        quick, more = checkpoints()
        for case in filter(parity.wanted, quick if options.quick else quick + more):
            parity.judge(case)
        for case in filter(parity.wanted, quick):
            if case.dtype == "f32":
                for dtype in ("bf16",) if options.quick else ("bf16", "f16"):
                    parity.judge_rounded(case, dtype)
        for case in filter(parity.wanted, quick):
            if not case.is_encoder and case.dtype in (("bf16",) if options.quick else ("f32", "bf16", "f16")):
                parity.judge_steps(case)
        parity.table.close()


if __name__ == "__main__":
    main()
