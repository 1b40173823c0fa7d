"""Which llama-server to take for a device: the registered ones, the made ones, the one on PATH.

`candidates()` gathers, `order()` decides (pure), `find_build()` probes in that order and takes the first that
serves the device. What did not do is remembered, so that the error can say why.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

from onebit import paths
from onebit.engines.device import Build, Device, DeviceKind
from onebit.engines.probe import probe
from onebit.errors import ConfigError, NoBuild

PROGRAM = "llama-server"
MANIFEST = "build.json"


class Where(StrEnum):
    """How onebit came to know an executable."""

    REGISTERED = "registered"
    MADE = "made"
    ON_PATH = "on PATH"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executable that may serve `kind` (None: whatever its probe shows). Not probed yet."""

    path: Path
    where: Where
    kind: DeviceKind | None
    origin: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A candidate and what its probe said: a build, or the reason why it is none."""

    candidate: Candidate
    build: Build | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `onebit engines build` notes beside an executable it made."""

    version: str  # the folder's name: which source it was made from
    device: str
    flags: tuple[str, ...]
    source: str
    date: str  # UTC, ISO 8601, so that the text sorts by time


def find_build(
    device: Device,
    explicit: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Build:
    """The llama-server to run on `device`.

    `explicit` is the one the user named: it is taken or refused, never silently replaced. Else, in this
    order: registered, made by `onebit engines build` (newest first), on PATH. `env` and `timeout` (seconds
    per run) are the probe's. Raises NoBuild, saying what was tried and why each did not do.
    """
    if explicit is not None:
        build = probe(_resolve(explicit), origin="named by --llama-server or the config", env=env, timeout=timeout)
        if not build.serves(device):
            raise NoBuild(f"{build.path} {_lack(build, device)}", hint="onebit doctor shows what is missing")
        return build
    tried: list[str] = []
    for candidate in order(candidates(), device):
        listed = _probed(candidate, env, timeout)
        if listed.build is None:
            tried.append(f"{listed.problem} ({candidate.origin})")
        elif listed.build.serves(device):
            return listed.build
        else:
            tried.append(f"{candidate.path} {_lack(listed.build, device)} ({candidate.origin})")
    hint = f"onebit engines build {device.kind}"
    if not tried:
        raise NoBuild(f"no llama-server for {device} was found", hint=hint)
    raise NoBuild(
        f"none of these can serve {device}:\n" + "\n".join(f"  - {reason}" for reason in tried),
        hint=f"{hint} (onebit doctor shows what drivers and devices there are)",
    )


def order(found: Iterable[Candidate], device: Device) -> list[Candidate]:
    """Those that may serve `device`, the first to try first (pure).

    Every build serves the CPU, but the ones made for it go first: a build for a card loads that card's driver
    before it looks at `--device none`. Otherwise the order is kept.
    """
    if device.kind is not DeviceKind.CPU:
        return [c for c in found if c.kind in (device.kind, None)]
    return sorted(found, key=lambda c: (c.kind is None, c.kind is not DeviceKind.CPU))


def taken(listed: Iterable[Listed], device: Device) -> Build | None:
    """Which of the listed builds `find_build(device)` would take (pure)."""
    probed = {entry.candidate: entry.build for entry in listed}
    for candidate in order(probed, device):
        build = probed[candidate]
        if build is not None and build.serves(device):
            return build
    return None


def list_builds(*, env: Mapping[str, str] | None = None, timeout: float = 60) -> list[Listed]:
    """Every executable onebit knows, probed, in the order of `candidates()`."""
    return [_probed(candidate, env, timeout) for candidate in candidates()]


def candidates() -> list[Candidate]:
    """Every executable onebit knows: registered, made (newest first), on PATH."""
    found = [
        Candidate(path, Where.REGISTERED, kind, f"registered for {kind} with `onebit engines add`")
        for kind, path in registered().items()
    ]
    for folder, manifest in made():
        found.append(
            Candidate(
                folder / PROGRAM,
                Where.MADE,
                DeviceKind(manifest.device),
                made_origin(DeviceKind(manifest.device), manifest.version),
            )
        )
    if on_path := shutil.which(PROGRAM):
        found.append(Candidate(Path(on_path), Where.ON_PATH, None, f"{PROGRAM} on PATH"))
    return found


# --- what the user registered ------------------------------------------------------------------------------


def registry_file() -> Path:
    """Where `engines add` keeps its list: a JSON object, device → absolute path."""
    return paths.config_dir() / "engines.json"


def registered() -> dict[DeviceKind, Path]:
    """What `onebit engines add` registered. Raises ConfigError when the file is not what `add` writes."""
    file = registry_file()
    try:
        content = json.loads(file.read_text("utf-8"))
        return {DeviceKind(kind): Path(path) for kind, path in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}",
            hint="delete it, then register again with: onebit engines add DEVICE PATH",
        ) from error


