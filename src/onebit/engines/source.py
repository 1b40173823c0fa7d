"""llama.cpp's source, pinned: the copy vendored in one source distribution of llama-cpp-python on PyPI.

PyPI is reachable wherever pip works, behind company mirrors too, and its files never change; a checksum seals
it. The unpacked tree lies at a fixed path, so that ccache recognises the files at the next build.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from onebit import paths
from onebit.errors import BuildError, ConfigError, DownloadError, MissingTools

PACKAGE = "llama-cpp-python"
PINNED = "0.3.36"  # llama.cpp 0c1e57098
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
NEEDS_BYTES = 300 << 20  # measured: 73 MiB of archive and 176 MiB unpacked


def version_of(source: Path | None) -> str:
    """The name under which builds of `source` are kept (None: the pinned source).

    A folder of the user's own is known by its name and path. Its content is not looked at: a changed tree is
    compiled again with --force.
    """
    if source is None:
        return f"{PACKAGE}-{PINNED}"
    folder = source.expanduser().resolve()
    name = re.sub(r"[^A-Za-z0-9_-]", "-", folder.name)  # no leading dot either: those are not builds
    return f"{name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def check_folder(source: Path) -> Path:
    """The absolute path of a user's llama.cpp folder. Raises ConfigError when it is none."""
    folder = source.expanduser().resolve()
    if not (folder / "CMakeLists.txt").is_file():
        raise ConfigError(
            f"--source {source}: there is no CMakeLists.txt in {folder}",
            hint="give the top folder of a llama.cpp checkout",
        )
    return folder


def fetch(note: Callable[[str], None]) -> Path:
    """The folder of the pinned source; downloads and unpacks it if it is not there yet (73 MiB, some 15 s).

    `note` is told what is going on. Two callers at once: the second waits for the first.
    Raises MissingTools (no pip), DownloadError (no network, wrong checksum) or BuildError (cannot write).
    """
    from filelock import FileLock

    folder = paths.sources_dir() / version_of(None)
    tree = folder / "llama.cpp"
    if tree.is_dir():
        return tree
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(paths.sources_dir() / f".{folder.name}.lock"):
            if not tree.is_dir():
                # Inside `folder`, so that the rename stays on one filesystem.
                with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as temporary:
                    note(f"downloading {PACKAGE} {PINNED}, which holds llama.cpp's source (73 MiB)")
                    archive = download(Path(temporary))
                    note("unpacking llama.cpp's source")
                    unpack(archive, Path(temporary) / "llama.cpp")
                    (Path(temporary) / "llama.cpp").rename(tree)
    except OSError as error:
        raise BuildError(
            f"cannot keep llama.cpp's source in {folder}: {error.strerror or error}",
            hint="free some space or set XDG_CACHE_HOME to a folder that you can write to",
        ) from error
    return tree


def download(folder: Path) -> Path:
    """Let pip download the pinned archive into `folder` and check it. Returns its path.

    pip, because it knows this machine's index, proxy and certificates. Raises MissingTools or DownloadError.
    """
    if find_spec("pip") is None:
        raise MissingTools(
            f"pip is not installed for {sys.executable}; it fetches llama.cpp's source",
            hint="python -m ensurepip, or give a llama.cpp checkout with --source DIR",
        )
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={PINNED}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else done.stderr.strip()[-300:]
        raise DownloadError(
            f"pip could not download {PACKAGE} {PINNED}: {reason}",
            hint="check the network and pip's index, or give a llama.cpp checkout with --source DIR",
        )
    with archives[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise DownloadError(
            f"{archives[0].name} is not the file that was pinned: its SHA-256 is {digest}, not {SHA256}",
            hint="the package index may be serving another file; nothing of it was used",
        )
    return archives[0]


def unpack(archive: Path, into: Path) -> None:
    """Unpack only `vendor/llama.cpp` of the archive, as the folder `into`, trusting no path in it.

    Raises DownloadError when the archive is damaged, holds no such folder, or tries to write elsewhere.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(into, members=_llama_cpp(tar), filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise DownloadError(f"{archive.name} cannot be unpacked: {error}") from error
    if not (into / "CMakeLists.txt").is_file():
        raise DownloadError(f"{archive.name} holds no vendor/llama.cpp")


def _llama_cpp(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        parts = member.name.split("/", 3)  # llama_cpp_python-0.3.36/vendor/llama.cpp/…
        if len(parts) == 4 and parts[1:3] == ["vendor", "llama.cpp"] and parts[3]:
            yield member.replace(name=parts[3], deep=False)
