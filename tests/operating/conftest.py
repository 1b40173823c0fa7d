"""Servers of several models on fake engines, with a config file that tests edit, and the commands that operate them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import yaml

from tests.support.fake_build import make_fake_build
from tests.support.gguf_files import write_model
from tests.support.serving import Serving, command, serving

PAID, FREE = "sk-paid-4711", "sk-free-4712"
VULKAN = "  Vulkan0: Fake Card (16000 MiB, 15000 MiB free)"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """XDG folders of the test's own; that for sockets is short, for their paths end at 107 bytes."""
    for name in ("CACHE", "CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    runtime = tempfile.mkdtemp(prefix="ob-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("PAID_KEY", PAID)
    monkeypatch.setenv("FREE_KEY", FREE)
    yield tmp_path
    shutil.rmtree(runtime)


@dataclass(slots=True)
class Site:
    """A config file and its server."""

    folder: Path
    config: dict[str, Any]

    @property
    def file(self) -> Path:
        return self.folder / "onebit.yaml"

    def write(self) -> None:
        """Put the config, as it is now, into the file."""
        self.file.write_text(yaml.safe_dump(self.config))

    def serve(self, env: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[Serving]:
        """Its server, up, with a session of the paid key."""
        return self._serve(env)

    @asynccontextmanager
    async def _serve(self, env: Mapping[str, str] | None) -> AsyncIterator[Serving]:
        self.write()
        async with serving("--config", self.file, env=env) as server:
            server.session.headers["Authorization"] = f"Bearer {PAID}"
            yield server


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two models, of which `chat` is loaded at the start; two keys. A stream's end comes after its usage, alone."""
    build = make_fake_build(tmp_path / "build", {"tokens": 3, "last_event_delay_s": 0.01}, devices=[VULKAN])
    write_model(tmp_path / "tiny.gguf")
    config = {
        "memory": "8GiB",
        "llama_server": str(build),
        "keys": [
            {"name": "shop", "key_env": "PAID_KEY", "tier": "paid"},
            {"name": "club", "key_env": "FREE_KEY", "tier": "free"},
        ],
        "models": {
            "chat": {"path": "tiny.gguf", "device": "cpu", "parallel": 2, "preload": True},
            "small": {"path": "tiny.gguf", "device": "cpu", "parallel": 1},
        },
    }
    return Site(tmp_path, config)


def chat(model: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


async def onebit(*args: str, key: str | None = PAID) -> subprocess.CompletedProcess[str]:
    """Run a command of onebit, its output piped."""
    env = {**os.environ, "COLUMNS": "80", **({"ONEBIT_API_KEY": key} if key else {})}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*args), capture_output=True, text=True, env=env, timeout=60, check=False)

    return await anyio.to_thread.run_sync(run)


async def state(server: Serving) -> dict[str, dict[str, Any]]:
    """The models by name, as /v1/engines shows them."""
    async with server.session.get(f"{server.url}/v1/engines") as response:
        assert response.status == 200
        return {model["model"]: model for model in (await response.json())["data"]}
