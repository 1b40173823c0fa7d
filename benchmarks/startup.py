"""How long `onebit --help` takes, beside the Python interpreter alone in the same run. Goal: under 0.3 s.

Byte code is kept between starts, as for any installed package, also where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ONEBIT, Command, Spread, arguments, report, scratch, table


def main() -> None:
    """Run the commands in turn, ten rounds, after one round that fills the caches."""
    options = arguments(__doc__).parse_args()
    commands: dict[str, Command] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "onebit --help": [ONEBIT, "--help"],
        "onebit serve --help": [ONEBIT, "serve", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with scratch() as folder:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
        for number in range((3 if options.quick else 10) + 1):
            for name, argv in commands.items():
                began = time.perf_counter()
                subprocess.run(argv, check=True, capture_output=True, env=env)
                if number:
                    times[name].append(time.perf_counter() - began)
    spreads = {name: Spread.of(values) for name, values in times.items()}
    base = spreads["python -c pass"]
    rows = [
        [f"`{name}`", f"{s.low:.3f} s", f"{s.median:.3f} s", f"{s.low - base.low:.3f} s"] for name, s in spreads.items()
    ]
    report(
        options,
        "Start of the command line",
        [table(["command", "least", "median", "least over the interpreter's"], rows)],
        {"seconds": times},
    )


if __name__ == "__main__":
    main()
