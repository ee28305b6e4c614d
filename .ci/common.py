"""What the parity scripts share: lively random checkpoints, what transformers says of them, and the rules.

Used by `.ci/parity.py`, `.ci/minilm.py` and `tests/fixtures/make_fixtures.py`. A checkpoint is described by
a `Checkpoint`, built with weights that depend on its name alone (numpy's policy freezes the stream of
`numpy.random.RandomState`), saved by transformers itself, and read back by transformers for every reference:
what is compared with is what a user of transformers would get.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers
from safetensors.torch import save_model

# Models this small gain nothing from a second thread, and lose much when another process wants the core.
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# The logit rules of SPEC.md, "Numerics".
F32_TOLERANCE = 2e-4  # largest |error|, in standard deviations of transformers' f32 output
RMS_RATIO = 1.0  # RMS error, relative to that of transformers in the same 16-bit dtype
MAX_RATIO = 1.5  # largest |error|, likewise
GREEDY_MARGIN = 1e-3  # top-two margin, in standard deviations, below which the greedy token is not compared
GREEDY_EXCLUDED = 0.01  # share of the steps that may be excluded so

# ---------------------------------------------------------------------------------------------------------
# Checkpoints


@dataclass
class Checkpoint:
    """A checkpoint to build: an architecture, the options of its config, and how it is saved."""

    name: str
    model: str  # one of CLASSES
    dtype: str
    config: dict
    shards: int = 1
    # How config.json spells what it says: "new" as transformers 5 saves it (`rope_parameters`, `dtype`), "old"
    # as 4.x did (`rope_theta`, `rope_scaling`, `torch_dtype`, and what else an architecture named otherwise),
    # "older" likewise with the rope's kind under `type`, and "minimal": old, and without the keys that say what
    # their absence says.
    spelling: str = "new"
    # The config ties the head to the embedding, and the files hold a head of its own, which counts.
    head_in_files: bool = False
    # safetensors' `save_model` writes the file: tensors under the names that transformers holds them by, a shared one
    # under the first of its names.
    save_model: bool = False
    extra: dict = field(default_factory=dict)  # for whoever builds it

    @property
    def is_encoder(self):
        return self.model.startswith(("bert", "roberta", "xlm_roberta", "modernbert"))

    @property
    def is_mixture(self):
        return self.model in ("mixtral", "qwen3_moe", "gpt_oss")

    @property
    def output(self):
        """The name of the output that is compared, in `sinew logits` as in transformers."""
        return "last_hidden_state" if self.is_encoder or self.model == "qwen3_bare" else "logits"

    def random(self, purpose):
        return np.random.RandomState(zlib.crc32(f"{self.name}/{purpose}".encode()))

    def tokens(self, count):
        """Random tokens, the first and the last of the vocabulary among them."""
        vocab = self.config["vocab_size"]
        tokens = self.random("tokens").randint(0, vocab, count)
        tokens[count // 3], tokens[count // 2] = 0, vocab - 1
        return tokens.tolist()


def window_pattern(count, every):
    """Every so manyth layer attends to all, the others to a window."""
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


def longrope(dim, original, **options):
    """Factors that grow as published ones do: little where the rope turns fast, much where it turns slowly."""
    share = [i / (dim // 2 - 1) for i in range(dim // 2)]
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [round(1.05 + 0.6 * x, 3) for x in share],
        "long_factor": [round(1.2 + 7 * x**1.5, 3) for x in share],
        "original_max_position_embeddings": original,
        **options,
    }


# The classes of a config and of the model that saves it.
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "ministral": (transformers.MinistralConfig, transformers.MinistralForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_bare": (transformers.Qwen3Config, transformers.Qwen3Model),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    # With a tower for images, which no text goes through; `Checkpoint.config` is that of the text.
    "gemma3": (transformers.Gemma3Config, transformers.Gemma3ForConditionalGeneration),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "gpt2_bare": (transformers.GPT2Config, transformers.GPT2Model),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "olmo3": (transformers.Olmo3Config, transformers.Olmo3ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "bert": (transformers.BertConfig, transformers.BertModel),
    "bert_masked_lm": (transformers.BertConfig, transformers.BertForMaskedLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
    "roberta_masked_lm": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
    "xlm_roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertModel),
    "modernbert_masked_lm": (transformers.ModernBertConfig, transformers.ModernBertForMaskedLM),
}

# What reads a checkpoint where that is not what saved it: tensors gain or lose a prefix on the way.
READERS = {
    # By its layer types, whatever it is called.
    "ministral": transformers.AutoModelForCausalLM,
    "bert_masked_lm": transformers.BertModel,
    "roberta_masked_lm": transformers.RobertaModel,
    "modernbert_masked_lm": transformers.ModernBertModel,
    "gpt2_bare": transformers.GPT2LMHeadModel,
}


def lively(checkpoint, name, shape, random):
    """A weight's values, such that attention is neither flat nor one-hot, and no bias or norm can be forgotten.

    Projections keep the variance of what they are given, queries and keys make scores with a standard
    deviation of about 2, and the embedding of a decoder is small against what the layers add, so that logits
    say more than which token came in. The rows of a head are of unlike length, as trained ones are: margins
    between a thousand equals are too often too narrow to compare greedy tokens.
    """
    normal = random.standard_normal(shape)
    gemma = checkpoint.model.startswith("gemma")
    if name.endswith("mlp.router.bias"):
        # The last of an odd number is never taken.
        return 0.1 * normal
    if name.endswith((".bias", "_bias")):
        return 0.3 * normal
    if name.endswith("sinks"):
        # About as much as all keys together.
        return 3.0 + normal
    if "experts.gate_up_proj" in name:
        # Of some rows the gate or up goes beyond what they are cut to, which is 7.
        return 4.0 * normal / np.sqrt(shape[-2])
    if "experts.down_proj" in name:
        return 0.1 * normal / np.sqrt(shape[-2])
    if "norm" in name.lower() or ".ln_" in f".{name}":
        scale = 1.5 if "q_norm" in name or "k_norm" in name else 1.0
        # Gemma's embedding makes small logits, being its head as well.
        scale = 2.0 if gemma and name.endswith("model.norm.weight") else scale
        return scale * random.uniform(0.6, 1.4, shape) - gemma
    if any(part in name for part in ("embed_tokens", "embed_in", "wte", "wpe")):
        # Gemma scales its embedding up, by the root of its width.
        return (0.2 if gemma else 0.35) * normal
    if "embeddings" in name:
        return 0.7 * normal
    if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
        return router(normal)
    fan_in = shape[-1]
    if "lm_head" in name or "embed_out" in name:
        return 2.0 * normal * random.uniform(0.3, 1.7, (shape[0], 1)) / np.sqrt(fan_in)
    if any(part in name for part in ("q_proj", "k_proj", "self.query", "self.key")):
        return 1.4 * normal / np.sqrt(fan_in)
    input_first = any(part in name for part in (".c_attn.", ".c_proj.", ".c_fc."))
    normal = normal.T if input_first else normal
    values = normal / np.sqrt(normal.shape[-1])
    gain = np.where(makes_scores(checkpoint.config, name, len(values)), 1.4, 1.0)
    values = gain.reshape(-1, *[1] * (values.ndim - 1)) * values
    return values.T if input_first else values


def router(normal):
    """Of an odd number of experts the last one gets no token.

    The others come as pairs of which one is for what the other is against, so that half of them stand above 0,
    which the last one makes of every token.
    """
    values = 2.0 * normal / np.sqrt(normal.shape[-1])
    if len(values) % 2:
        values[1::2] = -0.7 * values[:-1:2]
        values[-1] = 0.0
    return values


def makes_scores(config, name, rows):
    """Which rows of a projection make queries and keys, where it makes values too."""
    row = np.arange(rows)
    if "qkv_proj" in name:
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        return row < rows * (heads + kv_heads) / (heads + 2 * kv_heads)
    if "query_key_value" in name:  # head by head
        return row % (rows // config["num_attention_heads"]) < 2 * rows / config["num_attention_heads"] / 3
    return row < (2 * rows / 3 if "Wqkv" in name or "c_attn" in name else 0)


# As small as a tower can be, and no token stands for an image.
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 4,
    "patch_size": 2,
}


def config_of(checkpoint):
    config_class = CLASSES[checkpoint.model][0]
    if checkpoint.model != "gemma3":
        return config_class(**checkpoint.config)
    beyond = checkpoint.config["vocab_size"]
    images = {"boi_token_index": beyond, "eoi_token_index": beyond + 1, "image_token_index": beyond + 2}
    return config_class(text_config=checkpoint.config, vision_config=VISION, mm_tokens_per_image=1, **images)


def build(checkpoint, folder):
    """Writes `folder` anew, and checks that transformers reads the config alike however it is spelled."""
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    config = config_of(checkpoint)
    if checkpoint.head_in_files:
        config.tie_word_embeddings = False
    model = CLASSES[checkpoint.model][1](config)
    random = checkpoint.random("weights")
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = lively(checkpoint, name, tuple(parameter.shape), random)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    model.to(DTYPES[checkpoint.dtype])
    if checkpoint.save_model:
        folder.mkdir(parents=True)
        config.save_pretrained(folder)
        save_model(model, str(folder / "model.safetensors"))
    else:
        save(model, folder, checkpoint.shards)

    tokens = checkpoint.tokens(24)
    as_saved = run(checkpoint, folder, tokens, "f32")
    respell(checkpoint, folder)
    if not torch.equal(as_saved, run(checkpoint, folder, tokens, "f32")):
        raise AssertionError(f"{checkpoint.name}: transformers reads the respelled config.json differently")
    return folder


def write_last_token_pooling(folder, hidden):
    """The files of sentence-transformers that make a decoder an embedding model, as Qwen3-Embedding has them."""
    means = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
    pooling = {"word_embedding_dimension": hidden, **{f"pooling_mode_{mean}": False for mean in means}}
    steps = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(steps)
        ],
        "1_Pooling/config.json": {**pooling, "pooling_mode_lasttoken": True, "include_prompt": True},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def save(model, folder, shards):
    """`save_pretrained` with the largest shard size that makes so many shards."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    share = 1.0
    while share > 0.01:
        model.save_pretrained(folder, max_shard_size=int(total * share) + 1024)
        files = sorted(folder.glob("*.safetensors"))
        if len(files) == shards:
            return
        for file in [*files, *folder.glob("*.index.json")]:
            file.unlink()
        share *= 0.95
    raise AssertionError(f"{folder.name}: no shard size makes {shards} shards")


