"""/proc and /sys as the kernel documents them, laid out in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The two roots, and what is written under them."""

    proc: Path
    sys: Path

    @classmethod
    def make(cls, folder: Path) -> Machine:
        """An empty machine."""
        machine = cls(folder / "proc", folder / "sys")
        machine.proc.mkdir()
        machine.sys.mkdir()
        return machine

    def write(self, files: Mapping[str, object]) -> None:
        """`proc/meminfo` → its text."""
        for name, text in files.items():
            path = self.proc.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    def main_memory(self, total: int, available: int) -> None:
        """`/proc/meminfo`, in bytes."""
        text = f"MemTotal:       {total >> 10} kB\nMemFree:          100 kB\nMemAvailable:   {available >> 10} kB"
        self.write({"proc/meminfo": text})

    def cgroup(self, path: str, limit: int | str, current: int, inactive: int = 0) -> None:
        """A v2 cgroup; several make a hierarchy, the last one is ours."""
        folder = f"sys/fs/cgroup{path}"
        self.write(
            {
                "proc/self/cgroup": f"0::{path}",
                f"{folder}/memory.max": limit,
                f"{folder}/memory.current": current,
                f"{folder}/memory.stat": f"anon 1\nfile 2\ninactive_file {inactive}",
            }
        )

    def amdgpu(self, card: int, vram: int, vram_used: int, gtt: int, gtt_used: int) -> None:
        """A card of amdgpu's."""
        names = {"vram_total": vram, "vram_used": vram_used, "gtt_total": gtt, "gtt_used": gtt_used}
        self.write({f"sys/class/drm/card{card}/device/mem_info_{name}": size for name, size in names.items()})
        self.write({f"sys/class/drm/card{card}-DP-1/status": "connected"})

    def client(self, pid: int, descriptor: int, lines: str) -> None:
        """A DRM device that `pid` has open."""
        self.write({f"proc/{pid}/fdinfo/{descriptor}": f"pos:\t0\nflags:\t02100002\n{lines}"})
