"""Fields of llama-server's own: what would end the engine, or fill its memory, is refused; the rest is not."""

from __future__ import annotations

from typing import Any

import pytest

from onebit.errors import InvalidRequest
from onebit.router.engine_fields import check_engine_fields


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repeat_last_n", 150_000_000),
        ("repeat_last_n", 1.5e8),
        ("dry_penalty_last_n", 2**31 - 1),
        ("grammar", "root ::= " + "(" * 20_000),
        ("grammar", "root ::= " + "(" * 600 + '"a"' + ")" * 600),
        ("grammar", 'root ::= # "\n' + "(" * 600 + '"a"' + ")" * 600 + '# "'),  # the quotes are in comments
        ("grammar", "root ::= " + '(")" ' * 600),  # what closes is text
        ("grammar", 'root ::= <"> ' + "(" * 20_000 + '<">'),  # whatever else an engine may take for text
        ("grammar", "root ::= " + "[" * (1 << 20)),
        ("grammar_triggers", [{"type": 99, "value": "("}]),
        ("grammar_triggers", [{"value": "x"}]),
        ("grammar_triggers", "x"),
    ],
)
def test_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        check_engine_fields({field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repeat_last_n", -1),
        ("repeat_last_n", 4096),
        ("repeat_last_n", None),
        ("dry_penalty_last_n", "64"),
        ("grammar", 'root ::= ("a" | "b") [(] ' + '"(" ' * 600),  # brackets that are text
        ("grammar", "root ::= " + '("a") ' * 600),  # side by side
        ("grammar", "root ::= " + "[" * 900_000 + '"(" ' * 600),  # in time: what is not closed is read once
        ("grammar_triggers", []),
        ("grammar_triggers", [{"type": 1, "value": "x"}]),
    ],
)
def test_taken(field: str, value: Any) -> None:
    check_engine_fields({field: value})
