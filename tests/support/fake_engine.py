"""A stand-in for llama-server, run as a real child process, whose timing and faults are scripted.

It speaks llama-server's flags, paths and JSON (aiohttp inside). `--fake-script JSON` holds a `FakeScript`;
`POST /fake` with some of its fields changes it while it runs, `GET /fake/log` tells what it was asked. Both
work without the key and while "loading". Start it through `fake_build.make_fake_build`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tests.support.fake_script import ExitAtStart, FakeScript

# The flags we read. All others are skipped, with the value that may follow them.
_VALUES = {
    "-m": "model",
    "--model": "model",
    "--host": "host",
    "--port": "port",
    "-np": "slots",
    "--parallel": "slots",
    "-c": "context",
    "--ctx-size": "context",
    "-a": "alias",
    "--alias": "alias",
    "--api-key": "key",
    "--fake-script": "script",
}
_SWITCHES = {"--metrics", "--embedding", "--embeddings", "--no-slots", "--version", "--list-devices"}


@dataclass(slots=True)
class Options:
    """The command line. `context` is the total of all slots, as `-c` is."""

    argv: tuple[str, ...]
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    slots: int = 4
    context: int = 4096
    alias: str = ""
    key: str = ""
    script: FakeScript = field(default_factory=FakeScript)
    switches: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Options:
        """Read the flags as llama-server would; exits as it does on a flag that the script refuses."""
        options = cls(tuple(argv))
        options.key = os.environ.get("LLAMA_API_KEY", "")
        words = iter(argv)
        for word in words:
            name = _VALUES.get(word)
            if name == "script":
                options.script = FakeScript.from_json(next(words))
            elif name in ("port", "slots", "context"):
                setattr(options, name, int(next(words)))
            elif name is not None:
                setattr(options, name, next(words))
        options.switches = frozenset(_SWITCHES & set(argv))
        options.alias = options.alias or Path(options.model).name
        for flag in options.script.refuse_flags:
            if flag in argv:
                _leave(ExitAtStart(1, f"error: invalid argument: {flag}\n"))
        return options


class Record:
    """The JSON file that tells tests about one start; numbered, so that the files also count the starts."""

    def __init__(self, options: Options) -> None:
        self.number = 1
        self._path: Path | None = None
        self._argv = list(options.argv)
        if options.script.record_dir is None:
            return
        folder = Path(options.script.record_dir)
        folder.mkdir(parents=True, exist_ok=True)
        while True:  # two engines may start at once: the exclusive create decides
            path = folder / f"{self.number:04}.json"
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                self.number += 1
                continue
            self._path = path
            self.write(None)
            return

    def write(self, address: str | None) -> None:
        """Say where this engine listens: "http://…", "unix:///…", or None while it does not."""
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps({"pid": os.getpid(), "address": address, "argv": self._argv}))
            new.replace(self._path)


def _leave(how: ExitAtStart) -> NoReturn:
    sys.stderr.write(how.stderr)
    sys.stderr.flush()
    if how.signal is not None:
        number = signal.Signals[how.signal]
        with suppress(OSError):  # SIGKILL cannot be set to its default: it has no other
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(how.code)


def main() -> None:
    """Do what the flags say, until a signal ends it."""
    options = Options.parse(sys.argv[1:])
    if "--version" in options.switches:
        sys.stderr.write("version: 0 (fake)\nbuilt with Python for tests\n")
        return
    if "--list-devices" in options.switches:
        lines = options.script.devices or ("(none)",)
        sys.stdout.write("Available devices:\n" + "".join(f"  {line}\n" for line in lines))
        return
    began = time.monotonic()
    record = Record(options)
    script = options.script
    time.sleep(script.start_delay_s)
    fails = script.exit_at_start is not None or script.fail_first_n_starts is not None
    if fails and (script.fail_first_n_starts is None or record.number <= script.fail_first_n_starts):
        _leave(script.exit_at_start or ExitAtStart())

    # aiohttp takes a quarter of a second to import: not for --version, --list-devices and failing starts
    import asyncio

    from tests.support.fake_server import FakeServer

    asyncio.run(FakeServer(options, began).run(record))


if __name__ == "__main__":
    main()
