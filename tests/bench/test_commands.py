"""`onebit bench` and `onebit tune` as child processes: what they print, where, and what they refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onebit.bench.recommend import recommend
from onebit.bench.stats import estimate
from onebit.bench.summary import Summary
from onebit.cli import main
from onebit.scheduler.profile import Grid, Profile, ProfileKey
from onebit.scheduler.profile_file import write
from tests.support.fake_build import make_fake_build
from tests.support.gguf_files import write_model
from tests.support.serving import PATIENCE_S, command

CARD = "  Vulkan0: Fake Card (16000 MiB, 15000 MiB free)"


@pytest.fixture
def engine(home: Path) -> list[str]:
    """Flags for a model and a build that are there; the build plays an engine."""
    build = make_fake_build(home / "build", {"tokens": 100_000, "token_delay_s": 0.002}, devices=[CARD])
    return ["-m", str(write_model(home / "tiny.gguf")), "--llama-server", str(build), "-n", "8", "-p", "8"]


def run(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run onebit; both outputs are kept."""
    full = {**os.environ, "COLUMNS": "80", **(env or {})}
    argv = command(*args)
    return subprocess.run(argv, capture_output=True, text=True, env=full, timeout=PATIENCE_S, check=False)


def test_a_sweep_prints_a_table_and_goes_on(engine: list[str], home: Path) -> None:
    file = home / "run.jsonl"
    args = ["bench", *engine, "--device", "cpu,vulkan", "--repeats", "1", "--json", str(file)]
    done = run(*args, "--requests", "1,4")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(r["setup"], r["requests"]) for r in rows] == [("cpu", 1), ("cpu", 4), ("vulkan", 1), ("vulkan", 4)]
    facts = rows[2]["measured_on"]
    assert facts["device"] == "vulkan: Fake Card" and facts["build"] == "0 (fake)" and facts["model"] == "tiny.gguf"
    assert {"cpu", "system", "flags", "model_bytes", "model_fingerprint"} <= facts.keys()
    assert {"began", "load_average", "generator_cores"} <= rows[0]["conditions"].keys()
    assert "vulkan" in done.stdout and "total tok/s" in done.stdout and "█" in done.stdout
    assert "chunks/s" in done.stderr, "its own ceiling"
    refused = run(*args, "--requests", "1,2,4")
    assert refused.returncode == 1 and "--resume goes on with them" in refused.stderr
    more = run(*args, "--requests", "1,2,4", "--resume", "--md")
    assert more.returncode == 0, more.stderr
    assert len(file.read_text().splitlines()) == 6
    assert more.stdout.startswith("| setup | requests | total tok/s (95 %) |")
    assert more.stdout.count("| vulkan |") == 3
    compared = run("bench", "compare", file)
    assert compared.returncode == 0 and "one run" in compared.stdout
    changed = run(*args, "--requests", "1,4", "--resume", "--tokens", "9")
    assert changed.returncode == 1 and "tokens 8, this run has 9" in changed.stderr
    more_slots = run(*args, "--requests", "1,8", "--resume")
    assert more_slots.returncode == 1 and "flags '-np 4" in " ".join(more_slots.stderr.split())


def test_the_router_and_a_url_beside_an_engine(engine: list[str]) -> None:
    done = run(
        "bench", *engine, "--device", "cpu", "--router", "--url", "http://127.0.0.1:1", "-r", "2", "--repeats", "1"
    )
    assert done.returncode == 1, "the URL was left out"
    assert "127.0.0.1:1 left out: 127.0.0.1:1: cannot connect" in done.stderr
    assert "cpu routed" in done.stdout


