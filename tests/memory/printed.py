"""What a real llama-server says of its buffers, and what its process then holds."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from onebit.engines.llama_server import Address, arguments, environment
from onebit.engines.spec import EngineSpec
from onebit.memory.footprint import process_bytes

MIB = 1 << 20
_BUFFER = re.compile(r"(\S+) +(model|LoRA|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
_GROUPS = {"model": "weights", "LoRA": "weights", "KV": "cache", "RS": "cache", "output": "compute"}


@dataclass(frozen=True, slots=True)
class Printed:
    """MiB, as printed with two digits."""

    weights: float
    cache: float
    compute: float
    lines: int
    held: float  # PSS after a request


def printed(spec: EngineSpec, folder: Path) -> Printed:
    """Start the engine at `-lv 4`, ask it for a few tokens, read its log and its PSS, and end it."""
    path = folder / "e.sock"
    path.unlink(missing_ok=True)
    argv = arguments(replace(spec, extra=(*spec.extra, "-lv", "4")), Address(path))
    child = subprocess.Popen(
        argv, env=environment(spec, "k", os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    groups: Counter[str] = Counter()
    compute: dict[tuple[int, str], float] = {}  # by context and backend: a later line replaces an earlier one
    lines: list[str] = []
    buffers = contexts = 0
    try:
        with child.stdout:
            for line in child.stdout:
                lines.append(line)
                if found := _BUFFER.search(line):
                    buffers += 1
                    contexts += found[2] == "output"  # the first line of each context
                    if found[2] == "compute":
                        compute[contexts, found[1]] = float(found[3])
                    else:
                        groups[_GROUPS[found[2]]] += round(float(found[3]) * 100)
                if "listening on" in line:
                    break
            assert "listening on" in lines[-1], "".join(lines[-20:])
            _ask(path, embeddings=spec.embeddings)
            held = process_bytes(child.pid, True)
    finally:
        child.kill()
        child.wait()
    assert held is not None
    weights, cache, output = (groups[name] / 100 for name in ("weights", "cache", "compute"))
    return Printed(weights, cache, output + sum(compute.values()), buffers, held / MIB)


def _ask(path: Path, *, embeddings: bool) -> None:
    where, what = ("/v1/embeddings", "input") if embeddings else ("/v1/completions", "prompt")
    body = json.dumps({what: "a few words " * 8, "max_tokens": 2}).encode()
    head = f"POST {where} HTTP/1.0\r\nAuthorization: Bearer k\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(100)
        connection.connect(str(path))
        connection.sendall(head.encode() + body)
        answer = connection.makefile("rb").read()
    assert b" 200 OK" in answer[:40], answer[:400]
