"""What a running process really holds: main memory, or memory of a graphics card."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import anyio

_PROC, _SYS = Path("/proc"), Path("/sys")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Keys of a DRM client's fdinfo, the one that says most about residency first. drm-memory-* is the older name of
# drm-resident-* (kernel documentation, gpu/drm-usage-stats); drm-total-* counts what was swapped out, too.
_PREFIXES = ("drm-resident-", "drm-memory-", "drm-total-")
_NOT_ON_CARD = frozenset({"cpu"})  # amdgpu: buffers that were moved out to where the card cannot reach them

NvidiaProcess = Callable[[int], int | None]
"""Bytes that a process holds on NVIDIA cards; None: not known."""


def process_bytes(
    pid: int, on_host: bool, *, nvidia: NvidiaProcess | None = None, proc: Path = _PROC, sys: Path = _SYS
) -> int | None:
    """Bytes that process `pid` holds now; None when nothing can be known (it is gone, or the driver does not say).

    `on_host`: an engine on the CPU, or on Vulkan in software: the proportional set size (PSS) of its memory, in
    which pages shared with other processes, e.g. a mapped model file, count in shares. Otherwise the memory of
    graphics cards: what `nvidia` says, else what the kernel's DRM drivers (amdgpu, i915, xe) say per open device,
    or amdgpu's compute side (KFD) where that is more. `proc` and `sys`: where those file systems are mounted.

    Run with real processes here: PSS. Not run on hardware: everything about cards (their formats are those of the
    kernel's documentation).
    """
    if on_host:
        return _pss(proc / str(pid))
    if nvidia is not None and (held := nvidia(pid)) is not None:
        return held
    known = [held for held in (_drm(proc / str(pid)), _kfd(sys, pid)) if held is not None]
    return max(known, default=None)


def _pss(process: Path) -> int | None:
    try:
        found = re.search(r"^Pss: +(\d+) kB$", (process / "smaps_rollup").read_text(), re.MULTILINE)
    except OSError:  # gone, another user's, or not Linux
        return None
    return int(found[1]) << 10 if found else None


def _drm(process: Path) -> int | None:
    """The sum over DRM clients. One client may be open under several descriptors: it counts once."""
    clients: dict[tuple[str, str], int] = {}
    try:
        for descriptor in (process / "fdinfo").iterdir():
            try:
                fields = dict(_fields(descriptor.read_text()))
            except OSError:  # closed meanwhile
                continue
            if "drm-client-id" not in fields:
                continue
            client = (fields.get("drm-pdev", ""), fields["drm-client-id"])
            clients[client] = max(clients.get(client, 0), _resident(fields))
    except OSError:
        return None
    return sum(clients.values()) if clients else None


def _fields(text: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in text.splitlines())
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def _resident(fields: dict[str, str]) -> int:
    """Bytes of one client, over its regions (vram, gtt, system0, local0, …)."""
    regions: dict[str, int] = {}
    for prefix in _PREFIXES:
        for key, value in fields.items():
            region = key.removeprefix(prefix)
            size = re.fullmatch(r"(\d+) ?([KMG]iB)?", value)
            if key.startswith(prefix) and size and region not in _NOT_ON_CARD:
                regions.setdefault(region, int(size[1]) * _UNITS[size[2] or ""])
    return sum(regions.values())


def _kfd(sys: Path, pid: int) -> int | None:
    """What ROCm's kernel driver counts: one file per card, in bytes."""
    files = list((sys / "class/kfd/kfd/proc" / str(pid)).glob("vram_*"))
    try:
        return sum(int(file.read_text()) for file in files) if files else None
    except (OSError, ValueError):
        return None


async def seen_free(free: Callable[[], int | None], wanted: int, *, timeout: float = 10.0, every: float = 0.1) -> bool:
    """Wait until `free()` shows at least `wanted` bytes after an unload; False when it does not within `timeout` s.

    A driver frees a dead process's memory a while after the process is gone. `free` returning None means that
    nobody can know: the gone process is then the evidence, as it always is in main memory, and the answer is True.
    """
    with anyio.move_on_after(timeout):
        while (now := free()) is not None and now < wanted:  # noqa: ASYNC110 - a driver has no event for it
            await anyio.sleep(every)
        return True
    return False
