"""What takes a slot in the fake engine: slots with a silent queue, answers with scripted faults, the log."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.support.fake_answers import DIALECTS, Answer, Json, chunk_text, last_user_text

if TYPE_CHECKING:
    from tests.support.fake_engine import Options

_GARBAGE = b"\x00\xffthis is no chunk size\xfe\r\n" * 3
_KEY_HEADERS = {"authorization", "x-api-key"}
_EVENT_STREAM = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}


def error_answer(status: int, kind: str, message: str) -> web.Response:
    """An error in llama-server's shape."""
    body = {"error": {"code": status, "message": message, "type": kind}}
    return web.json_response(body, status=status)


def bad_json() -> web.Response:
    """llama-server answers a body that is not JSON with 500."""
    what = "[json.exception.parse_error.101] parse error at line 1, column 1: syntax error"
    return error_answer(500, "server_error", what)


async def read_body(request: web.Request) -> Json | None:
    """The request's JSON object, or None."""
    try:
        body = json.loads(await request.read())
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


class _Closed(Exception):
    """The script closed the connection."""


class Slots:
    """N slots and a line without end, as llama-server has. A slot is handed to the one who waits longest."""

    def __init__(self, count: int) -> None:
        self.task: list[int | None] = [None] * count  # what each slot works on
        self.most = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._line: deque[asyncio.Future[int]] = deque()
        self._tasks = 0

    @property
    def waiting(self) -> int:
        """How many requests have no slot."""
        return len(self._line)

    @property
    def busy(self) -> int:
        """How many slots work."""
        return sum(task is not None for task in self.task)

    def _occupy(self, slot: int) -> int:
        self.task[slot] = self._tasks
        self._tasks += 1
        self.most = max(self.most, self.busy)
        self.idle.clear()
        return slot

    async def take(self) -> int:
        """Wait for a slot."""
        if None in self.task:
            return self._occupy(self.task.index(None))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future in self._line:
                self._line.remove(future)
            else:  # granted in the tick in which the client left
                self.give(future.result())
            raise

    def give(self, slot: int) -> None:
        """Free a slot, or hand it on."""
        self.task[slot] = None
        if self._line:
            self._line.popleft().set_result(self._occupy(slot))
        elif not self.busy:
            self.idle.set()


