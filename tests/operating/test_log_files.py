"""The engines' log files: found by the model's name, followed through rotation and truncation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines.log_files import Follower, engine_logs, log_file


def put(path: Path, text: str, age: float = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_a_file_belongs_to_its_model_whatever_the_names_look_like() -> None:
    names = [("chat", "cpu", 0), ("chat-small", "cpu", 8080), ("chat", "vulkan1", 8080), ("me/chat é", "cpu-2", 0)]
    for model, engine, port in names:
        put(log_file(model, engine, port), "x")
    put(paths.log_dir() / "build-cpu-abc.log", "a build's")
    found = engine_logs()
    for model, engine, port in names:
        assert [log.path for log in found if log.of(model) and log.engine == engine] == [log_file(model, engine, port)]
    assert len(found) == len(names)


def test_of_two_servers_the_latest_log_counts() -> None:
    put(log_file("chat", "cpu", 8080), "old", age=100)
    put(log_file("chat", "cpu", 8081), "new")
    assert [log.path for log in engine_logs()] == [log_file("chat", "cpu", 8081)]


@pytest.mark.parametrize("last", [0, 1, 3, 7, 5000])
@pytest.mark.parametrize("text", ["", "a\nb\nc\n", "a\nb\nunfinished", "\n\n\n", "x" * 200_000 + "\nlast\n"])
def test_it_begins_with_the_last_lines(tmp_path: Path, text: str, last: int) -> None:
    path = tmp_path / "a.log"
    path.write_text(text)
    follower = Follower(path, last)
    shown = "".join("".join(follower.lines()).split()) + follower.rest()
    follower.close()
    wanted = text.splitlines()[-last:] if last else []
    assert shown == "".join(wanted)


def test_it_follows_through_growth_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n2\n")
    follower = Follower(path, 1)
    assert list(follower.lines()) == ["2"]
    with path.open("a") as file:
        file.write("3\nhal")
    assert list(follower.lines()) == ["3"]
    with path.open("a") as file:
        file.write("f\n")
    assert list(follower.lines()) == ["half"]
    with path.open("a") as file:
        file.write("before the rotation\n")
    path.rename(tmp_path / "a.log.1")
    assert list(follower.lines()) == ["before the rotation"]  # and the next file is not there yet
    assert list(follower.lines()) == []
    path.write_text("after it\n")
    assert list(follower.lines()) == ["after it"]
    path.write_text("")
    assert list(follower.lines()) == []
    path.write_text("anew\n")
    assert list(follower.lines()) == ["anew"]
    follower.close()


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff" + b"y" * 300_000)
    follower = Follower(path, 1)
    pieces = [*follower.lines(), follower.rest()]
    follower.close()
    assert max(map(len, pieces)) <= 192 << 10 and "".join(pieces).count("y") == 300_000
