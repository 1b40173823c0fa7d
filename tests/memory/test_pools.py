"""Which engines compete for the same memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onebit.engines.device import Build, Device
from onebit.memory.pools import on_host, pool_of
from tests.engines.specs import CARD, CARD_BUILD, CPU_BUILD, LLVMPIPE, ROCM

SOFTWARE = replace(CARD_BUILD, devices=(LLVMPIPE,))
BOTH = replace(CARD_BUILD, devices=(CARD, ROCM, replace(CARD, id="Vulkan1")))


@pytest.mark.parametrize(
    ("device", "build", "pool"),
    [
        ("cpu", CPU_BUILD, "host"),
        ("cpu", BOTH, "host"),  # a build for a card, told to leave it alone
        ("vulkan", SOFTWARE, "host"),
        ("vulkan", BOTH, "card0"),
        ("vulkan:0", BOTH, "card0"),
        ("rocm", BOTH, "card0"),  # another way to the same card
        ("vulkan:1", BOTH, "card1"),
    ],
)
def test_pools(device: str, build: Build, pool: str) -> None:
    wanted = Device.parse(device)
    assert pool_of(wanted, build, single=False) == pool
    assert pool_of(wanted, build, single=True) == "card"
    assert on_host(wanted, build) == (pool == "host")
