"""`keys:` of the config file: who may come in, and in which tier."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from onebit.config.problems import problems
from onebit.config.source import Loc
from onebit.config.types import File, TierName

_WAYS = ("key_env", "key_file", "key")


class KeyEntry(BaseModel):
    """One key. Its name stands in metrics and logs, so it is short and plain; the key itself never does."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[
        str,
        Field(
            max_length=64,
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            description="how metrics and logs call it: letters, digits, `_`, `.`, `-`",
        ),
    ]
    tier: Annotated[TierName, Field(description="paid, subscriber, free or background")]
    max_in_flight: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="requests it may have running at a time; default: any number")
    ] = None
    key_env: Annotated[
        str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="environment variable that holds the key")
    ] = None
    key_file: Annotated[File | None, Field(description="file that holds the key, readable by its owner only")] = None
    key: Annotated[SecretStr | None, Field(description="the key itself; better is one of the other two")] = None

    @property
    def way(self) -> str:
        """The setting that says where the key is."""
        return next(way for way in _WAYS if getattr(self, way) is not None)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [way for way in _WAYS if getattr(self, way) is not None]
        if len(ways) != 1:
            said = f"there is {' and '.join(ways)}" if ways else "there is none"
            raise problems("key", [((), f"it takes one of key_env, key_file and key; {said}")])
        return self


def unique_names(keys: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
    """Refuse two keys of one name: their requests could not be told apart in metrics and logs."""
    first: dict[str, int] = {}
    wrong: list[tuple[Loc, str]] = []
    for index, key in enumerate(keys):
        if key.name in first:
            wrong.append(((index, "name"), f"{key.name} is the name of keys[{first[key.name]}] too; choose another"))
        first.setdefault(key.name, index)
    if wrong:
        raise problems("keys", wrong)
    return keys
