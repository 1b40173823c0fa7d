"""Real builds of a small project: all or nothing, whatever comes between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines import builds, compile
from onebit.engines.device import Build, Device, DeviceKind
from onebit.errors import BuildError, ConfigError, MissingTools
from tests.engines_builds.conftest import Project, leftovers

CPU = DeviceKind.CPU


class Notes:
    """Keeps what a build reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def run(project: Project, *, force: bool = False) -> tuple[Build, Notes]:
    notes = Notes()
    return compile.build(CPU, source=project.folder, report=notes, force=force), notes


def made() -> list[str]:
    return [manifest.source for _, manifest in builds.made()]


def test_a_build_appears_complete_and_only_with_what_is_needed(project: Project) -> None:
    build, notes = run(project)
    assert build.version == "7 (abc)"
    assert notes.steps[-1][0] == notes.steps[-1][1] > 1
    assert notes.steps == sorted(notes.steps)
    folder = build.path.parent
    assert sorted(p.name for p in folder.iterdir()) == ["build.json", "llama-server"]
    ((_, manifest),) = builds.made()
    assert (manifest.device, manifest.source) == ("cpu", str(project.folder))
    assert "-DBUILD_SHARED_LIBS=OFF" in manifest.flags
    assert folder == paths.builds_dir() / manifest.version / "cpu"
    assert leftovers() == []
    (log,) = paths.log_dir().iterdir()
    assert f"log: {log}" in notes.notes
    assert "llama-server" in log.read_text()
    found = builds.find_build(Device(CPU))
    assert (found.path, found.origin) == (build.path, build.origin)


def test_a_build_that_is_there_returns_at_once_unless_forced(project: Project) -> None:
    first, _ = run(project)
    assert run(project)[0] == first
    assert project.runs == 1
    run(project, force=True)
    assert project.runs == 2
    assert leftovers() == []


def test_a_build_that_no_longer_runs_is_made_again(project: Project) -> None:
    first, _ = run(project)
    first.path.write_text("#!/bin/sh\nexit 9\n")
    second, notes = run(project)
    assert second == first
    assert any("made again" in note and "exit code 9" in note for note in notes.notes)


def test_a_compiler_error_is_shown_with_the_log_and_leaves_nothing(project: Project) -> None:
    project.program("int main(void) { return undeclared; }")
    with pytest.raises(BuildError) as caught:
        run(project)
    assert "error: 'undeclared' undeclared" in caught.value.message.replace("‘", "'").replace("’", "'")
    (log,) = paths.log_dir().iterdir()
    assert str(log) in caught.value.message
    assert made() == leftovers() == []


def test_a_cmake_error_is_shown(project: Project) -> None:
    (project.folder / "CMakeLists.txt").write_text('project(x C)\nmessage(FATAL_ERROR "no such luck")\n')
    with pytest.raises(BuildError, match=r"CMake failed[^$]*no such luck"):
        run(project)
    assert made() == leftovers() == []


def test_what_does_not_pass_its_probe_is_not_kept(project: Project) -> None:
    project.program("#include <signal.h>\nint main(void) { return raise(SIGILL); }")
    with pytest.raises(BuildError, match="CPU instructions this machine does not have"):
        run(project)
    assert made() == leftovers() == []


def test_a_failing_rebuild_keeps_the_build_there_is(project: Project) -> None:
    build, _ = run(project)
    project.program("nonsense")
    with pytest.raises(BuildError):
        run(project, force=True)
    assert builds.find_build(Device(CPU)) == build
    assert leftovers() == []


def test_make_does_where_there_is_no_ninja(project: Project, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = home / "tools"
    tools.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(folder).glob("*") if Path(folder).is_dir() else ():
            if not tool.name.startswith("ninja"):
                (tools / tool.name).unlink(missing_ok=True)
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    _, notes = run(project)
    assert notes.steps[-1] == (100, 100)


def test_bad_arguments_are_one_message(project: Project, home: Path) -> None:
    with pytest.raises(ConfigError, match="--jobs 0"):
        compile.build(CPU, source=project.folder, jobs=0, report=Notes())
    with pytest.raises(ConfigError, match="--source"):
        compile.build(CPU, source=home, report=Notes())


def test_missing_tools_are_told_before_anything_is_made(
    project: Project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home / "empty"))
    with pytest.raises(MissingTools, match=r"cmake[^$]*ninja[^$]*c\+\+"):
        run(project)
    assert not paths.builds_dir().exists()


def test_a_full_disk_is_told_before_anything_is_made(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "_NEEDS_BYTES", {CPU: 1 << 60})
    with pytest.raises(BuildError, match="MiB left"):
        run(project)
    assert not paths.builds_dir().exists()


def test_a_folder_that_cannot_be_written(project: Project, home: Path) -> None:
    (home / "cache").write_text("a file where the cache folder should be")
    with pytest.raises(BuildError, match="could not be written") as caught:
        run(project)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


# --- what comes between ------------------------------------------------------------------------------------

PROGRAM = "from onebit.commands.engines import app; app()"


@contextmanager
def builder(project: Project) -> Iterator[subprocess.Popen[str]]:
    """`onebit engines build` as a process of its own, as at a terminal."""
    command = [sys.executable, "-c", PROGRAM, "build", "cpu", "--source", str(project.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing_that_counts(
    project: Project, number: signal.Signals
) -> None:
    """The compile step holds `started` open: its end of file means that the step is dead."""
    started, _go = project.make_it_block()
    with builder(project) as process, started.open() as step:
        assert step.readline() == "started\n"
        assert leftovers() != [], "the work folder is there while it works"
        process.send_signal(number)
        assert step.read() == ""
        assert process.wait() != 0
        if number == signal.SIGINT:
            assert leftovers() == []
    assert made() == []
    (project.folder / "step.sh").write_text(': > step.h\necho run >> "$1/runs"\n')
    run(project)
    assert leftovers() == [], "what a killed builder left is gone after the next build"


def test_a_killed_builders_folder_is_swept_by_a_build_of_something_else(project: Project) -> None:
    dead = paths.builds_dir() / ".work-other-vulkan"
    (dead / "build").mkdir(parents=True)
    (paths.builds_dir() / ".old-1234").mkdir()
    run(project)
    assert leftovers() == []


def test_the_second_builder_waits_and_takes_the_firsts_build(project: Project) -> None:
    started, go = project.make_it_block()
    with builder(project) as first, started.open() as step:
        assert step.readline() == "started\n"
        with builder(project) as second:
            assert second.stderr is not None
            assert any("waiting for it" in line for line in iter(second.stderr.readline, ""))
            go.write_text("go\n")
            outputs = [process.communicate()[0] for process in (first, second)]
            assert [first.returncode, second.returncode] == [0, 0]
    assert project.runs == 1
    ((folder, _),) = builds.made()
    assert all(output.startswith(f"{folder / 'llama-server'}\n") for output in outputs)
    assert leftovers() == []
