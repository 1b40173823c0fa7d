"""Reading a body: what is refused, what is read, what is changed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.errors import InvalidRequest, UnknownModel
from onebit.router.endpoints import ENDPOINTS
from onebit.router.openai import Call, read_call

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


def read(path: str = CHAT, /, session: str | None = None, **fields: Any) -> Call:
    return read_call(ENDPOINTS[path], json.dumps({**HELLO, **fields}).encode(), ["demo", "other"], session)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b'{"model": "demo", "temperature": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "'model' is required"),
        (b'{"model": null, "messages": []}', "'model' is required"),
        (b'{"model": 7, "messages": []}', "'model' must be a string"),
        (b'{"model": "demo"}', "'messages' is required"),
        (b'{"model": "demo", "messages": [], "stream": "yes"}', "'stream' must be true or false"),
    ],
)
def test_a_bad_body_is_refused_with_one_sentence(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_call(ENDPOINTS[CHAT], body, ["demo"])


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(UnknownModel) as caught:
        read(model="gpt-4")
    assert caught.value.status == 404
    assert "demo, other" in str(caught.value.hint)


def test_an_endpoint_of_llama_servers_own_needs_no_model_when_there_is_one() -> None:
    assert read_call(ENDPOINTS["/tokenize"], b'{"content": "x"}', ["demo"]).model == "demo"
    with pytest.raises(InvalidRequest):
        read_call(ENDPOINTS["/tokenize"], b'{"content": "x"}', ["demo", "other"])


def test_a_stream_goes_through_untouched() -> None:
    body = b'{ "model":"demo",  "stream":true, "messages":[], "odd": 1.50, "odd": 2 }\n'
    assert read_call(ENDPOINTS[CHAT], body, ["demo"]).body is body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# No field that the router or an engine knows: what those may hold is asked elsewhere.
unknown_fields = st.dictionaries(st.text().map("x-".__add__), json_values, max_size=5)


@given(unknown_fields, st.sampled_from([None, False]), st.sampled_from([None, 2]))
def test_for_a_whole_answer_only_the_stream_switch_is_changed(
    extra: dict[str, Any], stream: bool | None, indent: int | None
) -> None:
    not_asked_for = dict.fromkeys(("logprobs", "top_logprobs", "n_probs", "stream_options"))
    fields = {**extra, **not_asked_for, **HELLO, "stream": stream}
    body = json.dumps(fields, indent=indent).encode() + b" \n"
    call = read_call(ENDPOINTS[CHAT], body, ["demo"])
    assert call.assembled and not call.stream
    assert call.body.startswith(body.rstrip()[:-1].rstrip())  # every byte the client sent
    assert json.loads(call.body) == {**fields, "stream": True, "stream_options": {"include_usage": True}}


READ = ("model", "stream", "service_tier", "n", "messages", "prompt", "input", "content", "logprobs", "lora")


@given(st.sampled_from(list(ENDPOINTS)), st.dictionaries(st.sampled_from(READ), json_values, max_size=5), st.booleans())
def test_whatever_a_field_holds_it_is_read_or_refused(path: str, fields: dict[str, Any], known: bool) -> None:
    body = json.dumps(fields | {"model": "demo"} if known else fields).encode()
    with suppress(InvalidRequest, UnknownModel):  # and nothing else
        call = read_call(ENDPOINTS[path], body, ["demo"])
        assert call.model == "demo" and call.need.sequences >= 1


def test_logprobs_are_asked_for_as_the_client_did() -> None:
    """llama-server does not stream them with tools, nor the last one at all."""
    body = json.dumps({**HELLO, "logprobs": True}).encode()
    call = read_call(ENDPOINTS[CHAT], body, ["demo"])
    assert call.body is body and not call.assembled


def test_other_endpoints_are_never_changed() -> None:
    body = json.dumps({"model": "demo", "input": ["a", "b"]}).encode()
    for path in ("/v1/embeddings", "/v1/responses"):
        assert read_call(ENDPOINTS[path], body, ["demo"]).body is body


@pytest.mark.parametrize(
    ("path", "fields", "sequences"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": 3.0}, 3),  # as the engine reads it
        (CHAT, {"n_cmpl": 3}, 3),  # the engine's own name for it, which comes first
        (CHAT, {"n_cmpl": 3, "n": 1}, 3),
        (CHAT, {"n_cmpl": None, "n": 2}, 2),
        (CHAT, {"n": -1}, 1),
        ("/v1/completions", {"prompt": "a"}, 1),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 4),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 2),
        ("/v1/completions", {"prompt": ["x", 5, 6]}, 1),  # texts among tokens: one prompt
        ("/v1/embeddings", {"input": ["a", "b", "c"]}, 3),
    ],
)
def test_sequences_count_what_decodes_at_once(path: str, fields: dict[str, Any], sequences: int) -> None:
    assert read(path, **fields).need.sequences == sequences


@pytest.mark.parametrize("n", ["3", True, 1.5, 1e400, [2]])
def test_a_number_of_answers_that_is_none(n: Any) -> None:
    for name in ("n", "n_cmpl"):
        body = json.dumps({**HELLO, name: n}).replace("Infinity", "1e400")
        with pytest.raises(InvalidRequest, match="must be a whole number") as caught:
            read_call(ENDPOINTS[CHAT], body.encode(), ["demo"])
        assert caught.value.param == name


def test_no_client_chooses_its_slot() -> None:
    """In one that is taken, a request would wait inside the engine, beside all tiers."""
    asked: list[dict[str, Any]] = [{"id_slot": 0}, {"id_slot": 3, "stream": True}]
    for fields in asked:
        assert json.loads(read(**fields).body)["id_slot"] == -1
    assert "id_slot" not in json.loads(read().body)


def test_logprobs_need_an_engine_that_does_not_draft() -> None:
    assert read(logprobs=True).need.plain
    assert read("/v1/completions", prompt="x", logprobs=2).need.plain
    assert not read(logprobs=False).need.plain


def test_the_turns_of_a_conversation_belong_together() -> None:
    first = HELLO["messages"]
    later = [*first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and?"}]
    other = [{"role": "user", "content": "something else"}]
    system = [{"role": "system", "content": "be brief"}]
    assert read(messages=first).need.conversation == read(messages=later).need.conversation
    assert read(messages=first).need.conversation != read(messages=other).need.conversation
    assert read(messages=system + first).need.conversation != read(messages=system + other).need.conversation
    assert read(session="s").need.conversation == read(messages=other, session="s").need.conversation
