"""HTTP to one running engine: requests, its health, how much it works on."""

from __future__ import annotations

import asyncio
import re
from time import monotonic

import anyio

from onebit.engines.http import Response, connect
from onebit.engines.llama_server import Address

_PROBE_TIMEOUT_S = 5.0
_IN_WORK = re.compile(rb"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)
_COUNTER = re.compile(rb"^llamacpp:(spec_decode_num_\w+_tokens_total) (\d+)", re.MULTILINE)


class EngineClient:
    """Requests to one engine process. Ends with that process: a restart makes a new one.

    Every method raises OSError when the engine is gone, hangs, or talks nonsense.
    """

    def __init__(self, address: Address, api_key: str) -> None:
        self.address = address
        self.key = api_key
        self._head = f"Host: engine\r\nAuthorization: Bearer {api_key}\r\nContent-Type: application/json\r\n".encode()
        self._open: set[Response] = set()
        self._closed = False
        self.last_byte = monotonic()  # when the engine last sent anything that was asked for
        # Sequences, by what the engine has been asked for:
        self.live = 0  # streams that have begun and are still wanted
        self.sent = 0  # streams whose headers have not come
        self.whole = 0  # answers that come in one piece: nothing is heard of them before their end
        self._asking = anyio.Lock()
        self._asked = (0.0, 0)  # when in_work was last asked, and the answer

    @property
    def busy(self) -> bool:
        """True while something is expected of the engine."""
        return bool(self.live or self.sent or self.whole)

    async def post(self, path: str, body: bytes) -> Response:
        """Send a JSON body. `begun` of the response waits for its headers, `done` ends it."""
        return await self._send(b"POST", path, body)

    def done(self, response: Response) -> None:
        """The answer is complete, or nobody wants the rest of it."""
        self._open.discard(response)
        response.close()

    def touch(self) -> None:
        """Something came from the engine just now."""
        self.last_byte = monotonic()

    async def healthy(self) -> bool:
        """True when the model is loaded and the engine answers."""
        status, _ = await self._get("/health", _PROBE_TIMEOUT_S)
        return status == 200

    async def in_work(self, timeout: float = _PROBE_TIMEOUT_S) -> int:
        """Sequences the engine works on or has queued.

        The answer comes from the decode loop, between two batches: an engine whose loop hangs does not answer.
        """
        return sum(int(n) for n in _IN_WORK.findall(await self._metrics(timeout)))

    async def in_work_now(self) -> int:
        """in_work, asked once for all who want to know at the same time.

        A thousand clients that leave together must not become a thousand questions.
        """
        wanted = monotonic()
        async with self._asking:
            if self._asked[0] < wanted:
                started = monotonic()
                self._asked = (started, await self.in_work())
            return self._asked[1]

    async def drafts(self) -> tuple[int, int]:
        """(drafted, accepted) tokens since the start."""
        counters = dict(_COUNTER.findall(await self._metrics(_PROBE_TIMEOUT_S)))
        names = (b"spec_decode_num_draft_tokens_total", b"spec_decode_num_accepted_tokens_total")
        drafted, accepted = (int(counters.get(name, 0)) for name in names)
        return drafted, accepted

    def close(self) -> None:
        """End all requests: those that wait for an answer fail with OSError."""
        self._closed = True
        for response in tuple(self._open):
            response.close()

    async def _metrics(self, timeout: float) -> bytes:
        status, body = await self._get("/metrics", timeout)
        if status != 200:
            raise ConnectionError(f"/metrics answered {status}")
        return body

    async def _get(self, path: str, timeout: float) -> tuple[int, bytes]:
        async with asyncio.timeout(timeout):
            response = await self._send(b"GET", path)
            try:
                await response.begun()
                return response.status, await response.read()
            finally:
                self.done(response)

    async def _send(self, method: bytes, path: str, body: bytes = b"") -> Response:
        if self._closed:
            raise ConnectionResetError("the engine was stopped")
        head = b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (method, path.encode(), self._head, len(body))
        connection = await connect(self.address)
        response = Response(connection)
        self._open.add(response)
        response.send(head + body)
        return response
