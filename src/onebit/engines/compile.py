"""Make a build: it appears among the builds when it has passed its probe, or not at all.

All work is done in `.work-VERSION-DEVICE` beside the builds, under a lock of the same name: who holds the
lock owns the folder, so what a killed builder left is told from what a living one is using. The folder's path
is the same at each build, so that ccache recognises the files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from onebit import paths
from onebit.engines import builds, cmake, toolchain
from onebit.engines import source as sources
from onebit.engines.device import Build, DeviceKind
from onebit.engines.probe import probe
from onebit.errors import BuildError, ConfigError, NoBuild

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Measured on x86-64 with GCC 12: 84 MiB for cpu, 316 MiB for vulkan; twice that is asked for. ROCm and CUDA
# compile each kernel for several cards; their figure is a guess on the safe side.
_NEEDS_BYTES = {DeviceKind.CPU: 200 << 20, DeviceKind.METAL: 200 << 20, DeviceKind.VULKAN: 700 << 20}
_NEEDS_BYTES_ELSE = 4 << 30


def build(
    device: DeviceKind,
    *,
    report: cmake.Report,
    source: Path | None = None,
    vulkan_headers: Path | None = None,
    amdgpu_targets: str | None = None,
    jobs: int | None = None,
    force: bool = False,
) -> Build:
    """Compile llama-server for `device`, probe it and return it; one that is there already returns at once.

    `source`: a llama.cpp checkout, None for the pinned source. `vulkan_headers`: a folder with newer headers
    than the system's. `amdgpu_targets`: e.g. `gfx1151`, None for the cards CMake finds here. `jobs`: how many
    compilers at once, None for one per core. `force`: compile again.
    A second builder of the same thing waits for the first and takes its build.
    Raises ConfigError, MissingTools, DownloadError, BuildError; KeyboardInterrupt leaves nothing behind.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least 1 is needed")
    if source is not None:
        source = sources.check_folder(source)
    version = sources.version_of(source)
    final = paths.builds_dir() / version / device.value
    if not force and (there := _existing(final, device, version, report)):
        return there
    facts = toolchain.check(device, vulkan_headers)
    _check_disk(device, source)
    log = paths.log_dir() / f"build-{version}-{device}.log"
    try:
        paths.builds_dir().mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep()
        with _owned(f"{version}-{device}", report) as (work, waited):
            # Who waited was waiting for exactly this build, forced or not.
            if (waited or not force) and (there := _existing(final, device, version, report)):
                return there
            tree = source or sources.fetch(report.note)
            flags = cmake.flags_for(device, facts, amdgpu_targets)
            report.note(f"log: {log}")
            with log.open("w", encoding="utf-8") as out:
                compiled = cmake.compile_server(tree, work, flags, device, facts, jobs, report, out)
            staged = work / "staged"
            staged.mkdir()
            program = Path(shutil.copy2(compiled, staged / builds.PROGRAM))
            date = datetime.now(UTC).isoformat(timespec="milliseconds")
            builds.write_manifest(staged, builds.Manifest(version, device.value, flags, str(tree), date))
            result = _probe_new(program, device, version, log)
            final.parent.mkdir(parents=True, exist_ok=True)
            if final.exists():  # file by file, so that there is an executable at every moment
                for name in (builds.PROGRAM, builds.MANIFEST):
                    (staged / name).replace(final / name)
            else:
                staged.rename(final)
            return replace(result, path=final / builds.PROGRAM)
    except OSError as error:
        raise BuildError(
            f"the build could not be written: {error}",
            hint="free some space, or set XDG_CACHE_HOME and XDG_STATE_HOME to folders that you can write to",
        ) from error


# --- what is there already ---------------------------------------------------------------------------------


def _existing(final: Path, device: DeviceKind, version: str, report: cmake.Report) -> Build | None:
    if not (final / builds.MANIFEST).is_file():
        return None
    try:
        return probe(final / builds.PROGRAM, origin=builds.made_origin(device, version))
    except NoBuild as error:  # the disk moved to another machine, a library was removed
        report.note(f"the build that is there does not do and is made again: {error.message}")
        return None


def _probe_new(program: Path, device: DeviceKind, version: str, log: Path) -> Build:
    try:
        return probe(program, origin=builds.made_origin(device, version))
    except NoBuild as error:
        raise BuildError(
            f"what was compiled does not run, so it was not kept: {error.message}", hint=f"the log is {log}"
        ) from error


@contextmanager
def _owned(key: str, report: cmake.Report) -> Iterator[tuple[Path, bool]]:
    """The work folder of `key`, empty and ours within the block; and whether somebody else had it first."""
    from filelock import Timeout

    work, lock, waited = _work(key), _lock(key), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waited = True
        report.note("another onebit is making this build; waiting for it")
        lock.acquire()
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work, waited
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def _sweep() -> None:
    """Delete the work folders whose builders died: kill -9, a power cut."""
    from filelock import Timeout

    for work in paths.builds_dir().glob(".work-*"):
        lock = _lock(work.name.removeprefix(".work-"))
        with suppress(Timeout):
            lock.acquire(timeout=0)
            shutil.rmtree(work, ignore_errors=True)
            lock.release()
    for old in paths.builds_dir().glob(".old-*"):
        shutil.rmtree(old, ignore_errors=True)


def _work(key: str) -> Path:
    return paths.builds_dir() / f".work-{key}"


def _lock(key: str) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(paths.builds_dir() / f".lock-{key}")


def _check_disk(device: DeviceKind, source: Path | None) -> None:
    need = _NEEDS_BYTES.get(device, _NEEDS_BYTES_ELSE)
    if source is None and not (paths.sources_dir() / sources.version_of(None) / "llama.cpp").is_dir():
        need += sources.NEEDS_BYTES
    folder = paths.cache_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need:
        raise BuildError(
            f"a build for {device} needs {need >> 20} MiB of disk, {folder} has {free >> 20} MiB left",
            hint="free some space, or set XDG_CACHE_HOME to a folder on a larger disk",
        )
