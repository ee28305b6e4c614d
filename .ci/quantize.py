"""Round trip of `sinew quantize`: what it writes, read by transformers with compressed-tensors.

    python .ci/quantize.py --sinew target/release/sinew [--only TEXT] [--keep DIR]

Builds checkpoints with random weights in a temporary folder, has `sinew quantize` write them in each format, and
compares, per checkpoint and format:

    rounding    the codes, scales and zero points, unpacked by compressed-tensors, are those that numpy rounds the
                original's weights to by the rule below
    kept        all other tensors have the original's bits
    configs     transformers reads the same config and generation config
    dequantized transformers loads the folder with `dequantize=True`, no tensor is missing, unexpected or mismatched, and
                all its weights are those of a checkpoint that holds `scale * (code - zero)`, rounded once, bit for bit
    first pass  likewise without, which leaves weights packed until the model first runs (where it can)
    same bits   `sinew logits` of the folder and of the original that is quantized as it loads (of bf16)
    logits      `sinew logits` of the folder against transformers' f32 run of the dequantized weights, by SPEC.md's rule
                for 16 bits (of bf16)

The rule: the scale is bf16, `s = bf16(max - min) / (2^bits - 1)` with zero points, `bf16(extreme / -8)` for int4 without,
where the extreme is the value of the largest magnitude, `bf16(|x| / 127)` for int8 and `bf16(|x| / 448)` for fp8; then
`q = round(x * (1 / s)) + z`, ties to even (for fp8 the nearest to `x / s`), and `z = round(least code - min / s)`.

One line per comparison, then `N passed, N failed`; exits with 1 where one failed.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file
from transformers import CompressedTensorsConfig, GenerationConfig

import common
from common import Checkpoint, Failed, Table, sinew

SEQUENCE = 60
LEAST = 1e-30  # Groups whose values are all below are zeros.

# Arguments of `sinew quantize`, and of loading likewise: format, group and zero points.
FORMATS = {
    "int4": ["--dtype", "int4"],
    "int4 g64 zp": ["--dtype", "int4", "--group-size", "64", "--zero-points"],
    "int4 g128": ["--dtype", "int4", "--group-size", "128"],
    "int4 channel zp": ["--dtype", "int4", "--group-size", "channel", "--zero-points"],
    "int4 channel": ["--dtype", "int4", "--group-size", "channel"],
    "int8": ["--dtype", "int8"],
    "int8 g128 zp": ["--dtype", "int8", "--group-size", "128", "--zero-points"],
    "int8 channel": ["--dtype", "int8", "--group-size", "channel"],
    "fp8": ["--dtype", "fp8", "--group-size", "channel"],
    "fp8 g128": ["--dtype", "fp8", "--group-size", "128"],
}
CHANNEL = ("int4 channel zp", "int4 channel", "int8 channel", "fp8")

# (hidden, heads, KV heads, head_dim): rows that groups of 128 divide, and rows that none does.
WIDE = (128, 4, 2, 32)
ODD = (99, 3, 1, 20)


def checkpoint(name, model, dtype, size, shards=1, **options):
    hidden, heads, kv_heads, head_dim = size
    config = {
        "vocab_size": 517,
        "hidden_size": hidden,
        "intermediate_size": 77 if size is ODD else 256,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "max_position_embeddings": 128,
        **options,
    }
    if not model.startswith(("bert", "gpt_neox")):
        config |= {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    return Checkpoint(f"{name}_{dtype}", model, dtype, config, shards)


def checkpoints():
    tied = {"tie_word_embeddings": True}
    moe = {"num_experts_per_tok": 2}
    every, channel = tuple(FORMATS), CHANNEL
    few = ("int4", "int8 g128 zp", "fp8")
    # No one reads zero points of experts.
    of_experts = ("int4", "int8", "fp8")
    return [
        (checkpoint("llama", "llama", "bf16", WIDE, tie_word_embeddings=False), every),
        (checkpoint("qwen2_3shards_tied", "qwen2", "bf16", WIDE, 3, **tied), few),
        (checkpoint("llama_odd", "llama", "bf16", ODD, tie_word_embeddings=False), channel),
        (checkpoint("qwen3", "qwen3", "f16", WIDE, **tied), few),
        (checkpoint("olmo2", "olmo2", "f32", WIDE, tie_word_embeddings=False), few),
        (checkpoint("phi3", "phi3", "bf16", WIDE, pad_token_id=0, tie_word_embeddings=False), few),
        (checkpoint("mixtral", "mixtral", "bf16", WIDE, num_local_experts=4, **moe), of_experts),
        (
            checkpoint("qwen3_moe", "qwen3_moe", "bf16", WIDE, num_experts=4, moe_intermediate_size=128, **moe),
            of_experts,
        ),
        (checkpoint("gemma3_with_images", "gemma3", "bf16", WIDE), few),
        (checkpoint("gpt_neox", "gpt_neox", "bf16", (96, 3, 3, 32)), ("int4 channel", "int8")),
        (checkpoint("bert_masked_lm", "bert_masked_lm", "bf16", WIDE), few),
        (checkpoint("bert", "bert", "bf16", WIDE), few),
        (checkpoint("modernbert", "modernbert", "bf16", (128, 4, 4, 32), pad_token_id=0), few),
    ]


def bf16(x):
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(torch.bfloat16).float().numpy()


def rounded(weight, arguments):
    """Codes, scales and zero points of a weight `[n, k]` in f32, by the rule."""
    kind, zero_points = arguments[1], "--zero-points" in arguments
    group = arguments[arguments.index("--group-size") + 1] if "--group-size" in arguments else "32"
    n, k = weight.shape
    x = weight.reshape(n, -1, k if group == "channel" else int(group))
    least, largest = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    magnitude = np.maximum(largest, -least)
    zero = np.zeros_like(magnitude)
    lowest = {"int4": -8, "int8": -128}.get(kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        if zero_points:
            highest = -lowest - 1
            scale = bf16((largest - least) / np.float32(highest - lowest))
            zero = np.clip(np.round(lowest - least / scale), lowest, highest)
            limits = lowest, highest
        elif kind == "int4":
            scale = bf16(np.where(-least < largest, largest, least) / np.float32(-8))
            limits = -8, 7
        elif kind == "int8":
            scale, limits = bf16(magnitude / np.float32(127)), (-127, 127)
        else:
            scale = bf16(magnitude / np.float32(448))
            exact = torch.from_numpy(np.clip(x / scale[..., None], -448, 448))
            codes = exact.to(torch.float8_e4m3fn).float().numpy()
        if kind != "fp8":
            inverse = np.float32(1) / scale
            codes = np.clip(np.round(x * inverse[..., None]) + zero[..., None], *limits)
    small = magnitude < LEAST
    scale, zero = np.where(small, 0, scale), np.where(small, 0, zero)
    codes = np.where(small[..., None], 0, codes)
    return torch.from_numpy(codes.reshape(n, k)), torch.from_numpy(scale), torch.from_numpy(zero)


def tensors(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


class RoundTrip:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        self.table = Table(26, 16, 12, 40)
        self.table.head("checkpoint", "format", "what", "found")

    def line(self, what, decide):
        try:
            problem = decide()
        except Failed as failure:
            problem = str(failure)
        self.table.line([*self.case, what, problem or "as expected"], not problem)

    def judge(self, case, formats):
        source = self.work / case.name
        common.build(case, source)
        if case.model != "gemma3" and not case.is_encoder:
            GenerationConfig(temperature=0.7, top_p=0.9, do_sample=True).save_pretrained(source)
        for format in formats:
            self.case = case.name, format
            self.judge_format(case, source, FORMATS[format])

    def judge_format(self, case, source, arguments):
        folder = self.work / f"{case.name}.{'.'.join(arguments)}"
        try:
            common_arguments = ["--model", source, "--output", folder, *arguments, "--json"]
            summary = json.loads(sinew(self.binary, "quantize", *common_arguments))
        except Failed as failure:
            self.table.line([*self.case, "writes", str(failure)], False)
            return
        before, after = tensors(source), tensors(folder)
        modules = [name.removesuffix("_scale") for name in after if name.endswith(".weight_scale")]
        expected = {name: rounded(before[name].float().numpy(), arguments) for name in modules}
        self.line("rounding", lambda: self.rounding(expected, before, after, arguments))
        self.line("kept", lambda: self.kept(folder, before, after, summary))
        self.line("configs", lambda: self.configs(source, folder))
        self.line("dequantized", lambda: self.loads(case, source, folder, expected, before, True))
        # Without `dequantize` transformers 5.24 makes room for zero points that are not packed, and initialises weights of
        # ModernBERT that are: it raises, whoever wrote the file.
        if "--zero-points" not in arguments and not (case.model == "modernbert" and arguments[1] != "fp8"):
            self.line("first pass", lambda: self.loads(case, source, folder, expected, before, False))
        if case.dtype == "bf16":
            self.line("same bits", lambda: self.same_bits(case, source, folder, expected, arguments))
            # Of a mixture, rounding may turn a choice of experts.
            if not case.is_mixture:
                self.line("logits", lambda: self.logits(case, source, folder, expected, before))

    def rounding(self, expected, before, after, arguments):
        if not expected:
            return "no module is quantized"
        for name, (codes, scale, zero) in expected.items():
            if not torch.equal(after[f"{name}_scale"].float(), scale.float()):
                return f"other scales of {name}"
            if arguments[1] == "fp8":
                if not torch.equal(after[name].float(), codes.float()):
                    return f"other codes of {name}"
                continue
            bits, shape = int(arguments[1][3:]), torch.Size(after[f"{name}_shape"].tolist())
            if shape != before[name].shape:
                return f"the shape of {name} is {list(shape)}"
            if not torch.equal(unpack_from_int32(after[f"{name}_packed"], bits, shape).float(), codes.float()):
                return f"other codes of {name}"
            if "--zero-points" in arguments:
                packed = after[f"{name}_zero_point"]
                zeros = unpack_from_int32(packed, bits, torch.Size(zero.shape), packed_dim=0)
                if not torch.equal(zeros.float(), zero.float()):
                    return f"other zero points of {name}"
        return None

    def kept(self, folder, before, after, summary):
        ours = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
        for name, tensor in before.items():
            if f"{name}_scale" in after:
                continue
            found = after.get(name)
            if found is None or found.dtype != tensor.dtype or not torch.equal(found, tensor):
                return f"{name} is another"
        extra = [name for name in after if name not in before and not name.endswith(ours)]
        if extra:
            return f"{extra[0]} is new"
        ignore = json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"]
        return None if ignore == summary["kept"] else "`kept` is not `ignore`"

    def dense(self, source, expected, before, dtype):
        """The checkpoint with the weights that the codes stand for, rounded once to `dtype`."""
        folder = self.work / "dense"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(source / "config.json", folder)
        weights = dict(before)
        for name, (codes, scale, zero) in expected.items():
            groups = codes.reshape(*scale.shape, -1)
            exact = ((groups - zero[..., None]) * scale[..., None]).reshape(codes.shape)
            weights[name] = exact.to(dtype).to(before[name].dtype)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    def model(self, case, folder, **options):
        reader = common.READERS.get(case.model) or common.CLASSES[case.model][1]
        if case.model.endswith("masked_lm"):
            # The whole model, whose head the checkpoint has, and not the encoder alone, whose pooler it lacks.
            reader = common.CLASSES[case.model][1]
        if case.is_mixture:
            options["experts_implementation"] = "eager"
        model, info = reader.from_pretrained(folder, output_loading_info=True, **options)
        wrong = {kind: sorted(names)[:1] for kind, names in info.items() if names}
        if wrong:
            raise Failed(f"{wrong}")
        return model.eval()

    def loads(self, case, source, folder, expected, before, eager):
        """What transformers makes of it: at once, or when it first runs. All weights are those of the dense model."""
        options = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if eager else {}
        try:
            model = self.model(case, folder, **options)
            with torch.no_grad():
                model(input_ids=torch.tensor([case.tokens(8)]))
        except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            raise Failed(f"{type(error).__name__}: {error}"[:100]) from None
        found, dtype = model.state_dict(), common.DTYPES[case.dtype]
        # transformers dequantizes in the scales' dtype or in the model's.
        problems = []
        for rounded_to in {torch.bfloat16, dtype}:
            dense = self.model(case, self.dense(source, expected, before, rounded_to)).state_dict()
            other = [n for n, t in dense.items() if n not in found or t.dtype != found[n].dtype or not t.equal(found[n])]
            if not other:
                return None
            problems.append(f"{len(other)} of {len(dense)} weights differ, {other[0]}")
        return problems[0]

    def outputs(self, case, folder, *options):
        file = self.work / "output.safetensors"
        file.unlink(missing_ok=True)
        tokens = ",".join(map(str, case.tokens(SEQUENCE)))
        sinew(self.binary, "logits", "--model", folder, "--tokens", tokens, "--output", file, *options)
        return load_file(file)[case.output][0]

    def same_bits(self, case, source, folder, expected, arguments):
        head = [] if case.is_encoder or "lm_head.weight" in expected or "embed_out.weight" in expected else ["--keep-head"]
        ours, loading = self.outputs(case, folder), self.outputs(case, source, *arguments, *head)
        return None if torch.equal(ours, loading) else f"{int((ours != loading).sum())} values differ"

    def logits(self, case, source, folder, expected, before):
        dense = self.dense(source, expected, before, torch.bfloat16)
        tokens = case.tokens(SEQUENCE)
        exact = common.run(case, dense, tokens, "f32")
        yardstick = common.transformers_error(case, dense, tokens, "bf16", exact)
        verdict = common.judge(self.outputs(case, folder), exact, yardstick)
        return None if verdict.passed else f"{verdict.error}, allowed {verdict.allowed}"

    def configs(self, source, folder):
        ours, theirs = (transformers.AutoConfig.from_pretrained(path).to_dict() for path in (folder, source))
        del ours["quantization_config"]
        if ours != theirs | {"_name_or_path": ours["_name_or_path"]}:
            return "another config"
        if (source / "generation_config.json").exists():
            ours, theirs = (GenerationConfig.from_pretrained(path).to_dict() for path in (folder, source))
            if ours != theirs:
                return "another generation config"
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sinew", type=Path, required=True, help="the command to test")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checkpoints whose name contains this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build in DIR and leave the checkpoints there")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sinew-quantize-")))
        work.mkdir(parents=True, exist_ok=True)
        trip = RoundTrip(options.sinew.resolve(), work)
        for case, formats in checkpoints():
            if options.only in case.name:
                trip.judge(case, formats)
        trip.table.close()


if __name__ == "__main__":
    main()
