"""The folder of pulled models: finding them, and putting a file there in one step."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onebit import paths
from onebit.errors import DownloadError, ModelFileError
from onebit.models.report import Report
from onebit.models.shards import is_later_shard, shard_names

_SPARE = 64 << 20  # bytes left free beside a download: a full disk breaks more than the download


def stored() -> list[Path]:
    """All pulled models, sorted; of a split one its first part. Files still in the making are hidden ones."""
    root = paths.models_dir()
    found = (p for p in root.rglob("*.gguf") if not any(x.startswith(".") for x in p.relative_to(root).parts))
    return sorted(p for p in found if not is_later_shard(p))


def name_of(path: Path) -> str:
    """The shortest name by which `find_stored` finds this model: its file name, unless two share it."""
    same = [p for p in stored() if p.stem == path.stem]
    return path.stem if len(same) < 2 else path.relative_to(paths.models_dir()).as_posix()


def find_stored(name: str) -> Path | None:
    """The pulled model of this name: a file name with or without `.gguf`, or a path below the folder.

    Raises ModelFileError if two models share the name.
    """
    root = paths.models_dir()
    found = [p for p in stored() if name in (p.stem, p.name, p.relative_to(root).as_posix())]
    if len(found) > 1:
        choices = ", ".join(p.relative_to(root).as_posix() for p in found)
        raise ModelFileError(f"{len(found)} pulled models are named {name!r}", hint=f"name one of: {choices}")
    return found[0] if found else None


def remove(path: Path) -> int:
    """Delete a pulled model, all its parts, and its folder if that is then empty. Returns the bytes freed."""
    root = paths.models_dir()
    freed = 0
    with disk_errors(path):
        for name in shard_names(path.name):
            part = path.with_name(name)
            if part.exists():
                freed += part.stat().st_size
                part.unlink()
        folder = path.parent
        while folder != root and folder.is_relative_to(root):
            if any(not p.name.startswith(".") for p in folder.iterdir()):
                break
            shutil.rmtree(folder)  # only notes of ours are left: locks, and where the file came from
            folder = folder.parent
    return freed


# --- putting a file there -----------------------------------------------------------------------------------


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a DownloadError."""
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk is full at {exc.filename or path}",
                hint="free some space, or set XDG_CACHE_HOME to a folder on another disk",
            ) from exc
        raise DownloadError(
            f"cannot write {exc.filename or path}: {exc.strerror or exc}",
            hint="check the folder's permissions, or set XDG_CACHE_HOME to another folder",
        ) from exc


@contextmanager
def locked(target: Path, report: Report) -> Iterator[None]:
    """Hold the lock of `target` between processes and threads: of two pulls at once, one does the work."""
    from filelock import FileLock, Timeout

    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"Waiting for another pull of {target.name}", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def free_bytes(folder: Path) -> int:
    """Bytes an ordinary user may still write on the disk of `folder`."""
    return shutil.disk_usage(folder).free


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise DownloadError unless `needed` bytes, and a little more, are free."""
    free = free_bytes(folder)
    if free < needed + _SPARE:
        raise DownloadError(
            f"{what} needs {needed / 1e6:,.0f} MB and {_SPARE / 1e6:.0f} MB to spare; {folder} has "
            f"{free / 1e6:,.0f} MB free",
            hint="free some space, or set XDG_CACHE_HOME to a folder on another disk",
        )


def sha256_of(path: Path) -> str:
    """The checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(temporary: Path, target: Path) -> None:
    """Make a finished file appear under its name, at once and for good: fsync, rename, fsync the folder."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
