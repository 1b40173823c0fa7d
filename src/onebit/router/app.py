"""The ASGI application: from a path to an answer. The way of a request is `_answer`, and it is a straight line."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import anyio

from onebit.engines.supervisor import Engine
from onebit.errors import (
    BodyTooLarge,
    EngineLost,
    Evicted,
    Interrupted,
    MethodNotAllowed,
    OnebitError,
    Preempted,
    QueueFull,
    UnknownPath,
)
from onebit.router.adapters import Adapters
from onebit.router.admin import PATHS, Admin
from onebit.router.client_side import PARTS
from onebit.router.endpoints import ENDPOINTS
from onebit.router.journal import Entry
from onebit.router.keyring import KeyRing
from onebit.router.openai import Call, for_engine, read_call
from onebit.router.pool import Pool
from onebit.router.relay import relay
from onebit.router.reply import Receive, Reply, Send
from onebit.router.resume import Progress, continuation
from onebit.router.stoppable import Stoppable
from onebit.router.tier import tier_of
from onebit.router.upstream import Exchange
from onebit.scheduler.gate import Gate
from onebit.scheduler.lease import Ask, Stop
from onebit.tiers import Tier

_log = logging.getLogger("onebit.router")

_OPEN_PATHS = frozenset({"/health", "/v1/health"})  # as with llama-server: a health check needs no key
_KEY_PATHS = frozenset({"/v1/engines", "/metrics"})  # what the operator sees: not for those who come without a key
_MAX_ID_CHARS = 128
_DROP_BYTES, _DROP_S = 8 << 20, 2.0  # of a body that is too large; more is not worth a clear answer
_MAX_HELD = 1 << 30  # a thousand waiting requests of the largest size would be 64 GiB
_PROCESS = secrets.token_hex(4).encode()
_numbers = itertools.count(1)


class App:
    """Serves `pools` (by model name) to those whom `keys` lets in."""

    def __init__(self, pools: Mapping[str, Pool], gate: Gate, keys: KeyRing, max_body: int, admin: Admin) -> None:
        self.pools = pools
        self.keys = keys
        self.max_body = max_body
        self.journal = admin.journal
        self._gate = gate
        self._admin = admin
        self._running: set[Stoppable] = set()
        self._cut = False
        self._held = 0  # bytes of the bodies of all requests in work and in line

    def cut(self) -> None:
        """End all running requests now; each client is told."""
        self._cut = True
        for running in tuple(self._running):
            running.stop()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """ASGI. Only HTTP comes in here: uvicorn is started without lifespan and websockets."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        reply = Reply(send, scope[PARTS], ((b"x-request-id", request_id),))
        try:
            await self._dispatch(scope["method"], scope["path"], headers, receive, reply, request_id)
        except OnebitError as error:
            if not reply.begun:
                await reply.error(error)
        except asyncio.CancelledError:  # uvicorn's, when it ends: the body was still on its way
            if not reply.begun:
                await reply.error(Interrupted("the server is shutting down"))
        except Exception:
            _log.exception("request %s failed", request_id.decode())
            if not reply.begun:
                await reply.error(OnebitError("internal error; the server's log has more"))

    async def _dispatch(
        self, method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive, reply: Reply, request_id: bytes
    ) -> None:
        endpoint = ENDPOINTS.get(path)
        who = None if path in _OPEN_PATHS else self.keys.who(headers, key_needed=path in _KEY_PATHS)
        if endpoint is None and path not in PATHS:
            raise UnknownPath(f"there is no {path[:200]}", hint="there are " + ", ".join([*ENDPOINTS, *PATHS]))
        allowed = ("POST",) if endpoint else ("GET", "HEAD")
        if method not in allowed:
            raise MethodNotAllowed(f"{path} takes {allowed[0]}, not {method}")
        if endpoint is None:
            await self._admin.answer(path, reply)
        elif who is not None and (body := await self._body(headers, receive)) is not None:
            entry = Entry(request_id.decode(), path, who.name, began=monotonic())
            try:
                session = headers.get(b"x-session-id", b"").decode("latin-1")
                call = read_call(endpoint, body, self.pools, session, self._adapters_of)
                entry.model = call.model
                if call.lora is not None:
                    reply.fixed += ((b"x-onebit-lora", call.lora.encode()),)
                tier = tier_of(who.tier, headers.get(b"x-onebit-tier", b"").decode("latin-1"), call.service_tier)
                entry.tier = tier.label
                reply.fixed += ((b"x-onebit-tier", entry.tier.encode()),)
                await self._run(call, Ask(call.model, call.need, tier, who.name), receive, reply, entry)
            except OnebitError as error:
                _note(entry, error)
                raise
            finally:
                self._held -= len(body)
                entry.status, entry.first = reply.status or entry.status, reply.first
                if entry.outcome == "ok" and entry.status >= 400:
                    entry.outcome = "engine_error"  # its own, passed on
                self.journal.close(entry)

    def _adapters_of(self, model: str) -> Adapters | None:
        return self.pools[model].adapters

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body; None when the client left before it was complete. What it returns counts as held."""
        if int(headers.get(b"content-length", b"0")) > self.max_body:
            raise await self._too_large(receive)
        parts: list[bytes] = []
        size, whole = 0, False
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._held += len(parts[-1])  # at once: a body may never become whole
                if size > self.max_body:
                    raise await self._too_large(receive, more=message.get("more_body", False))
                if self._held > _MAX_HELD:
                    raise QueueFull(
                        "the requests in work and in line fill the memory set aside for them", retry_after=1
                    )
                if not message.get("more_body"):
                    whole = True
                    return b"".join(parts)
        finally:
            if not whole:
                self._held -= size

    async def _too_large(self, receive: Receive, *, more: bool = True) -> BodyTooLarge:
        """The refusal, once some of the rest has been read and dropped.

        A connection closed with unread bytes is reset, and the client may lose the answer that explains it (seen in
        half of the runs with a body of 100 KB).
        """
        dropped = 0
        with anyio.move_on_after(_DROP_S):
            while more and dropped <= _DROP_BYTES:
                message = await receive()
                more = message.get("more_body", False)  # a disconnect has none
                dropped += len(message.get("body", b""))
        return BodyTooLarge(f"the body is over the limit of {self.max_body} bytes", hint="see --max-body")

    async def _run(self, call: Call, ask: Ask, receive: Receive, reply: Reply, entry: Entry) -> None:
        """Answer `call`, but stop at once when the client leaves, or when the server cuts everything off."""
        running = Stoppable()
        # A bare task: a task group of its own would cost every request a tenth of the router's time (measured), and
        # this one can neither fail nor outlive the block.
        watcher = asyncio.create_task(_stop_when_left(receive, running))
        self._running.add(running)
        try:
            with running:
                async with _Told(call, reply, entry):
                    await self._answer(call, ask, reply, entry)
        finally:
            self._running.discard(running)
            watcher.cancel()
        if running.stopped and not reply.ended:
            entry.outcome = "left"
        if self._cut and not watcher.done() and not reply.ended:
            async with _Told(call, reply, entry):
                raise Interrupted("the server is shutting down")

    async def _answer(self, call: Call, ask: Ask, reply: Reply, entry: Entry) -> None:
        """The way of a request: admitted, relayed, and once more when it had to give way or lost its engine."""
        pool = self.pools[call.model]
        if not call.endpoint.leased and (engine := pool.ready()) is not None:
            with suppress(EngineLost):
                return await _exchange(engine, call, 0, reply, entry)
        asked = call
        left: str | None = None  # the engine that died under the first attempt
        gave_way = False
        progress = Progress() if ask.tier is Tier.BACKGROUND and call.stream else None
        while True:
            stint = Stoppable()  # from the lease to its end, which the gate may bring about
            lost: EngineLost | None = None
            async with self._gate.admit(ask, left=left, front=gave_way) as lease:
                entry.engine = lease.engine
                entry.admitted = entry.admitted or monotonic()
                with stint:
                    lease.on_stop(stint.stop)
                    try:
                        sent = for_engine(call, pool.adapters)
                        await _exchange(pool.engines[lease.engine], sent, lease.slots, reply, entry, progress)
                    except EngineLost as error:
                        lost = error
            if reply.ended or (lost is None and lease.stopped is None):
                return
            if lease.stopped is Stop.EVICTED:
                raise Evicted(f"{call.model} had to make room for requests of a higher tier", retry_after=1)
            if lease.stopped is Stop.PREEMPTED:
                entry.preemptions += 1
                gave_way, left = True, None
                if reply.begun:
                    call = _continued(asked, progress)
                continue
            if lost is not None and (reply.begun or left is not None):
                raise lost
            left = entry.engine


def _continued(asked: Call, progress: Progress | None) -> Call:
    """The rest of a stream that gave way. Raises Preempted when it cannot go on as if nothing had happened."""
    further = continuation(asked, progress) if progress is not None else None
    if further is None:
        raise Preempted("background work gave way to a higher tier, and cannot be continued", retry_after=1)
    return further


async def _exchange(
    engine: Engine, call: Call, slots: int, reply: Reply, entry: Entry, progress: Progress | None = None
) -> None:
    async with Exchange(engine, call, slots) as exchange:
        tokens = await relay(exchange, call, reply, progress)
        entry.prompt_tokens, entry.tokens = tokens.prompt, tokens.answer


def _note(entry: Entry, error: OnebitError) -> None:
    entry.outcome, entry.status = error.code or error.type, error.status


class _Told:
    """A block whose errors become a response, or, where one has begun, the last event of the stream."""

    __slots__ = ("_call", "_entry", "_reply")

    def __init__(self, call: Call, reply: Reply, entry: Entry) -> None:
        self._call = call
        self._reply = reply
        self._entry = entry

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, OnebitError) or self._reply.ended:
            return False
        _note(self._entry, error)
        if self._reply.begun:
            await self._reply.end(self._call.endpoint.error_event(error))
        else:
            await self._reply.error(error)
        return True


async def _stop_when_left(receive: Receive, running: Stoppable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    running.stop()


def _request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's own id when it is short and printable, else a new one."""
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= _MAX_ID_CHARS and given.isascii() and given.decode().isprintable():
        return given
    return b"req-%b-%x" % (_PROCESS, next(_numbers))
