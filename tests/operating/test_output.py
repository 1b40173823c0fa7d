"""What the `onebit` program says when its own output cannot be written: one message, the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onebit import cli
from tests.support.serving import command

FULL = Path("/dev/full")  # every write to it fails with ENOSPC


def run(stdout: Path, *args: str, unbuffered: str = "") -> tuple[int, str]:
    """(exit code, what stood on stderr)."""
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "COLUMNS": "200"}
    with stdout.open("w") as file:
        done = subprocess.run(command(*args), stdout=file, stderr=subprocess.PIPE, text=True, env=environ, timeout=100)
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", [("--version",), ("serve", "--help"), ("engines", "list", "--help")])
def test_a_full_disk_is_one_message(args: tuple[str, ...]) -> None:
    for unbuffered in ("", "1"):  # it fails at the end, or at the first line
        told = run(FULL, *args, unbuffered=unbuffered)
        assert told == (1, "error: cannot write the output: No space left on device\n")


def test_output_that_can_be_written_is(tmp_path: Path) -> None:
    assert run(tmp_path / "out", "--version") == (0, "")
    assert (tmp_path / "out").read_text().startswith("onebit ")


def test_a_reader_that_has_gone_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command("--version"), stdout=pipe, stderr=subprocess.PIPE, timeout=100)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/some/file"), "error: Permission denied: /some/file"),
        (OSError(28, "No space left on device"), "error: No space left on device"),
        (OSError("in its own words"), "error: in its own words"),
    ],
)
def test_an_error_of_the_system_is_one_message_that_names_its_file(
    monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    told: list[str] = []

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(cli, "_clean_up_when_ended", lambda: None)  # it sets signal handlers
    monkeypatch.setattr(cli, "_show", lambda shown: told.append(f"error: {shown.message}"))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # it is replaced
    monkeypatch.setattr(sys, "argv", ["onebit", "status"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, told) == (1, [message])
