"""`models:`: what each says over the defaults of the top level, and the one model of the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onebit.config.load import load
from onebit.config.schema import ServedModel
from onebit.errors import ConfigError, NoBuild

ISSUE = """\
memory: 24GiB
models:
  chat:  {path: qwen.gguf, engines: [{device: vulkan, parallel: 8}, {device: rocm, parallel: 16}], adaptive_at: 6}
  small: {path: tiny.gguf, engines: [{device: cpu, parallel: 4}], idle_unload: 10m}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("qwen.gguf", "tiny.gguf", "a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    return tmp_path


def served(folder: Path, text: str, **given: Any) -> dict[str, ServedModel]:
    file = folder / "onebit.yaml"
    file.write_text(text)
    return {model.name: model for model in load(given, file).served()}


def mistake(folder: Path, text: str, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        served(folder, text, **given)
    return caught.value.message.replace(str(folder) + "/", "")


def test_two_models_with_engines_of_their_own(folder: Path) -> None:
    models = served(folder, ISSUE)
    chat, small = models["chat"].settings, models["small"].settings
    assert list(models) == ["chat", "small"]
    assert (chat.model, chat.alias) == (str(folder / "qwen.gguf"), "chat")
    assert (chat.device, chat.parallel, chat.adaptive, chat.adaptive_at) == (("vulkan", "rocm"), (8, 16), True, 6)
    assert (small.device, small.parallel, small.adaptive, small.idle_unload) == (("cpu",), (4,), False, 600)
    assert not any((chat.preload, chat.pin, small.preload, small.pin))


def test_the_top_level_is_the_default_for_every_model(folder: Path) -> None:
    text = """\
ctx_size: 8192
threads: 3
idle_unload: 30m
preload: true
models:
  plain: {path: demo}
  own:   {path: demo, ctx_size: 2048, idle_unload: null, preload: false, device: cpu, parallel: "2"}
  half:  {path: demo, engines: [{device: cpu, threads: 1}, {device: vulkan}]}
  kept:  {path: demo, pin: true}
"""
    models = {name: model.settings for name, model in served(folder, text).items()}
    plain, own, half, kept = (models[name] for name in ("plain", "own", "half", "kept"))
    assert (plain.ctx_size, plain.threads, plain.idle_unload, plain.preload) == (8192, (3,), 1800, True)
    assert (own.ctx_size, own.idle_unload, own.preload, own.device, own.parallel) == (2048, None, False, ("cpu",), (2,))
    assert (half.device, half.threads, half.parallel) == (("cpu", "vulkan"), (1, 3), (None, None))
    assert not half.adaptive  # two engines alone share the load evenly
    assert (kept.pin, kept.idle_unload) == (True, None)  # a pinned model never leaves


def test_a_flag_is_a_default_for_every_model_too(folder: Path) -> None:
    models = served(folder, "models:\n  a: {path: demo}\n  b: {path: demo, ctx_size: 64}\n", ctx_size=512)
    assert [model.settings.ctx_size for model in models.values()] == [512, 64]


@pytest.mark.parametrize(
    ("top", "entry", "adaptive"),
    [
        ("", "engines: [{device: cpu}, {device: cpu}], adaptive_at: 2", True),
        ("adaptive_at: 2", "engines: [{device: cpu}, {device: cpu}]", True),
        ("adaptive: true", "engines: [{device: cpu}, {device: cpu}]", True),
        ("adaptive: true", "engines: [{device: cpu}]", False),
        ("", "engines: [{device: cpu}, {device: cpu}]", False),
        ("", "adaptive: true", True),
        ("adaptive: true", "adaptive: false", False),
    ],
)
def test_two_engines_with_a_limit_are_first_and_overflow(folder: Path, top: str, entry: str, adaptive: bool) -> None:
    [model] = served(folder, f"{top}\nmodels:\n  m: {{path: demo, {entry}}}\n").values()
    assert model.settings.adaptive is adaptive


@pytest.mark.parametrize(
    ("given", "name", "alias", "preload", "pin"),
    [
        ({}, "demo", "demo", True, True),
        ({"model": "/m/qwen.gguf"}, "qwen", None, True, True),
        ({"model": "/m/qwen.gguf", "alias": "chat"}, "chat", "chat", True, True),
        ({"model": "hf:me/qwen-gguf:Q4_K_M"}, "qwen-gguf", None, True, True),
        ({"model": "https://x.org/qwen.gguf?download=true"}, "qwen", None, True, True),
        ({"idle_unload": "10m"}, "demo", "demo", True, False),
        ({"preload": False, "pin": False}, "demo", "demo", False, False),
    ],
)
def test_without_models_it_is_the_one_of_the_flags(
    given: dict[str, Any], name: str, alias: str | None, preload: bool, pin: bool
) -> None:
    [model] = load(given).served()
    settings = model.settings
    assert (model.name, settings.alias, settings.preload, settings.pin) == (name, alias, preload, pin)
    assert not hasattr(settings, "api_key")  # a model knows nothing of the server


def test_models_are_equal_when_nothing_but_their_lines_changed(folder: Path) -> None:
    before = served(folder, ISSUE)
    after = served(folder, "# a remark\n" + ISSUE.replace("10m", "600s").replace("memory: 24GiB\n", "port: 1\n"))
    assert before == after
    changed = served(folder, ISSUE.replace("parallel: 4", "parallel: 5"))
    assert (changed["chat"], changed["small"] == before["small"]) == (before["chat"], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models:\n  a: {path: no.gguf}\n", "2: models.a.path: no.gguf does not exist"),
        ("models:\n  a: {path: qwn.gguf}\n", "2: models.a.path: qwn.gguf does not exist; did you mean qwen.gguf?"),
        ("models:\n  a: {path: sub/no.gguf}\n", "there is no folder sub either"),
        ("models:\n  a: {path: ./}\n", "is a folder, not a model file"),
        ("models:\n  a:\n    parallel: 2\n", "2: models.a.path: it is missing (GGUF file, `demo`"),
        ("models:\n  a: qwen.gguf\n", "2: models.a: settings stand below it, a line each, like `path: qwen.gguf`"),
        ("models: [demo]\n", "1: models: settings stand below it"),
        ("models:\n  a:b: {path: demo}\n", "2: models.a:b: a model's name has no colon"),
        ("models:\n  a: {path: demo, port: 1}\n", "2: models.a.port: there is no such setting here; it belongs to the"),
        (
            "models:\n  a: {path: demo, model: demo}\n",
            "2: models.a.model: there is no such setting; the model's file is its `path`",
        ),
        ("models:\n  a: {path: demo, alias: b}\n", "clients call the model what stands before it, a"),
        ("models:\n  a: {path: demo, engines: []}\n", "2: models.a.engines: there must be at least one"),
        ("models:\n  a: {path: demo, lora: no.gguf}\n", "2: models.a.lora: no.gguf does not exist"),
        (
            "models:\n  a:\n    path: demo\n    engines:\n    - device: cpu\n      parallel: none\n",
            "6: models.a.engines[0].parallel: input should be a valid integer",
        ),
        (
            "models:\n  a:\n    path: demo\n    engines:\n    - device: cpu\n    - {device: cpu, paralel: 1}\n",
            "6: models.a.engines[1].paralel: there is no such setting; did you mean parallel?",
        ),
        (
            "models:\n  a: {path: demo, engines: [{device: cpu, mtp: true}]}\n",
            "2: models.a.engines[0].mtp: there is no such setting here; it belongs to models.a",
        ),
        (
            "models:\n  a:\n    path: demo\n    engines: [{device: cpu}]\n    parallel: 2\n",
            "5: models.a.parallel: engines sets it already",
        ),
        (
            "models:\n  a: {path: demo, engines: [{device: cpu}], adaptive_at: 2}\n",
            "2: models.a.adaptive_at: it takes two engines, the first and the overflow; there are 1",
        ),
        ("models:\n  a: {path: demo, pin: yes, idle_unload: 1m}\n", "a pinned model never leaves"),
        ("model: demo\nmodels:\n  a: {path: demo}\n", "2: models: the models are named here, so model must not be set"),
        ("models:\n  a: {path: demo}\nalias: b\n", "1: models: the models are named here, so alias must not be set"),
        (
            "models:\n  a: {path: demo}\n  b: {path: demo}\n  a: {path: demo}\n",
            "4: models.a is set twice, first on line 2",
        ),
        ("models:\n  a: {path: demo, path: demo}\n", "2: models.a.path is set twice"),
        (
            "models:\n  a:\n    path: demo\n    engines: [{device: cpu, device: cpu}]\n",
            "engines[0].device is set twice",
        ),
    ],
)
def test_a_mistake_names_file_line_setting_and_fix(folder: Path, text: str, message: str) -> None:
    told = mistake(folder, text)
    assert message in told and told.startswith("onebit.yaml:") and len(told.splitlines()) == 1


def test_models_in_the_file_and_a_model_on_the_command_line(folder: Path) -> None:
    assert "so model must not be set too" in mistake(folder, "models:\n  a: {path: demo}\n", model="demo")


def test_relative_paths_start_at_the_folder_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    text = """\
lora: "a.gguf, b.gguf:0.5"
models:
  a: {path: qwen.gguf, mtp_model: tiny.gguf}
  b: {path: smollm, lora: [b.gguf], llama_server: a.gguf}
  c: {path: hf:me/model:Q4}
"""
    models = {name: model.settings for name, model in served(folder, text).items()}
    assert models["a"].model == str(folder / "qwen.gguf")
    assert models["a"].lora == (str(folder / "a.gguf"), f"{folder / 'b.gguf'}:0.5")
    assert models["a"].mtp_model == folder / "tiny.gguf"
    assert (models["b"].model, models["b"].lora) == ("smollm", (str(folder / "b.gguf"),))
    assert models["b"].llama_server == folder / "a.gguf"
    assert models["c"].model == "hf:me/model:Q4"
    [single] = served(folder, "model: qwen.gguf\n").values()
    assert single.settings.model == str(folder / "qwen.gguf")
    [flag] = served(folder, "port: 1\n", model="qwen.gguf").values()
    assert flag.settings.model == "qwen.gguf"  # what is typed in a shell starts where the shell is


def test_a_file_comes_before_a_name(folder: Path) -> None:
    (folder / "smollm").touch()
    [model] = served(folder, "models:\n  a: {path: smollm}\n").values()
    assert model.settings.model == str(folder / "smollm")


def test_what_goes_wrong_later_names_the_line_too(folder: Path) -> None:
    small = served(folder, ISSUE)["small"]
    with pytest.raises(NoBuild, match=r"onebit\.yaml:4: models\.small: no llama-server for cpu"), small.placed():
        raise NoBuild("no llama-server for cpu")
    [flag] = load({}).served()
    with pytest.raises(NoBuild, match=r"^no llama-server"), flag.placed():
        raise NoBuild("no llama-server for cpu")
