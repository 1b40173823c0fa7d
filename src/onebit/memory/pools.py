"""Which memory an engine draws on. Engines of one pool compete for the same bytes."""

from __future__ import annotations

from onebit.engines.device import Build, Device, DeviceKind

CARD = "card"  # the one pool when the operator has set a budget
HOST = "host"  # main memory


def pool_of(device: Device, build: Build, *, single: bool) -> str:
    """The pool of an engine on `device` with `build` (pure).

    `single`: a budget was set (`memory: SIZE`), so that everything counts against it, engines on the CPU too.
    Otherwise vulkan:0, rocm:0, cuda:0 are ways to the same physical card, `card0`; the CPU and software Vulkan
    draw on `host`. On a machine with graphics chips of two makers the indices of two kinds may mean different
    cards; then they are counted as one, which can refuse a load that would fit, but never allow one that does not.
    """
    if single:
        return CARD
    return HOST if on_host(device, build) else f"card{device.index or 0}"


def on_host(device: Device, build: Build) -> bool:
    """Is what the engine holds main memory of its process? So for the CPU, and for Vulkan in software."""
    found = build.device_for(device)
    return device.kind is DeviceKind.CPU or (found is not None and found.software)
