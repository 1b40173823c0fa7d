"""Every test of the merge runs over each version of it that this machine has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from onebit.kernels.lora import fused

Merge = Callable[..., bool]


@pytest.fixture(params=fused.variants())
def variant(request: pytest.FixtureRequest) -> str:
    """The instruction sets of this processor, portable C, Python."""
    return str(request.param)


@pytest.fixture
def merge(variant: str) -> Merge:
    """`fused.merge` with its variant fixed."""
    return partial(fused.merge, variant=variant)
