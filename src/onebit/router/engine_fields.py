"""Fields of llama-server's own that clients may send: bounded where one would end the engine, or fill its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from onebit.errors import InvalidRequest

# Tokens that a penalty looks back at. llama-server takes 4 to 8 bytes for each at once, and keeps them: 150 million
# were 1.1 GB (measured). No context is longer than this.
_LAST_N = ("repeat_last_n", "dry_penalty_last_n")
_MAX_LAST_N = 1 << 20

# It reads a grammar by recursion: 20,000 brackets were the end of it, and of everybody's answers (SIGSEGV).
_MAX_DEPTH = 500
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]')  # literals and character classes
_TRIGGERS = (0, 1, 2, 3)  # its kinds; for another it aborts


def check_engine_fields(fields: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what would harm the engine, and with it all who share it."""
    for name in _LAST_N:
        value = fields.get(name)
        if isinstance(value, int | float) and value > _MAX_LAST_N:
            raise InvalidRequest(f"'{name}' must be at most {_MAX_LAST_N}", param=name)
    grammar = fields.get("grammar")
    if isinstance(grammar, str) and grammar.count("(") > _MAX_DEPTH and _depth(grammar) > _MAX_DEPTH:
        raise InvalidRequest(f"'grammar' has more than {_MAX_DEPTH} brackets in one another", param="grammar")
    triggers = fields.get("grammar_triggers")
    if triggers and not (isinstance(triggers, list) and all(map(_is_trigger, triggers))):
        raise InvalidRequest(
            f"'grammar_triggers' is a list of objects whose 'type' is one of {_TRIGGERS}", param="grammar_triggers"
        )


def _is_trigger(one: Any) -> bool:
    kind = one.get("type") if isinstance(one, dict) else None
    return isinstance(kind, int) and kind in _TRIGGERS


def _depth(grammar: str) -> int:
    """Of its brackets. One that is never closed counts to the end."""
    brackets = (1 if c == "(" else -1 for c in _QUOTED.sub("", grammar) if c in "()")
    return max(accumulate(brackets), default=0)
