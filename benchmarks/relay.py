"""What the router costs a stream that is only passed on, beside nginx and no relay at all.

wrk keeps 16 connections asking for streamed answers of 64 chunks; the relay has one core for itself, wrk and
the engine share another. wrk speaks TCP, to the engine too where no relay is between. A relay reaches its engine
over TCP in one set of rows, which compares like with like, and in the other over a Unix socket, as onebit does by
default: that is faster than TCP, and so a relay may well come out faster than "direct". Rounds are interleaved, so
that a busy minute hits all alike. Goals, in the default write pattern: onebit at 0.6 of direct or more, and at 0.7
of nginx (over the same transport) or more. Needs wrk and nginx.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _common as common
from benchmarks._common import Spread

Target = tuple[str, str]  # what is asked, and the transport from there to the engine
DIRECT: Target = ("direct", "TCP")

_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"Tell me of rain."}}]}}'
"""

_NGINX = """
daemon off;
{user}
worker_processes 1;
error_log {folder}/nginx-error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream engine {{ server {engine}; keepalive 32; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def wrk(url: str, script: Path, seconds: int, core: int) -> float:
    """Answers per second. Ends the benchmark when an answer was not 200 or a connection broke."""
    load: common.Command = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-s", script, f"{url}/v1/chat/completions"]
    done = subprocess.run(common.pinned(core, load), capture_output=True, text=True, check=True)
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        sys.exit(f"{url} failed under load:\n{done.stdout}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    assert found is not None
    return float(found[1])


@contextmanager
def nginx(folder: Path, engine: str, core: int) -> Iterator[str]:
    """nginx in front of `engine` (in its own words: `unix:FILE` or `HOST:PORT`); gives its URL."""
    folder.mkdir()
    port = common.free_port()
    conf = folder / "nginx.conf"
    user = "user root;" if Path("/proc/self").owner() == "root" else ""  # else the worker may not open the socket
    conf.write_text(_NGINX.format(folder=folder, engine=engine, port=port, user=user))
    log = folder / "nginx.log"
    with common.running(common.pinned(core, ["nginx", "-c", conf]), log):
        common.wait_ready(f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def onebit(folder: Path, engine: common.Command, transport: str, core: int) -> Iterator[common.Onebit]:
    """onebit with everything on, and an engine of its own."""
    folder.mkdir()
    # Where a socket's path would be too long for the system (107 bytes), onebit takes a loopback port by itself.
    run = folder / ("deep" * 25 if transport == "TCP" else "run")
    run.mkdir()
    build = common.script_build(folder / "build", engine)
    env = {"XDG_RUNTIME_DIR": str(run)}
    with common.onebit(folder, build, common.tiny_gguf(folder), core=core, env=env) as router:
        sockets = [*run.glob("**/*.sock")]
        assert (not sockets) == (transport == "TCP"), sockets
        yield router


@contextmanager
def targets(folder: Path, pattern: str, with_onebit: bool) -> Iterator[dict[Target, tuple[str, Path]]]:
    """The places to ask, each with its URL and wrk's script."""
    load_core, relay_core = common.cores()
    socket, port = folder / "direct.sock", common.free_port()
    engine = common.pinned(load_core, common.fast_engine("--pattern", pattern))
    plain = folder / "plain.lua"
    plain.write_text(_LUA.format(model="bench"))
    with ExitStack() as stack:
        log = folder / "engine.log"
        listen = ["--host", f"{socket},127.0.0.1", "--port", str(port)]
        stack.enter_context(common.running([*engine, *listen], log))
        common.wait_ready(f"http://127.0.0.1:{port}/health", log)
        found = {DIRECT: (f"http://127.0.0.1:{port}", plain)}
        for transport, address in (("TCP", f"127.0.0.1:{port}"), ("Unix socket", f"unix:{socket}")):
            short = transport[0].lower()
            url = stack.enter_context(nginx(folder / f"n{short}", address, relay_core))
            found["nginx", transport] = (url, plain)
            if with_onebit:
                router = stack.enter_context(onebit(folder / f"o{short}", engine, transport, relay_core))
                named = folder / f"{short}.lua"
                named.write_text(_LUA.format(model=router.model))
                found["onebit", transport] = (router.url, named)
        yield found


def measure(pattern: str, rounds: int, seconds: int, with_onebit: bool, wrk_core: int) -> dict[Target, list[float]]:
    """Answers per second of each target, round by round, after one short round that warms all up."""
    with common.scratch() as folder, targets(folder, pattern, with_onebit) as places:
        rates: dict[Target, list[float]] = {target: [] for target in places}
        for number in range(rounds + 1):
            for target, (url, script) in places.items():
                rate = wrk(url, script, seconds if number else 1, wrk_core)
                if number:
                    rates[target].append(rate)
    return rates


def main() -> None:
    """Measure both write patterns and print one table."""
    parser = common.arguments(__doc__)
    parser.add_argument("--without-onebit", action="store_true", help="only direct and nginx")
    parser.add_argument("--wrk-beside", choices=["engine", "relay"], default="engine")
    options = parser.parse_args()
    wrk_core = common.cores()[options.wrk_beside == "relay"]
    common.need("wrk", "nginx", "taskset")
    rounds, seconds = (2, 2) if options.quick else (5, 6)
    figures = {
        pattern: measure(pattern, rounds, seconds, not options.without_onebit, wrk_core)
        for pattern in ("steps", "burst")
    }
    rows = []
    for pattern, rates in figures.items():
        for (name, transport), values in rates.items():
            shares = [value / direct for value, direct in zip(values, rates[DIRECT], strict=True)]
            ratio = "–"
            if name == "onebit":
                peers = zip(values, rates["nginx", transport], strict=True)
                ratio = Spread.of([value / peer for value, peer in peers]).text()
            rows.append([pattern, name, transport, Spread.of(values).text(0), Spread.of(shares).text(), ratio])
    head = ["engine writes", "through", "to the engine over", "answers/s", "share of direct", "ratio to nginx"]
    note = (
        f"Median (least..most) of {rounds} interleaved rounds of {seconds} s, 16 connections, 64 chunks an "
        "answer, the relay alone on one core. Direct is wrk at the engine itself, over TCP: the TCP rows are the "
        "like-for-like comparison with it. A Unix socket costs engine and relay less, so those rows can be above "
        "direct; the ratio to nginx is taken at the same transport. How the engine writes: `steps` is one write per "
        "token and request, as a batching engine decodes; `burst` is a whole answer in one write, which no engine "
        "does: it leaves the relay's cost per answer alone."
    )
    rates_by_name = {
        pattern: {" ".join(target): values for target, values in rates.items()} for pattern, rates in figures.items()
    }
    report = common.report
    report(options, "Relaying streams", [common.table(head, rows), note], {"answers_per_second": rates_by_name})


if __name__ == "__main__":
    main()
