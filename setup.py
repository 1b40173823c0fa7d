"""The C kernels. Everything else about the package is in pyproject.toml.

They are optional: without a C compiler the package installs all the same, and their Python twins do the work.
`ONEBIT_BUILD_STRICT=1` turns warnings into errors and a failed build into a failed install; CI sets it.
"""

from __future__ import annotations

import os
import sys
from glob import glob

from setuptools import Extension, setup

STRICT = os.environ.get("ONEBIT_BUILD_STRICT", "") not in ("", "0")
if sys.platform == "win32":
    FLAGS = ["/O2", "/std:c11", "/experimental:c11atomics", "/fp:precise"]
else:
    # no contraction: a fused multiply-add rounds once where the Python twins round twice, and bits are promised
    FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
    FLAGS += ["-Wall", "-Wextra", "-Werror"] if STRICT else []


def kernel(name: str, sources: str, headers: str) -> Extension:
    """One extension of `onebit.kernels`; `sources` and `headers` are patterns of files below its folder."""
    folder = "src/onebit/kernels/"
    return Extension(
        f"onebit.kernels.{name}",
        sorted(glob(folder + sources)),  # noqa: PTH207 -- setuptools wants relative paths
        depends=sorted(glob(folder + headers)),  # noqa: PTH207
        extra_compile_args=FLAGS,
        optional=not STRICT,
    )


setup(
    ext_modules=[
        kernel("_lora", "lora_merge.c", "lora_*.h"),
        kernel("embed._native", "embed/csrc/*.c", "embed/csrc/*.h"),
    ]
)
