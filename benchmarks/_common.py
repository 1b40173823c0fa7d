"""What the benchmarks share: the machine's facts, statistics, processes, the servers under test, tables."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import random
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ONEBIT = Path(sys.executable).parent / "onebit"
Command = list[str | Path]


# --- the command line, and what is said at the end ---------------------------------------------------------


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: does it run?")
    return parser


def machine() -> dict[str, str]:
    """The facts that a figure needs to be compared with another."""
    model = platform.processor() or "unknown CPU"
    with Path("/proc/cpuinfo").open() as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    git = subprocess.run(
        [shutil.which("git") or "git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    packages = ("uvicorn", "uvloop", "aiohttp")
    return {
        "CPU": f"{model}, {os.cpu_count()} cores",
        "load average": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "commit": git.stdout.strip() or "none",
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(options: argparse.Namespace, title: str, tables: Sequence[str], figures: Mapping[str, Any]) -> None:
    """Print the tables with the machine they came from; write the figures to `--json FILE`."""
    facts = machine()
    where = ", ".join(f"{name} {value}" if name != "CPU" else value for name, value in facts.items())
    print(f"\n## {title}\n\n" + "\n\n".join(tables) + f"\n\n{where}")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, **figures}, indent=2) + "\n")


# --- statistics --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises statistics.StatisticsError for no values."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2, unit: str = "") -> str:
        """`0.86 (0.84..0.88)`."""
        return f"{self.median:,.{digits}f}{unit} ({self.low:,.{digits}f}..{self.high:,.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_error(values: Sequence[float], draws: int = 1000) -> float:
    """Half the width of the median's 95 % interval, by bootstrap."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(draws))
    return (medians[int(0.975 * draws)] - medians[int(0.025 * draws)]) / 2


# --- processes ---------------------------------------------------------------------------------------------


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder with a path short enough for Unix sockets (107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="onebit-bench-") as folder:
        yield Path(folder)


@contextmanager
def running(argv: Command, log: Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A child process with its output in `log`; gives its pid. It ends by TERM, then KILL, with its group."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_ready(url: str, log: Path, limit_s: float = 60) -> None:
    """Wait for `GET url` to give 200. Ends the benchmark with the log's tail when it does not."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  (always http://127.0.0.1)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    sys.exit(f"{url} did not become ready in {limit_s:.0f} s; the end of its log:\n{tail}")


def pinned(core: int | None, argv: Command) -> Command:
    """The command line, bound to one core where taskset exists and a core is wanted."""
    return argv if core is None else ["taskset", "-c", str(core), *argv]


def need(*programs: str) -> None:
    """Ends the benchmark naming every program that is missing."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        sys.exit(f"missing: {', '.join(missing)} (on Debian: apt-get install {' '.join(missing)})")


def cores() -> tuple[int, int]:
    """Two cores of this process's own: one for the load and the engine, one for the relay."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1]


@contextmanager
def core_alone(thread: int, *pids: int) -> Iterator[None]:
    """Give the main thread of a process a core for itself: its other threads, `pids` and this process keep off it."""
    mine = os.sched_getaffinity(0)
    others = mine - {min(mine)}
    if not others:
        sys.exit("a core for the engine alone needs two")
    for pid in (thread, *pids, os.getpid()):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {min(mine)} if int(task.name) == thread else others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


# --- servers under test ------------------------------------------------------------------------------------


def fast_engine(*flags: str) -> Command:
    """The command line of the fast engine."""
    return [sys.executable, ROOT / "benchmarks" / "fast_engine.py", *flags]


def script_build(folder: Path, argv: Command, note: str = "") -> Path:
    """An executable `llama-server` that runs `argv` with the flags it gets; `note` is shell run before."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\n{note}exec {shlex.join(str(word) for word in argv)} "$@"\n')
    path.chmod(0o755)
    return path


def tiny_gguf(folder: Path) -> Path:
    """A well-formed GGUF of a model that nobody will run: for fake engines."""
    import gguf
    import numpy as np

    path = folder / "bench.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("bench")
    writer.add_context_length(8192)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    for name in ("token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight"):
        writer.add_tensor(name, np.zeros(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True, slots=True)
class Onebit:
    """A running `onebit serve`."""

    url: str
    pid: int
    model: str  # the name of the model it serves


@contextmanager
def onebit(
    folder: Path,
    build: Path,
    model: Path,
    *flags: str,
    core: int | None = None,
    parallel: int = 16,
    env: Mapping[str, str] | None = None,
) -> Iterator[Onebit]:
    """`onebit serve` with this build and model, everything on, once it answers /health with 200."""
    port = free_port()
    serve: Command = [ONEBIT, "serve", "-m", model, "--llama-server", build, "--parallel", str(parallel)]
    argv: Command = [*serve, "--host", "127.0.0.1", "--port", str(port), *flags]
    log = folder / "onebit.log"
    url = f"http://127.0.0.1:{port}"
    with running(pinned(core, argv), log, env) as pid:
        wait_ready(f"{url}/health", log)
        with urllib.request.urlopen(f"{url}/v1/models") as answer:  # noqa: S310
            name = json.load(answer)["data"][0]["id"]
        yield Onebit(url, pid, name)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run an async main on uvloop; the load generator must not be the narrow place. TERM ends the servers too."""
    import uvloop

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