def test_adaptive_starts_both_engines_behind_the_router(engine: list[str]) -> None:
    flags = ["--adaptive", "--adaptive-at", "1", "--parallel", "1,2"]
    done = run("bench", *engine, "--device", "vulkan,cpu", *flags, "-r", "1,3", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "adaptive at 1" in done.stdout
    small = run("bench", *engine, "--device", "vulkan,cpu", *flags, "-r", "8")
    assert small.returncode == 2 and "3 slots here, 8 requests" in small.stderr


def test_ctrl_c_shows_what_there_is(engine: list[str], home: Path) -> None:
    file = home / "run.jsonl"
    argv = command("bench", *engine, "--device", "cpu", "-r", "1", "--repeats", "500", "--json", str(file))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stdout is not None
    rows = 0
    for line in process.stderr:
        rows += line.strip().endswith("tok/s")
        if rows == 2:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "total tok/s" in out and len(file.read_text().splitlines()) >= 2


def test_profile_stores_and_checks(engine: list[str], home: Path) -> None:
    args = ["bench", "profile", *engine, "--device", "vulkan,cpu", "--parallel", "2,1", "--seconds", "0.1"]
    done = run(*args, "--check", "1,2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    (stored,) = (home / "cache" / "onebit" / "profiles").glob("*.json")
    data = json.loads(stored.read_text())
    assert [point[:2] for point in data["grids"]["0"]] == [[0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert "Fake Card" in data["key"]["first"] and str(stored.name) in done.stderr
    again = run(*args)
    assert again.returncode == 0 and "starting" not in again.stderr, "all is known already"
    longer = run(*args, "--tokens", "16", "--budget", "0s")
    assert "the profile there is of 8 and 8 tokens; it is measured anew" in longer.stderr, longer.stderr
    assert len(json.loads(stored.read_text())["grids"]["0"]) == 1, "the two are never mixed"


def test_a_simulation_is_held_against_a_live_run(engine: list[str], home: Path) -> None:
    profile = write(Profile(ProfileKey("f", "a", "b"), {0: Grid({(1, 0): 500.0, (0, 1): 500.0, (1, 1): 1000.0})}), {})
    trace, live = home / "trace.jsonl", home / "live.jsonl"
    trace.write_text("".join(f'{{"at": {0.02 * i}, "tokens": 8}}\n' for i in range(12)))
    load: list[str | Path] = ["--adaptive-at", "1", "--trace", trace]
    measured = run("bench", *engine, "--device", "vulkan,cpu", "--adaptive", "-np", "1", *load, "--json", live)
    assert measured.returncode == 0, measured.stderr
    done = run("bench", "simulate", profile, *load, "--live", live)
    assert done.returncode == 0, done.stderr
    *_, line = [line for line in done.stdout.splitlines() if line.strip().startswith("total tok/s ")]
    _, _, as_it_was, as_simulated, error = line.split()
    said = float(as_simulated.replace(",", "")) / float(as_it_was.replace(",", "")) - 1
    assert abs(said - float(error.rstrip("%")) / 100) < 0.02
    refused = run("bench", "simulate", profile, "--trace", trace, "--live", live)
    assert refused.returncode == 1, refused.stderr
    assert "0 runs of 'adaptive at 8'" in " ".join(refused.stderr.split()) and "adaptive at 1" in refused.stderr


def test_tune_prints_command_lines(engine: list[str]) -> None:
    done = run("tune", *engine, "--device", "cpu", "--users", "3", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    for who, slots in (("one person", 1), ("3 at once", 3)):
        at = done.stdout.index(f"for {who}")
        assert f"--device cpu --parallel {slots}" in done.stdout[at:]
    assert "for many" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--requests", "0"], "--requests 0: not numbers from 1 to 1,024"),
        (["--requests", "1,many"], "not numbers"),
        (["--requests", "99999"], "not numbers"),
        (["--tokens", "0"], "--tokens 0: it goes from 4"),
        (["--tokens", "2000000"], "--tokens"),
        (["--prompt-tokens", "-1"], "--prompt-tokens -1"),
        (["--repeats", "0"], "--repeats 0"),
        (["--shared-prefix", "64"], "leaves nothing of a prompt of 64"),
        (["--rate", "0"], "--rate 0: it goes from"),
        (["--rate", "nan"], "--rate nan"),
        (["--rate", "1", "--trace", "x"], "both say when requests come"),
        (["--duration", "5"], "--duration is for an open loop"),
        (["--trace", "/none"], "cannot read the trace /none"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--api", "soap"], "--api soap"),
        (["--resume"], "--resume goes on with a file"),
        (["--mtp", "1,x"], "--mtp 1,x"),
        (["--url", "nowhere"], "--url nowhere"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE: that variable is not set"),
        (["--plot", "x.gif"], "the name ends in .svg, .png, .pdf"),
        (["--model", "/none.gguf"], "/none.gguf"),
        (["profile", "--device", "cpu"], "a profile is of two engines"),
        (["profile", "--parallel", "0,4"], "--parallel 0,4"),
        (["profile", "--budget", "soon"], "--budget soon"),
        (["compare", "/none.jsonl"], "cannot read /none.jsonl"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(
    args: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["onebit", "bench", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code in (1, 2) and words in " ".join(said.split()), said
    assert "Traceback" not in said and said.startswith("error: ")


def test_a_device_that_is_not_there_is_left_out(engine: list[str]) -> None:
    done = run("bench", *engine, "--device", "rocm,cpu", "-r", "1", "--repeats", "1")
    assert done.returncode == 1 and "left out" in done.stderr and "cpu" in done.stdout
    alone = run("bench", *engine, "--device", "rocm", "-r", "1")
    assert alone.returncode == 1 and "shows no rocm device" in alone.stderr and not alone.stdout


def test_a_model_without_a_head_is_told_so(engine: list[str]) -> None:
    done = run("bench", *engine, "--device", "cpu", "--mtp", "1,2", "-r", "1")
    assert done.returncode == 1 and "no multi-token prediction head" in done.stderr


def test_a_plot(engine: list[str], home: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, magic in (("curve.svg", b"<?xml"), ("curve.png", b"\x89PNG")):
        done = run("bench", *engine, "--device", "cpu", "-r", "1,2", "--repeats", "1", "--plot", home / name)
        assert done.returncode == 0, done.stderr
        assert (home / name).read_bytes().startswith(magic)
    assert not list(home.glob(".curve*"))


def _row(setup: str, requests: int, total: float) -> Summary:
    found = estimate([total])
    none = dict.fromkeys(("prompt", "ttft", "gap", "acceptance", "agreement", "per_cpu_second", "to_one"))
    return Summary(setup, requests, 1, found, total / requests, **none, errors=0, queued=False)


def test_advice_is_the_fastest_for_whom_it_is() -> None:
    """One person: MTP. Many: 16 make 68.0, but 12 already 66.0, so 12. A crowd of 4: Vulkan."""
    rows = [_row("mtp", 1, 24.9), _row("vulkan", 1, 11.8), _row("vulkan", 4, 36.9), _row("mtp", 4, 24.9)]
    rows += [_row("rocm", 4, 30.2), _row("rocm", 12, 66.0), _row("rocm", 16, 68.0)]
    flags = {name: ("--device", name) for name in ("mtp", "vulkan", "rocm")}
    one, many, crowd = recommend(rows, flags, 4)
    assert (one.setup, one.flags) == ("mtp", ("--device", "mtp", "--parallel", "1"))
    assert (many.setup, many.requests) == ("rocm", 12)
    assert (crowd.who, crowd.setup) == ("4 at once", "vulkan")
    assert recommend([], flags, 4) == []
