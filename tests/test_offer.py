"""A model of the config becomes an offer: the adapters that requests may choose, numbered as the engine does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from onebit.config.load import load
from onebit.engines.llama_server import Address, arguments
from onebit.errors import ModelFileError
from onebit.offer import Offer, adapters_of, prepare
from onebit.reload import compare
from tests.engines.specs import CPU_BUILD
from tests.support.gguf_files import Value, write_gguf, write_model


def adapter(path: Path, about: str = "") -> Path:
    tensors = {"token_embd.weight.lora_a": (8, 16), "token_embd.weight.lora_b": (24, 8)}
    metadata: Mapping[str, Value] = {"general.type": "adapter", "general.name": path.stem, "general.description": about}
    return write_gguf(path, arch="llama", metadata=metadata, tensors=tensors)


def offer(folder: Path, adapters: str) -> Offer:
    file = folder / "onebit.yaml"
    file.write_text(f"models:\n  chat:\n    path: tiny.gguf\n    device: cpu\n{adapters}")
    return prepare(load({}, file).served()[0], Path, lambda _: CPU_BUILD, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.gguf")
    for name, about in (("a", ""), ("b", "few words"), ("always", "")):
        adapter(tmp_path / f"{name}.gguf", about)
    return tmp_path


def test_they_are_numbered_after_those_for_every_request(folder: Path) -> None:
    made = offer(
        folder, "    lora: always.gguf:0.5\n    adapters: {one: {path: a.gguf}, two: {path: b.gguf, scale: 2}}\n"
    )
    there = adapters_of(made)
    assert there is not None
    assert [(a.id, a.name, a.scale, a.about) for a in there.listed.values()] == [
        (1, "one", 1.0, "a"),
        (2, "two", 2.0, "few words"),
    ]
    assert there.field(there.choose("two", {}).adapters) == b'[{"id": 0, "scale": 0.5}, {"id": 2, "scale": 2.0}]'
    (engine,) = made.plan.engines
    args = arguments(engine, Address())
    files = [args[i + 1] for i, arg in enumerate(args) if arg == "--lora-scaled"]
    assert files == [f"{folder}/always.gguf:0.5", f"{folder}/a.gguf:0", f"{folder}/b.gguf:0"]


def test_they_count_in_the_models_memory(folder: Path) -> None:
    made = offer(folder, "    adapters: {one: {path: a.gguf}, two: {path: b.gguf}}\n")
    assert [info.path.name for info in made.beside] == ["a.gguf", "b.gguf"]


def test_a_model_without(folder: Path) -> None:
    made = offer(folder, "    lora: always.gguf\n")
    assert adapters_of(made) is None
    assert [info.path.name for info in made.beside] == ["always.gguf"]


def test_a_bad_one_is_told_with_its_own_line_only(folder: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        offer(folder, "    adapters:\n      one: {path: a.gguf}\n      two: {path: tiny.gguf}\n")
    assert caught.value.message.startswith(
        f"{folder}/onebit.yaml:7: models.chat.adapters.two: {folder}/tiny.gguf is not"
    )


def test_the_embedder_is_imported_only_where_a_model_lists_adapters() -> None:
    code = "import sys, onebit.serve; print([m for m in sys.modules if m.startswith(('onebit.kernels', 'torch'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_another_name_or_description_of_an_adapter_reaches_a_running_server(folder: Path) -> None:
    """The engines are the same, but the router's list is made with them."""
    first = offer(folder, "    adapters: {one: {path: a.gguf}}\n")
    for other in ("{uno: {path: a.gguf}}", "{one: {path: a.gguf, about: x}}", "{one: {path: a.gguf, scale: 2}}"):
        assert compare({"chat": first}, [offer(folder, f"    adapters: {other}\n")]).renewed
    assert not compare({"chat": first}, [offer(folder, "\n    adapters: {one: {path: a.gguf}}\n")]).renewed
