"""Output that is there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onebit.errors import ModelFileError


@contextmanager
def atomic(target: Path, needs: int, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """A path to write to (a folder that is made, or a file) that becomes `target` when the block ends well.

    Whatever goes wrong, `target` stays as it was and nothing else is left. `needs`: bytes that will be written.
    Raises ModelFileError where the target exists, the disk is too small or becomes full.
    """
    if target.is_dir() and not folder:
        raise ModelFileError(f"{target} is a folder, and one file is to be written", hint="name a file in it")
    if target.exists() and not target.is_dir() and not target.is_file():
        raise ModelFileError(f"{target} is a device, a pipe or a socket, which a file would take the place of")
    if target.exists() and (folder or not overwrite):
        hint = "remove it, or name another" if folder else "name another, or overwrite it with --force"
        raise ModelFileError(f"{target} exists already", hint=hint)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
    except OSError as exc:
        raise ModelFileError(f"{target} cannot be written: {exc.strerror or exc}") from exc
    if free < needs:
        raise ModelFileError(f"{target} needs {needs / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free on its disk")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if folder:
            part.mkdir()
        yield part
        part.replace(target)
    except OSError as exc:
        why = "the disk is full" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else exc.strerror or str(exc)
        raise ModelFileError(f"{target} cannot be written: {why}", hint="nothing was left behind") from exc
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
