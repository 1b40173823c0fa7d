"""The endpoints that go to an engine, as a table: what each needs, and how each fails once it has begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onebit.errors import OnebitError
from onebit.router.assemble import Answer, ChatAnswer, TextAnswer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path. `required`: fields a body must have; `whole`: makes one answer of a stream.

    `instead`: what to do where it cannot be used, with a model that lists adapters. It takes a slot there, and the
    engine heeds no `lora` in its body: it would set the slot to other adapters, and keep the prompt that is in it.
    """

    path: str
    required: tuple[str, ...] = ()
    whole: Callable[[], Answer] | None = None
    done: bytes = b""  # what the last event of a complete stream looks like, empty: it has no mark
    leased: bool = True  # False: works beside the slots (tokenize)
    lora: bool = False  # the engine heeds `lora` in its body
    instead: str = ""
    sequences: str | None = None  # the field that may hold several inputs, each of which takes a slot
    error_event: Callable[[OnebitError], bytes] = lambda error: _openai_event(error)


def error_body(error: OnebitError) -> dict[str, Any]:
    """OpenAI's error object, as it stands in a response and in a stream."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _openai_event(error: OnebitError) -> bytes:
    return _event(error_body(error))


def _anthropic_event(error: OnebitError) -> bytes:
    body = {"type": "api_error", "message": error_body(error)["error"]["message"]}
    return _event({"type": "error", "error": body}, "error")


def _responses_event(error: OnebitError) -> bytes:
    body = error_body(error)["error"]
    return _event({"type": "error", "code": body["code"], "message": body["message"], "param": body["param"]}, "error")


ENDPOINTS = {
    e.path: e
    for e in (
        Endpoint("/v1/chat/completions", ("messages",), whole=ChatAnswer, done=b"data: [DONE]\n\n", lora=True),
        Endpoint(
            "/v1/completions",
            ("prompt",),
            whole=TextAnswer,
            done=b"data: [DONE]\n\n",
            sequences="prompt",
            lora=True,
        ),
        Endpoint("/v1/responses", ("input",), error_event=_responses_event, lora=True),
        Endpoint(
            "/v1/messages",
            ("messages",),
            error_event=_anthropic_event,
            instead="use /v1/chat/completions or /v1/responses",
        ),
        Endpoint(
            "/v1/embeddings",
            ("input",),
            sequences="input",
            instead="ask a model without adapters; the config may list the same file a second time",
        ),
        Endpoint("/v1/messages/count_tokens", ("messages",), leased=False, error_event=_anthropic_event),
        Endpoint("/tokenize", ("content",), leased=False),
        Endpoint("/detokenize", ("tokens",), leased=False),
        Endpoint("/apply-template", ("messages",), leased=False),
    )
}
