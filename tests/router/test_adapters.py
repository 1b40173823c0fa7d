"""Choosing adapters: what a request may say, what the engine is told, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onebit.errors import InvalidRequest, OnebitError, UnknownModel
from onebit.router.adapters import Adapters, NamedAdapter, last_user_text
from onebit.router.endpoints import ENDPOINTS
from onebit.router.openai import Call, for_engine, read_call

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
LISTED = (NamedAdapter(1, "pirate", 1.0, "talks like a pirate"), NamedAdapter(2, "brief", 0.5, "few words"))
MODELS = {
    "chat": Adapters("chat", [0.25], LISTED, lambda text: 1 if "short" in text else None),
    "bare": Adapters("bare", [], [NamedAdapter(0, "pirate", 1.0, "")], lambda _: None),
}
SHORT = [{"role": "user", "content": "short!"}]
ALWAYS = {"id": 0, "scale": 0.25}  # from `lora`, for every request


def read(path: str = CHAT, /, **fields: Any) -> Call:
    body = json.dumps({**HELLO, **fields}).encode()
    return read_call(ENDPOINTS[path], body, [*MODELS, "plain"], None, MODELS.get)


def sent(call: Call) -> Any:
    body = for_engine(call, MODELS.get(call.model)).body
    return json.loads(body).get("lora")  # of a name given twice, the last


@pytest.mark.parametrize(
    ("fields", "names", "field"),
    [
        ({}, "none", [ALWAYS]),
        ({"lora": None}, "none", [ALWAYS]),
        ({"lora": "none"}, "none", [ALWAYS]),
        ({"lora": []}, "none", [ALWAYS]),
        ({"model": "chat:none"}, "none", [ALWAYS]),
        ({"model": "chat:none", "lora": "none"}, "none", [ALWAYS]),
        ({"model": "chat:pirate"}, "pirate", [ALWAYS, {"id": 1, "scale": 1.0}]),
        ({"model": "chat:pirate", "lora": "pirate"}, "pirate", [ALWAYS, {"id": 1, "scale": 1.0}]),
        ({"model": "chat:pirate", "lora": ["pirate"]}, "pirate", [ALWAYS, {"id": 1, "scale": 1.0}]),
        ({"lora": "brief"}, "brief", [ALWAYS, {"id": 2, "scale": 0.5}]),
        (
            {"lora": ["brief", {"name": "pirate", "scale": -2}]},
            "brief,pirate",
            [ALWAYS, {"id": 1, "scale": -2.0}, {"id": 2, "scale": 0.5}],
        ),
        ({"lora": [{"name": "pirate", "scale": 0}]}, "none", [ALWAYS]),
        ({"lora": "auto"}, "none", [ALWAYS]),
        ({"lora": "auto", "messages": SHORT}, "brief", [ALWAYS, {"id": 2, "scale": 0.5}]),
        ({"model": "chat:auto", "messages": SHORT}, "brief", [ALWAYS, {"id": 2, "scale": 0.5}]),
    ],
)
def test_what_a_request_says_and_what_the_engine_is_told(fields: dict[str, Any], names: str, field: Any) -> None:
    call = read(**fields)
    assert (call.lora, sent(call)) == (names, field)
    numbers = {"pirate": 1, "brief": 2}
    own = [{"id": numbers[name], "scale": scale} for name, scale in call.need.adapters or ()]
    assert [ALWAYS, *sorted(own, key=lambda one: one["id"])] == field


@pytest.mark.parametrize("prompt", ["be short", ["be short"], ["hello", "be short"]])
def test_a_prompt_says_the_same_alone_and_in_a_list(prompt: Any) -> None:
    call = read_call(
        ENDPOINTS["/v1/completions"],
        json.dumps({"model": "chat", "prompt": prompt, "lora": "auto"}).encode(),
        MODELS,
        None,
        MODELS.get,
    )
    assert call.lora == "brief"


def test_a_list_is_never_empty() -> None:
    """The engine takes an empty one for `as at the start`, and keeps what another set has computed."""
    assert sent(read(model="bare")) == [{"id": 0, "scale": 0.0}]
    assert read(model="bare").need.adapters == ()


def test_equal_sets_are_equal_however_they_are_asked_for() -> None:
    ways: list[dict[str, Any]] = [{"lora": ["brief", "pirate"]}, {"lora": ["pirate", {"name": "brief", "scale": 0.5}]}]
    assert len({read(**way).need.adapters for way in ways}) == 1


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"model": "chat:pirat"}, UnknownModel, "did you mean pirate?"),
        ({"model": "chat:"}, UnknownModel, "there are pirate, brief"),
        ({"model": "cat:pirate"}, UnknownModel, "served here: bare, chat, plain"),
        ({"model": "plain:pirate"}, UnknownModel, "no adapters"),
        ({"model": "plain", "lora": "pirate"}, InvalidRequest, "no adapters"),
        ({"model": "plain", "lora": [{"id": 0, "scale": 0}]}, InvalidRequest, "no adapters"),
        ({"lora": "breif"}, InvalidRequest, "did you mean brief?"),
        ({"lora": 7}, InvalidRequest, "a name, or a list"),
        ({"lora": {"name": "pirate"}}, InvalidRequest, "a name, or a list"),
        ({"lora": [{"id": 1, "scale": 1.0}]}, InvalidRequest, "a name, or a list"),
        ({"lora": [{"name": "pirate", "weight": 1}]}, InvalidRequest, "a name, or a list"),
        ({"lora": [["pirate"]]}, InvalidRequest, "a name, or a list"),
        ({"lora": ["auto"]}, InvalidRequest, "no adapter"),
        ({"lora": ["pirate", "pirate"]}, InvalidRequest, "pirate twice"),
        ({"lora": [{"name": "pirate", "scale": "1"}]}, InvalidRequest, "must be a number"),
        ({"lora": [{"name": "pirate", "scale": True}]}, InvalidRequest, "must be a number"),
        ({"lora": [{"name": "pirate", "scale": 1e9}]}, InvalidRequest, "from -100 to 100"),
        ({"model": "chat:pirate", "lora": "brief"}, InvalidRequest, "chooses the adapter pirate already"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], kind: type[OnebitError], text: str) -> None:
    """The engine would silently answer as the base model."""
    with pytest.raises(kind) as caught:
        read(**fields)
    assert text in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.param == ("model" if kind is UnknownModel else "lora")


def test_a_model_without_adapters_is_told_so() -> None:
    for lora in (None, "none", "auto", list[str]()):
        call = read(model="plain", stream=True, lora=lora)
        assert (call.lora, call.need.adapters) == (None, None)
        assert sent(call) == []  # it knows neither word


def test_engines_that_came_while_it_was_in_line() -> None:
    """A reload numbers the adapters anew, or takes them away: the call keeps the names that it chose."""
    calls = {lora: read(lora=lora) for lora in ("pirate", "brief", "none")}
    anew = Adapters("chat", [], [replace(LISTED[1], id=0)], lambda _: None)
    assert json.loads(for_engine(calls["brief"], anew).body)["lora"] == [{"id": 0, "scale": 0.5}]
    assert json.loads(for_engine(calls["none"], anew).body)["lora"] == [{"id": 0, "scale": 0.0}]
    for adapters, text in ((anew, "was reloaded, and has no adapter 'pirate'"), (None, "has no adapters to choose")):
        with pytest.raises(InvalidRequest, match=text) as refused:
            for_engine(calls["pirate"], adapters)
        assert refused.value.param == "lora"
    assert json.loads(for_engine(calls["none"], None).body)["lora"] == []  # it would not know the word
    came = read(model="plain")
    assert json.loads(for_engine(came, anew).body)["lora"] == [{"id": 0, "scale": 0.0}]
    with pytest.raises(InvalidRequest, match="cannot keep their prompts apart"):
        for_engine(read("/v1/embeddings", model="plain", input="x"), anew)


def test_endpoints_where_the_engine_heeds_no_adapters() -> None:
    """Those that take a slot would leave its prompt there under other adapters: none may be let through."""
    assert read("/tokenize", model="chat:pirate", content="x").need.adapters is not None
    for path in (path for path, endpoint in ENDPOINTS.items() if endpoint.leased and not endpoint.lora):
        for more in ({}, {"lora": "auto"}, {"model": "chat:pirate"}):
            with pytest.raises(InvalidRequest, match="cannot keep their prompts apart") as refused:
                read(path, input="x", **more)
            assert refused.value.hint
        assert read(path, model="plain", input="x").lora is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}, "a"),
        ({"messages": [{"role": "system", "content": "a"}]}, ""),
        ({"messages": [{"role": "user", "content": None}]}, ""),
        ({"messages": ["a", {"role": "user"}]}, ""),
        ({"messages": "a"}, "a"),
        ({"prompt": "a"}, "a"),
        ({"prompt": [1, 2]}, ""),
        ({"prompt": [[1, 2], [3]]}, ""),
        ({"prompt": []}, ""),
        ({"prompt": ["a"]}, "a"),
        ({"prompt": ["a", "b"]}, "b"),
        ({"prompt": [1, "a", 2]}, "a"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "a"),
        ({"input": "x" * 5000 + "end"}, "x" * 4093 + "end"),
        ({}, ""),
    ],
)
def test_the_last_thing_that_the_user_said(fields: dict[str, Any], text: str) -> None:
    assert last_user_text(fields) == text
