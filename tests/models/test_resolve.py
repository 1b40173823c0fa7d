"""What a user writes after -m, and what is said when there is no such thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from onebit.errors import ModelFileError
from onebit.models import store
from onebit.models.pull import known_names, locate, resolve
from onebit.models.report import silent
from tests.support.gguf_files import write_model


@pytest.fixture
def pulled(models_dir: Path) -> Path:
    folder = models_dir / "example.com-12345678"
    folder.mkdir(parents=True)
    return write_model(folder / "qwen-Q4_0.gguf")


def test_an_existing_file_is_taken_as_it_is(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.gguf")
    assert resolve("m.gguf", silent) == Path("m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf", silent) == tmp_path / "m.gguf"


def test_a_file_comes_before_a_name_and_a_folder_does_not(
    tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert locate("demo") is None  # the catalog's, not pulled yet
    (tmp_path / "demo").rmdir()
    (tmp_path / "demo").write_text("")
    assert locate("demo") == Path("demo")


@pytest.mark.parametrize("name", ["qwen-Q4_0", "qwen-Q4_0.gguf", "example.com-12345678/qwen-Q4_0.gguf"])
def test_pulled_models_have_names(pulled: Path, name: str) -> None:
    assert resolve(name, silent) == pulled


def test_two_models_of_one_name(pulled: Path, models_dir: Path) -> None:
    other = models_dir / "other.org-12345678"
    other.mkdir()
    write_model(other / pulled.name)
    with pytest.raises(ModelFileError, match="2 pulled models") as caught:
        resolve("qwen-Q4_0", silent)
    assert "other.org-12345678/qwen-Q4_0.gguf" in (caught.value.hint or "")
    for path in store.stored():
        assert resolve(store.name_of(path), silent) == path


def test_files_in_the_making_are_not_models(pulled: Path) -> None:
    write_model(pulled.with_name(".hidden.gguf"))
    (pulled.parent / ".staging").mkdir()
    write_model(pulled.parent / ".staging" / "x.gguf")
    assert store.stored() == [pulled]
    assert known_names() == ["demo", "qwen-Q4_0"]


@pytest.mark.parametrize(
    ("model", "message", "hint"),
    [
        ("dmo", "no model is named 'dmo'", "did you mean demo?"),
        ("qwen-Q4_1", "no model is named", "qwen-Q4_0"),
        ("something-else", "no model is named", "there is: demo, qwen-Q4_0"),
        ("here/mistrall.gguf", "does not exist", "mistral.gguf"),
        ("here/zzz.gguf", "does not exist", "llama.gguf, mistral.gguf"),
        ("zzz.gguf", "does not exist", "holds no .gguf files"),
        ("nowhere/x.gguf", "does not exist", "no folder nowhere either"),
        ("here/", "is a folder", "llama.gguf, mistral.gguf"),
        ("a\0b/c.gguf", "not", ""),
        ("x" * 5000, "no model is named", ""),
        ("x/" + "x" * 5000, "not the name of a file", ""),
        ("~nobody-such/x.gguf", "does not exist", ""),
    ],
)
def test_what_there_is_instead(
    tmp_path: Path, pulled: Path, monkeypatch: pytest.MonkeyPatch, model: str, message: str, hint: str
) -> None:
    (tmp_path / "work" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for name in ("llama.gguf", "mistral.gguf"):
        write_model(Path("here") / name)
    with pytest.raises(ModelFileError, match=message) as caught:
        resolve(model, silent)
    assert hint in (caught.value.hint or "")
