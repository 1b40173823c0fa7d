"""Run CMake and the compiler on llama.cpp's source: flags, progress, the first error, and an end to it all.

Each process started here has a group of its own, so that Ctrl-C reaches onebit alone, and it ends the group.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TextIO

from onebit.engines.device import DeviceKind
from onebit.engines.process import die_with_parent
from onebit.engines.toolchain import Facts
from onebit.errors import BuildError

TARGET = "llama-server"
_COMMON_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # else the build downloads a web page
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# GGML_NATIVE stays at its default, ON: a build is for the machine it was made on.
_DEVICE_FLAGS: Mapping[DeviceKind, tuple[str, ...]] = {
    DeviceKind.CPU: ("-DGGML_METAL=OFF",) if sys.platform == "darwin" else (),
    DeviceKind.VULKAN: ("-DGGML_VULKAN=ON",),
    DeviceKind.ROCM: ("-DGGML_HIP=ON",),
    DeviceKind.CUDA: ("-DGGML_CUDA=ON",),
    DeviceKind.METAL: ("-DGGML_METAL=ON",),
}
_STEP = re.compile(r"^\[\s*(?:(\d+)/(\d+)|(\d+)%)\]")
_ERROR = re.compile(r"(?:^|: |\s)(?:fatal )?error(?: \w+)?: |CMake Error|undefined reference to|^nvcc fatal")


class Report(Protocol):
    """Whom a build tells how it is getting on."""

    def note(self, text: str) -> None:
        """What is being done now."""

    def step(self, done: int, total: int) -> None:
        """`done` of `total` compile steps are finished (percent with make)."""


@dataclass(slots=True)
class Progress:
    """Reads ninja's `[n/m]` and make's `[ n%]`, never backwards.

    Vulkan's shader compiler is a build inside the build: its own `[1/3]` must not throw the bar back.
    """

    done: int = 0
    total: int = 0

    def feed(self, line: str) -> bool:
        """True when `line` was a step that moved `done` or `total`."""
        found = _STEP.match(line)
        if found is None:
            return False
        done, total = (int(found[1]), int(found[2])) if found[1] else (int(found[3]), 100)
        if done > total or total * 2 < self.total or done <= self.done:
            return False
        self.done, self.total = done, total
        return True


def first_error(lines: Iterable[str]) -> str | None:
    """The first compiler, linker or CMake error in a build's output, with the two lines after it."""
    rest = iter(lines)
    for line in rest:
        if _ERROR.search(line):
            following = islice((after.rstrip() for after in rest if after.strip()), 2)
            return "\n".join([line.strip(), *following])
    return None


def flags_for(device: DeviceKind, facts: Facts, amdgpu_targets: str | None) -> tuple[str, ...]:
    """CMake's flags for a llama-server that can use `device` (pure)."""
    flags = _COMMON_FLAGS + _DEVICE_FLAGS[device]
    if device is DeviceKind.VULKAN and facts.vulkan_headers is not None:
        flags += (f"-DVulkan_INCLUDE_DIR={facts.vulkan_headers.folder}",)
    if device is DeviceKind.ROCM and amdgpu_targets:
        flags += (f"-DAMDGPU_TARGETS={amdgpu_targets}",)
    return flags


def compile_server(
    tree: Path,
    work: Path,
    flags: Sequence[str],
    device: DeviceKind,
    facts: Facts,
    jobs: int | None,
    report: Report,
    log: TextIO,
) -> Path:
    """Configure and compile in `work`; all output goes to `log`. Returns the executable."""
    ninja = "ninja" in facts.programs
    jobs = jobs or _cores()
    folder = work / "build"
    configure = ["cmake", "-S", str(tree), "-B", str(folder), "-G", "Ninja" if ninja else "Unix Makefiles"]
    # Not through `cmake --build`: the kernel's death signal reaches our child only; ninja or make takes its
    # compilers along.
    make = ["ninja" if ninja else "make", "-C", str(folder), f"-j{jobs}", TARGET]
    env = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    if device is DeviceKind.ROCM:
        env = _rocm_environment(env)
    report.note("configuring")
    _run([*configure, *flags], env, log, "CMake")
    report.note(f"compiling with {jobs} job{'s' if jobs > 1 else ''}")
    progress = Progress()

    def watch(line: str) -> None:
        if progress.feed(line):
            report.step(progress.done, progress.total)

    _run(make, env, log, "the compiler", watch)
    return folder / "bin" / TARGET


def _run(
    command: Sequence[str],
    env: Mapping[str, str],
    log: TextIO,
    who: str,
    watch: Callable[[str], object] = len,  # any function that does nothing
) -> None:
    """Run `command` in a group of its own to its end. Raises BuildError with the first error it printed."""
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid(), signal.SIGTERM),  # ninja ends its compilers on it
    )
    assert child.stdout is not None  # noqa: S101 - PIPE above
    lines: list[str] = []  # 529 steps of Vulkan print 60 KiB
    try:
        for line in child.stdout:
            log.write(line)
            log.flush()  # so that it can be followed with tail -f
            lines.append(line)
            watch(line)
        code = child.wait()
    except BaseException:  # Ctrl-C above all: ninja and make end their compilers on SIGTERM
        _end_group(child)
        raise
    finally:
        child.stdout.close()
    if code != 0:
        cause = first_error(lines) or (lines[-1].strip() if lines else "it said nothing")
        raise BuildError(
            f"{who} failed ({command[0]}, exit code {code}):\n{cause}\nthe whole log: {log.name}",
            hint=_advice("".join(lines)),
        )


def _end_group(child: subprocess.Popen[str]) -> None:
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)


def _advice(text: str) -> str | None:
    if "Killed signal" in text or "Killed\n" in text:
        return "the machine ran out of memory while compiling: try --jobs 1"
    if "No space left on device" in text:
        return "the disk is full: free some space, or set XDG_CACHE_HOME to a folder on a larger disk"
    return None


def _rocm_environment(env: dict[str, str]) -> dict[str, str]:
    """ROCm's own clang must compile HIP; CMake finds it by two variables, the user's values go first."""
    hipconfig = shutil.which("hipconfig")
    if hipconfig is None:
        return env
    for name, flag, below in (("HIPCXX", "-l", "/clang"), ("HIP_PATH", "-R", "")):
        with suppress(OSError, subprocess.CalledProcessError):
            if name not in env:
                answer = subprocess.run([hipconfig, flag], capture_output=True, text=True, check=True)
                env[name] = answer.stdout.strip() + below
    return env


def _cores() -> int:
    """The cores this process may use: in a container that can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
