"""The readers of files against damaged ones: each must take a file or refuse it with an error of onebit's.

    python fuzz/fuzz_readers.py [SECONDS] [SEED]

Anything else fails: other errors, warnings, a GiB of memory, ten seconds for one file. The folder that is named at the
start then holds what was read last.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

from onebit.errors import OnebitError
from onebit.kernels.embed import Embedder, Index, IndexWriter
from onebit.kernels.embed.convert import convert
from onebit.kernels.lora.readers import read_adapter

MEMORY = 1 << 30  # bytes more than at the start
PATIENCE = 10  # seconds
DIMS = 8
JSON_PART = re.compile(rb'"[^"]*"|-?[0-9][0-9.eE+-]*|true|false|null|[\[\]{}]')
VALUES = [
    *b"0 1 -1 0.5 -0.0 1e400 NaN Infinity 255 65536 1048576 null true false [] {} [1] [[1]] [1,2,3]".split(),
    *(str(2**bits + more).encode() for bits in (31, 32, 53, 63, 64) for more in (-1, 0)),
    *b'"" "x" "1" "\\ud800" "\\u0000" "[UNK]" "F64" "F32" "F16" "BF16" "I64" "I8" "U8" "BOOL" "C64" "F8_E4M3"'.split(),
    b"9" * 5000,
    b"[" * 100_000,
]


# --- whole files ---------------------------------------------------------------------------------------------


def peft(folder: Path) -> None:
    """An adapter as peft saves it."""
    module = "base_model.model.layers.0.q_proj"
    tensors = {f"{module}.lora_A.weight": np.ones((2, 6)), f"{module}.lora_B.weight": np.ones((4, 2))}
    save_file({name: t.astype(np.float16) for name, t in tensors.items()}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 4, "r": 2, "use_rslora": False, "alpha_pattern": {"q_proj": 2.5}}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["q_proj"]}))


def diffusers(folder: Path) -> None:
    """An adapter with peft's settings in its metadata, and convolutions."""
    tensors = {"unet.conv.lora_A.weight": np.ones((2, 3, 3, 3)), "unet.conv.lora_B.weight": np.ones((4, 2, 1, 1))}
    settings = {"lora_adapter_metadata": json.dumps({"unet.lora_alpha": 4, "unet.r": 2})}
    save_file({name: t.astype(np.float32) for name, t in tensors.items()}, folder / "a.safetensors", settings)


def kohya(folder: Path) -> None:
    """An adapter with an alpha for each module."""
    tensors = {"lora_down.weight": np.ones((2, 6)), "lora_up.weight": np.ones((4, 2)), "alpha": np.array(4)}
    save_file({f"lora_unet_q.{name}": t.astype(np.float32) for name, t in tensors.items()}, folder / "a.safetensors")


def tokenizer(folder: Path) -> int:
    """A small tokenizer.json; how many tokens it has."""
    vocab = {token: i for i, token in enumerate(("[PAD]", "[UNK]", *"abcdé漢.", "##a", "##b", "text"))}
    added = [{"id": vocab["[PAD]"], "content": "[PAD]"}, {"id": len(vocab), "content": "<new>", "normalized": False}]
    switches = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    model = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20, "vocab": vocab}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", **switches},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", **model},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return len(vocab) + 1


def table(folder: Path) -> None:
    """A table of ours."""
    tokens = tokenizer(folder)
    save_file(
        {"embedding": np.ones((tokens, DIMS), np.int8), "scale": np.ones(tokens, np.float32)},
        folder / "model.safetensors",
    )


def model2vec(folder: Path) -> None:
    """A table of another project, with all that one may have."""
    tokens = tokenizer(folder)
    save_file(
        {"embeddings": np.ones((5, DIMS), np.float32), "weights": np.ones(tokens), "mapping": np.arange(tokens) % 5},
        folder / "model.safetensors",
    )


def index(folder: Path) -> None:
    """An index of three texts."""
    with IndexWriter(folder / "index", DIMS, "a table") as writer:
        writer.add([b"a cat", b"", "é \xff".encode("latin-1")], np.eye(3, DIMS, dtype=np.float32))


# --- reading them --------------------------------------------------------------------------------------------


def read_table(folder: Path) -> None:
    """Load it and use it."""
    Embedder.load(folder).encode(["a text, <new> [PAD]", "é漢"])


