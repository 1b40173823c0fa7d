"""The C kernels. Everything else about the package stands in pyproject.toml.

Each is optional: without a C compiler the wheel is built without it, and onebit computes the same in Python.
"""

import os
import sys

from setuptools import Extension, setup

if sys.platform == "win32":
    FLAGS = ["/O2", "/std:c11", "/fp:precise"]
else:
    # no contraction: a fused multiply-add rounds once where the plain code rounds twice, and bits are promised
    FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
    if os.environ.get("ONEBIT_STRICT_C"):  # CI: a warning is an error, and a kernel that does not build is one too
        FLAGS += ["-Wall", "-Wextra", "-Werror"]
    if os.environ.get("ONEBIT_SANITIZE"):
        FLAGS += ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def kernel(name: str, source: str, *headers: str) -> Extension:
    """One extension of `onebit.kernels`, from one C file and the headers it includes."""
    folder = "src/onebit/kernels/"
    return Extension(
        f"onebit.kernels.{name}",
        [folder + source],
        depends=[folder + header for header in headers],
        extra_compile_args=FLAGS,
        extra_link_args=["-fsanitize=address,undefined"] if os.environ.get("ONEBIT_SANITIZE") else [],
        optional=not os.environ.get("ONEBIT_STRICT_C"),
    )


LORA_HEADERS = [f"lora_{part}.h" for part in ("numbers", "tile", "vec_avx2", "vec_avx512", "vec_neon", "vec_portable")]

setup(
    ext_modules=[
        kernel("_lora", "lora_merge.c", *LORA_HEADERS),
    ]
)
