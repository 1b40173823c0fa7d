"""The C extensions. Everything else about the package is in pyproject.toml.

They are optional: without a C compiler the package installs all the same, and the Python twins do the work.
`ONEBIT_BUILD_STRICT=1` turns warnings into errors and a failed build into a failed install; CI sets it.
"""

from __future__ import annotations

import os
from glob import glob

from setuptools import Extension, setup

STRICT = os.environ.get("ONEBIT_BUILD_STRICT", "") not in ("", "0")
# -ffp-contract=off: a fused multiply-add rounds once where the Python twins round twice
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off"] + (["-Wall", "-Wextra", "-Werror"] if STRICT else [])


def extension(name: str, folder: str) -> Extension:
    """All C files of a folder as one module."""
    return Extension(
        name,
        sorted(glob(f"{folder}/*.c")),  # noqa: PTH207 -- setuptools wants relative paths
        depends=sorted(glob(f"{folder}/*.h")),  # noqa: PTH207
        extra_compile_args=FLAGS,
        optional=not STRICT,
    )


setup(
    ext_modules=[
        extension("onebit.kernels.embed._native", "src/onebit/kernels/embed/csrc"),
    ]
)
