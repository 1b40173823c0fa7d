"""The real llama-server, the demo model, and tiny models with a working MTP head."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onebit.engines.builds import find_build
from onebit.engines.device import Build, Device, DeviceKind
from onebit.errors import NoBuild
from onebit.models.pull import resolve
from onebit.models.report import silent
from tests.support.mtp import Chain, build_chain_model


def _build(kind: DeviceKind) -> Build:
    try:
        return find_build(Device(kind))
    except NoBuild as error:
        pytest.fail(f"{error.message}; these tests need it: {error.hint}")


@pytest.fixture(scope="session")
def cpu_build() -> Build:
    """A llama-server that serves the CPU; `make test` has seen to it that there is one."""
    return _build(DeviceKind.CPU)


@pytest.fixture(scope="session")
def vulkan_build() -> Build:
    """A llama-server that sees a Vulkan device. Skipped without one, but not where CI promises it."""
    try:
        return find_build(Device(DeviceKind.VULKAN))
    except NoBuild as error:
        if os.environ.get("ONEBIT_TEST_VULKAN"):
            pytest.fail(f"ONEBIT_TEST_VULKAN is set, but {error.message}")
        pytest.skip("no llama-server with a Vulkan device here: onebit engines build vulkan")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model, pulled once."""
    return resolve("demo", silent)


@pytest.fixture(scope="session")
def right(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Its head drafts every token rightly."""
    return build_chain_model(tmp_path_factory.mktemp("mtp") / "right.gguf", tokenizer=demo)
