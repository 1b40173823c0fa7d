"""Progress and the first error, read from what ninja, make, gcc and CMake print."""

from __future__ import annotations

import pytest

from onebit.engines.cmake import Progress, first_error, flags_for
from onebit.engines.device import DeviceKind
from tests.engines_builds.test_toolchain import READY


def steps(*lines: str) -> list[tuple[int, int]]:
    progress = Progress()
    return [(progress.done, progress.total) for line in lines if progress.feed(line)]


def test_ninja_steps_and_a_build_within_the_build() -> None:
    """Vulkan's shader compiler is such a one; its output comes in one block when it is finished."""
    assert steps(
        "[1/529] Building C object ggml/src/ggml.c.o",
        "/src/ggml.c:12:3: warning: [3/4] unused",
        "[2/529] Performing build step for 'vulkan-shaders-gen'",
        "[1/2] Building CXX object vulkan-shaders-gen.cpp.o",
        "[2/2] Linking CXX executable vulkan-shaders-gen",
        "[4/529] Linking",
        "[529/529] Linking CXX executable bin/llama-server",
    ) == [(1, 529), (2, 529), (4, 529), (529, 529)]


def test_ninja_may_find_out_that_there_is_a_little_less_to_do() -> None:
    assert steps("[9/206] a", "[10/180] b") == [(9, 206), (10, 180)]


def test_make_percents() -> None:
    assert steps("[  1%] Building", "[ 12%] Building", "[ 12%] Built target", "[100%] Built target") == [
        (1, 100),
        (12, 100),
        (100, 100),
    ]


GCC = """[12/206] Building CXX object src/llama.cpp.o
FAILED: src/llama.cpp.o
/usr/bin/c++ -Werror=return-type -o src/llama.cpp.o -c /src/llama.cpp
/src/llama.h:3:1: warning: something harmless
/src/llama.cpp:7:12: error: 'foo' was not declared in this scope
    7 |     return foo;
      |            ^~~
/src/llama.cpp:9:1: error: another one
ninja: build stopped: subcommand failed.
"""
CMAKE = """-- The C compiler identification is GNU 12.2.0
fatal: not a git repository: /src/../../.git/modules
CMake Warning at common/CMakeLists.txt:30 (message):
  Git index not found in git repository.

CMake Error at ggml/src/ggml-vulkan/CMakeLists.txt:9 (find_package):
  Could NOT find Vulkan (missing: Vulkan_LIBRARY)

-- Configuring incomplete, errors occurred!
"""
LINK = """[206/206] Linking CXX executable bin/llama-server
/usr/bin/ld: main.o: in function `main':
main.cpp:(.text+0x9): undefined reference to `ggml_init'
collect2: error: ld returned 1 exit status
"""
MEMORY = "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (GCC, "/src/llama.cpp:7:12: error: 'foo' was not declared in this scope\n    7 |     return foo;\n"),
        (CMAKE, "CMake Error at ggml/src/ggml-vulkan/CMakeLists.txt:9 (find_package):\n  Could NOT find Vulkan"),
        (LINK, "main.cpp:(.text+0x9): undefined reference to `ggml_init'"),
        (MEMORY, "c++: fatal error: Killed signal"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_30'\n", "nvcc fatal"),
    ],
)
def test_the_first_real_error(output: str, expected: str) -> None:
    assert (first_error(output.splitlines()) or "").startswith(expected)


def test_a_good_log_has_no_error() -> None:
    good = "[3/206] Building CXX object common/error.cpp.o\n0 errors\nfatal: not a git repository: /src/.git\n"
    assert first_error(good.splitlines()) is None


def test_flags_per_device() -> None:
    for kind in DeviceKind:
        assert "-DBUILD_SHARED_LIBS=OFF" in flags_for(kind, READY, None)
    assert {"-DGGML_VULKAN=ON", "-DVulkan_INCLUDE_DIR=/usr/include"} <= set(flags_for(DeviceKind.VULKAN, READY, None))
    assert "-DAMDGPU_TARGETS=gfx1151" in flags_for(DeviceKind.ROCM, READY, "gfx1151")
    assert not any("AMDGPU" in flag for flag in flags_for(DeviceKind.ROCM, READY, None))
    assert not any("vulkan" in flag.lower() for flag in flags_for(DeviceKind.CPU, READY, None))
