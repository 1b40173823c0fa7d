"""`adapters:` below a model: read, checked before anything starts, each mistake told with its line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onebit.config.adapters_section import ListedAdapter
from onebit.config.load import load
from onebit.engines.choice import about, check_beside_choice, check_choice
from onebit.engines.spec import Adapter
from onebit.errors import ConfigError, ModelFileError
from onebit.models.gguf_file import inspect
from tests.support.gguf_files import Value, write_gguf, write_model

HEAD = "models:\n  chat:\n    path: tiny.gguf\n    adapters:\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tiny.gguf", "a.gguf", "b-2.gguf"):
        (tmp_path / name).touch()
    return tmp_path


def listed(folder: Path, text: str) -> tuple[ListedAdapter, ...]:
    file = folder / "onebit.yaml"
    file.write_text(text)
    return load({}, file).served()[0].adapters


def mistake(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        listed(folder, text)
    return caught.value.message.replace(str(folder) + "/", "")


def test_they_are_read_in_order_with_their_lines(folder: Path) -> None:
    text = HEAD + "      half-way: {path: b-2.gguf, scale: 0.5}\n      Pirate.2: {path: a.gguf, about: talks so}\n"
    found = listed(folder, text)
    assert found == (
        ListedAdapter("half-way", folder / "b-2.gguf", 0.5),
        ListedAdapter("Pirate.2", folder / "a.gguf", 1.0, "talks so"),
    )
    assert [one.place.removeprefix(f"{folder}/") for one in found] == [
        "onebit.yaml:5: models.chat.adapters.half-way",
        "onebit.yaml:6: models.chat.adapters.Pirate.2",
    ]


def test_other_adapters_are_another_model(folder: Path) -> None:
    one, other = (load({}, _file(folder, scale)).served()[0] for scale in (1, 2))
    assert one != other


def _file(folder: Path, scale: int) -> Path:
    file = folder / f"{scale}.yaml"
    file.write_text(f"{HEAD}      a: {{path: a.gguf, scale: {scale}}}\n")
    return file


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("a: {path: c.gguf}", "onebit.yaml:5: models.chat.adapters.a.path: c.gguf does not exist"),
        ("a: {about: x}", "models.chat.adapters.a.path: it is missing (a LoRA adapter as GGUF"),
        ("a: a.gguf", "models.chat.adapters.a: settings stand below it"),
        ("a: {path: a.gguf, scales: 1}", "there is no such setting; did you mean scale?"),
        ("a: {path: a.gguf, scale: lots}", "adapters.a.scale: input should be a valid number"),
        ("a: {path: a.gguf, scale: .nan}", "adapters.a.scale"),
        ("a: {path: a.gguf, scale: 1000}", "adapters.a.scale: input should be less than or equal to 100"),
        ("'a:b': {path: a.gguf}", "letters, digits, `_`, `.` and `-` only"),
        ("auto: {path: a.gguf}", "auto is what a request says instead of an adapter's name"),
        ("a: {path: a.gguf}\n      a: {path: a.gguf}", "adapters.a is set twice, first on line 5"),
        ("a: {path: a.gguf, about: ''}", "adapters.a.about"),
    ],
)
def test_mistakes_are_told_with_their_place(folder: Path, entry: str, text: str) -> None:
    said = mistake(folder, f"{HEAD}      {entry}\n")
    assert text in said
    assert "onebit.yaml:" in said


def test_more_than_an_engine_may_hold(folder: Path) -> None:
    many = "".join(f"      a{i}: {{path: a.gguf}}\n" for i in range(65))
    assert "onebit.yaml:4: models.chat.adapters: 65 adapters" in mistake(folder, HEAD + many)
    assert len(listed(folder, f"{HEAD}{many}    max_adapters: 65\n")) == 65


# --- the files -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    model = write_model(tmp_path / "model.gguf")
    return {
        "model": model,
        "good": _adapter(tmp_path / "good.gguf", more={"general.description": "Talks\nlike a pirate"}),
        "plain": _adapter(tmp_path / "plain.gguf"),
        "foreign": _adapter(tmp_path / "foreign.gguf", "qwen2"),
        "invoked": _adapter(tmp_path / "invoked.gguf", more={"adapter.alora.invocation_tokens": [1, 2]}),
        "colon": _adapter(tmp_path / "a:b.gguf"),
    }


def _adapter(path: Path, arch: str = "llama", more: Mapping[str, Value] | None = None) -> Path:
    metadata = {"general.type": "adapter", "adapter.type": "lora", "general.name": path.stem, **(more or {})}
    tensors = {"token_embd.weight.lora_a": (8, 16), "token_embd.weight.lora_b": (24, 8)}
    return write_gguf(path, arch=arch, metadata=metadata, tensors=tensors)


def one(path: Path, said: str | None = None) -> ListedAdapter:
    return ListedAdapter("x", path, 0.5, said, "onebit.yaml:7: models.chat.adapters.x")


def test_good_ones(files: dict[str, Path]) -> None:
    info = inspect(files["model"])
    assert check_choice([one(files["good"])], info, inspect) == (Adapter(files["good"], 0.5),)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", "is not a LoRA adapter"),
        ("foreign", "is for qwen2, the model is llama"),
        ("invoked", "is an activated adapter"),
        ("colon", "holds a colon or a comma"),
    ],
)
def test_bad_ones_are_told_with_the_line_that_lists_them(files: dict[str, Path], name: str, text: str) -> None:
    with pytest.raises((ConfigError, ModelFileError)) as caught:
        check_choice([one(files["good"]), one(files[name])], inspect(files["model"]), inspect)
    assert caught.value.message.startswith("onebit.yaml:7: models.chat.adapters.x: ")
    assert text in caught.value.message


def test_a_truncated_one(files: dict[str, Path]) -> None:
    files["good"].write_bytes(files["good"].read_bytes()[:200])
    with pytest.raises(ModelFileError, match=r"onebit\.yaml:7.*truncated"):
        check_choice([one(files["good"])], inspect(files["model"]), inspect)


def test_what_it_does_is_in_the_config_or_the_file_or_its_name(files: dict[str, Path]) -> None:
    good, plain = inspect(files["good"]), inspect(files["plain"])
    assert about(one(files["good"], "as I say"), good) == "as I say"
    assert about(one(files["good"]), good) == "Talks like a pirate"
    assert about(one(files["plain"]), plain) == "plain"


@pytest.mark.parametrize("arg", ["--cache-ram", "--cache-ram=512", "-cram", "--lora"])
def test_arguments_that_would_mix_prompts_or_numbers(arg: str) -> None:
    with pytest.raises(ConfigError, match="does not go with `adapters`"):
        check_beside_choice(["--temp", "0.2", arg, "1"], embeddings=False)
    check_beside_choice(["--temp", "0.2"], embeddings=False)


def test_embeddings_would_mix_prompts_too() -> None:
    """An embedding in a slot sets it to other adapters, and the prompt that one of them computed stays."""
    with pytest.raises(ConfigError, match="`embeddings` does not go with `adapters`"):
        check_beside_choice([], embeddings=True)
