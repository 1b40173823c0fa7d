"""What is on offer: a model of the config, fetched, read, and planned, with what it takes of the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onebit.config.schema import ServedModel
from onebit.engines.plan import Find, Plan, plan
from onebit.errors import ConfigError
from onebit.memory.estimate import estimate
from onebit.memory.gauge import Gauge
from onebit.memory.pools import pool_of
from onebit.memory.rooms import Room
from onebit.models.gguf_file import ModelInfo, inspect
from onebit.router.pool import view_of
from onebit.scheduler.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Offer:
    """One model, ready to be loaded. Equal ones are the same engines with the same flags."""

    name: str
    served: ServedModel
    plan: Plan
    info: ModelInfo
    beside: tuple[ModelInfo, ...]  # adapters and drafters that are loaded with it


def prepare(served: ServedModel, resolve: Callable[[str], Path], find: Find, cores: int) -> Offer:
    """Fetch the model, read its header, decide its engines. Raises OnebitError with the place in the config."""
    with served.placed():
        info = inspect(resolve(served.settings.model))
        decided = plan(served.settings, info, find, inspect, cores)
        first = decided.engines[0]
        files = [adapter.path for adapter in first.adapters]
        if first.draft is not None and first.draft.model is not None:
            files.append(first.draft.model)
        return Offer(decided.alias, served, decided, info, tuple(inspect(file) for file in files))


def distinct(offers: Sequence[Offer]) -> None:
    """Raises ConfigError when two models would have one name."""
    seen: dict[str, Offer] = {}
    for offer in offers:
        if offer.name in seen:
            raise ConfigError(f"{offer.served.place}: there is a model {offer.name} already")
        seen[offer.name] = offer


def model_spec(offer: Offer, rooms: Mapping[str, Room], gauge: Gauge) -> ModelSpec:
    """What the gate must know. Raises ConfigError when the model can never fit into a budget that the user has set.

    What a device reports is no such budget: there the estimate may be too careful, and the engine has the last word.
    """
    needs: dict[str, int] = {}
    for spec in offer.plan.engines:
        pool = gauge.pool(spec)
        needs[pool] = needs.get(pool, 0) + gauge.needs(spec, estimate(offer.info, spec, offer.beside))
    for pool, size in needs.items():
        if gauge.memory is not None and size > rooms[pool].total:
            raise ConfigError(
                f"{offer.served.place or '--memory'}: {offer.name} takes {size / 2**30:.2f} GiB,"
                f" and there are {rooms[pool].total / 2**30:.2f}",
                hint="fewer slots (--parallel), less context (--ctx-size), a smaller model, or more `memory`",
            )
    cards = frozenset(pool_of(spec.device, spec.build, single=False) for spec in offer.plan.engines)
    settings = offer.served.settings
    return ModelSpec(
        offer.name,
        tuple(view_of(spec) for spec in offer.plan.engines),
        {pool: min(size, rooms[pool].total) for pool, size in needs.items()},
        cards,
        pinned=bool(settings.pin),
        preload=bool(settings.preload),
        idle_unload=settings.idle_unload,
    )
