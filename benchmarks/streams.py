"""A thousand streams open at once through the router: none lost, none mixed up, and what they cost in memory.

A scripted engine with 1,000 slots answers each stream with that stream's own text, holds all of them open after
four chunks, and goes on when told to. Every chunk of every stream is checked. The memory is the router process's
alone (/proc/PID/smaps_rollup), with 0, 200 and 1,000 streams held open. Goal: 100 MB or less with 200.
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from benchmarks import _common as common
from tests.support import fake_build
from tests.support.fake_answers import chunk_text
from tests.support.fake_script import FakeScript

HELD_AFTER = 4  # chunks
TOKENS = 32


def memory_mb(pid: int) -> dict[str, float]:
    """RSS, PSS and the highest RSS so far of one process, in MB (10^6 bytes)."""
    kilobytes = {}
    for source in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{pid}/{source}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss", "VmHWM"):
                kilobytes[name] = int(value.split()[0])
    return {name: value * 1024 / 1e6 for name, value in kilobytes.items()}


@dataclass(slots=True)
class Stream:
    """One stream and what came of it."""

    text: str = field(default_factory=lambda: f"stream {secrets.token_hex(8)}")
    raw: bytes = b""
    failure: str | None = None

    async def read(self, client: aiohttp.ClientSession, model: str, held: asyncio.Semaphore) -> None:
        """Ask, and read to the end; `held` is released when the engine holds this stream."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": self.text}]}
        waiting = True
        try:
            async with client.post("/v1/chat/completions", json=body) as response:
                async for piece in response.content.iter_any():
                    self.raw += piece
                    if waiting and self.raw.count(b'"content":"') >= HELD_AFTER:
                        waiting = False
                        held.release()
        except (aiohttp.ClientError, OSError) as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            if waiting:
                held.release()

    def verdict(self) -> str:
        """`right`, `lost` (broken or short) or `mixed up` (a chunk that is not this stream's next one)."""
        lines = [line.removeprefix("data: ") for line in self.raw.decode().split("\n\n") if line]
        if self.failure or not lines or lines[-1] != "[DONE]":
            return "lost"
        chunks = [json.loads(line) for line in lines[:-1]]
        texts = [choice["delta"].get("content") for chunk in chunks for choice in chunk.get("choices", ())]
        said = [text for text in texts if text is not None]
        if any(text != chunk_text(self.text, number) for number, text in enumerate(said)):
            return "mixed up"
        return "right" if len(said) == TOKENS else "lost"


async def measure(folder: Path, counts: Sequence[int]) -> tuple[list[Stream], dict[int, dict[str, float]], int]:
    """Open streams up to each count in turn, weigh the router, let all go on; the last number is the engine's
    own count of requests that it worked on at once."""
    script = FakeScript(tokens=TOKENS, stall_after_chunks=HELD_AFTER)
    build = fake_build.make_fake_build(folder / "build", script)
    most = max(counts)
    with common.onebit(folder, build, common.tiny_gguf(folder), parallel=most) as router:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # this process's; onebit has its own by now
        engine = fake_build.starts(build)[-1].address
        assert engine is not None
        weights = {0: memory_mb(router.pid)}
        streams: list[Stream] = []
        held = asyncio.Semaphore(0)
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(router.url, connector=connector, timeout=timeout) as client,
            asyncio.TaskGroup() as group,
        ):
            for count in counts:
                for _ in range(count - len(streams)):
                    streams.append(Stream())
                    group.create_task(streams[-1].read(client, router.model, held))
                while not all(s.failure or s.raw.count(b'"content":"') >= HELD_AFTER for s in streams):
                    await held.acquire()
                weights[count] = memory_mb(router.pid)
            at_once: int = (await fake_build.read_log(engine))["processing"]
            await fake_build.change(engine, stall_after_chunks=None)
        weights[most]["peak"] = memory_mb(router.pid)["VmHWM"]
    return streams, weights, at_once


async def main() -> None:
    """Measure and print."""
    options = common.arguments(__doc__).parse_args()
    counts = (20, 100) if options.quick else (200, 1000)
    with common.scratch() as folder:
        streams, weights, at_once = await measure(folder, counts)
    verdicts = [stream.verdict() for stream in streams]
    tally = {verdict: verdicts.count(verdict) for verdict in ("right", "lost", "mixed up")}
    rows = [[f"{count:,}", f"{w['Rss']:.1f} MB", f"{w['Pss']:.1f} MB"] for count, w in weights.items()]
    peak = weights[counts[-1]]["peak"]
    outcome = (
        f"{len(streams):,} streams of {TOKENS} chunks, {at_once:,} held open by the engine at once: "
        + ", ".join(f"{number:,} {verdict}" for verdict, number in tally.items())
        + f". The router's highest RSS, while all flowed: {peak:.1f} MB."
    )
    for failure in sorted({stream.failure for stream in streams if stream.failure}):
        outcome += f"\n- {failure}"
    common.report(
        options,
        "Many streams",
        [common.table(["open streams", "router RSS", "router PSS"], rows), outcome],
        {"memory_mb": weights, "streams": tally, "at_once": at_once},
    )
    sys.exit(0 if tally["right"] == len(streams) == at_once else 1)


if __name__ == "__main__":
    common.run(main())
