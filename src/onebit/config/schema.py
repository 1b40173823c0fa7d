"""Every setting of `onebit serve`, once: its type, its bounds, its default, what it does.

A setting has one name. `max_wait` is `max_wait` in onebit.yaml, `--max-wait` on the command line and
`ONEBIT_MAX_WAIT` in the environment; the documentation is generated from here. `keys` and `models` are too large for
a flag and stand in the file only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, model_validator

from onebit.config.adapters_section import ListedAdapter
from onebit.config.keys_section import KeyEntry, unique_names
from onebit.config.model_settings import ModelSettings
from onebit.config.models_section import ModelEntry
from onebit.config.problems import problems
from onebit.config.source import Loc, Source
from onebit.config.types import File, ModelName, Seconds, Size, TierOrNone
from onebit.errors import OnebitError
from onebit.tiers import TIERS, Tier

FILE_ONLY = ("keys", "models")
"""Settings without a flag and a variable."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One of the models to serve. Equal ones need no restart when the config is read again."""

    name: str  # as clients call it; of `--model` without an alias, a guess until the file is there
    settings: ModelSettings
    place: str = field(default="", compare=False)  # where the file sets it: "onebit.yaml:9: models.chat"
    adapters: tuple[ListedAdapter, ...] = ()  # those that a request may choose

    @contextmanager
    def placed(self) -> Iterator[None]:
        """What goes wrong inside (a missing device, a broken file) is told with the line that asks for it."""
        try:
            yield
        except OnebitError as error:
            if self.place:
                error.message = f"{self.place}: {error.message}"
                error.args = (error.message,)
            raise


class ServeConfig(ModelSettings):
    """The settings of `onebit serve`; those of a model stand for the one of `--model`, or for all below `models:`."""

    memory: Annotated[
        Size | None,
        Field(description="memory that models may take in all; default: what each device reports, less a reserve"),
    ] = None
    protect: Annotated[
        Seconds, Field(description="time a model is kept from lower tiers after it served a request of a higher one")
    ] = 60.0
    min_residency: Annotated[Seconds, Field(description="time a loaded model stays at least")] = 5.0
    max_hold: Annotated[
        Seconds, Field(description="time the longest-waiting model may be passed over for requests to loaded ones")
    ] = 30.0

    default_tier: Annotated[
        TierOrNone | None,
        Field(
            description="tier of a request without a key: paid, subscriber, free, background, or none to refuse it;"
            " default: none where there are keys, else free"
        ),
    ] = None
    keys: Annotated[
        tuple[KeyEntry, ...],
        AfterValidator(unique_names),
        Field(max_length=10_000, description="API keys with a tier each"),
    ] = ()
    api_key: Annotated[SecretStr | None, Field(description="key(s) of tier paid, comma-separated")] = None
    api_key_file: Annotated[
        File | None, Field(description="file with one key of tier paid a line, readable by its owner only")
    ] = None

    models: Annotated[
        dict[ModelName, ModelEntry], Field(max_length=1024, description="several models instead of one")
    ] = {}  # noqa: RUF012  pydantic copies it

    host: Annotated[str, Field(min_length=1, description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="port to listen on; 0: any free one")] = 8080
    max_waiting: Annotated[
        int, Field(ge=0, le=1_000_000, description="requests that may wait in line before new ones get 429")
    ] = 1024
    max_wait: Annotated[Seconds, Field(description="time a request may wait for a slot before it gets 503")] = 600.0
    max_wait_boost: Annotated[
        Seconds | None,
        Field(description="time in line after which a request is lifted above its tier; default: never"),
    ] = None
    max_body: Annotated[Size, Field(description="largest request body")] = 64 << 20
    grace: Annotated[
        Seconds,
        Field(
            description="time running requests get to finish after the first Ctrl-C, and when their model must make"
            " room"
        ),
    ] = 30.0
    log_format: Annotated[
        Literal["auto", "human", "json"],
        Field(description="a line for each request: human, json, or auto: human on a terminal, else json"),
    ] = "auto"

    _source: Source = PrivateAttr(default_factory=Source)

    @property
    def source(self) -> Source:
        """Where the settings stand."""
        return self._source

    def read_from(self, source: Source) -> Self:
        """The same settings, which stand in `source`."""
        self._source = source
        return self

    @property
    def has_keys(self) -> bool:
        """Is any API key asked for? Whether they can be read is for `read_keys` to say."""
        return bool(self.keys) or self.api_key is not None or self.api_key_file is not None

    @property
    def keyless_tier(self) -> Tier | None:
        """The tier of a request without a key; None: it is refused. Where there are keys the door is shut."""
        if self.default_tier is None:
            return None if self.has_keys else Tier.FREE
        return TIERS.get(self.default_tier)

    def served(self) -> tuple[ServedModel, ...]:
        """The models to serve: those of `models:`, or the one of `--model`, which is loaded at once and stays."""
        if self.models:
            return tuple(
                ServedModel(
                    name,
                    entry.over(name, self),
                    self._source.place(("models", name)),
                    entry.listed(name, self._source),
                )
                for name, entry in self.models.items()
            )
        values = {name: getattr(self, name) for name in ModelSettings.model_fields}
        values["preload"] = self.preload is not False
        values["pin"] = self.idle_unload is None if self.pin is None else self.pin
        values["alias"] = self.alias or ("demo" if self.model == "demo" else None)
        place = self._source.place(("model",)) if self._source.from_file("model") else ""
        return (ServedModel(values["alias"] or _stem(self.model), ModelSettings.model_construct(**values), place),)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        wrong: list[tuple[Loc, str]] = []
        if self.models:
            wrong = [
                (("models",), f"the models are named here, so {name} must not be set too")
                for name in ("model", "alias")
                if name in self.model_fields_set
            ]
        if self.default_tier == "none" and not self.has_keys:
            wrong.append((("default_tier",), "none refuses every request without a key, and there are no keys"))
        if self.pin and self.idle_unload is not None and not self.models:
            wrong.append((("idle_unload",), "a pinned model never leaves: choose pin or idle_unload"))
        if wrong:
            raise problems("config", wrong)
        return self


def _stem(model: str) -> str:
    """A name for what is not fetched yet: `qwen` of qwen.gguf, of hf:me/qwen:Q4 and of https://x/qwen.gguf?y."""
    text = model.removeprefix("hf:").split(":")[0] if model.startswith("hf:") else model.split("?")[0]
    return Path(text.rstrip("/")).stem or model
