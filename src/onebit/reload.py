"""Another config for a running server: what differs is decided first, then applied in one step, or nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onebit.config.keys import Key
from onebit.config.schema import ServeConfig
from onebit.errors import ConfigError
from onebit.fleet import Fleet
from onebit.memory.arbiter import Arbiter
from onebit.memory.gauge import Gauge
from onebit.memory.policy import Rules
from onebit.offer import Offer, model_spec
from onebit.router.app import App
from onebit.router.keyring import KeyRing
from onebit.scheduler.cards import Cards
from onebit.scheduler.gate import Limits
from onebit.scheduler.model import ModelSpec

_AT_START_ONLY = ("host", "port", "log_format")
_SETTINGS = (
    *("memory", "protect", "min_residency", "max_hold", "grace"),
    *("max_waiting", "max_wait", "max_wait_boost", "max_body"),
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config that was read, with its keys, and its models fetched and planned."""

    config: ServeConfig
    keys: tuple[Key, ...]
    offers: tuple[Offer, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a proposal makes of the models that are served."""

    added: tuple[Offer, ...] = ()
    renewed: tuple[Offer, ...] = ()  # other engines, or other flags for them
    retuned: tuple[Offer, ...] = ()  # the same engines under other rules: they go on running
    removed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # of the whole server, and `keys`

    def __str__(self) -> str:
        """`+small ~chat -old; max_wait, keys`, or that nothing has changed."""
        words = [f"+{offer.name}" for offer in self.added]
        words += [f"~{offer.name}" for offer in (*self.renewed, *self.retuned)]
        words += [f"-{name}" for name in self.removed]
        parts = [" ".join(words), ", ".join(self.settings)]
        return "; ".join(filter(None, parts)) or "nothing has changed"


class Parts(Protocol):
    """What a server is made of; `apply` changes all of it."""

    config: ServeConfig
    keys: tuple[Key, ...]
    offers: dict[str, Offer]
    gauge: Gauge
    cards: Cards
    arbiter: Arbiter
    fleet: Fleet
    app: App


def limits_of(config: ServeConfig, keys: Sequence[Key]) -> Limits:
    """The gate's bounds."""
    caps = tuple((key.name, key.max_in_flight) for key in keys if key.max_in_flight is not None)
    return Limits(config.max_waiting, config.max_wait, config.max_wait_boost, caps)


def rules_of(config: ServeConfig) -> Rules:
    """The policy's times."""
    return Rules(config.protect, config.min_residency, config.max_hold)


def compare(old: Mapping[str, Offer], new: Sequence[Offer], settings: Sequence[str] = ()) -> Changes:
    """Which models come, go, and change."""
    renewed: list[Offer] = []
    retuned: list[Offer] = []
    for offer in new:
        before = old.get(offer.name)
        if before is None or before == offer:
            continue
        (retuned if _same_engines(before, offer) else renewed).append(offer)
    return Changes(
        added=tuple(offer for offer in new if offer.name not in old),
        renewed=tuple(renewed),
        retuned=tuple(retuned),
        removed=tuple(old.keys() - {offer.name for offer in new}),
        settings=tuple(settings),
    )


def _same_engines(one: Offer, other: Offer) -> bool:
    """The same processes with the same flags, and the same choice between them."""

    def engines(offer: Offer) -> tuple[object, ...]:
        settings = offer.served.settings
        choice = settings.start_timeout, settings.profile, settings.hold_gain
        return offer.plan.engines, offer.info, offer.beside, offer.served.adapters, choice

    return engines(one) == engines(other)


def changed_settings(old: ServeConfig, new: ServeConfig, keys_changed: bool) -> list[str]:
    """The server's own settings that differ. Raises ConfigError, naming those that need a new start."""
    wrong = [
        f"{new.source.place((name,))}: it cannot change while the server runs"
        for name in _AT_START_ONLY
        if getattr(old, name) != getattr(new, name)
    ]
    if (old.memory is None) != (new.memory is None):  # pools have other names then
        wrong.append(f"{new.source.place(('memory',))}: it cannot be set or taken away while the server runs")
    if wrong:
        raise ConfigError("\n".join(wrong), hint="start onebit serve again, or take the change back")
    found = [name for name in _SETTINGS if getattr(old, name) != getattr(new, name)]
    if old.keyless_tier is not new.keyless_tier:
        found.append("default_tier")
    return [*found, "keys"] if keys_changed else found


def apply(server: Parts, proposal: Proposal) -> Changes:
    """Make the server what the proposal says. One step without an await: no request sees half of it.

    Raises ConfigError (a setting that cannot change, a model that can never fit) and OSError; then nothing changed.
    """
    config = proposal.config
    settings = changed_settings(server.config, config, server.keys != proposal.keys)
    found = compare(server.offers, proposal.offers, settings)
    specs, totals = _measured(server.gauge, config.memory, proposal.offers)
    pools = {offer.name: server.fleet.build(offer) for offer in (*found.added, *found.renewed)}

    # From here on nothing can fail.
    server.config, server.keys = config, proposal.keys
    server.offers = {offer.name: offer for offer in proposal.offers}
    cards, gate = server.cards, server.cards.gate
    cards.ledger.totals.update(totals)  # pools that no model uses any more stay: a leaving one may hold some
    cards.rules = rules_of(config)
    server.arbiter.grace = config.grace
    server.app.keys = KeyRing(proposal.keys, config.keyless_tier)
    server.app.max_body = config.max_body
    for model in gate.models.values():
        model.needs = {pool: min(size, cards.ledger.totals[pool]) for pool, size in model.needs.items()}
    for name in found.removed:
        server.fleet.remove(name)
        cards.remove(name)
    for offer in found.renewed:
        server.fleet.renew(pools[offer.name])
        cards.renew(specs[offer.name])
    for offer in found.retuned:
        cards.retune(specs[offer.name])
    for offer in found.added:
        server.fleet.add(pools[offer.name])
        cards.add(specs[offer.name])
    gate.set_limits(limits_of(config, proposal.keys))
    cards.rearrange()
    return found


def _measured(gauge: Gauge, memory: int | None, offers: Sequence[Offer]) -> tuple[dict[str, ModelSpec], dict[str, int]]:
    """What each model takes, and what there is of each pool, with this much memory. Raises ConfigError."""
    before, gauge.memory = gauge.memory, memory
    try:
        rooms = gauge.rooms([spec for offer in offers for spec in offer.plan.engines])
        specs = {offer.name: model_spec(offer, rooms, gauge) for offer in offers}
    except BaseException:
        gauge.memory = before
        raise
    return specs, {pool: room.total for pool, room in rooms.items()}
