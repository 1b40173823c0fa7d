"""The NEON variant, run in an emulator where the processor is another and the tools are there (Debian's packages
gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "src" / "onebit" / "kernels"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason="no cross compiler, or no emulator")
def test_neon_equals_the_portable_code(tmp_path: Path) -> None:
    flags = ["-O2", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-static", f"-I{KERNELS}"]
    source = Path(__file__).with_name("neon_check.c")
    program = tmp_path / "check"
    subprocess.run([COMPILER, *flags, str(source), "-o", str(program), "-lm"], check=True)
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "180 cases equal\n")