def respell(checkpoint, folder):
    """Rewrites config.json as `Checkpoint.spelling` and `Checkpoint.head_in_files` ask."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if checkpoint.head_in_files:
        config["tie_word_embeddings"] = True
    if checkpoint.spelling != "new":
        config["torch_dtype"] = config.pop("dtype")
        as_of_old(config.get("text_config", config), "type" if checkpoint.spelling == "older" else "rope_type")
    if checkpoint.spelling == "minimal":
        implied = {
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "num_key_value_heads": config["num_attention_heads"],
            "head_dim": config["hidden_size"] // config["num_attention_heads"],
        }
        for key, value in implied.items():
            if key in config and config[key] == value:
                del config[key]
        if config["model_type"] == "smollm3":
            for key in ("layer_types", "no_rope_layers", "no_rope_layer_interval"):
                del config[key]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_of_old(config, kind_key):
    """What transformers 4.x wrote where 5 writes something else."""
    kind = config["model_type"]
    rope = config.pop("rope_parameters", None) or {}
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    if kind == "gpt2":
        config["n_ctx"] = config["n_positions"]
        del config["tie_word_embeddings"]
    elif kind == "gpt_neox":
        config["rotary_emb_base"], config["rotary_pct"] = rope.pop("rope_theta"), rope.pop("partial_rotary_factor")
    elif kind == "modernbert":
        config["global_rope_theta"], config["local_rope_theta"] = rope.pop("rope_theta"), local["rope_theta"]
        config["global_attn_every_n_layers"] = config.pop("layer_types")[1:].index("full_attention") + 1
    elif rope:
        config["rope_theta"] = rope.pop("rope_theta")
    if kind == "ministral":
        config["model_type"], config["architectures"] = "mistral", ["MistralForCausalLM"]
    if kind == "gemma2":
        del config["layer_types"]
    if kind == "gemma3_text":
        config["rope_local_base_freq"] = local["rope_theta"]
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
        del config["_sliding_window_pattern"]
    if kind == "phi3":
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        rope.pop("original_max_position_embeddings", None)
    if kind == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if rope and kind != "modernbert":
        rope_type = rope.pop("rope_type")
        config["rope_scaling"] = None if rope_type == "default" else {kind_key: rope_type, **rope}


# ---------------------------------------------------------------------------------------------------------
# What transformers says


def load(checkpoint, folder, dtype, attention="eager"):
    model_class = READERS.get(checkpoint.model) or CLASSES[checkpoint.model][1]
    options = {"dtype": DTYPES[dtype], "attn_implementation": attention}
    if checkpoint.is_mixture:
        # The others ask for rows of a multiple of 16 bytes.
        options["experts_implementation"] = "eager"
    return model_class.from_pretrained(folder, **options).eval()


@torch.no_grad()
def run(checkpoint, folder, tokens, dtype, attention="eager"):
    """transformers' output `[seq, vocab]` (or `[seq, hidden]`) of one sequence, widened to f32."""
    model = load(checkpoint, folder, dtype, attention)
    return model(input_ids=torch.tensor([tokens]))[checkpoint.output][0].float()


