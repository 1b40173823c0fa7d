"""A folder for the sockets of one server's engines, which nobody else may enter."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from onebit import paths
from onebit.errors import EngineFailed

LOCK = "lock"
"""A file in a run folder, locked for as long as its server lives."""


@contextmanager
def run_folder() -> Iterator[Path]:
    """A 0700 folder for this process's sockets. Folders of processes that are gone are removed."""
    root = paths.run_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = root.lstat()  # in a shared temporary folder the name may be somebody's link to somewhere else
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
            raise EngineFailed(f"{root} is not a folder of your own", hint="remove it, or set XDG_RUNTIME_DIR to one")
        root.chmod(0o700)
        for old in root.glob("onebit-*"):
            _remove_if_left_behind(old)
        folder = Path(tempfile.mkdtemp(prefix="onebit-", dir=root))
        lock = FileLock(folder / LOCK)
        lock.acquire(blocking=False)
    except OSError as error:
        raise EngineFailed(
            f"cannot make a run folder in {root}: {error.strerror}", hint="set XDG_RUNTIME_DIR to a folder of your own"
        ) from None
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left_behind(folder: Path) -> None:
    """Only a folder whose lock can be had: its server is gone, in whatever container it ran."""
    if not (folder / LOCK).is_file() or folder.is_symlink():
        return
    with suppress(Timeout, OSError), FileLock(folder / LOCK, blocking=False):
        shutil.rmtree(folder, ignore_errors=True)
