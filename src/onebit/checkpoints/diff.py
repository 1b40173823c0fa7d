"""What differs between two adapters, or two models: weight by weight, one pair in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.checkpoints.checkpoint import Checkpoint, open_checkpoint
from onebit.checkpoints.codec import can_merge, decode
from onebit.errors import ModelFileError
from onebit.kernels.lora.adapter import Adapter, Factors
from onebit.kernels.lora.readers import is_adapter, read_adapter
from onebit.kernels.lora.safetensors_file import TensorSpan, read_header
from onebit.models.gguf_file import ModelKind, inspect
from onebit.models.report import Report, silent


@dataclass(frozen=True, slots=True)
class Row:
    """One weight that both have."""

    name: str
    equal: bool
    distance: float  # ‖a − b‖ / ‖a‖; infinite where a is zero and b is not, NaN where it was not calculated
    cosine: float  # of a and b as vectors; NaN where one is zero
    changed: float | None  # share of the numbers that differ; None for adapters, whose product is not formed

    @property
    def changed_text(self) -> str:
        """For a table."""
        return "" if self.changed is None else f"{100 * self.changed:.2f} %"


@dataclass(frozen=True, slots=True)
class Diff:
    """Everything found."""

    rows: tuple[Row, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Nothing differs."""
        return not self.only_a and not self.only_b and all(row.equal for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN and no infinity: null stands for both."""
        rows = [
            {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(row).items()}
            for row in self.rows
        ]
        return {"weights": rows, "only_a": list(self.only_a), "only_b": list(self.only_b)}


def compare(a: Path, b: Path, report: Report = silent) -> Diff:
    """Two adapters, or two models. Raises ModelFileError or AdapterError for files that cannot be read."""
    kinds = [_holds_adapter(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        adapter, model = (a, b) if kinds[0] else (b, a)
        raise ModelFileError(f"{adapter} is an adapter and {model} is none", hint="compare two of the same kind")
    if kinds[0]:
        return _compare_adapters(read_adapter(a, keep=False), read_adapter(b, keep=False))
    return _compare_models(open_checkpoint(a), open_checkpoint(b), report)


def _holds_adapter(path: Path) -> bool:
    if path.is_dir():
        return (path / "adapter_model.safetensors").is_file()
    if path.suffix == ".gguf" and inspect(path).kind is ModelKind.ADAPTER:
        raise ModelFileError(
            f"{path} is an adapter as GGUF, which cannot be compared", hint="compare the safetensors it was made from"
        )
    return path.suffix != ".gguf" and not path.name.endswith(".json") and is_adapter(read_header(path))


def _compare_adapters(a: Adapter, b: Adapter) -> Diff:
    rows = [_adapter_row(name, f, b.factors[name]) for name, f in a.factors.items() if name in b.factors]
    return Diff(tuple(rows), *_only(a.factors, b.factors))


def _adapter_row(name: str, a: Factors, b: Factors) -> Row:
    """Norms of B @ A without forming it: ⟨B₁A₁, B₂A₂⟩ = trace((A₂A₁ᵀ)(B₁ᵀB₂)), of rank × rank matrices."""
    if a.weight_shape != b.weight_shape:
        return Row(name, False, math.nan, math.nan, None)
    (b1, a1), (b2, a2) = _scaled(a), _scaled(b)
    if all(np.array_equal(x, y) for x, y in ((b1, b2), (a1, a2))):
        return Row(name, True, 0.0, 1.0, None)
    # ‖a − b‖ from the stacked factors: the difference of the three products would cancel for near-equal adapters
    stacked_b, stacked_a = np.hstack([b1, -b2]), np.vstack([a1, a2])
    gap = _norm(stacked_b, stacked_a)
    return _row(name, gap, _norm(b1, a1), _norm(b2, a2), _inner(b1, a1, b2, a2), None)


def _scaled(factors: Factors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    b, a = (matrix.load().as_float32().astype(np.float64) for matrix in (factors.b, factors.a))
    return b * factors.scale(1.0), a


def _inner(b1: Any, a1: Any, b2: Any, a2: Any) -> float:
    return float(np.sum((b1.T @ b2) * (a1 @ a2.T)))


def _norm(b: NDArray[np.float64], a: NDArray[np.float64]) -> float:
    """‖B @ A‖ as ‖R_B @ R_Aᵀ‖ of QR decompositions, which is accurate where B @ A nearly vanishes."""
    small_b, small_a = (np.linalg.qr(m)[1] for m in (b, a.T))
    return float(np.linalg.norm(small_b @ small_a.T))


def _compare_models(a: Checkpoint, b: Checkpoint, report: Report) -> Diff:
    left, right = a.tensors, b.tensors
    total, done, rows = sum(span.size for span in left.values()), 0, []
    read_a, read_b = _reader(a), _reader(b)
    for name, span in left.items():
        if name in right:
            rows.append(_model_row(span, right[name], read_a, read_b))
        done += span.size
        report("comparing", done, total)
    return Diff(tuple(rows), *_only(left, right))


def _reader(checkpoint: Checkpoint) -> Callable[[TensorSpan], NDArray[np.float32]]:
    homes = {name: file.path for file in checkpoint.files for name in file.tensors}

    def read(span: TensorSpan) -> NDArray[np.float32]:
        path = homes[span.name]
        with path.open("rb") as file:
            if can_merge(span):
                return decode(file, path, span).as_float32()
            file.seek(span.offset)
            return np.frombuffer(file.read(span.size), np.uint8).astype(np.float32)

    return read


def _model_row(
    a: TensorSpan,
    b: TensorSpan,
    read_a: Callable[[TensorSpan], NDArray[np.float32]],
    read_b: Callable[[TensorSpan], NDArray[np.float32]],
) -> Row:
    same_kind = a.dtype == b.dtype or (can_merge(a) and can_merge(b))
    if a.shape != b.shape or not same_kind:
        return Row(a.name, False, math.nan, math.nan, 1.0)
    if 0 in a.shape:
        return Row(a.name, True, 0.0, 1.0, 0.0)
    x, y = read_a(a), read_b(b)
    changed = float(np.mean((x != y) & ~(np.isnan(x) & np.isnan(y))))
    if changed == 0 or not can_merge(a):  # of bytes in an unknown encoding there is no distance
        return Row(a.name, changed == 0, 0.0 if changed == 0 else math.nan, 1.0 if changed == 0 else math.nan, changed)
    gap, inner, xx, yy = 0.0, 0.0, 0.0, 0.0
    with np.errstate(invalid="ignore"):  # infinities: there is no distance then
        for p, q in _blocks(x, y):
            gap += float(np.sum((p - q) ** 2))
            inner, xx, yy = inner + float(np.vdot(p, q)), xx + float(np.vdot(p, p)), yy + float(np.vdot(q, q))
    return _row(a.name, math.sqrt(gap), math.sqrt(xx), math.sqrt(yy), inner, changed)


def _blocks(x: NDArray[np.float32], y: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float64], ...]]:
    """In float64, a few rows at a time: the whole would take four times the memory of the weights."""
    for row in range(0, len(x), 256):
        yield x[row : row + 256].astype(np.float64), y[row : row + 256].astype(np.float64)


def _row(name: str, gap: float, norm_a: float, norm_b: float, inner: float, changed: float | None) -> Row:
    distance = gap / norm_a if norm_a else math.inf
    cosine = inner / (norm_a * norm_b) if norm_a and norm_b else math.nan
    return Row(name, False, distance, cosine, changed)


def _only(a: Any, b: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(name for name in a if name not in b), tuple(name for name in b if name not in a)
