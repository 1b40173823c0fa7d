"""One timed request, against servers that behave and servers that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onebit.bench.answer import Answer, Ask, Trouble, ask, first_model
from onebit.bench.endpoint import Endpoint
from onebit.bench.wire import WireError
from onebit.errors import ConfigError
from tests.bench.servers import answering, fake_engine, stream

pytestmark = pytest.mark.anyio

WORD = b'data: {"choices": [{"index": 0, "text": "word "}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_a_good_answer_is_timed_and_counted(tmp_path: Path, api: Any) -> None:
    async with fake_engine(tmp_path, tokens=12, token_delay_s=0.005) as engine:
        answer = await ask(engine.endpoint, Ask(engine.model, 8, api), "one two three")
    assert answer.good, answer.why
    assert (answer.tokens, answer.prompt_tokens, len(answer.token_times)) == (8, 3, 8)
    assert answer.timings["predicted_n"] == 8 and answer.counts_agree
    assert answer.sent < answer.token_times[0] < answer.token_times[-1] <= answer.ended
    assert answer.token_times == sorted(answer.token_times)


@pytest.mark.parametrize(
    ("script", "trouble", "words"),
    [
        ({"error_status": 500}, Trouble.REFUSED, "HTTP 500: scripted"),
        ({"error_status": 429, "error_body": {"error": "slow down"}}, Trouble.REFUSED, "HTTP 429: slow down"),
        ({"close_after_chunks": -1}, Trouble.NO_CONNECTION, "closed without an answer"),
        ({"close_after_chunks": 2}, Trouble.CLOSED, "closed in the middle"),
        ({"garbage_after_chunks": 2}, Trouble.CLOSED, "not HTTP"),
        ({"stall_after_chunks": 2}, Trouble.SILENT, "nothing came for 0.3 s"),
        ({"stall_after_chunks": -1}, Trouble.SILENT, "nothing came for 0.3 s"),
        ({"error_event_after_chunks": 2}, Trouble.ERROR_EVENT, "Context size has been exceeded."),
        ({"tokens": 0}, Trouble.EMPTY, "no text"),
    ],
)
async def test_a_fake_engine_that_misbehaves(
    tmp_path: Path, script: dict[str, Any], trouble: Trouble, words: str
) -> None:
    async with fake_engine(tmp_path, **script) as engine:
        answer = await ask(engine.endpoint, Ask(engine.model, 4, silence=0.3), "hello")
    assert (answer.trouble, words in answer.why) == (trouble, True), answer.why


@pytest.mark.parametrize(
    ("reply", "trouble", "words"),
    [
        (stream(b'{"choices": []}', kind=b"application/json"), Trouble.NOT_STREAMED, "in one piece"),
        (stream(WORD, b"data: {oh no}\n\n", DONE), Trouble.MALFORMED, "not JSON: {oh no}"),
        (stream(WORD, b"data: [1]\n\n", DONE), Trouble.MALFORMED, "no JSON object"),
        (stream(WORD, b"data: " + b"[" * 100_000 + b"\n\n", DONE), Trouble.MALFORMED, "not JSON"),
        (stream(b"data: " + b"x" * (2 << 20)), Trouble.MALFORMED, "1 MiB"),
        (stream(WORD, WORD), Trouble.CLOSED, "without [DONE]"),
        (
            stream(b"<html>", status=b"404 Not Found", kind=b"text/html"),
            Trouble.REFUSED,
            "HTTP 404 (is it `--api chat`",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", Trouble.NO_CONNECTION, "headers"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Trouble.NO_CONNECTION, "not HTTP"),
    ],
)
async def test_a_server_that_talks_nonsense(reply: bytes, trouble: Trouble, words: str) -> None:
    async with answering(reply) as endpoint:
        answer = await ask(endpoint, Ask("m", 4, silence=5), "hello")
    assert (answer.trouble, words in answer.why) == (trouble, True), answer.why


@pytest.mark.parametrize(
    "facts", ['"usage": {"completion_tokens": -3}', '"usage": {"completion_tokens": "many"}', '"usage": {}', '"x": 1']
)
async def test_without_a_usable_count_the_chunks_count(facts: str) -> None:
    last = f'data: {{"choices": [], {facts}}}\n\n'.encode()
    async with answering(stream(b": ping\n\n", WORD, WORD.replace(b"\n\n", b"\r\n\r\n"), last, DONE)) as endpoint:
        answer = await ask(endpoint, Ask("m", 4), "hello")
    assert answer.good, answer.why
    assert answer.tokens == 2


async def test_nobody_there() -> None:
    answer = await ask(Endpoint("127.0.0.1", 1), Ask("m", 4), "hello")
    assert answer.trouble is Trouble.NO_CONNECTION and "cannot connect to 127.0.0.1:1" in answer.why


async def test_the_models_of_a_server(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        assert await first_model(engine.endpoint) == engine.model
    async with answering(stream(b"[]", kind=b"application/json")) as endpoint:
        assert await first_model(endpoint) is None
    async with answering(stream(b"no", status=b"401 Unauthorized")) as endpoint:
        with pytest.raises(WireError, match="HTTP 401"):
            await first_model(endpoint)


def test_usage_and_timings_that_differ_are_seen() -> None:
    answer = Answer(0.0, usage={"completion_tokens": 5}, timings={"predicted_n": 6})
    assert not answer.counts_agree
    assert Answer(0.0, usage={"completion_tokens": 5}).counts_agree


@pytest.mark.parametrize(
    ("url", "host", "port", "base", "name"),
    [
        ("http://h:8080/v1", "h", 8080, "/v1", "h:8080"),
        ("http://h:8080", "h", 8080, "/v1", "h:8080"),
        ("https://h/api/v1/", "h", 443, "/api/v1", "h/api/v1"),
        ("http://h/v1/chat/completions", "h", 80, "/v1", "h"),
        ("http://[::1]:9/v1", "::1", 9, "/v1", "::1:9"),
    ],
)
def test_addresses(url: str, host: str, port: int, base: str, name: str) -> None:
    endpoint = Endpoint.of_url(url, "secret")
    assert (endpoint.host, endpoint.port, endpoint.base, endpoint.name) == (host, port, base, name)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize("url", ["h:8080", "ftp://h", "http://", "http://h:99999", "http://u:p@h/v1", "http://h/a b"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        Endpoint.of_url(url)
    assert error.value.hint and "http://" in error.value.hint
