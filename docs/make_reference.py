"""Write the pages that are made from the code: docs/settings.md and docs/cli.md.

`make docs` runs it; tests/test_docs.py fails when a page is not what this would write.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from onebit.config.adapters_section import AdapterEntry
from onebit.config.keys_section import KeyEntry
from onebit.config.model_settings import ModelSettings
from onebit.config.models_section import EngineEntry, ModelEntry
from onebit.config.schema import FILE_ONLY, ServeConfig

DOCS = Path(__file__).parent
COMMANDS = (
    (),
    ("serve",),
    ("status",),
    ("top",),
    ("logs",),
    ("reload",),
    ("bench",),
    ("bench", "profile"),
    ("bench", "compare"),
    ("bench", "gate"),
    ("bench", "simulate"),
    ("tune",),
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
    ("embed",),
    ("embed", "text"),
    ("embed", "index"),
    ("embed", "search"),
    ("embed", "convert"),
    ("embed", "distill"),
    ("lora",),
    ("lora", "merge"),
    ("lora", "show"),
    ("lora", "diff"),
    ("lora", "explain"),
)


def settings() -> str:
    """docs/settings.md: a row for every field of the schema."""
    return "\n".join(
        [
            "# Settings of `onebit serve`",
            "",
            "Each has one name: `max_wait` is `max_wait` in the `--config` file, `--max-wait` on the command line",
            "and `ONEBIT_MAX_WAIT` in the environment. The flag wins, then the environment, then the file, then the",
            "default. Times are seconds or `90s`, `2m`, `1h`; sizes are bytes or `512K`, `64MiB`, `24GiB`. Relative",
            "paths in the file start at the file's folder, those of flags and variables where you are. Made from",
            "`src/onebit/config/` by `make docs`.",
            "",
            "## A model and its engines",
            "",
            "For the one model of `--model`, or defaults for every model below `models:` (but `model` and `alias`).",
            "",
            *_flags(sorted(ModelSettings.model_fields, key=lambda name: name not in ("model", "alias"))),
            "",
            "## The server",
            "",
            *_flags(n for n in ServeConfig.model_fields if n not in ModelSettings.model_fields and n not in FILE_ONLY),
            "",
            "## `keys:`",
            "",
            "A list in the config file. Each key is in one of `key_env`, `key_file` and `key`. Those of `--api-key`",
            "and `--api-key-file` are called `api-key-1`, `api-key-2`… and have the tier paid.",
            "",
            "```yaml",
            "keys:",
            "  - {name: shop, key_env: SHOP_KEY, tier: paid}",
            "  - {name: members, key_file: members.key, tier: subscriber, max_in_flight: 4}",
            "```",
            "",
            *_table(KeyEntry.model_fields),
            "",
            "## `models:`",
            "",
            "In the config file, instead of `model`: the name clients use, and below it `path`, `engines`, and any",
            "setting of a model and its engines (see above) that is not to be as at the top level. A name has up to",
            "128 characters and no colon. `preload` and `pin` are off here unless they are set.",
            "",
            "```yaml",
            "ctx_size: 8192              # of every model",
            "models:",
            "  chat:  {path: qwen.gguf, engines: [{device: vulkan, parallel: 8}, {device: rocm}], adaptive_at: 8}",
            "  small: {path: tiny.gguf, device: cpu, parallel: 4, ctx_size: 2048, idle_unload: 10m}",
            "```",
            "",
            *_table({name: ModelEntry.model_fields[name] for name in ("path", "engines", "adapters", "max_adapters")}),
            "",
            "Each of `engines` has:",
            "",
            *_table(EngineEntry.model_fields),
            "",
            "Each of `adapters` ([adapters.md](adapters.md)) has a name of letters, digits, `_`, `.` and `-`, and:",
            "",
            *_table(AdapterEntry.model_fields),
            "",
        ]
    )


def _flags(names: Iterable[str]) -> list[str]:
    rows = ["| setting | default | what it does |", "| --- | --- | --- |"]
    for name in names:
        field = ServeConfig.model_fields[name]
        default = "" if field.default in (None, (), PydanticUndefined) else f"`{_plain(field.default)}`"
        flag = "after `--`" if name == "engine_args" else f"`--{name.replace('_', '-')}`"
        rows.append(f"| `{name}` {flag} | {default} | {field.description} |")
    return rows


def _table(fields: Mapping[str, FieldInfo]) -> list[str]:
    rows = ["| setting | what it is |", "| --- | --- |"]
    for name, field in fields.items():
        rows.append(f"| `{name}`{', required' if field.is_required() else ''} | {field.description} |")
    return rows


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20:
        return f"{value >> 20}MiB"
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