# Between the logits of the last expert a token is given to and the first it is not: above what 16 bits lose of
# them. A choice that rounding turns says nothing of how well either side computes.
ROUTER_MARGIN = 0.4


@torch.no_grad()
def tokens_for(checkpoint, folder, count, sampled_after=None):
    """`Checkpoint.tokens`; of a mixture of experts, such that every choice of experts is clear.

    Past `sampled_after` of them, tokens of a mixture are drawn as the model would have them.
    """
    tokens = checkpoint.tokens(count)
    if not checkpoint.is_mixture:
        return tokens
    model, random = load(checkpoint, folder, "f32"), checkpoint.random("clear choices")
    vocab, taken = checkpoint.config["vocab_size"], checkpoint.config["num_experts_per_tok"]
    likely, cache = np.full(vocab, 1 / vocab), None
    for i in range(count):
        if sampled_after is not None and i >= sampled_after:
            tokens[i] = int(random.choice(vocab, p=likely))
        while True:
            trial = {"past_key_values": copy.deepcopy(cache), "use_cache": True}
            output = model(input_ids=torch.tensor([[tokens[i]]]), output_router_logits=True, **trial)
            top = torch.cat(output.router_logits).sort(descending=True).values
            if (top[:, taken - 1] - top[:, taken]).min() > ROUTER_MARGIN:
                break
            likely[tokens[i]] = 0
            tokens[i] = int(random.choice(vocab, p=likely / likely.sum()))
        cache = output.past_key_values
        if sampled_after is not None and i + 1 >= sampled_after:
            likely = output.logits[0, -1].double().softmax(-1).numpy()
        else:
            likely = np.full(vocab, 1 / vocab)
    return tokens


