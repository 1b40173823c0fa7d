"""What the drivers of graphics cards say about their memory: amdgpu's sysfs files, and NVIDIA's NVML.

Neither was run on hardware here: the tests lay out files as the kernel documents them, and a stand-in for NVML.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebit.memory.host import available

_LOG = logging.getLogger(__name__)
_SYS, _PROC = Path("/sys"), Path("/proc")
# What a build lists and what the driver says of one card differ by a few per cent: the driver's own share.
_ALIKE = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes of one card, now."""

    total: int
    free: int
    source: str


# --- AMD ----------------------------------------------------------------------------------------------------


def amdgpu(listed: int, index: int, *, sys: Path = _SYS, proc: Path = _PROC) -> Reading | None:
    """The amdgpu card that a build lists with `listed` bytes in all as its number `index`; None: no card is like it.

    A plain card is its VRAM. On a chip with unified memory neither number alone is the truth: VRAM is only what the
    firmware has set aside (512 MiB to 96 GiB), GTT is what may be borrowed from main memory, and buffers go to
    either. The driver does not say which kind a card is (half of main memory is GTT on plain cards, too), so the
    build decides: a listing well above VRAM means that engines will be given both. Then the total is VRAM + GTT,
    and of GTT only so much is free as main memory has available.
    """
    cards = sorted(
        (sys / "class/drm").glob("card*/device/mem_info_vram_total"), key=lambda p: (len(p.parts[-3]), p.parts[-3])
    )
    found = [reading for file in cards if (reading := _amdgpu(file.parent, listed, sys, proc)) is not None]
    # Cards of another maker have no such file, so that indices agree only where nothing else is listed.
    alike = [reading for reading in found if _are_alike(reading.total, listed)]
    if not alike:
        return None
    own = found[index] if index < len(found) else alike[0]
    return own if own in alike else alike[0]


def _amdgpu(device: Path, listed: int, sys: Path, proc: Path) -> Reading | None:
    try:
        vram, vram_used, gtt, gtt_used = (
            int((device / f"mem_info_{name}").read_text())
            for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
        )
    except (OSError, ValueError):
        return None
    if listed <= vram * (1 + _ALIKE):
        return Reading(vram, max(0, vram - vram_used), "amdgpu: VRAM")
    borrowed = max(0, gtt - gtt_used)
    main = available(sys=sys, proc=proc)
    return Reading(
        vram + gtt,
        max(0, vram - vram_used) + (borrowed if main is None else min(borrowed, main)),
        "amdgpu: VRAM and GTT",
    )


def _are_alike(one: int, other: int) -> bool:
    return abs(one - other) <= _ALIKE * max(one, other)


# --- NVIDIA -------------------------------------------------------------------------------------------------


class Nvidia:
    """NVML, through the optional package nvidia-ml-py."""

    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module pynvml, initialised."""
        self._nvml = nvml

    @classmethod
    def open(cls) -> Nvidia | None:
        """None without the package (`pip install 'onebit[nvidia]'`), or without a driver that answers."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            _LOG.debug("NVML does not start: %s", error)
            return None
        return cls(pynvml)

    def reading(self, listed: int, index: int, env: Mapping[str, str] = os.environ) -> Reading | None:
        """The card that a CUDA build lists as its number `index`, with `listed` bytes in all; None: not found.

        CUDA's order of cards is not NVML's, and CUDA_VISIBLE_DEVICES changes it once more: an entry there is
        followed when it is a number or a whole UUID. A card that differs from the listing is not believed.
        """
        visible = [entry.strip() for entry in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
        try:
            if index < len(visible) and not visible[index].isdecimal():
                handle = self._nvml.nvmlDeviceGetHandleByUUID(visible[index])
            else:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(int(visible[index]) if index < len(visible) else index)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            _LOG.debug("NVML knows nothing of card %d: %s", index, error)
            return None
        if not _are_alike(memory.total, listed):
            return None
        return Reading(memory.total, memory.free, "NVML")

    def process(self, pid: int) -> int | None:
        """Bytes that a process holds on all cards; None: NVML does not know it (as from inside a container)."""
        held: list[int] = []
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                # A process that computes and draws is in both lists with the same figure.
                listed = [
                    *self._nvml.nvmlDeviceGetComputeRunningProcesses(handle),
                    *self._nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
                ]
                sizes = [entry.usedGpuMemory for entry in listed if entry.pid == pid]
                held += [max(sizes)] if sizes and None not in sizes else []
        except self._nvml.NVMLError as error:
            _LOG.debug("NVML does not list processes: %s", error)
            return None
        return sum(held) if held else None
