"""What all tests share."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest
from hypothesis import settings

# Tests share two cores with engines: a slow example is not a bug, and no test may depend on how long one takes.
# CI judges a change by the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("onebit", deadline=None, max_examples=200, derandomize="CI" in os.environ)
settings.load_profile("onebit")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, which peft does, too
for name in [n for n in os.environ if n.startswith(("ONEBIT_", "LLAMA_ARG_")) and not n.startswith("ONEBIT_TEST_")]:
    del os.environ[name]

# A shell's background jobs ignore SIGINT, nohup SIGHUP; the commands that are tested must not inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Torch takes gigabytes from a public index, so it is asked for: `make test EXTRAS=dev,torch`. CI promises it.
TORCH = importlib.util.find_spec("torch") is not None or "ONEBIT_TEST_TORCH" in os.environ
collect_ignore = [] if TORCH else ["kernels_lora", "checkpoints"]


def pytest_report_header() -> str:
    """Say what is left out."""
    return "" if TORCH else "torch is not installed: the tests of the LoRA merge are left out (EXTRAS=dev,torch)"


@pytest.fixture
def anyio_backend() -> str:
    """The router lives on asyncio: aiohttp and uvicorn know no other loop."""
    return "asyncio"
