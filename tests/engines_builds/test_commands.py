"""`onebit engines …` and `onebit doctor`, as a user or a script sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from onebit.commands.doctor import Check, Mark, doctor, examine
from onebit.commands.engines import app
from onebit.engines import builds
from onebit.engines.device import DeviceKind
from onebit.errors import ConfigError, NoBuild
from tests.engines_builds.conftest import LLVMPIPE, Project, fake_server, script

CARD = "Vulkan0: AMD Radeon Graphics (98304 MiB, 97211 MiB free)"
doctor_app = typer.Typer()
doctor_app.command()(doctor)


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_list_is_one_line_per_build_in_a_pipe(home: Path) -> None:
    assert call("list").stdout == ""
    path = fake_server(home / "llama-server", CARD)
    assert str(path) in call("add", "vulkan", str(path)).stdout
    (line,) = call("list").stdout.splitlines()
    kind, version, sees, taken, where, origin = line.split("\t")
    assert (kind, version, taken, where) == ("vulkan", "0.5.0-dev (build 0, commit unknown)", "cpu, vulkan", str(path))
    assert sees == "cpu, Vulkan0 (AMD Radeon Graphics)"
    assert "registered for vulkan" in origin
    assert "no longer registered" in call("remove", "vulkan").stdout
    assert call("list").stdout == ""


def test_list_tells_why_a_build_does_not_do(home: Path) -> None:
    path = fake_server(home / "llama-server", CARD)
    builds.add(DeviceKind.VULKAN, path)
    script(path, "exit 7")
    (line,) = call("list").stdout.splitlines()
    assert line.split("\t")[1] == "does not run"
    assert "exit code 7" in line


def test_build_says_what_it_does_line_by_line_in_a_pipe(project: Project) -> None:
    result = call("build", "cpu", "--source", str(project.folder))
    assert result.stdout.splitlines()[0].endswith("/cpu/llama-server")
    assert "log: " in result.stderr
    assert "compiled 3 of 3" in result.stderr


def test_build_if_missing_is_content_with_any_build(project: Project) -> None:
    path = fake_server(project.folder / "bin" / "llama-server", CARD)
    builds.add(DeviceKind.VULKAN, path)
    result = call("build", "cpu", "--if-missing", "--source", str(project.folder))
    assert f"cpu is served already, by {path}" in result.stdout
    assert project.runs == 0
    builds.remove(DeviceKind.VULKAN)
    call("build", "cpu", "--if-missing", "--source", str(project.folder))
    assert project.runs == 1


def test_bad_calls(home: Path) -> None:
    assert isinstance(CliRunner().invoke(app, ["build", "cpu", "--force", "--if-missing"]).exception, ConfigError)
    assert isinstance(CliRunner().invoke(app, ["add", "cpu", str(home / "none")]).exception, NoBuild)
    result = CliRunner().invoke(app, ["build", "npu"])
    assert result.exit_code == 2
    assert "npu" in result.output


def test_the_help_needs_no_heavy_imports() -> None:
    program = (
        "import sys, onebit.commands.engines, onebit.commands.doctor\n"
        "print(sorted({'pydantic', 'aiohttp', 'numpy', 'gguf', 'filelock', 'rich.progress'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- doctor ------------------------------------------------------------------------------------------------


def found(area: str, name: str) -> Check:
    (check,) = [check for check in examine()[1] if (check.area, check.name) == (area, name)]
    return check


def test_doctor_fails_until_something_can_serve(home: Path) -> None:
    result = CliRunner().invoke(doctor_app, [])
    assert result.exit_code == 1
    assert "onebit engines build cpu" in result.stderr
    builds.add(DeviceKind.CPU, fake_server(home / "llama-server"))
    result = CliRunner().invoke(doctor_app, [])
    assert result.exit_code == 0, result.output
    assert any(line.startswith("ok\tdevices\tcpu\t") for line in result.stdout.splitlines())
    assert any(line.startswith("missing\tdevices\tvulkan\t") for line in result.stdout.splitlines())


def test_doctor_as_json(home: Path) -> None:
    builds.add(DeviceKind.VULKAN, fake_server(home / "llama-server", CARD))
    result = CliRunner().invoke(doctor_app, ["--json"])
    report = json.loads(result.stdout)
    assert report["can_serve"] is True
    marks = {(check["area"], check["name"]): check["mark"] for check in report["checks"]}
    assert marks["devices", "vulkan"] == "ok"
    assert {check["area"] for check in report["checks"]} == {
        "devices",
        "builds",
        "drivers",
        "memory",
        "to build",
        "server",
    }
    (vram,) = [check["detail"] for check in report["checks"] if check["name"] == "Vulkan0"]
    assert vram == "94.9 GiB free of 96.0 GiB"


def test_doctor_calls_a_software_device_what_it_is(home: Path) -> None:
    builds.add(DeviceKind.VULKAN, fake_server(home / "llama-server", hidden=LLVMPIPE))
    check = found("devices", "vulkan")
    assert check.mark is Mark.WARN
    assert "llvmpipe" in check.detail


def test_doctor_tells_why_a_build_does_not_run(home: Path) -> None:
    path = fake_server(home / "llama-server")
    builds.add(DeviceKind.CPU, path)
    script(path, "exit 7")
    check = found("builds", "cpu")
    assert (check.mark, check.fix) == (Mark.WARN, "onebit engines remove cpu")
    assert "exit code 7" in check.detail


def test_doctor_looks_at_the_run_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    folder = home / "onebit"
    folder.mkdir(mode=0o700)
    deep = len(str(folder)) + 32 > 107
    assert found("server", "run folder").mark is (Mark.WARN if deep else Mark.OK)
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    assert found("server", "run folder").mark is Mark.OK
    folder.chmod(0o755)
    assert found("server", "run folder").fix == "chmod 700 onebit, or delete it"


def test_doctor_tells_which_folders_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    (home / "onebit").mkdir(mode=0o700)
    (home / "state").mkdir()
    assert found("server", "log folder").detail.endswith(" will be made")
    access = os.access
    shut = (Path("onebit"), home / "state")  # modes would not do: root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path not in shut and access(path, mode))
    run, log = found("server", "run folder"), found("server", "log folder")
    assert (run.mark, run.detail) == (Mark.MISSING, "onebit is not writable")
    assert log.mark is Mark.WARN and log.detail.startswith(f"{home / 'state'} is not writable")
