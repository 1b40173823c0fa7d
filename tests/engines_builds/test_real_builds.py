"""The real llama-server: found, probed, and what it sees here."""

from __future__ import annotations

import os

import pytest

from onebit.engines.builds import find_build
from onebit.engines.device import Build, Device
from onebit.engines.device import DeviceKind as Kind
from onebit.errors import NoBuild


def real(kind: Kind) -> Build:
    """`make test` has seen to one for the CPU; one for Vulkan may be missing, but not where CI promises it."""
    try:
        return find_build(Device(kind))
    except NoBuild as error:
        if kind is Kind.CPU or os.environ.get("ONEBIT_TEST_VULKAN"):
            pytest.fail(f"no real build: {error.message}")
        pytest.skip(f"no real build: {error.message}")


@pytest.mark.engine
def test_a_real_cpu_build() -> None:
    build = real(Kind.CPU)
    assert build.version
    assert build.serves(Device(Kind.CPU))
    assert "registered" in build.origin or "made by" in build.origin or "PATH" in build.origin


@pytest.mark.vulkan
def test_a_real_vulkan_build_sees_a_device_and_serves_the_cpu_too() -> None:
    build = real(Kind.VULKAN)
    device = build.device_for(Device(Kind.VULKAN))
    assert device is not None
    assert device.id == "Vulkan0"
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.software == ("llvmpipe" in device.description)
    assert build.serves(Device(Kind.CPU))
