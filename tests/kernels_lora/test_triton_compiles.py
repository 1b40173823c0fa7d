"""The Triton kernel compiles for a GPU that is not here, to the instructions that its modes are about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def _instructions(mode: str, cache: Path) -> dict[str, int]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    argv = [sys.executable, "-m", "tests.kernels_lora.compile_for_gpu", mode]
    env["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_exact_keeps_its_roundings_apart(tmp_path: Path) -> None:
    """32 × 128 numbers in 128 threads are 32 for each: an fma in the loop, and a product and a sum that stay two."""
    found = _instructions("EXACT", tmp_path)
    assert found == {"fma": 32, "mul": 32, "add": 32, "mma": 0}


def test_bf16_uses_tensor_cores(tmp_path: Path) -> None:
    assert _instructions("BF16", tmp_path)["mma"] > 0
