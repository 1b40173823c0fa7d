"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tests share two cores with engines: a slow example is not a bug, and no test may depend on how long one takes.
settings.register_profile("onebit", deadline=None, max_examples=200)
settings.load_profile("onebit")

os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in [n for n in os.environ if n.startswith(("ONEBIT_", "LLAMA_ARG_")) and not n.startswith("ONEBIT_TEST_")]:
    del os.environ[name]


@pytest.fixture
def anyio_backend() -> str:
    """The router lives on asyncio: aiohttp and uvicorn know no other loop."""
    return "asyncio"