def transformers_error(checkpoint, folder, tokens, dtype, exact, rows=slice(None)):
    """(rms, max) error of transformers in a 16-bit `dtype`, against its f32 output of the same weights.

    The smaller ones of its `eager` and `sdpa` attention: the first rounds the scores, the second, which is its
    default, need not. Gemma 2, whose scores are capped, and gpt-oss, whose heads have sinks, have the first alone.
    """
    attentions = ("eager",) if checkpoint.model in ("gemma2", "gpt_oss") else ("eager", "sdpa")
    runs = [run(checkpoint, folder, tokens, dtype, attention) for attention in attentions]
    return tuple(min(column) for column in zip(*(error(output[rows], exact[rows]) for output in runs)))


@torch.no_grad()
def embed(model, tokenizer, text, max_length):
    """A text's embedding in f32: cut to `max_length` tokens, mean over them all, normalised."""
    ids = tokenizer(text, truncation=True, max_length=max_length, padding=False)["input_ids"]
    hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)


# ---------------------------------------------------------------------------------------------------------
# The rules


def error(actual, exact):
    """(rms, max) of the difference, as floats; NaN and infinity in either stay visible."""
    difference = (actual.double() - exact.double()).abs()
    return difference.square().mean().sqrt().item(), difference.max().item()


