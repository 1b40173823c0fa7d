"""What a model consists of: one safetensors file, a folder of shards, or one GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onebit.checkpoints.gguf_spans import GgufFacts, read_gguf
from onebit.errors import ModelFileError
from onebit.kernels.lora.safetensors_file import TensorSpan, read_header

_INDEX = ".safetensors.index.json"
_WHOLE = "model.safetensors"
_MAX_INDEX = 100 << 20  # bytes
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5", ".onnx")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file with tensors."""

    path: Path
    tensors: Mapping[str, TensorSpan]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files. `folder` is set where the model is a folder, whose other files belong to it.

    `index`: the file in it that says which shards there are, if there is one.
    """

    files: tuple[CheckpointFile, ...]
    format: Literal["safetensors", "gguf"]
    folder: Path | None = None
    gguf: GgufFacts | None = None
    index: Path | None = None

    @property
    def tensors(self) -> dict[str, TensorSpan]:
        """All tensors by name."""
        return {name: span for file in self.files for name, span in file.tensors.items()}

    @property
    def size(self) -> int:
        """Bytes of all files with tensors."""
        return sum(file.path.stat().st_size for file in self.files)

    def other_files(self) -> Iterator[Path]:
        """Configuration, tokenizer, …: what lies in the folder and holds no weights."""
        return (path for path in self._beside() if not _of_weights(path) or path == self.index)

    def left_behind(self) -> Iterator[str]:
        """Files with other weights in the folder: another model, or a copy of this one that nothing is merged into."""
        used = {file.path for file in self.files}
        return (path.name for path in self._beside() if path.suffix in _WEIGHT_FILES and path not in used)

    def _beside(self) -> list[Path]:
        return [path for path in sorted(self.folder.iterdir()) if path.is_file()] if self.folder else []


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers. Raises ModelFileError where a file is missing, damaged, truncated or of another kind."""
    if path.is_dir() or path.name.endswith(_INDEX):
        folder, index = (path, _index(path)) if path.is_dir() else (path.parent, path)
        files = tuple(_read(shard) for shard in (_shards(index) if index else _unlisted(folder)))
        _check_unique(files, folder)
        return Checkpoint(files, "safetensors", folder, index=index)
    if path.suffix == ".gguf":
        tensors, facts = read_gguf(path)
        return Checkpoint((CheckpointFile(path, tensors),), "gguf", gguf=facts)
    return Checkpoint((_read(path),), "safetensors")


def _read(path: Path) -> CheckpointFile:
    return CheckpointFile(path, read_header(path).tensors)


def _of_weights(path: Path) -> bool:
    return path.suffix in _WEIGHT_FILES or path.name.endswith(".index.json")


def _index(folder: Path) -> Path | None:
    found = sorted(folder.glob("*" + _INDEX))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ModelFileError(f"{folder} holds several models: {names}", hint="name one of these instead of the folder")
    return found[0] if found else None


def _unlisted(folder: Path) -> list[Path]:
    """Without an index, all there are; but model.safetensors, the usual name, is a whole model."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ModelFileError(f"{folder} has no .safetensors file in it", hint="name a model's folder, or a file")
    whole = folder / _WHOLE
    return [whole] if whole in found else found


def _shards(index: Path) -> list[Path]:
    try:
        if index.stat().st_size > _MAX_INDEX:
            raise ValueError("it is too large")
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ModelFileError(f"{index} cannot be read: {exc}", hint="fetch the model again") from exc
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFileError(f"{index} names {name!r}, which is no file beside it")
    shards = [index.with_name(name) for name in names]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing or not shards:
        raise ModelFileError(f"{index} names {', '.join(missing[:3]) or 'no files'}: missing beside it")
    return shards


def _check_unique(files: tuple[CheckpointFile, ...], folder: Path) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            other = seen.setdefault(name, file.path)
            if other != file.path:
                raise ModelFileError(
                    f"{folder} has {name} in {other.name} and in {file.path.name}",
                    hint="name one of the files, or keep one model in the folder",
                )
