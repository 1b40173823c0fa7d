"""Opening a GGUF file: every way in which it may be no such file has one sentence here."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onebit.errors import ModelFileError
from onebit.models.shards import shard_names

if TYPE_CHECKING:
    from onebit.models.gguf_reader import HeaderReader

_MAX_COUNT = 65_536  # tensors, or keys, of one file; the largest known models have some 2,000
FETCH_AGAIN = "delete the file and fetch it again, e.g. with `onebit models pull`"
NEED_GGUF = "onebit serves GGUF files; `onebit models pull demo` fetches a small one to try"


def plain(text: str) -> str:
    """Without control characters: the text comes from a file and goes to a terminal."""
    return "".join(c for c in text if c.isprintable())[:200].strip()


def open_header(path: Path) -> HeaderReader:
    """Check the fixed 24 bytes by hand (they decide what to say and bound the work), then read the header.

    Raises ModelFileError, or what the library raises on a damaged header (see `gguf_file.inspect`).
    """
    if "\0" in str(path):
        raise ModelFileError(f"{plain(str(path))} is not a file name: it has a NUL character in it")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{path} does not exist", hint="`onebit models list` shows what there is") from None
    if stat.S_ISDIR(mode):
        inside = ", ".join(sorted(p.name for p in path.glob("*.gguf"))[:5])
        hint = f"name one of the files in it: {inside}" if inside else "name a .gguf file"
        raise ModelFileError(f"{path} is a folder, not a model file", hint=hint)
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is not a regular file", hint=NEED_GGUF)
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise ModelFileError(f"{path} is empty", hint=FETCH_AGAIN)
    if head[:4] != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file: {explain_magic(head)}", hint=NEED_GGUF)
    if len(head) < 24:
        raise ModelFileError(f"{path} is truncated: it ends inside its header", hint=FETCH_AGAIN)
    version = int.from_bytes(head[4:8], sys.byteorder)
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(
            f"{path} is a GGUF file of the other byte order (this machine is {sys.byteorder}-endian)",
            hint="fetch the file made for this kind of machine, or convert it with gguf-convert-endian",
        )
    if version not in (2, 3):
        raise ModelFileError(f"{path} has GGUF version {version}; versions 2 and 3 are known", hint=FETCH_AGAIN)
    for what, at in (("tensors", 8), ("metadata keys", 16)):
        count = int.from_bytes(head[at : at + 8], sys.byteorder)
        if count > _MAX_COUNT:
            raise ModelFileError(f"{path} has a damaged header: it announces {count:,} {what}", hint=FETCH_AGAIN)
    from onebit.models.gguf_reader import HeaderReader

    return HeaderReader(path)


def explain_magic(head: bytes) -> str:
    """What the first bytes of a file that is not GGUF look like, for a message."""
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, perhaps of a login or an error"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; `git lfs pull` fetches the file itself"
    if text.startswith((b"{", b"[")):
        return "it is JSON text"
    if head[8:9] == b"{":
        return "it looks like safetensors, which llama.cpp's convert_hf_to_gguf.py turns into GGUF"
    if head.startswith(b"PK"):
        return "it is a ZIP archive (a PyTorch checkpoint, or a package)"
    if head[:4] in (b"tjgg", b"lmgg", b"fmgg"):
        return "it is GGML, the format before GGUF"
    if not head.strip(b"\0"):
        return "it starts with zeros, like an unfinished download"
    return f"it starts with the bytes {head[:4].hex(' ')}"


def parts_of(path: Path, count: int) -> list[Path]:
    """The files of a split model, given its first; raises ModelFileError if they are not all there."""
    if count > _MAX_COUNT:
        raise ModelFileError(f"{path} claims to be split in {count:,} parts", hint=FETCH_AGAIN)
    names = shard_names(path.name)
    if len(names) != count:
        raise ModelFileError(
            f"{path} is one of {count} parts of a model, but not named as one",
            hint=f"llama.cpp wants the name NAME-00001-of-{count:05d}.gguf",
        )
    if path.name != names[0]:
        raise ModelFileError(f"{path} is not the first part of its model", hint=f"name the first part: {names[0]}")
    parts = [path.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(
            f"{path} is split in {count} parts and {', '.join(missing[:3])}{more} is missing beside it",
            hint="all parts of a split model must lie in one folder",
        )
    return parts
