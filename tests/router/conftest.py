"""Servers with fake engines: to steer time and faults. What the real engine does is tested in end_to_end/."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_build import make_fake_build, starts
from tests.support.gguf_files import write_model
from tests.support.serving import Serving, serving

VULKAN = "  Vulkan0: Fake Card (16000 MiB, 15000 MiB free)"
Serve = Callable[..., AbstractAsyncContextManager[Serving]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny GGUF; the fake engine does not read it, onebit does."""
    return write_model(tmp_path / "tiny.gguf")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XDG folders of the test's own."""
    for name in ("CACHE", "CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def serve(model: Path, home: Path) -> Serve:
    """Start a server whose engines follow `script`; further arguments go to `onebit serve`."""

    def start(script: dict[str, Any] | None = None, *args: str) -> AbstractAsyncContextManager[Serving]:
        build = make_fake_build(home / "build", script or {}, devices=[VULKAN])
        return serving("-m", model, "--alias", "demo", "--llama-server", build, *args)

    return start


def fakes(server: Serving) -> list[str]:
    """The addresses of this server's fake engines, in the order of their names."""
    args = list(map(str, server.args))
    build = Path(args[args.index("--llama-server") + 1])
    latest = {s.argv[s.argv.index("--host") + 1]: str(s.address) for s in starts(build)}
    return [latest[host] for host in sorted(latest)]
