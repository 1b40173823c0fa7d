"""Builds and specs for tests that start nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from onebit.engines.device import Build, Device, DeviceKind, FoundDevice
from onebit.engines.spec import EngineSpec

GIB = 1 << 30
CARD = FoundDevice("Vulkan0", DeviceKind.VULKAN, "Radeon", 16 * GIB, 15 * GIB)
ROCM = FoundDevice("ROCm0", DeviceKind.ROCM, "Radeon", 16 * GIB, 15 * GIB)
LLVMPIPE = replace(CARD, description="llvmpipe", software=True)
CPU_BUILD = Build(Path("/b/cpu"), "1", (), "test")
CARD_BUILD = Build(Path("/b/card"), "1", (CARD,), "test")


def spec(**changes: Any) -> EngineSpec:
    """A plain CPU engine with some fields changed."""
    base = EngineSpec(
        name="cpu",
        alias="demo",
        model=Path("/m/demo.gguf"),
        device=Device(DeviceKind.CPU),
        build=CPU_BUILD,
        slots=4,
        context=4096,
        batch=128,
        threads=1,
    )
    return replace(base, **changes)
