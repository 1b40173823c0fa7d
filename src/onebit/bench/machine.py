"""What a figure was measured on, and how busy the machine was meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from onebit import __version__

BUSY_CORES = 0.25
"""Above this the machine counts as busy: other programs use so many cores on average."""


def machine() -> dict[str, str]:
    """The facts of this machine, for people and for comparing."""
    facts = {
        "cpu": f"{_cpu()}, {cores()} cores",
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "onebit": __version__,
    }
    if commit := _commit():
        facts["commit"] = commit
    return facts | _drivers()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    with suppress(OSError, ValueError, AttributeError):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / (1 << 30)
    return 0.0


def _drivers() -> dict[str, str]:
    """Kernel drivers of graphics cards, as far as the kernel tells."""
    found = {}
    for name, file in (("amdgpu", "/sys/module/amdgpu/version"), ("nvidia", "/sys/module/nvidia/version")):
        with suppress(OSError):
            found[f"driver {name}"] = Path(file).read_text().strip()
    return found


def _commit() -> str | None:
    """Of the checkout that this runs from; None for an installed package."""
    git, root = shutil.which("git"), Path(__file__).parents[3]
    if git is None or not (root / ".git").exists():
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        # Bench results written into the checkout do not make it another version: only tracked files count.
        argv = [git, "describe", "--always", "--dirty"]
        said = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=10)
        return said.stdout.strip() or None
    return None


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds at a moment: of the whole machine (None: unknown), of ourselves, of the processes under test."""

    at: float
    machine: float | None
    own: float
    tested: float

    @classmethod
    def now(cls, pids: Iterable[int] = ()) -> CpuTimes:
        """Read them. `pids`: the processes under test; one that has gone counts as nothing."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(perf_counter(), _machine_cpu(), own.ru_utime + own.ru_stime, sum(_process_cpu(pid) for pid in pids))


def conditions(before: CpuTimes, after: CpuTimes) -> Mapping[str, Any]:
    """How busy the machine was between two moments, in cores: we, the engines, and everything else."""
    seconds = max(after.at - before.at, 1e-9)
    own = (after.own - before.own) / seconds
    tested_s = max(0.0, after.tested - before.tested)
    tested = tested_s / seconds
    found: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2), "generator_cores": round(own, 3)}
    if tested:
        found |= {"engine_cores": round(tested, 3), "engine_cpu_s": round(tested_s, 3)}
    if before.machine is not None and after.machine is not None:
        others = (after.machine - before.machine) / seconds - own - tested
        found["other_cores"] = round(max(0.0, others), 3)
    return found


def _machine_cpu() -> float | None:
    with suppress(OSError, ValueError, IndexError):
        with Path("/proc/stat").open() as lines:
            ticks = [int(word) for word in next(lines).split()[1:9]]
        idle, waiting = ticks[3], ticks[4]
        return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")
    return None


def _process_cpu(pid: int) -> float:
    """Of a process, all its threads."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[i]) for i in (11, 12)) / os.sysconf("SC_CLK_TCK")
    return 0.0
