"""Makes a "build" out of the fake engine, and talks to the engines started from it, past the router."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tests.support.fake_script import FakeScript

if TYPE_CHECKING:
    import aiohttp

_ROOT = Path(__file__).parents[2]


def make_fake_build(folder: Path, script: FakeScript | Mapping[str, Any], *, devices: Sequence[str] = ()) -> Path:
    """Write an executable `llama-server` into `folder` that runs the fake engine; return its path.

    `devices` are lines of --list-devices. Each start leaves a record in `folder/starts` (see `starts`).
    Raises ValueError for a mapping that is not a script.
    """
    if not isinstance(script, FakeScript):
        script = FakeScript().changed(script)
    script = replace(
        script,
        devices=tuple(devices) or script.devices,
        record_dir=script.record_dir or str(folder / "starts"),
    )
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.support.fake_engine", "--fake-script", script.to_json()]
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(_ROOT))} exec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


@dataclass(frozen=True, slots=True)
class FakeStart:
    """One start of a fake engine. `address`: "http://host:port", "unix:///path", or None: never listened."""

    pid: int
    address: str | None
    argv: tuple[str, ...]


def starts(build: Path) -> list[FakeStart]:
    """The starts of this build, oldest first (`--version` and `--list-devices` are none)."""
    found = []
    for path in sorted((build.parent / "starts").glob("*.json")):
        if text := path.read_text():  # empty between its creation and its first write
            record = json.loads(text)
            found.append(FakeStart(record["pid"], record["address"], tuple(record["argv"])))
    return found


@asynccontextmanager
async def session(address: str, key: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """An aiohttp session with `address` as its base; `key` is the API key."""
    import aiohttp

    unix = address.startswith("unix://")
    connector = aiohttp.UnixConnector(address.removeprefix("unix://"), limit=0) if unix else None
    base = "http://engine" if unix else address
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with aiohttp.ClientSession(
        base, connector=connector or aiohttp.TCPConnector(limit=0), headers=headers
    ) as made:
        yield made


async def change(address: str, **fields: Any) -> None:
    """Change the script of a running fake engine, for the requests it has and those to come."""
    async with session(address) as client, client.post("/fake", json=fields) as response:
        if response.status != 200:
            raise ValueError(await response.text())


async def read_log(address: str) -> dict[str, Any]:
    """What a running fake engine has seen: processing, waiting, max_processing, disconnected, requests."""
    async with session(address) as client, client.get("/fake/log") as response:
        log: dict[str, Any] = await response.json()
        return log


async def until_log(address: str, **wanted: int) -> dict[str, Any]:
    """Wait until the log's counters have these values, e.g. `until_log(a, processing=2, waiting=1)`."""
    from aiohttp import ClientError

    while True:
        with suppress(ClientError):  # its socket's backlog may be full: others come in a crowd
            log = await read_log(address)
            if all(log[name] == value for name, value in wanted.items()):
                return log
        await anyio.sleep(0.005)
