"""How much there is of each pool: totals and what is free of them, less a reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onebit.engines.device import DeviceKind
from onebit.engines.spec import EngineSpec
from onebit.memory import host
from onebit.memory.cards import Nvidia, Reading, amdgpu
from onebit.memory.pools import CARD, HOST, pool_of

_SYS, _PROC = Path("/sys"), Path("/proc")
# Left to others: the desktop, the driver's own tables, a process we do not know of. llama.cpp leaves the same
# 1024 MiB of each device when it fits a model by itself (`--fit`); on a small card that would be too much.
_RESERVE, _RESERVE_SHARE = 1 << 30, 8


@dataclass(frozen=True, slots=True)
class Room:
    """One pool's bytes, the reserve already taken off both figures."""

    total: int  # what it could hold if nothing else were there
    free: int | None  # what it can take now, whoever holds the rest; None: an operator's budget, not a device
    source: str  # who says so, for people
    live: bool = False  # is `free` read from the device at each call? Else it is from when the build was probed.


def rooms(
    specs: Sequence[EngineSpec],
    memory: int | None,
    *,
    nvidia: Nvidia | None = None,
    sys: Path = _SYS,
    proc: Path = _PROC,
) -> dict[str, Room]:
    """The pools that `specs` draw on. `memory`: the operator's budget in bytes, which overrides all and has no reserve.

    Before anything is loaded, `min(total, free)` is what engines may be given: others may hold some of a card.
    Takes well under a millisecond for the files; call it again for `free` as it is now. On chips with unified
    memory the pools `host` and `card0` share main memory, which each `free` shows and no total does.
    """
    if memory is not None:
        return {CARD: Room(memory, None, "the setting memory")} if specs else {}
    found: dict[str, Room] = {}
    for spec in specs:
        pool = pool_of(spec.device, spec.build, single=False)
        reading, live = _host(sys, proc) if pool == HOST else _card(spec, nvidia, sys, proc)
        reserve = min(_RESERVE, reading.total // _RESERVE_SHARE)
        room = Room(reading.total - reserve, max(0, reading.free - reserve), reading.source, live)
        known = found.get(pool)
        # Two builds may see one card differently: the live figure first, then the smaller one.
        if known is None or (not room.live, room.total) < (not known.live, known.total):
            found[pool] = room
    return found


def _host(sys: Path, proc: Path) -> tuple[Reading, bool]:
    total = host.total(sys=sys, proc=proc)
    free = host.available(sys=sys, proc=proc)
    if total is None:
        raise OSError("this system does not say how much main memory it has")
    return Reading(total, min(total, total if free is None else free), "main memory"), free is not None


def _card(spec: EngineSpec, nvidia: Nvidia | None, sys: Path, proc: Path) -> tuple[Reading, bool]:
    found = spec.build.device_for(spec.device)
    if found is None:
        raise ValueError(f"{spec.build.path} does not serve {spec.device}")
    index = spec.device.index or 0
    reading = None
    if nvidia is not None and spec.device.kind in (DeviceKind.CUDA, DeviceKind.VULKAN):
        reading = nvidia.reading(found.total_bytes, index)
    if reading is None and spec.device.kind in (DeviceKind.ROCM, DeviceKind.VULKAN):
        reading = amdgpu(found.total_bytes, index, sys=sys, proc=proc)
    if reading is not None:
        return reading, True
    return Reading(found.total_bytes, found.free_bytes, f"{found.id} as {spec.build.path.name} lists it"), False
