"""The HTTP side of the fake engine: where it listens, who may ask, what it says about itself, how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from tests.support.fake_answers import DIALECTS, Json
from tests.support.fake_work import Work, bad_json, error_answer, read_body

if TYPE_CHECKING:
    from tests.support.fake_engine import Options, Record

_CONTROL_PATHS = {"/fake", "/fake/log"}
_KEYLESS_PATHS = {"/health", "/v1/health"}


class FakeServer:
    """One running fake engine."""

    def __init__(self, options: Options, began: float) -> None:
        self.options = options
        self.work = Work(options, began)
        self._terms = 0
        self._context = options.context // options.slots  # tokens of one slot

    # --- life ----------------------------------------------------------------------------------------------

    async def run(self, record: Record) -> None:
        """Listen as --host and --port say, until a signal ends the process."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 1,000 slots are over the usual 1,024
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_term)
        app = web.Application(client_max_size=1 << 30, middlewares=[self._gatekeeper])
        app.router.add_route("*", "/{path:.*}", self._dispatch)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        addresses = [await self._listen(runner, host) for host in self.options.host.split(",")]
        record.write(addresses[-1])
        while self._loading():  # a change of the script may end it early
            with suppress(TimeoutError):
                await asyncio.wait_for(self.work.changed.wait(), 0.01)
        for address in addresses:  # printed only when loaded, as the real one does
            sys.stderr.write(f"0.00.000.000 I srv  llama_server: listening on {address}\n")
        sys.stderr.flush()
        await loop.create_future()

    async def _listen(self, runner: web.AppRunner, host: str) -> str:
        try:
            if host.endswith(".sock"):
                if Path(host).exists():  # asyncio would unlink it; llama-server fails
                    raise OSError("address already in use")
                await web.UnixSite(runner, host).start()
                return f"unix://{host}"
            await web.TCPSite(runner, host, self.options.port).start()
            return f"http://{host}:{runner.addresses[-1][1]}"
        except OSError:
            where = f"hostname: {host}, port: {self.options.port}"
            sys.stderr.write(f"E srv  start: couldn't bind HTTP server socket, {where}\n")
            sys.stderr.flush()
            os._exit(1)

    def _loading(self) -> bool:
        return self.work.age_s() < self.work.script.start_delay_s + self.work.script.loading_s

    def _on_term(self) -> None:
        script = self.work.script
        if script.ignore_term:
            return
        self._terms += 1
        if not script.term_waits_for_requests:
            os._exit(0)
        if self._terms > 1:
            os._exit(1)
        asyncio.ensure_future(self.work.slots.idle.wait()).add_done_callback(lambda _: os._exit(0))

    # --- who may ask, and what -----------------------------------------------------------------------------

    @web.middleware
    async def _gatekeeper(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path in _CONTROL_PATHS:
            return await handler(request)
        if self.options.key and request.path not in _KEYLESS_PATHS:
            bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.options.key not in (bearer, request.headers.get("X-Api-Key")):
                return error_answer(401, "authentication_error", "Invalid API Key")
        if self._loading():
            return error_answer(503, "unavailable_error", "Loading model")
        return await handler(request)

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        if request.path in DIALECTS and request.method == "POST":
            return await self.work.generate(request)
        endpoint: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/props"): self._props,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/fake"): self._change,
            ("GET", "/fake/log"): self._log,
        }.get((request.method, request.path))
        if endpoint is None:
            return error_answer(404, "not_found_error", "File Not Found")
        return await endpoint(request)

    # --- the endpoints -------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        after = self.work.script.hang_health_after_s
        if after is not None and self.work.age_s() >= after:
            await asyncio.get_running_loop().create_future()
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self.options.alias,
            "aliases": [self.options.alias],
            "tags": [],
            "object": "model",
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": {"vocab_type": 2, "n_vocab": 49152, "n_ctx": self._context, "n_ctx_train": 8192},
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _props(self, _: web.Request) -> web.Response:
        props = {
            "default_generation_settings": {"params": {}, "n_ctx": self._context},
            "total_slots": self.options.slots,
            "model_alias": self.options.alias,
            "model_path": self.options.model,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": "--no-slots" not in self.options.switches,
            "endpoint_metrics": "--metrics" in self.options.switches,
            "chat_template": "",
            "is_sleeping": False,
        }
        return web.json_response(props)

    async def _slots(self, request: web.Request) -> web.Response:
        if "--no-slots" in self.options.switches:
            return error_answer(501, "not_supported_error", "This server does not support slots endpoint.")
        tasks = self.work.slots.task
        if "fail_on_no_slot" in request.query and None not in tasks:
            return error_answer(503, "unavailable_error", "no slot available")
        slots: list[Json] = []
        for number, task in enumerate(tasks):
            slot: Json = {"id": number, "n_ctx": self._context, "speculative": False}
            slot["is_processing"] = task is not None
            slots.append(slot if task is None else {**slot, "id_task": task})
        return web.json_response(slots)

    async def _metrics(self, _: web.Request) -> web.Response:
        if "--metrics" not in self.options.switches:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            return error_answer(501, "not_supported_error", message)
        values = {
            "tokens_predicted_total": sum(entry["tokens"] for entry in self.work.log),
            "requests_processing": self.work.slots.busy,
            "requests_deferred": self.work.slots.waiting,
        }
        kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in values}
        lines = [f"# TYPE llamacpp:{name} {kinds[name]}\nllamacpp:{name} {n}\n" for name, n in values.items()]
        return web.Response(text="".join(lines))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        if body is None:
            return bad_json()
        return web.json_response({"tokens": list(range(len(str(body.get("content", "")).split())))})

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        if not self.options.switches & {"--embedding", "--embeddings"}:
            message = "This server does not support embeddings. Start it with `--embeddings`"
            return error_answer(501, "not_supported_error", message)
        return await self.work.embed(request)

    # --- the script and the log ----------------------------------------------------------------------------

    async def _change(self, request: web.Request) -> web.Response:
        try:
            self.work.change(await request.json())
        except (ValueError, TypeError) as error:
            return error_answer(400, "invalid_request_error", str(error))
        return web.json_response({"ok": True})

    async def _log(self, _: web.Request) -> web.Response:
        work = self.work
        seen = {
            "pid": os.getpid(),
            "now": work.age_s(),
            "processing": work.slots.busy,
            "waiting": work.slots.waiting,
            "max_processing": work.slots.most,
            "terms": self._terms,
            "disconnected": sum(entry["disconnected"] is not None for entry in work.log),
            "requests": work.log,
        }
        return web.json_response(seen)
