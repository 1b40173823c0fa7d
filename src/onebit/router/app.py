"""The ASGI application: from a path to an answer. The way of a request is `_answer`, and it is a straight line."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import anyio

from onebit.engines.supervisor import Engine
from onebit.errors import (
    BodyTooLarge,
    EngineLost,
    Interrupted,
    MethodNotAllowed,
    OnebitError,
    QueueFull,
    Unauthorized,
    UnknownPath,
)
from onebit.router.admin import ADMIN
from onebit.router.endpoints import ENDPOINTS
from onebit.router.openai import Call, read_call
from onebit.router.pool import Pool
from onebit.router.relay import relay
from onebit.router.reply import Receive, Reply, Send
from onebit.router.stoppable import Stoppable
from onebit.router.upstream import Exchange

_log = logging.getLogger("onebit.router")

_OPEN_PATHS = frozenset({"/health", "/v1/health"})  # as with llama-server: a health check needs no key
_MAX_ID_CHARS = 128
_DROP_BYTES, _DROP_S = 8 << 20, 2.0  # of a body that is too large; more is not worth a clear answer
_MAX_HELD = 1 << 30  # a thousand waiting requests of the largest size would be 64 GiB
_PROCESS = secrets.token_hex(8).encode()
_numbers = itertools.count(1)


class App:
    """Serves `pools` (by model name) to clients that hold one of `keys`; no keys: to everyone who can connect."""

    def __init__(self, pools: Mapping[str, Pool], *, keys: tuple[str, ...] = (), max_body: int) -> None:
        self.pools = pools
        self._keys = tuple(k.encode() for k in keys)
        self._max_body = max_body
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
        reply = Reply(send, ((b"x-request-id", request_id),))
        try:
            await self._dispatch(scope["method"], scope["path"], headers, receive, reply)
        except OnebitError as error:
            if not reply.begun:
                await reply.error(error)
        except Exception:
            _log.exception("request %s failed", request_id.decode())
            if not reply.begun:
                await reply.error(OnebitError("internal error; the server's log has more"))

    async def _dispatch(
        self, method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive, reply: Reply
    ) -> None:
        if path not in _OPEN_PATHS:
            self._authorize(headers)
        endpoint = ENDPOINTS.get(path)
        admin = ADMIN.get(path)
        if endpoint is None and admin is None:
            raise UnknownPath(f"there is no {path[:200]}", hint="there are " + ", ".join([*ENDPOINTS, *ADMIN]))
        allowed = ("POST",) if endpoint else ("GET", "HEAD")
        if method not in allowed:
            raise MethodNotAllowed(f"{path} takes {allowed[0]}, not {method}")
        if admin is not None:
            await admin(self.pools, reply)
        elif endpoint is not None and (body := await self._body(headers, receive)) is not None:
            session = headers.get(b"x-session-id", b"").decode("latin-1")
            self._held += len(body)
            try:
                await self._run(read_call(endpoint, body, self.pools, session), receive, reply)
            finally:
                self._held -= len(body)

    def _authorize(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._keys:
            return
        given = headers.get(b"authorization", b"")
        if given[:7].lower() == b"bearer ":
            given = given[7:].strip()
        given = given or headers.get(b"x-api-key", b"")
        # All keys are compared, each in constant time: how long it takes says nothing about any of them.
        if sum(hmac.compare_digest(given, key) for key in self._keys) == 0:
            raise Unauthorized("the API key is missing or wrong", hint="send it as `Authorization: Bearer KEY`")

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body; None when the client left before it was complete."""
        if int(headers.get(b"content-length", b"0")) > self._max_body:
            raise await self._too_large(receive)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                raise await self._too_large(receive, more=message.get("more_body", False))
            if self._held + size > _MAX_HELD:
                raise QueueFull("the requests in work and in line fill the memory set aside for them", retry_after=1)
            if not message.get("more_body"):
                return b"".join(parts)

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
        return BodyTooLarge(f"the body is over the limit of {self._max_body} bytes", hint="see --max-body")

    async def _run(self, call: Call, receive: Receive, reply: Reply) -> None:
        """Answer `call`, but stop at once when the client leaves, or when the server cuts everything off."""
        running = Stoppable()
        # A bare task: a task group of its own would cost every request a tenth of the router's time (measured), and
        # this one can neither fail nor outlive the block.
        watcher = asyncio.create_task(_stop_when_left(receive, running))
        self._running.add(running)
        try:
            with running:
                async with _Told(call, reply):
                    await self._answer(call, reply)
        finally:
            self._running.discard(running)
            watcher.cancel()
        if self._cut and not watcher.done() and not reply.ended:
            async with _Told(call, reply):
                raise Interrupted("the server is shutting down")

    async def _answer(self, call: Call, reply: Reply) -> None:
        pool = self.pools[call.model]
        left: str | None = None  # the engine that died under the first attempt
        while True:
            try:
                if call.endpoint.leased:
                    async with pool.gate.admit(call.need, left=left) as lease:
                        engine = pool.engines[lease.engine]
                        await _exchange(engine, call, lease.claim.slots, reply)
                else:
                    engine = pool.ready(left)
                    await _exchange(engine, call, 0, reply)
                return
            except EngineLost:
                if reply.begun or left is not None:
                    raise
                left = engine.spec.name


async def _exchange(engine: Engine, call: Call, slots: int, reply: Reply) -> None:
    async with Exchange(engine, call, slots) as exchange:
        await relay(exchange, call, reply)


class _Told:
    """A block whose errors become a response, or, where one has begun, the last event of the stream."""

    __slots__ = ("_call", "_reply")

    def __init__(self, call: Call, reply: Reply) -> None:
        self._call = call
        self._reply = reply

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, OnebitError) or self._reply.ended:
            return False
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
