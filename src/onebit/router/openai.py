"""Reading a request: what the router must know of a body, and the two things it ever changes in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from onebit.errors import InvalidRequest, UnknownModel
from onebit.router.adapters import Adapters, no_adapters
from onebit.router.endpoints import Endpoint
from onebit.router.engine_fields import check_engine_fields
from onebit.scheduler.choose import Need

_PREFIX_CHARS = 1024  # of a prompt: enough to tell two conversations apart


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read. `body` is what goes to the engine, but for its adapters (see `for_engine`)."""

    endpoint: Endpoint
    model: str
    stream: bool  # what the client asked for
    body: bytes
    need: Need
    service_tier: str | None = None
    lora: str | None = None  # the names of its adapters; None: the model has none to choose from

    @property
    def streamed(self) -> bool:
        """What the engine is asked for."""
        return self.stream or self.assembled

    @property
    def assembled(self) -> bool:
        """The engine streams, the client gets one piece.

        Not with logprobs: llama-server refuses to stream them beside tools, and leaves out the last one.
        """
        return not self.stream and self.endpoint.whole is not None and not self.need.plain


def read_call(
    endpoint: Endpoint,
    body: bytes,
    models: Collection[str],
    session: str | None = None,
    adapters_of: Callable[[str], Adapters | None] = lambda _: None,
) -> Call:
    """Read a body. `session`: the client's own name for the conversation, from a header; `adapters_of`: by model.

    Raises InvalidRequest (400) or UnknownModel (404) with OpenAI's `param` set.
    """
    fields = _parse(body)
    model, named = _model(fields, endpoint, models)
    for name in endpoint.required:
        if fields.get(name) is None:
            raise InvalidRequest(f"'{name}' is required", param=name)
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("'stream' must be true or false", param="stream")
    tier = fields.get("service_tier")
    if tier is not None and not isinstance(tier, str):
        raise InvalidRequest("'service_tier' must be a string", param="service_tier")
    check_engine_fields(fields)
    need = _need(fields, endpoint, session)
    if endpoint.leased and fields.get("id_slot") is not None:
        body = _with(body, b'"id_slot":-1')  # in one that is taken the request would wait, where no tier counts
    adapters = adapters_of(model)
    if adapters is None:
        no_adapters(model, named, fields)
        if "lora" in fields and not isinstance(fields["lora"], list):
            body = _with(body, b'"lora":[]')  # the engine knows neither "auto" nor "none"
        call = Call(endpoint, model, bool(stream), body, need, tier)
    else:
        chosen = adapters.choose(named, fields)
        _check_takes_adapters(endpoint, model)
        call = Call(endpoint, model, bool(stream), body, replace(need, adapters=chosen.adapters), tier, chosen.names)
    return call if not call.assembled else replace(call, body=_with(call.body, _STREAMED))


def for_engine(call: Call, adapters: Adapters | None) -> Call:
    """A call with a slot, as the engine that has it must be asked. `adapters`: those of the model's engines of now.

    Only now, for a reload may have given the model other adapters, or the same ones other numbers, while the call was
    in line. Raises InvalidRequest when what it chose is gone, or there are adapters where its endpoint takes none.
    """
    if adapters is not None:
        _check_takes_adapters(call.endpoint, call.model)
        return replace(call, body=_with(call.body, b'"lora":' + adapters.field(call.need.adapters or ())))
    if call.need.adapters:
        raise InvalidRequest(
            f"the model {call.model} was reloaded, and has no adapters to choose from",
            hint="leave 'lora' out",
            param="lora",
        )
    return call if call.lora is None else replace(call, body=_with(call.body, b'"lora":[]'))


def _check_takes_adapters(endpoint: Endpoint, model: str) -> None:
    if endpoint.instead:
        raise InvalidRequest(
            f"{model} has adapters, and llama-server cannot keep their prompts apart at {endpoint.path}",
            hint=endpoint.instead,
        )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = _decoder.decode(body.decode())
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}" if body else "the body is empty") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _model(fields: Mapping[str, Any], endpoint: Endpoint, models: Collection[str]) -> tuple[str, str | None]:
    """The model, and the adapter that its name chooses."""
    model = fields.get("model")
    there_are = "served here: " + ", ".join(sorted(models))
    if model is None:
        # llama-server's own endpoints have no such field: with one model there is no doubt which is meant.
        if not endpoint.path.startswith("/v1/") and len(models) == 1:
            return next(iter(models)), None
        raise InvalidRequest("'model' is required", hint=there_are, param="model")
    if not isinstance(model, str):
        raise InvalidRequest("'model' must be a string", hint=there_are, param="model")
    if model in models:
        return model, None
    name, colon, adapter = model.partition(":")
    if colon and name in models:
        return name, adapter
    raise UnknownModel(f"the model {model[:200]!r} does not exist", hint=there_are, param="model")


def _need(fields: Mapping[str, Any], endpoint: Endpoint, session: str | None) -> Need:
    several = fields.get(endpoint.sequences) if endpoint.sequences else None
    # A list with a number in it is one prompt, given as tokens, or as tokens and texts.
    one = not isinstance(several, list) or any(isinstance(part, int | float) for part in several)
    inputs = 1 if one or not several else len(several)
    answers = _answers(fields)
    logprobs = fields.get("logprobs") or fields.get("top_logprobs") or fields.get("n_probs")
    return Need(
        sequences=inputs * answers, answers=answers, plain=bool(logprobs), conversation=_conversation(fields, session)
    )


def _answers(fields: Mapping[str, Any]) -> int:
    """How many answers the engine will give. `n` is its second name for the number, and 3.0 is 3 to it."""
    for name in ("n_cmpl", "n"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise InvalidRequest(f"'{name}' must be a whole number", param=name)
        return max(1, int(value))
    return 1


def _conversation(fields: Mapping[str, Any], session: str | None) -> int | None:
    """A number that is the same for all turns of a conversation: its session, or how it began.

    That is everything up to the first thing the user said; later turns repeat it.
    """
    if session:
        return hash(session)
    messages = fields.get("messages")
    if isinstance(messages, list):
        begin: list[str] = []
        for message in messages:
            if not isinstance(message, dict):
                break
            begin.append(str(message.get("content"))[:_PREFIX_CHARS])
            if message.get("role") == "user":
                break
        return hash(tuple(begin))
    prompt = fields.get("prompt") or fields.get("input")
    return hash(prompt[:_PREFIX_CHARS]) if isinstance(prompt, str) else None


_STREAMED = b'"stream":true,"stream_options":{"include_usage":true}'


def _with(body: bytes, members: bytes) -> bytes:
    """`body` with its stream switch on, or its adapters; every other byte stays as it came.

    Appended, not re-encoded: of a name given twice, JSON readers take the last one (RFC 8259 section 4 calls that
    the behaviour of many; for llama-server a test checks it).
    """
    open_object = body.rstrip()[:-1].rstrip()
    comma = b"" if open_object.endswith(b"{") else b","
    return open_object + comma + members + b"}"
