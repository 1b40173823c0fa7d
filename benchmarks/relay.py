"""What the router costs a stream that is only passed on, beside nginx and no relay at all.

wrk keeps 16 connections asking for streamed answers of 64 chunks; the relay has one core for itself, wrk and
the engine share another. Rounds are interleaved, so that a busy minute hits all three alike. Goals, in the
default write pattern: onebit at 0.6 of direct or more, and at 0.7 of nginx or more. Needs wrk and nginx.
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
  upstream engine {{ server unix:{socket}; keepalive 32; keepalive_requests 1000000; }}
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
def targets(folder: Path, pattern: str, with_onebit: bool) -> Iterator[dict[str, tuple[str, Path]]]:
    """The three places to ask: name -> (URL, wrk's script)."""
    load_core, relay_core = common.cores()
    socket, port, proxy_port = folder / "direct.sock", common.free_port(), common.free_port()
    engine = common.fast_engine("--pattern", pattern)
    plain = folder / "plain.lua"
    plain.write_text(_LUA.format(model="bench"))
    with ExitStack() as stack:
        listen = ["--host", f"{socket},127.0.0.1", "--port", str(port)]
        log = folder / "engine.log"
        stack.enter_context(common.running(common.pinned(load_core, [*engine, *listen]), log))
        common.wait_ready(f"http://127.0.0.1:{port}/health", log)

        conf = folder / "nginx.conf"
        user = "user root;" if Path("/proc/self").owner() == "root" else ""  # else the worker may not open the socket
        conf.write_text(_NGINX.format(folder=folder, socket=socket, port=proxy_port, user=user))
        log = folder / "nginx.log"
        stack.enter_context(common.running(common.pinned(relay_core, ["nginx", "-c", conf]), log))
        common.wait_ready(f"http://127.0.0.1:{proxy_port}/health", log)
        found = {
            "direct": (f"http://127.0.0.1:{port}", plain),
            "nginx": (f"http://127.0.0.1:{proxy_port}", plain),
        }
        if with_onebit:
            build = common.script_build(folder / "build", common.pinned(load_core, engine))
            served = common.onebit(folder, build, common.tiny_gguf(folder), core=relay_core)
            router = stack.enter_context(served)
            named = folder / "onebit.lua"
            named.write_text(_LUA.format(model=router.model))
            found["onebit"] = (router.url, named)
        yield found


def measure(pattern: str, rounds: int, seconds: int, with_onebit: bool, wrk_core: int) -> dict[str, list[float]]:
    """Answers per second of each target, round by round, after one short round that warms all up."""
    with common.scratch() as folder, targets(folder, pattern, with_onebit) as places:
        rates: dict[str, list[float]] = {name: [] for name in places}
        for number in range(rounds + 1):
            for name, (url, script) in places.items():
                rate = wrk(url, script, seconds if number else 1, wrk_core)
                if number:
                    rates[name].append(rate)
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
        for name, values in rates.items():
            shares = [value / direct for value, direct in zip(values, rates["direct"], strict=True)]
            ratios = [value / nginx for value, nginx in zip(values, rates["nginx"], strict=True)]
            rows.append([pattern, name, Spread.of(values).text(0), Spread.of(shares).text(), Spread.of(ratios).text()])
    head = ["engine writes", "through", "answers/s", "share of direct", "ratio to nginx"]
    note = (
        f"Median (least..most) of {rounds} interleaved rounds of {seconds} s, 16 connections, 64 chunks an "
        "answer, the relay alone on one core. The share of direct depends on how the engine writes: `steps` is "
        "one write per token and request, as a batching engine decodes; `burst` is a whole answer in one write, "
        "which no engine does: it leaves the relay's cost per answer alone."
    )
    report = common.report
    report(options, "Relaying streams", [common.table(head, rows), note], {"answers_per_second": figures})


if __name__ == "__main__":
    main()