@dataclass
class Verdict:
    error: str
    allowed: str
    passed: bool


def judge(actual, exact, yardstick):
    """The rule for f32 where `yardstick` is None, else that for 16 bits, with transformers' (rms, max) error."""
    if actual.shape != exact.shape:
        return Verdict(f"shape {list(actual.shape)}", f"shape {list(exact.shape)}", False)
    rms, largest = error(actual, exact)
    if yardstick is None:
        relative = largest / exact.std().item()
        return Verdict(f"{relative:.1e} sd", f"{F32_TOLERANCE:.0e} sd", relative <= F32_TOLERANCE)
    rms, largest = rms / yardstick[0], largest / yardstick[1]
    return Verdict(
        f"{rms:.2f}x rms {largest:.2f}x max",
        f"{RMS_RATIO:.1f}x rms {MAX_RATIO:.1f}x max",
        rms <= RMS_RATIO and largest <= MAX_RATIO,
    )


def judge_greedy(actual, exact):
    """Greedy tokens equal wherever the margin of `exact` is wide enough; exclusions counted."""
    top = exact.topk(2, dim=-1)
    clear = (top.values[:, 0] - top.values[:, 1]) > GREEDY_MARGIN * exact.std()
    wrong = int((clear & (actual.argmax(-1) != top.indices[:, 0])).sum())
    excluded = int((~clear).sum())
    most = int(GREEDY_EXCLUDED * len(exact))
    finite = bool(actual.isfinite().all())
    return Verdict(
        f"{wrong} differ, {excluded} left out" + ("" if finite else ", not finite"),
        f"0 differ, {most} left out",
        finite and wrong == 0 and excluded <= most,
    )


# ---------------------------------------------------------------------------------------------------------
# Running sinew, and the table


class Failed(Exception):
    """`sinew` did not do what was asked; the message fits a table."""


def sinew(binary, *arguments, timeout=600):
    """Runs the command and returns its stdout, or raises `Failed` with the last line of its stderr."""
    command = [str(binary), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {timeout} s") from None
    except OSError as cause:
        raise Failed(f"{binary}: {cause.strerror}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or "nothing on stderr").splitlines()[-1]
        raise Failed(f"exit code {done.returncode}: {last}")
    return done.stdout


class Table:
    """Prints a line per case as it is decided, and closes with `N passed, N failed`."""

    def __init__(self, *widths):
        self.widths = widths
        self.passed = self.failed = 0

    def head(self, *columns):
        self.print(*columns, "verdict")

    def line(self, columns, passed):
        self.passed += passed
        self.failed += not passed
        self.print(*columns, "pass" if passed else "FAIL")

    def print(self, *columns):
        padded = [f"{text:<{width}}" for text, width in zip(columns, self.widths)]
        print("  ".join([*padded, *columns[len(padded) :]]), flush=True)

    def close(self):
        """The closing line; exits with 1 where a case failed, or where none ran."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)
