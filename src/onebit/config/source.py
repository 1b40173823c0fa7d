"""Where a setting stands: on the command line, or in which line of the config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Loc = tuple[str | int, ...]
"""The way to a setting: ("models", "chat", "engines", 0, "parallel")."""


@dataclass(frozen=True, slots=True)
class Source:
    """The places of all settings. All are equal: where a setting stands is no part of what it says."""

    file: Path | None = field(default=None, compare=False)
    lines: Mapping[Loc, int] = field(default_factory=dict, compare=False)  # every setting of the file, at any depth
    given: frozenset[str] = field(default=frozenset(), compare=False)  # came as flags or environment variables

    def from_file(self, name: str) -> bool:
        """Does the top-level setting `name` come from the file?"""
        return name not in self.given and (name,) in self.lines

    def known(self, loc: Loc) -> Loc:
        """`loc`, without what the file does not say: a list of one may be written without its brackets."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return loc

    def place(self, loc: Loc) -> str:
        """`onebit.yaml:4: models.chat.path`, or `--port (or ONEBIT_PORT)`."""
        name = str(loc[0]) if loc else ""
        if self.file is None or name in self.given:
            return f"--{name.replace('_', '-')} (or ONEBIT_{name.upper()})"
        return f"{self.file}:{self.line(loc) or 1}: {dotted(loc)}".removesuffix(": ")

    def line(self, loc: Loc) -> int:
        """The line `loc` stands on, or would; 0 for the command line."""
        return 0 if loc and loc[0] in self.given else self.lines.get(self.known(loc), 0)


def dotted(loc: Loc) -> str:
    """`models.chat.engines[0].parallel`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
