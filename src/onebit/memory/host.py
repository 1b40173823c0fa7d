"""Main memory: how much there is for this process and its children, within the limits of its cgroup."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_SYS, _PROC = Path("/sys"), Path("/proc")


def total(*, sys: Path = _SYS, proc: Path = _PROC) -> int | None:
    """Bytes of main memory, or of the tightest limit around this process; None where nothing says it."""
    machine = _meminfo(proc).get("MemTotal") or _pages()
    limits = [limit for limit, _ in _cgroups(sys, proc)]
    known = [size for size in (machine, *limits) if size is not None]
    return min(known, default=None)


def available(*, sys: Path = _SYS, proc: Path = _PROC) -> int | None:
    """Bytes that can still be had without swapping, as the kernel estimates it; None where nothing says it."""
    machine = _meminfo(proc).get("MemAvailable")
    left = [max(0, limit - held) for limit, held in _cgroups(sys, proc)]
    known = [size for size in (machine, *left) if size is not None]
    return min(known, default=None)


def _meminfo(proc: Path) -> dict[str, int]:
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        return {}
    return {key: int(size) << 10 for key, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}


def _pages() -> int | None:
    """macOS and the BSDs have no /proc/meminfo."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _cgroups(sys: Path, proc: Path) -> Iterator[tuple[int, int]]:
    """(limit, held) of each cgroup around us that has a limit. File pages not in use do not count as held."""
    root = sys / "fs/cgroup"
    for version, top, files in (
        ("v2", root, ("memory.max", "memory.current", "inactive_file")),
        ("v1", root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ):
        group = top / _own_group(proc, version).lstrip("/")
        while group.is_relative_to(top):
            # In a container the path may be the one outside, which does not exist here; its root always does.
            try:
                limit = int((group / files[0]).read_text())  # ValueError for "max": none
                held = int((group / files[1]).read_text())
                idle = re.search(rf"^{files[2]} (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
                yield limit, held - (int(idle[1]) if idle else 0)
            except (OSError, ValueError):
                pass
            group = group.parent


def _own_group(proc: Path, version: str) -> str:
    """Our path in the hierarchy: `0::/user.slice/…` in v2, `9:memory:/docker/…` in v1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == "v2" and number == "0" and not controllers) or (
            version == "v1" and "memory" in controllers.split(",")
        ):
            return path
    return ""
