"""Folders of one's own, executables that answer like llama-server, and a small project that compiles to one."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from onebit import paths

VERSION = "0.5.0-dev (build 0, commit unknown)"
LLVMPIPE = "Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of onebit's folders moved to a temporary one; no llama-server on PATH."""
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(f for f in folders if not Path(f, "llama-server").exists()))
    return tmp_path


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_server(path: Path, *devices: str, hidden: str = "", version: str = VERSION) -> Path:
    """Answers like llama-server. `hidden` is shown only with GGML_VK_VISIBLE_DEVICES=0."""
    shown = "\n".join(f"  {line}" for line in devices) or "  (none)"
    with_variable = f"  {hidden}" if hidden else shown
    return script(
        path,
        f"""case "$1" in
--version) echo 'version: {version}' >&2; echo 'built with GNU 12.2.0 for Linux x86_64' >&2 ;;
--list-devices)
    echo 'Available devices:'
    if [ "$GGML_VK_VISIBLE_DEVICES" = 0 ]; then echo '{with_variable}'; else echo '{shown}'; fi ;;
*) exit 1 ;;
esac""",
    )


def compile_c(path: Path, program: str, *flags: str) -> Path:
    """A real executable or library from C."""
    source = path.with_suffix(".c")
    source.write_text(program)
    gcc = shutil.which("gcc") or "gcc"
    subprocess.run([gcc, str(source), "-o", str(path), *flags], check=True)
    return path


_GOOD = """
#include <stdio.h>
#include <string.h>
int main(int argc, char ** argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) fputs("version: 7 (abc)\\n", stderr);
    else puts("Available devices:\\n  (none)");
    return 0;
}
"""
_CMAKE = """
cmake_minimum_required(VERSION 3.14)
project(fake C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_custom_command(OUTPUT step.h COMMAND sh ${CMAKE_SOURCE_DIR}/step.sh ${CMAKE_SOURCE_DIR} VERBATIM)
add_executable(llama-server main.c ${CMAKE_CURRENT_BINARY_DIR}/step.h)
target_include_directories(llama-server PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A CMake project with the target llama-server, to be given as --source."""

    folder: Path

    def program(self, text: str) -> None:
        """Replace the program that is compiled."""
        (self.folder / "main.c").write_text(text)

    @property
    def runs(self) -> int:
        """How often it was compiled."""
        file = self.folder / "runs"
        return file.read_text().count("run") if file.exists() else 0

    def make_it_block(self) -> tuple[Path, Path]:
        """From now on a compile step holds the first FIFO open and ends when the second one is written to."""
        started, go = self.folder / "started", self.folder / "go"
        os.mkfifo(started)
        os.mkfifo(go)
        (self.folder / "step.sh").write_text(
            'echo run >> "$1/runs"\nexec 3> "$1/started"\necho started >&3\ncat "$1/go"\n: > step.h\n'
        )
        return started, go


@pytest.fixture
def project(home: Path) -> Project:
    """A project that compiles at once into a good llama-server."""
    folder = home / "llama.cpp"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(_CMAKE)
    (folder / "step.sh").write_text('echo run >> "$1/runs"\n: > step.h\n')
    (folder / "main.c").write_text(_GOOD)
    return Project(folder)


def leftovers() -> list[str]:
    """What lies among the builds and is neither a finished build nor an (empty) lock file."""
    root = paths.builds_dir()
    return sorted(p.name for p in root.glob(".*") if not p.name.startswith(".lock-")) if root.exists() else []
