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
                    (`--prefill-chunk 1`): the rules above over the 500 outputs. Of a mixture of experts,
                    tokens whose choice of experts rounding could turn are drawn anew.
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
# Shorter than the sequence.
WINDOW = 33
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
    # Its original length is the model's, and half the context.
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
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


# Models whose heads share out the hidden size, as their config has no head_dim.
NO_HEAD_DIM = ("qwen2", "phi3", "gpt2", "gpt_neox", "olmo2", "olmo3", "smollm3")


def checkpoint(name, model, dtype, shape, rope=None, shards=1, spelling="new", head_in_files=False, **options):
    hidden, heads, kv_heads, head_dim = shape
    config = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "max_position_embeddings": 1024,
        "intermediate_size": 333,
    }
    made = Checkpoint(f"{name}_{dtype}", model, dtype, config, shards, spelling, head_in_files)
    if model == "gpt2":
        sizes = {"n_embd": hidden, "n_head": heads, "n_layer": 4, "n_positions": 1024, "n_inner": 333}
        made.config = {"vocab_size": VOCAB, **sizes}
    elif not made.is_encoder:
        config["rope_parameters"] = dict(rope or {"rope_type": "default", "rope_theta": 1e6})
        if model != "gpt_neox":
            config["num_key_value_heads"] = kv_heads
        if model not in NO_HEAD_DIM:
            config["head_dim"] = head_dim
    made.config |= options
    return made


def of_later_architectures(dtype):
    """Each of them once, with what tells it from the others."""
    window, pattern = {"sliding_window": WINDOW}, {"layer_types": common.window_pattern(4, 2)}
    gemma = {**window, "query_pre_attn_scalar": 33}
    local = {"rope_type": "default", "rope_theta": 100.0}
    by_layer = {"sliding_attention": local, "full_attention": ROPES["linear"]}
    some_yarn = {"sliding_attention": ROPES["plain"], "full_attention": ROPES["yarn"]}
    partly = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    long = common.longrope(60, ORIGINAL, partial_rotary_factor=0.75)
    # Fewer layers than elsewhere: each adds to what 16 bits may turn.
    mixtral = {"num_hidden_layers": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 77}
    moe = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 45}
    moe |= {"num_hidden_layers": 3, "mlp_only_layers": [1]}
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    modernbert = {
        "local_attention": 16,
        "intermediate_size": 111,
        "rope_parameters": {"full_attention": ROPES["plain"], "sliding_attention": local},
        "pad_token_id": 0,
    }
    return [
        checkpoint("mistral_window_hd80", "mistral", dtype, WIDE, ROPES["plain"], **window),
        checkpoint("ministral_hd20", "ministral", dtype, HD20, ROPES["plain"], **window, **pattern),
        checkpoint("ministral_hd80_old", "ministral", dtype, WIDE, ROPES["plain"], 1, "old", **window, **pattern),
        checkpoint("mixtral_hd20_odd", "mixtral", dtype, ODD, None, 1, "old", **mixtral),
        checkpoint("gpt_oss_hd20_odd", "gpt_oss", dtype, ODD, ROPES["yarn_options"], **mixtral, **window),
        checkpoint("gpt_oss_hd80_old", "gpt_oss", dtype, WIDE, ROPES["yarn"], 1, "old", **mixtral, **window),
        checkpoint("qwen3_moe_hd80_3shards", "qwen3_moe", dtype, (99, 3, 1, 80), None, 3, **moe),
        checkpoint("qwen3_moe_window_hd20", "qwen3_moe", dtype, ODD, use_sliding_window=True, **window, **moe),
        checkpoint("gemma2_hd80_old", "gemma2", dtype, HD80, ROPES["plain"], 1, "old", **gemma, **caps),
        checkpoint("gemma3_text_hd20", "gemma3_text", dtype, HD20, by_layer, **gemma, **pattern),
        checkpoint("gemma3_with_images_hd80_old", "gemma3", dtype, HD80, by_layer, 1, "old", **gemma, **pattern),
        checkpoint(
            "phi3_longrope_hd80",
            "phi3",
            dtype,
            HD80,
            long,
            original_max_position_embeddings=ORIGINAL,
            pad_token_id=0,
            **window,
        ),
        checkpoint("gpt2_hd36", "gpt2", dtype, MHA, scale_attn_by_inverse_layer_idx=True),
        # Scores as they are would leave wide heads one key.
        checkpoint("gpt2_unscaled_hd10", "gpt2", dtype, (30, 3, 3, 10), scale_attn_weights=False),
        checkpoint("gpt_neox_hd80_3shards_old", "gpt_neox", dtype, HD80, partly, 3, "old"),
        checkpoint("olmo2_hd36", "olmo2", dtype, (108, 3, 1, 36)),
        checkpoint("olmo3_yarn_hd20", "olmo3", dtype, HD20, some_yarn, **window, **pattern),
        checkpoint("smollm3_hd20", "smollm3", dtype, HD20, use_sliding_window=True, pad_token_id=0, **window),
        checkpoint(
            "smollm3_hd20_minimal",
            "smollm3",
            dtype,
            HD20,
            spelling="minimal",
            use_sliding_window=True,
            pad_token_id=0,
            **window,
        ),
        checkpoint("llama_dynamic_hd20", "llama", dtype, HD20, ROPES["dynamic"], max_position_embeddings=ORIGINAL),
        checkpoint("llama_longrope_hd80", "llama", dtype, WIDE, common.longrope(80, ORIGINAL)),
        checkpoint("qwen3_bare_hd20", "qwen3_bare", dtype, ODD),
        checkpoint("roberta_masked_lm_hd80", "roberta_masked_lm", dtype, HD80, type_vocab_size=1),
        checkpoint("modernbert_hd20_3shards_old", "modernbert", dtype, HD20, None, 3, "old", **modernbert),
    ]


