"""Servers with several models: real ones whose answers are known, and fake ones whose time and faults are steered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from onebit.engines.device import Build
from tests.end_to_end.conftest import cpu_build as cpu_build
from tests.end_to_end.conftest import demo as demo
from tests.support.fake_build import make_fake_build, starts
from tests.support.gguf_files import write_model
from tests.support.mtp import build_chain_model
from tests.support.serving import Serving, serving

Serve = Callable[..., AbstractAsyncContextManager[Serving]]


@dataclass(frozen=True, slots=True)
class Known:
    """A real model that answers every chat, and a text that ends in a newline, with the same known words."""

    path: Path
    words: str
    count: int  # of its tokens, without the end


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XDG folders of the test's own: what one server has measured does not steer the next one's memory."""
    for name in ("CACHE", "CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def serve(home: Path) -> Serve:
    """Start a server with this config, as text; relative paths start at the test's own folder."""

    def start(
        config: str, *args: str, env: Mapping[str, str] | None = None, patience: float = 60.0
    ) -> AbstractAsyncContextManager[Serving]:
        file = home / "onebit.yaml"
        file.write_text(config)
        file.chmod(0o600)
        return serving("--config", file, *args, env=env, patience=patience)

    return start


# --- real models ---------------------------------------------------------------------------------------------

# 8,192 tokens in each of 4 slots: 32 MiB of cache, 81 MiB in all by the estimate and 55 to 60 as measured. So there
# is room for one before and after anything has been measured, and never for two. Of the slow one: 211 and 188 MiB.
ROOM_FOR_ONE, ROOM_FOR_ONE_SLOW = "96MiB", "256MiB"
_SHAPE = "device: cpu, ctx_size: 8192, parallel: 4"
_SLOW_SHAPE = "device: cpu, ctx_size: 2048, parallel: 4"
_QUICK = {"a": 200, "b": 210, "c": 220}  # words of the answer: it tells the models apart


@pytest.fixture(scope="session")
def known(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Known]:
    """Three quick models, a, b and c (0.3 ms a token), and a slow one: 3 ms and more, seconds in which to meet it."""
    folder = tmp_path_factory.mktemp("chains")
    shapes: dict[str, dict[str, Any]] = {name: {"layers": 1, "reply": reply} for name, reply in _QUICK.items()}
    shapes["slow"] = {"layers": 8, "d": 512, "ff": 2048, "reply": 600}
    found = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        chain = build_chain_model(folder / f"{name}.gguf", tokenizer=demo, nextn=0, seed=seed, **shape)
        found[name] = Known(chain.path, chain.reply_text(), len(chain.reply))
    return found


@pytest.fixture
def real(cpu_build: Build, known: Mapping[str, Known], serve: Serve) -> Serve:
    """A server with real models and room for one of them. `top`: settings of the server; `model`: of each model."""

    def start(
        *names: str, top: str = "", model: str = "", env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Serving]:
        room = ROOM_FOR_ONE_SLOW if "slow" in names else ROOM_FOR_ONE
        lines = [f"memory: {room}", "min_residency: 0", f"llama_server: {cpu_build.path}", top, "models:"]
        for name in names:
            shape = model or (_SLOW_SHAPE if name == "slow" else _SHAPE)
            lines.append(f"  {name}: {{path: {known[name].path}, {shape}}}")
        return serve("\n".join(lines) + "\n", env=env)

    return start


# --- fake engines --------------------------------------------------------------------------------------------

# The header promises 32 KiB of cache a token; nothing allocates it. With 8,192 tokens in each of 4 slots a model
# takes 1 GiB, whatever its process is measured to hold.
_CACHE = {
    "llama.attention.key_length": 4096,
    "llama.attention.value_length": 4096,
    "llama.context_length": 32_768,
}
FAKE_ROOM = {1: "1500MiB", 2: "2500MiB", 3: "3500MiB"}


class Fakes:
    """Fake models, each with a script of its own."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        self.folder = folder
        self._serve = serve
        self.builds: dict[str, Path] = {}

    def model(self, name: str, script: Mapping[str, Any] | None = None, *, parallel: int = 4, more: str = "") -> str:
        """A line of `models:`. Its memory is the same however many slots it has."""
        file = write_model(self.folder / f"{name}.gguf", extra=_CACHE)
        self.builds[name] = make_fake_build(self.folder / f"build-{name}", script or {})
        shape = f"device: cpu, parallel: {parallel}, ctx_size: {4 * 8192 // parallel}"
        return f"  {name}: {{path: {file}, llama_server: {self.builds[name]}, {shape}{', ' + more if more else ''}}}\n"

    def serve(
        self, *lines: str, room: int = 1, top: str = "min_residency: 0\n", env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Serving]:
        """A server with these models and room for `room` of them. `top`: settings of the server."""
        return self._serve(f"memory: {FAKE_ROOM[room]}\n{top}models:\n{''.join(lines)}", env=env)

    def started(self, name: str) -> int:
        """How often the model's engine was started."""
        return len(starts(self.builds[name]))

    def address(self, name: str) -> str:
        """Where the model's engine listens, or listened last."""
        return str(starts(self.builds[name])[-1].address)

    async def listening(self, name: str) -> str:
        """Wait for the model's first engine to listen, loading or not; return its address."""
        while not (found := starts(self.builds[name])) or found[-1].address is None:
            await anyio.sleep(0.01)
        return found[-1].address


@pytest.fixture
def fakes(home: Path, serve: Serve) -> Fakes:
    """Fake models in the test's folder."""
    return Fakes(home, serve)