def read_model2vec(folder: Path) -> None:
    """Convert it, and leave nothing."""
    try:
        convert(folder, folder / "made")
    finally:
        shutil.rmtree(folder / "made", ignore_errors=True)


def read_index(folder: Path) -> None:
    """Open it and use it."""
    opened = Index(folder / "index")
    for hit in opened.vectors.search(np.ones(opened.vectors.rows.shape[1], np.float32)):
        opened.text(hit.row)
    opened.containing("cat")


KINDS: list[tuple[Callable[[Path], object], Callable[[Path], object]]] = [
    (peft, read_adapter),
    (diffusers, lambda folder: read_adapter(folder / "a.safetensors")),
    (kohya, lambda folder: read_adapter(folder / "a.safetensors")),
    (table, read_table),
    (model2vec, read_model2vec),
    (index, read_index),
]


# --- damage --------------------------------------------------------------------------------------------------


def damaged(name: str, whole: bytes, chance: random.Random) -> bytes:
    """Damage the JSON of a file, or any bytes of it."""
    kind = chance.choice(["json", "json", "json", "flip", "cut", "insert", "length"])
    if kind == "json":
        return damaged_within_frame(name, whole, chance)
    if kind == "cut":
        return whole[: chance.randrange(len(whole))]
    if kind == "insert":
        at, source = chance.randrange(len(whole)), chance.randrange(len(whole))
        return whole[:at] + whole[source : source + chance.choice((1, 8, 100))] + whole[at:]
    if kind == "length":  # where safetensors has that of its header
        length = chance.choice((0, 1, 2, len(whole), 2**31, 2**63, 2**64 - 1, chance.randrange(len(whole))))
        return length.to_bytes(8, "little") + whole[8:]
    flipped = bytearray(whole)
    reach = min(len(whole), chance.choice((16, 400, len(whole))))
    for _ in range(chance.randint(1, 8)):
        flipped[chance.randrange(reach)] = chance.randrange(256)
    return bytes(flipped)


def damaged_within_frame(name: str, whole: bytes, chance: random.Random) -> bytes:
    """Damage the JSON of a file and nothing else: its length or its checksum is right, and gives nothing away."""
    if name.endswith(".safetensors"):
        end = 8 + int.from_bytes(whole[:8], "little")
        text = damaged_json(whole[8:end], chance)
        return len(text).to_bytes(8, "little") + text + whole[end:]
    if name == "index":
        text = damaged_json(whole[16:4096].rstrip(), chance).ljust(4080)[:4080]
        return whole[:8] + f"{crc32(text):08x}".encode() + text + whole[4096:]
    return damaged_json(whole, chance)


def damaged_json(text: bytes, chance: random.Random) -> bytes:
    """Put other values in the places of some of its names, values and brackets."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        parts = list(JSON_PART.finditer(text))
        if not parts:
            break
        old = chance.choice(parts)
        others = [*VALUES, *(part[0] for part in parts), b""]
        if chance.random() < 0.7:  # a name for a name, a number for a number: what is only wrong in its meaning
            others = [other for other in others if other[:1].isdigit() == old[0][:1].isdigit() and other[:1] != b"["]
        new = chance.choice(others)
        text = text[: old.start()] + new + text[old.end() :]
    return text


def main() -> None:
    """Damage one file after the other until the time is over."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    work = Path(tempfile.mkdtemp(prefix="fuzz_readers."))
    print(f"seed {seed}, files in {work}", flush=True)
    for make, read in KINDS:  # whole ones are read, else this would test nothing
        (work / make.__name__).mkdir()
        make(work / make.__name__)
        read(work / make.__name__)
    warnings.simplefilter("error")
    if sys.platform == "linux":  # not before all libraries are loaded
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    chance = random.Random(seed)  # noqa: S311 -- a seed makes the same files again
    end = time.monotonic() + seconds
    count = refused = 0
    while time.monotonic() < end:
        make, read = chance.choice(KINDS)
        folder = work / make.__name__
        path = chance.choice(sorted(folder.iterdir()))
        whole = path.read_bytes()
        path.write_bytes(damaged(path.name, whole, chance))
        count += 1
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            read(folder)
        except OnebitError:
            refused += 1
        faulthandler.cancel_dump_traceback_later()
        path.write_bytes(whole)
    shutil.rmtree(work)
    print(f"{count:,} damaged files: {refused:,} refused, {count - refused:,} taken")


if __name__ == "__main__":
    main()