def add(kind: DeviceKind, path: Path) -> Build:
    """Register the llama-server at `path` for `kind`, in place of the one before it.

    Raises NoBuild when it does not run here or does not show such a device.
    """
    build = probe(_resolve(path), origin=f"registered for {kind} with `onebit engines add`")
    if not build.serves(Device(kind)):
        raise NoBuild(
            f"{build.path} {_lack(build, Device(kind))}", hint="onebit doctor shows which drivers are missing"
        )
    with _registry_lock():
        _write_registry({**registered(), kind: build.path})
    return build


def remove(kind: DeviceKind) -> list[str]:
    """Forget the build registered for `kind`; if there is none, delete the made ones. Returns what was done.

    Raises NoBuild when there is neither.
    """
    with _registry_lock():
        known = registered()
        if path := known.pop(kind, None):
            _write_registry(known)
            return [f"{path} is no longer registered for {kind} (the file itself stays)"]
    done = []
    for folder, manifest in made():
        if manifest.device == kind:
            discard(folder)
            with suppress(OSError):  # the version's folder, if this was its last device
                folder.parent.rmdir()
            done.append(f"deleted {folder}")
    if not done:
        raise NoBuild(
            f"there is nothing to remove for {kind}: none is registered and none was made here",
            hint="onebit engines list shows what there is",
        )
    return done


@contextmanager
def _registry_lock() -> Iterator[None]:
    from filelock import FileLock

    file = registry_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        yield


def _write_registry(known: Mapping[DeviceKind, Path]) -> None:
    file = registry_file()
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump({kind.value: str(path) for kind, path in known.items()}, out, indent=2)
            out.write("\n")
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# --- what `engines build` made -----------------------------------------------------------------------------


def made() -> list[tuple[Path, Manifest]]:
    """The finished builds, newest first: (folder, manifest). What has no manifest is not finished."""
    found = []
    for file in paths.builds_dir().glob(f"[!.]*/*/{MANIFEST}"):
        with suppress(OSError, ValueError, TypeError):
            content = json.loads(file.read_text("utf-8"))
            manifest = Manifest(**{**content, "flags": tuple(content["flags"])})
            DeviceKind(manifest.device)
            found.append((file.parent, manifest))
    return sorted(found, key=lambda entry: entry[1].date, reverse=True)


def made_origin(kind: DeviceKind, version: str) -> str:
    """How people are told where such a build came from."""
    return f"made by `onebit engines build {kind}` from {version}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest into a folder that is not yet in its place."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", "utf-8")


def discard(folder: Path) -> None:
    """Delete a made build: out of sight in one step, so that nobody finds half of it."""
    away = paths.builds_dir() / f".old-{uuid4().hex}"
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _resolve(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - Path.resolve would follow links


def _probed(candidate: Candidate, env: Mapping[str, str] | None, timeout: float) -> Listed:
    try:
        build = probe(candidate.path, origin=candidate.origin, env=env, timeout=timeout)
    except NoBuild as error:
        return Listed(candidate, None, error.message)
    return Listed(candidate, build, None)


def _lack(build: Build, device: Device) -> str:
    same = [found.id for found in build.devices if found.kind is device.kind]
    if same:
        return f"shows {', '.join(same)} only, so there is no {device}"
    others = ", ".join(found.id for found in build.devices) or "no device but the CPU"
    return f"shows no {device.kind} device here (it shows {others})"
