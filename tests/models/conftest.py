"""A models folder of its own for every test, a real web server, and the real demo model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from onebit import paths
from onebit.models.pull import pull
from onebit.models.report import silent
from tests.models.web import WebServer


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the folder in it does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return paths.models_dir()


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server on a port of the loopback interface."""
    server = WebServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, really pulled with pip into an empty cache; pip's own cache keeps the download."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CACHE_DIR", str(platformdirs.user_cache_path("pip")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return pull("demo", silent)
