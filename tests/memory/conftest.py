"""The real engines and models of the end-to-end tests."""

from __future__ import annotations

from tests.end_to_end.conftest import cpu_build, demo, right, vulkan_build

__all__ = ["cpu_build", "demo", "right", "vulkan_build"]
