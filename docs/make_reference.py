"""Write the pages that are made from the code: docs/settings.md and docs/cli.md.

`make docs` runs it; tests/test_docs.py fails when a page is not what this would write.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pydantic_core import PydanticUndefined

from onebit.config.schema import ServeConfig

DOCS = Path(__file__).parent
COMMANDS = (
    (),
    ("serve",),
    ("doctor",),
    ("engines",),
    ("engines", "list"),
    ("engines", "build"),
    ("engines", "add"),
    ("engines", "remove"),
    ("models",),
    ("models", "list"),
    ("models", "pull"),
    ("models", "show"),
    ("models", "rm"),
    ("lora",),
    ("lora", "merge"),
    ("lora", "show"),
    ("lora", "diff"),
)


def settings() -> str:
    """docs/settings.md: a row for every field of the schema."""
    rows = [
        "# Settings of `onebit serve`",
        "",
        "Each has one name: `max_wait` is `max_wait` in the `--config` file, `--max-wait` on the command line and",
        "`ONEBIT_MAX_WAIT` in the environment. The flag wins, then the environment, then the file, then the default.",
        "Times are seconds or `90s`, `2m`, `1h`; sizes are bytes or `512K`, `64MiB`, `1G`. Made from",
        "`src/onebit/config/schema.py` by `make docs`.",
        "",
        "| setting | default | what it does |",
        "| --- | --- | --- |",
    ]
    for name, field in ServeConfig.model_fields.items():
        default = "" if field.default in (None, (), PydanticUndefined) else f"`{_plain(field.default)}`"
        flag = "after `--`" if name == "engine_args" else f"`--{name.replace('_', '-')}`"
        rows.append(f"| `{name}` {flag} | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def cli() -> str:
    """docs/cli.md: what `--help` of every command says."""
    parts = ["# Commands", "", "What `--help` says, written by `make docs`."]
    for command in COMMANDS:
        parts += ["", f"## onebit {' '.join(command)}".rstrip(), "", "```text", _help(command), "```"]
    return "\n".join(parts) + "\n"


def _help(command: tuple[str, ...]) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEBIT_")}
    env |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LINES": "50"}
    argv = [sys.executable, "-m", "onebit", *command, "--help"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n")


PAGES = {"settings.md": settings, "cli.md": cli}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
        print(f"docs/{name}")
