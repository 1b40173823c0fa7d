"""The engines of all models, while models come, change and go: what requests find, and what the arbiter looks after."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

from onebit.engines.log_files import log_file
from onebit.engines.state import State
from onebit.engines.supervisor import Engine, Patience
from onebit.memory.arbiter import Home
from onebit.offer import Offer, adapters_of
from onebit.router.pool import Pool

_log = logging.getLogger("onebit.engines")


class Fleet:
    """`pools`: by the name of the model. One that changes keeps its old engines there until the last has ended."""

    def __init__(
        self, run_dir: Path, port: int, homes: dict[str, Home], changed: Callable[[str, Engine], None]
    ) -> None:
        """`homes`: the arbiter's, kept here. `changed`: told the model and its engine that has another state."""
        self.pools: dict[str, Pool] = {}
        self._homes = homes
        self._run_dir = run_dir
        self._port = port
        self._changed = changed
        self._folders = itertools.count()
        self._next: dict[str, Pool] = {}  # to take over when the engines of now have ended
        self._leaving: dict[str, Pool] = {}  # out of the config, and not quite gone
        self._states: dict[Engine, State] = {}

    def build(self, offer: Offer) -> Pool:
        """Its engines, none of them started. Raises OSError when there is no place for their sockets."""
        folder = self._run_dir / str(next(self._folders))  # engines of two models have the same names
        folder.mkdir(mode=0o700)
        engines = {
            spec.name: Engine(
                spec,
                run_dir=folder,
                log=log_file(spec.alias, spec.name, self._port),
                on_change=functools.partial(self._told, offer.name),
                patience=Patience(start=offer.served.settings.start_timeout),
            )
            for spec in offer.plan.engines
        }
        return Pool(offer.name, offer.plan.context, int(time.time()), engines, adapters_of(offer))

    def add(self, pool: Pool) -> None:
        """A model more. One of this name that has not quite left stays until it has."""
        if (old := self._leaving.pop(pool.model, None)) is not None:
            self.pools[pool.model], self._next[pool.model] = old, pool
        else:
            self.pools[pool.model] = pool
            self._move_in(pool)

    def renew(self, pool: Pool) -> None:
        """The model gets these engines: when `renewed` says so."""
        self._next[pool.model] = pool

    def remove(self, name: str) -> None:
        """No request finds the model any more. Its engines live on until `forgotten`."""
        self._next.pop(name, None)
        self._leaving[name] = self.pools.pop(name)

    def renewed(self, name: str) -> None:
        """The old engines have ended. The pool stays, for requests in line hold it; what it holds is new."""
        pool, new = self.pools[name], self._next.pop(name)
        self._forget_states(pool)
        pool.engines, pool.context, pool.adapters = new.engines, new.context, new.adapters  # they number the adapters
        self._move_in(pool)

    def forgotten(self, name: str) -> None:
        """The engines of a removed model have ended."""
        self._forget_states(self._leaving.pop(name))
        del self._homes[name]

    def _move_in(self, pool: Pool) -> None:
        self._homes[pool.model] = Home(tuple(pool.engines.values()))

    def _forget_states(self, pool: Pool) -> None:
        for engine in pool.engines.values():
            self._states.pop(engine, None)

    def _told(self, name: str, engine: Engine) -> None:
        if self._states.get(engine) is not engine.state:  # else it is only doubted, or not any more
            self._states[engine] = engine.state
            _tell(name, engine)
        self._changed(name, engine)


def _tell(name: str, engine: Engine) -> None:
    """A line of the log for an engine that came up, died, or was given up; the rest is told of its model."""
    facts = {"event": f"engine_{engine.state.value}", "model": name, "engine": engine.spec.name, "pid": engine.pid}
    who = f"{name}, engine {engine.spec.name}"
    match engine.state:
        case State.READY:
            again = f" again, restart {engine.restarts}" if engine.restarts else ""
            _log.info("%s: ready%s", who, again, extra={"facts": {**facts, "restarts": engine.restarts}})
        case State.CRASHED:
            _log.warning("%s: it ended: %s", who, engine.cause, extra={"facts": {**facts, "cause": engine.cause}})
        case State.FAILED:
            _log.error("%s: given up: %s", who, engine.cause, extra={"facts": {**facts, "cause": engine.cause}})
