"""What is on offer: a model of the config, fetched, read, and planned, with what it takes of the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onebit.config.model_settings import ModelSettings
from onebit.config.schema import ServedModel
from onebit.engines.choice import about, check_choice
from onebit.engines.plan import Find, Plan, plan
from onebit.errors import ConfigError, ProfileError
from onebit.memory.estimate import estimate
from onebit.memory.gauge import Gauge
from onebit.memory.pools import pool_of
from onebit.memory.rooms import Room
from onebit.models.fingerprint import fingerprint
from onebit.models.gguf_file import ModelInfo, inspect
from onebit.router.adapters import Adapters, NamedAdapter
from onebit.router.pool import view_of
from onebit.router.suit import Suits
from onebit.scheduler.model import ModelSpec
from onebit.scheduler.profile import Grid
from onebit.scheduler.profile_file import find, key_of, read


@dataclass(frozen=True, slots=True)
class Offer:
    """One model, ready to be loaded. Equal ones are the same engines with the same flags."""

    name: str
    served: ServedModel
    plan: Plan
    info: ModelInfo
    beside: tuple[ModelInfo, ...]  # adapters and drafters that are loaded with it
    grid: Grid | None = field(default=None, compare=False)  # what was measured of its two engines together


def prepare(served: ServedModel, resolve: Callable[[str], Path], find: Find, cores: int) -> Offer:
    """Fetch the model, read its header, decide its engines. Raises OnebitError with the place in the config."""
    with served.placed():
        info = inspect(resolve(served.settings.model))
    choice = check_choice(served.adapters, info, inspect)  # each has a place of its own
    with served.placed():
        decided = plan(served.settings, info, find, inspect, cores, choice)
        first = decided.engines[0]
        files = [adapter.path for adapter in (*first.adapters, *first.choice)]
        if first.draft is not None and first.draft.model is not None:
            files.append(first.draft.model)
        beside = tuple(inspect(file) for file in files)
        return Offer(decided.alias, served, decided, info, beside, _grid(served.settings, decided))


def _grid(settings: ModelSettings, decided: Plan) -> Grid | None:
    """The profile for these two engines, if one was measured. Raises ProfileError for a damaged or a wrong file."""
    if not settings.adaptive or len(decided.engines) != 2 or settings.profile == "off":
        return None
    first, second = decided.engines
    key = key_of(fingerprint(first.model), first, second)
    if settings.profile == "auto":
        profile = find(key)
    else:
        profile = read(Path(settings.profile).expanduser())
        if profile.key != key:
            raise ProfileError(
                f"{settings.profile} was measured for another model, build, device or other flags",
                hint=f"measured: {profile.key.first} + {profile.key.second}; now: {key.first} + {key.second}",
            )
    return None if profile is None else profile.grid(first.draft.length if first.draft is not None else 0)


def adapters_of(offer: Offer) -> Adapters | None:
    """The adapters that requests may choose, as the router knows them; None: there are none."""
    listed = offer.served.adapters
    if not listed:
        return None
    always = offer.plan.engines[0].adapters
    files = offer.beside[len(always) :]  # in this order: those for every request, those to choose from, a drafter
    named = [
        NamedAdapter(number, one.name, one.scale, about(one, file))
        for number, (one, file) in enumerate(zip(listed, files, strict=False), len(always))
    ]
    suits = Suits([adapter.about for adapter in named])
    return Adapters(offer.name, [adapter.scale for adapter in always], named, suits)


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
    views = (view_of(spec) for spec in offer.plan.engines)
    return ModelSpec(
        offer.name,
        # With a profile the limit is not fixed: what was measured says when the second engine pays.
        tuple(replace(view, row_limit=None) if offer.grid is not None else view for view in views),
        {pool: min(size, rooms[pool].total) for pool, size in needs.items()},
        cards,
        pinned=bool(settings.pin),
        preload=bool(settings.preload),
        idle_unload=settings.idle_unload,
        grid=offer.grid,
        hold_gain=settings.hold_gain,
    )
