"""Mistakes that only several settings together show, put where pydantic puts its own."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from onebit.config.source import Loc


def problems(title: str, found: Iterable[tuple[Loc, str]]) -> ValidationError:
    """To raise inside a validator, which prefixes each place with its own. `found`: places and what is wrong there."""
    details: list[InitErrorDetails] = [
        # The message is a parameter of its template, for it may hold braces.
        {"type": PydanticCustomError("onebit", "{message}", {"message": message}), "loc": loc, "input": None}
        for loc, message in found
    ]
    return ValidationError.from_exception_data(title, details)
