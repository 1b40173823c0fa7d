"""`models:` of the config file: several models, each with settings of its own over the defaults of the top level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from onebit.config.adapters_section import MAX_ADAPTERS, AdapterEntry, AdapterName, ListedAdapter
from onebit.config.model_settings import MAX_ENGINES, EngineDefaults, Layers, ModelSettings, Slots, Threads
from onebit.config.problems import problems
from onebit.config.source import Source
from onebit.config.types import DeviceName, ModelPath

_PER_ENGINE = ("parallel", "n_gpu_layers", "threads")


class EngineEntry(BaseModel):
    """One engine of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Annotated[DeviceName, Field(description="cpu, vulkan, rocm, cuda, metal, or vulkan:1")]
    parallel: Annotated[Slots | None, Field(description="its slots")] = None
    n_gpu_layers: Annotated[Layers | None, Field(description="its layers on the GPU; default: all")] = None
    threads: Annotated[Threads | None, Field(description="its CPU threads")] = None


class ModelEntry(EngineDefaults):
    """One model below `models:`."""

    path: Annotated[ModelPath, Field(description="GGUF file, `demo`, `hf:owner/repo:quant` or URL")]
    engines: Annotated[
        tuple[EngineEntry, ...] | None,
        Field(
            min_length=1,
            max_length=MAX_ENGINES,
            description="its engines instead of `device` and `parallel`; two with `adaptive_at`: first and overflow",
        ),
    ] = None
    adapters: Annotated[
        dict[AdapterName, AdapterEntry],
        Field(max_length=MAX_ADAPTERS, description="LoRA adapters that a request may choose, by name"),
    ] = {}  # noqa: RUF012  pydantic copies it
    max_adapters: Annotated[
        int,
        Field(ge=1, le=MAX_ADAPTERS, description="adapters each of its engines may hold in memory (default 64)"),
    ] = 64

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        said = self.model_fields_set
        wrong = []
        if self.engines is not None:
            wrong = [
                ((name,), f"engines sets it already: write {name} there")
                for name in ("device", *_PER_ENGINE)
                if name in said
            ]
            if len(self.engines) != 2 and (self.adaptive or "adaptive_at" in said):
                name = "adaptive_at" if "adaptive_at" in said else "adaptive"
                count = len(self.engines)
                wrong.append(((name,), f"it takes two engines, the first and the overflow; there are {count}"))
        if len(self.adapters) > self.max_adapters:
            wrong.append(
                (
                    ("adapters",),
                    f"{len(self.adapters)} adapters, and an engine holds all of them in memory at once:"
                    f" at most {self.max_adapters} unless max_adapters says more",
                )
            )
        if self.pin and self.idle_unload is not None:
            wrong.append((("idle_unload",), "a pinned model never leaves: choose pin or idle_unload"))
        if wrong:
            raise problems("model", wrong)
        return self

    def listed(self, name: str, source: Source) -> tuple[ListedAdapter, ...]:
        """Its adapters, each with its place in the config file."""
        return tuple(
            ListedAdapter(
                adapter, entry.path, entry.scale, entry.about, source.place(("models", name, "adapters", adapter))
            )
            for adapter, entry in self.adapters.items()
        )

    def over(self, name: str, defaults: EngineDefaults) -> ModelSettings:
        """The whole of it: what this entry says, over `defaults`."""
        said = {field: getattr(self, field) for field in self.model_fields_set if field in EngineDefaults.model_fields}
        values: dict[str, Any] = {field: getattr(defaults, field) for field in EngineDefaults.model_fields} | said
        if self.engines is not None:
            values["device"] = tuple(engine.device for engine in self.engines)
            for field in _PER_ENGINE:
                given = (getattr(engine, field) for engine in self.engines)
                values[field] = _filled(given, values[field])
            at = self.model_fields_set | defaults.model_fields_set
            values["adaptive"] = len(self.engines) == 2 and (values["adaptive"] or "adaptive_at" in at)
        values["preload"], values["pin"] = bool(values["preload"]), bool(values["pin"])
        if values["pin"]:
            values["idle_unload"] = None
        # Every value was validated where it was written; to do so again would only ask the disk a second time.
        return ModelSettings.model_construct(**values, model=self.path, alias=name)


def _filled(given: Iterable[int | None], defaults: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """What the engines say; for one that says nothing the default of its place, or the last there is."""
    return tuple(
        defaults[min(place, len(defaults) - 1)] if value is None and defaults else value
        for place, value in enumerate(given)
    )
