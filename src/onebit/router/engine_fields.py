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

# It reads a grammar by recursion: 20,000 brackets in one another were the end of it, and of everybody's answers
# (SIGSEGV), 16,000 were not. All brackets are counted as well, for what is text among them is the engine's to say.
_MAX_DEPTH = 500
_MAX_BRACKETS = 5_000
_MAX_GRAMMAR = 1 << 20  # characters; larger ones would hold up the router as they are read
# Literals, character classes and comments, to the end where they are not closed: nothing is read twice.
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\n]*|[()]', re.DOTALL)
_STEPS = {"(": 1, ")": -1}
_TRIGGERS = (0, 1, 2, 3)  # its kinds; for another it aborts


def check_engine_fields(fields: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what would harm the engine, and with it all who share it."""
    for name in _LAST_N:
        value = fields.get(name)
        if isinstance(value, int | float) and value > _MAX_LAST_N:
            raise InvalidRequest(f"'{name}' must be at most {_MAX_LAST_N}", param=name)
    grammar = fields.get("grammar")
    if isinstance(grammar, str):
        _check_grammar(grammar)
    triggers = fields.get("grammar_triggers")
    if triggers and not (isinstance(triggers, list) and all(map(_is_trigger, triggers))):
        raise InvalidRequest(
            f"'grammar_triggers' is a list of objects whose 'type' is one of {_TRIGGERS}", param="grammar_triggers"
        )


def _is_trigger(one: Any) -> bool:
    kind = one.get("type") if isinstance(one, dict) else None
    return isinstance(kind, int) and kind in _TRIGGERS


def _check_grammar(grammar: str) -> None:
    if len(grammar) > _MAX_GRAMMAR:
        raise InvalidRequest(f"'grammar' is over {_MAX_GRAMMAR} characters", param="grammar")
    if max(grammar.count("("), grammar.count(")")) > _MAX_BRACKETS:
        raise InvalidRequest(f"'grammar' has more than {_MAX_BRACKETS} brackets", param="grammar")
    if grammar.count("(") > _MAX_DEPTH:
        depths = accumulate(_STEPS.get(token, 0) for token in _TOKENS.findall(grammar))
        if max(depths, default=0) > _MAX_DEPTH:
            raise InvalidRequest(f"'grammar' has more than {_MAX_DEPTH} brackets in one another", param="grammar")
