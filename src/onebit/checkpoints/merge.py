"""Adapters into a model's files: everything is copied as it is, but for the tensors that adapters change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

from onebit.checkpoints.checkpoint import Checkpoint, CheckpointFile, open_checkpoint
from onebit.checkpoints.codec import can_merge, decode, encode
from onebit.checkpoints.gguf_names import translate
from onebit.checkpoints.output import atomic
from onebit.errors import AdapterError, ModelFileError
from onebit.kernels.lora import fused
from onebit.kernels.lora.adapter import Adapter
from onebit.kernels.lora.plan import Part, Plan, plan
from onebit.kernels.lora.safetensors_file import TensorSpan
from onebit.kernels.lora.terms import Mode
from onebit.models.report import Report, silent

_CHUNK = 8 << 20  # bytes copied at a time


@dataclass(frozen=True, slots=True)
class Merged:
    """What was done."""

    path: Path
    changed: int  # tensors
    tensors: int
    skipped: dict[str, tuple[str, ...]]  # by adapter: modules the model has not
    left_behind: tuple[str, ...] = ()  # files with other weights in the model's folder


def merge_files(
    base: Path,
    adapters: Sequence[tuple[Adapter, float]],
    out: Path,
    *,
    mode: Mode = Mode.EXACT,
    threads: int = 1,
    allow_missing: bool = False,
    overwrite: bool = False,
    report: Report = silent,
) -> Merged:
    """Write `base` with all adapters merged to `out`: a file for a file, a folder for a folder.

    Tensors keep their types; Q8_0 is merged in float32 and rounded to its grid again. One tensor is in memory at a
    time, with its adapters' factors (of adapters read with keep=False; else all of theirs are). Raises AdapterError or
    ModelFileError, and then `out` is as it was.
    """
    checkpoint = open_checkpoint(base)
    inputs = [("the base", base), *((f"the adapter {adapter.name}", adapter.path) for adapter, _ in adapters)]
    for what, path in inputs:
        if out.exists() and out.samefile(path):
            raise ModelFileError(f"{out} is {what} itself", hint="write to another file; this one is read meanwhile")
    if checkpoint.gguf:
        adapters = [(translate(adapter, checkpoint.gguf), strength) for adapter, strength in adapters]
    tensors = checkpoint.tensors
    shapes = {name: span.shape for name, span in tensors.items()}
    planned = plan(adapters, shapes, allow_missing=allow_missing, skip="--skip-missing merges the others alone")
    for name in planned.parts:
        if not can_merge(tensors[name]):
            raise AdapterError(
                f"{base}: {name} is {tensors[name].dtype}; F32, F16, BF16 and Q8_0 can be merged",
                hint="merge into a model of one of these types, and quantize the result",
            )
    _write_all(checkpoint, planned, out, _Job(mode, threads, report, checkpoint.size, overwrite))
    return Merged(out, len(planned.parts), len(tensors), dict(planned.skipped), tuple(checkpoint.left_behind()))


@dataclass(slots=True)
class _Job:
    mode: Mode
    threads: int
    report: Report
    total: int
    overwrite: bool
    done: int = 0

    def wrote(self, count: int) -> None:
        self.done += count
        self.report("merging", self.done, self.total)


def _write_all(checkpoint: Checkpoint, planned: Plan, out: Path, job: _Job) -> None:
    folder = checkpoint.folder is not None
    with atomic(out, checkpoint.size, folder=folder, overwrite=job.overwrite) as part:
        for file in checkpoint.files:
            _write(file, planned, part / file.path.name if folder else part, job)
        for path in checkpoint.other_files():
            shutil.copyfile(path, part / path.name)


def _write(file: CheckpointFile, planned: Plan, to: Path, job: _Job) -> None:
    changed = [span for name, span in file.tensors.items() if name in planned.parts]
    with file.path.open("rb") as source, to.open("xb") as target:
        for span in sorted(changed, key=lambda span: span.offset):
            _copy(source, target, span.offset - target.tell(), job)
            target.write(_merged(source, file.path, span, planned.parts[span.name], job))
            job.wrote(span.size)
        source.seek(target.tell())
        _copy(source, target, file.path.stat().st_size - target.tell(), job)
        target.flush()
        os.fsync(target.fileno())


def _merged(source: BufferedReader, path: Path, span: TensorSpan, parts: Sequence[Part], job: _Job) -> memoryview:
    weight = decode(source, path, span)
    if fused.merge(weight, [p.factors.term(p.strength) for p in parts], job.mode, threads=job.threads):
        with suppress(OverflowError):
            return encode(weight, span)
    names = ", ".join(f"{part.adapter}:{part.strength:g}" for part in parts)
    raise AdapterError(
        f"{path}: {span.name} has NaNs or infinities once {names} {'are' if len(parts) > 1 else 'is'} merged",
        hint="they stand in the base already, or the sum is beyond what its type holds",
    )


def _copy(source: BufferedReader, target: BufferedWriter, count: int, job: _Job) -> None:
    """`count` bytes from where `target` ends."""
    source.seek(target.tell())
    while count > 0:
        chunk = source.read(min(count, _CHUNK))
        if not chunk:
            raise ModelFileError(f"{source.name} became shorter while it was read")
        target.write(chunk)
        count -= len(chunk)
        job.wrote(len(chunk))
