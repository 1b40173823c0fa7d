"""A table on disk: a folder with `model.safetensors` (int8 rows, a float32 scale for each) and `tokenizer.json`."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save_file

from onebit.errors import EmbedError
from onebit.kernels.embed.tokenizer_file import MAX_TOKENS, TokenizerSpec, read_tokenizer

MODEL, TOKENIZER = "model.safetensors", "tokenizer.json"
MAX_DIMS = 16384  # as in simd.h
TABLE_TYPES = "F32, F16, BF16, F64 and I8 to I64"  # what can be converted, as safetensors names it


@dataclass(frozen=True, slots=True)
class Table:
    """`rows`: int8 [tokens, dims]; `scales`: float32 [tokens]; a token's vector is its row times its scale."""

    rows: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    spec: TokenizerSpec
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def dims(self) -> int:
        """Columns: the length of a vector."""
        return int(self.rows.shape[1])

    def fingerprint(self) -> str:
        """Names the numbers of this table: vectors of tables with different ones cannot be compared."""
        digest = hashlib.blake2b(self.rows.tobytes(), digest_size=16)
        digest.update(self.scales.tobytes())
        return digest.hexdigest()


def default_folder() -> Path:
    """The table that comes with the package: English, 256 dimensions; data/README.md says where it is from."""
    return Path(str(resources.files("onebit.kernels.embed").joinpath("data")))


def load_table(folder: Path) -> Table:
    """Read and check a table; `EmbedError` says what is wrong with it."""
    path = folder / MODEL
    if not is_file(path):
        raise EmbedError(f"{folder} holds no {MODEL}", hint="a table is a folder that `onebit embed convert` made")
    tensors, metadata = read_tensors(path)
    rows, scales = tensors.get("embedding"), tensors.get("scale")
    if rows is None or scales is None or rows.dtype != np.int8 or scales.dtype != np.float32:
        found = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items()) or "nothing"
        raise EmbedError(
            f"{path} is no int8 table (int8 `embedding`, float32 `scale`); it holds {found}",
            hint=f"onebit embed convert {folder} -o NEW_FOLDER",
        )
    if rows.ndim != 2 or scales.shape != rows.shape[:1] or not 0 < len(rows) <= MAX_TOKENS:
        raise EmbedError(f"{path}: embedding has the shape {rows.shape} and scale {scales.shape}")
    if not 0 < rows.shape[1] <= MAX_DIMS:
        raise EmbedError(f"{path} has {rows.shape[1]:,} dimensions, not 1 to {MAX_DIMS:,}")
    if not np.isfinite(scales).all():
        raise EmbedError(f"{path}: the scale of row {int(np.argmin(np.isfinite(scales)))} is not a finite number")
    spec = read_tokenizer(folder / TOKENIZER)
    if spec.highest_id >= len(rows):
        raise EmbedError(
            f"{folder}: the tokeniser gives ids up to {spec.highest_id:,}, the table has {len(rows):,} rows"
        )
    return Table(rows, scales, spec, metadata)


def is_file(path: Path) -> bool:
    """`Path.is_file` raises for a name that is too long, or in a folder that must not be read."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_tensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """All tensors of a safetensors file, those of bfloat16 as float32, and its metadata."""
    try:
        with safe_open(path, "np") as file:
            return {name: _tensor(file, path, name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as exc:
        raise EmbedError(f"{path} cannot be read: {exc}") from exc
    except (SafetensorError, ValueError) as exc:
        raise EmbedError(f"{path} is no safetensors file: {exc}", hint="it may be truncated; fetch it again") from exc


def _tensor(file: Any, path: Path, name: str) -> npt.NDArray[Any]:
    kind = str(file.get_slice(name).get_dtype())
    if kind == "BF16":
        return _bfloat16(path, name)
    try:
        tensor: npt.NDArray[Any] = file.get_tensor(name)
    except (AttributeError, TypeError, SafetensorError) as exc:  # how the library says that numpy has no such type
        raise EmbedError(
            f"{path}: {name} is of the type {kind}, which cannot be read", hint=f"a table may be of {TABLE_TYPES}"
        ) from exc
    return tensor


def _bfloat16(path: Path, name: str) -> npt.NDArray[np.float32]:
    """As float32: numpy has no such type, so the library gives its bytes only."""
    entry = dict(deserialize(path.read_bytes()))[name]  # type: ignore[no-untyped-call]
    bits = np.frombuffer(entry["data"], "<u2")
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def check_new(folder: Path) -> None:
    """`EmbedError` where there is something already, or nothing can be."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise EmbedError(f"{folder} cannot be written: {exc.strerror}") from exc
    raise EmbedError(f"{folder} exists already", hint="remove it, or name another one")


def save_table(table: Table, tokenizer: Path, folder: Path) -> None:
    """Write a table with a copy of `tokenizer`. The folder appears as a whole or not at all, and must not exist."""
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            tensors: dict[str, npt.NDArray[Any]] = {
                "embedding": np.ascontiguousarray(table.rows),
                "scale": np.ascontiguousarray(table.scales),
            }
            metadata = {"format": "int8 rows, float32 scale per row"} | table.metadata
            # the name of a folder, which need not be UTF-8, may be among it
            metadata = {key: text.encode("utf-8", "replace").decode() for key, text in metadata.items()}
            save_file(tensors, partial / MODEL, metadata=metadata)
            shutil.copyfile(tokenizer, partial / TOKENIZER)
            partial.chmod(0o755)
            (partial / MODEL).chmod(0o644)  # safetensors makes files for their owner only
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as exc:
        raise EmbedError(f"{folder} cannot be written: {exc}") from exc