class Work:
    """The slots, the script as it stands, and the requests seen."""

    def __init__(self, options: Options, began: float) -> None:
        self.script = options.script
        self.slots = Slots(options.slots)
        self.log: list[Json] = []
        self.changed = asyncio.Event()  # replaced at each change of the script
        self._alias = options.alias
        self._began = began  # time.monotonic() of the process's start
        self._lingering: set[asyncio.Task[None]] = set()

    def age_s(self) -> float:
        """Seconds since this process began: the clock of the log."""
        return time.monotonic() - self._began

    def change(self, values: Mapping[str, Any]) -> None:
        """Replace fields of the script, for running requests too. Raises ValueError or TypeError."""
        self.script = self.script.changed(values)
        self.changed.set()
        self.changed = asyncio.Event()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer one of the four text endpoints, streamed or whole."""
        body = await read_body(request)
        if body is None:
            return bad_json()
        if (failure := self._scripted_error()) is not None:
            return failure
        response: web.StreamResponse = web.Response()
        async with self._slot(request, body) as entry:
            dialect = DIALECTS[request.path]
            limit = body.get("max_tokens", body.get("max_output_tokens"))
            tokens = self.script.tokens if limit is None else min(self.script.tokens, int(limit))
            answer = Answer(
                model=self._alias,
                text=last_user_text(body),
                limited=tokens < self.script.tokens,
                include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            )
            streams = bool(body.get("stream"))
            await self._point(request, -1)
            await asyncio.sleep(self.script.headers_delay_s)
            if streams:
                response = web.StreamResponse(headers=_EVENT_STREAM)
                response.enable_chunked_encoding()
                await response.prepare(request)
            await self._point(request, 0)
            for index in range(tokens):
                await asyncio.sleep(self.script.token_delay_s if index else self.script.first_token_delay_s)
                answer.made = entry["tokens"] = index + 1
                if streams:
                    await response.write(b"".join(dialect.delta(answer, chunk_text(answer.text, index))))
                await self._point(request, index + 1)
                if self.script.error_event_after_chunks == index + 1:
                    return await self._fail_midway(response, streams)
            if streams:
                *ending, end = dialect.last(answer)
                for event in ending:
                    await response.write(event)
                await asyncio.sleep(self.script.last_event_delay_s)
                await response.write(end)
                await response.write_eof()
                if self.script.close_after_answer and request.transport is not None:
                    request.transport.close()
            else:
                response = web.json_response(dialect.whole(answer))
        return response

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/embeddings with vectors of 8 numbers made from a hash of each text."""
        body = await read_body(request)
        if body is None:
            return bad_json()
        if (failure := self._scripted_error()) is not None:
            return failure
        inputs = body.get("input", "")
        texts = inputs if isinstance(inputs, list) else [inputs]
        response = web.Response()
        async with self._slot(request, body):
            await self._point(request, -1)
            await asyncio.sleep(self.script.first_token_delay_s)
            vectors = [hashlib.sha256(str(text).encode()).digest()[:8] for text in texts]
            data = [
                {"embedding": [(byte - 128) / 128 for byte in vector], "index": i, "object": "embedding"}
                for i, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            whole = {"model": self._alias, "object": "list", "usage": usage, "data": data}
            response = web.json_response(whole)
        return response

    def _scripted_error(self) -> web.Response | None:
        status = self.script.error_status
        if status is None:
            return None
        if self.script.error_body is not None:
            return web.json_response(self.script.error_body, status=status)
        return error_answer(status, "server_error", "scripted")

    async def _fail_midway(self, response: web.StreamResponse, streams: bool) -> web.StreamResponse:
        """What llama-server does when its context pool runs out under a running request."""
        error = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
        if not streams:
            return web.json_response({"error": error}, status=500)
        await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        await response.write_eof()
        return response

    async def _point(self, request: web.Request, chunks: int) -> None:
        """Do the faults that the script sets at this number of chunks."""
        script = self.script
        if script.die_after_chunks == chunks:
            os.kill(os.getpid(), signal.SIGKILL)
        if script.stop_process_after_chunks == chunks:
            os.kill(os.getpid(), signal.SIGSTOP)
        if script.garbage_after_chunks == chunks and request.transport is not None:
            request.transport.write(_GARBAGE)
            await asyncio.Event().wait()
        if script.close_after_chunks == chunks and request.transport is not None:
            request.transport.close()
            raise _Closed
        while self.script.stall_after_chunks == chunks:
            await self.changed.wait()

    @asynccontextmanager
    async def _slot(self, request: web.Request, body: Json) -> AsyncIterator[Json]:
        """Wait for a slot, log the request, free the slot (late for a gone client, if so scripted)."""
        entry: Json = {
            "path": request.path,
            "headers": {k.lower(): v for k, v in request.headers.items() if k.lower() not in _KEY_HEADERS},
            "body": body,
            "sha256": hashlib.sha256(await request.read()).hexdigest(),
            "came": self.age_s(),
            "started": None,
            "ended": None,
            "disconnected": None,
            "slot": None,
            "tokens": 0,
        }
        self.log.append(entry)
        linger_s = 0.0
        try:
            entry["slot"] = await self.slots.take()
            entry["started"] = self.age_s()
            yield entry
            entry["ended"] = self.age_s()
        except _Closed:
            entry["ended"] = self.age_s()
        except (asyncio.CancelledError, ConnectionError):
            entry["disconnected"] = self.age_s()
            linger_s = self.script.silent_slots_free_s
            raise
        finally:
            if entry["slot"] is not None:
                self._free(entry["slot"], linger_s)

    def _free(self, slot: int, after_s: float) -> None:
        if not after_s:
            self.slots.give(slot)
            return

        async def later() -> None:
            await asyncio.sleep(after_s)
            self.slots.give(slot)

        task = asyncio.ensure_future(later())
        self._lingering.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._lingering.discard)