def saved_by_save_model(dtype):
    """Tied models, whose embedding has the head's name in the file, and experts in one tensor for all."""
    tied = {"tie_word_embeddings": True}
    mixture = {"num_hidden_layers": 2, "intermediate_size": 77, **tied}
    moe = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 45, **mixture}
    made = [
        checkpoint(f"save_model_{model}", model, dtype, HD80, **tied, **more)
        for model, more in {
            "llama": {},
            "qwen2": {},
            "qwen3": {},
            "gemma2": {},
            "gemma3": {},
            "gpt2": {},
            "gpt_neox": {},
            "olmo2": {},
            "phi3": {"pad_token_id": 0},
            "smollm3": {"pad_token_id": 0},
        }.items()
    ]
    made += [
        checkpoint("save_model_mixtral", "mixtral", dtype, ODD, num_local_experts=5, num_experts_per_tok=2, **mixture),
        checkpoint("save_model_qwen3_moe", "qwen3_moe", dtype, ODD, **moe),
        checkpoint("save_model_gpt_oss", "gpt_oss", dtype, ODD, num_local_experts=5, num_experts_per_tok=2, **mixture),
    ]
    made.append(checkpoint("save_model_gpt_neox_untied", "gpt_neox", dtype, HD80))
    for case in made:
        case.save_model = True
    return made


def checkpoints():
    """The quick set comes first: Llama, Qwen and BERT in each dtype."""
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
            *of_later_architectures(dtype),
        ]
    more += saved_by_save_model("bf16")
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
            if case.model == "qwen3_bare":
                common.write_last_token_pooling(folder, case.config["hidden_size"])
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
        """Each dtype whose rule can be asked of this checkpoint, `auto`, and chunking where there is a cache."""
        folder = self.folder(case)
        tokens = common.tokens_for(case, folder, SEQUENCE)
        exact = common.run(case, folder, tokens, "f32")
        yardsticks = {"f32": None}
        if case.dtype != "f32":
            yardsticks[case.dtype] = common.transformers_error(case, folder, tokens, case.dtype, exact)
        for dtype in [*yardsticks, "auto"]:
            yardstick = yardsticks[case.dtype if dtype == "auto" else dtype]
            self.line(case, dtype, "logits", lambda: common.judge(self.outputs(case, tokens, dtype), exact, yardstick))
        if case.output == "logits":
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
    if case.is_mixture:
        return common.tokens_for(case, folder, PROMPT + STEPS, sampled_after=PROMPT)
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
    parser.add_argument("--quick", action="store_true", help="Llama, Qwen and BERT in each dtype, and no more")
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
        # Windows that are left behind, and experts that a step may leave without a token.
        long = quick if options.quick else quick + [c for c in more if c.model in ("gemma3_text", "mixtral")]
        for case in filter(parity.wanted, long):
            if not case.is_encoder and case.dtype in (("bf16",) if options.quick else ("f32", "bf16", "f16")):
                parity.judge_steps(case)
        parity.table.close()


if __name__ == "__main__":
    main()
