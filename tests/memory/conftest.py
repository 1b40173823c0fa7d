"""The real engines and models of the end-to-end tests, and machines laid out as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import cpu_build, demo, right, vulkan_build
from tests.memory.trees import Machine

__all__ = ["cpu_build", "demo", "right", "vulkan_build"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine of which the kernel says nothing yet."""
    return Machine.make(tmp_path)
