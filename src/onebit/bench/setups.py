"""From what a user asks to have measured to setups: which engines, which draft lengths, through the router or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebit.bench.target import EngineSetup, ServeSetup, Setup
from onebit.config.load import load
from onebit.config.schema import ServeConfig
from onebit.engines.plan import Find, Plan, plan
from onebit.errors import ConfigError, OnebitError
from onebit.models.gguf_file import ModelInfo

_CONTEXT_STEP = 256
_SPARE_TOKENS = 64  # the prompt's length is an estimate, and chat templates add to it


@dataclass(frozen=True, slots=True)
class Wish:
    """What shall be measured. `settings`: of `onebit serve`, by name, as its flags give them."""

    settings: Mapping[str, Any]
    devices: tuple[str, ...]
    requests: tuple[int, ...]
    tokens: int  # of a prompt and its answer
    mtp: tuple[int, ...] = ()  # draft lengths, 0: without; empty: as `settings` says
    adaptive: bool = False
    router: bool = False
    run_dir: Path = Path()


class Planner:
    """Plans engines the way `onebit serve` does, so that what is measured is what will be served."""

    def __init__(
        self, wish: Wish, info: ModelInfo, find: Find, inspect: Callable[[Path], ModelInfo], cores: int
    ) -> None:
        self.wish = wish
        self.info = info
        self.skipped: list[OnebitError] = []  # devices that are not there: the others are measured all the same
        self.find = find
        self._inspect = inspect
        self._cores = cores

    def with_wish(self, wish: Wish) -> Planner:
        """The same for another wish."""
        return Planner(wish, self.info, self.find, self._inspect, self._cores)

    def config(self, **more: Any) -> ServeConfig:
        """The settings of one setup. Raises ConfigError."""
        given = {"ctx_size": self._context(), "alias": "bench", **self.wish.settings, **more}
        return load({name: value for name, value in given.items() if value is not None})

    def plan(self, **more: Any) -> Plan:
        """The engines of one setup. Raises ConfigError, ModelFileError, NoBuild."""
        return plan(self.config(**more), self.info, self.find, self._inspect, self._cores)

    def setups(self) -> list[Setup]:
        """All setups. Raises the first device's error when none of them can be measured."""
        wish = self.wish
        found: list[Setup] = []
        devices: Sequence[str | None] = tuple(dict.fromkeys(wish.devices)) or (None,)
        for device in devices:
            try:
                for length in wish.mtp or (None,):
                    found += self._of_device(device, length)
            except OnebitError as error:
                self.skipped.append(error)
        if wish.adaptive:
            found.append(self._adaptive())
        if not found:
            raise self.skipped[0]
        return found

    def _of_device(self, device: str | None, length: int | None) -> list[Setup]:
        wish = self.wish
        drafting = {} if length is None else {"mtp": length > 0, "draft_max": length or None}
        wanted = {"device": device, "parallel": max(wish.requests), **drafting}
        decided = self.plan(**wanted)
        (spec,) = decided.engines
        name = spec.name + ("" if length is None else f" mtp {length}" if length else " no mtp")
        timeout = self.config(**wanted).start_timeout
        flags: tuple[str, ...] = ("--device", str(spec.device))
        if spec.draft is not None:
            flags += ("--mtp", "--draft-max", str(spec.draft.length))
        found: list[Setup] = [EngineSetup(name, spec, wish.run_dir, timeout, flags)]
        if wish.router:
            found.append(self._served(f"{name} routed", decided, flags, **{**wanted, "device": str(spec.device)}))
        return found

    def _adaptive(self) -> Setup:
        """Both engines behind the router, each with as many slots as `onebit serve --adaptive` gives it."""
        # The setup is named for its threshold: no measured profile may decide instead.
        wanted = {"device": ",".join(self.wish.devices) or None, "adaptive": True, "profile": "off"}
        decided = self.plan(**wanted)
        slots = sum(spec.slots for spec in decided.engines)
        if slots < max(self.wish.requests):
            raise ConfigError(
                f"--adaptive has {slots} slots here, {max(self.wish.requests)} requests at once do not run in them",
                hint="--parallel N,M gives the two engines more",
            )
        at = self.config(**wanted).adaptive_at
        devices = ",".join(str(spec.device) for spec in decided.engines)
        flags = ("--device", devices, "--adaptive", "--adaptive-at", str(at))
        return self._served(f"adaptive at {at}", decided, flags, **wanted)

    def _served(self, name: str, decided: Plan, flags: tuple[str, ...], **more: Any) -> ServeSetup:
        config = self.config(**more)
        facts = {"router": True, **_joined(decided)}
        arguments = tuple(serve_arguments(config, self.info.path))
        return ServeSetup(name, arguments, config.alias or "bench", config.start_timeout, facts, flags)

    def _context(self) -> int:
        """Tokens of each slot: enough for a prompt and its answer, and no more than the model can."""
        wanted, trained = self.wish.tokens, self.info.context_length
        if trained and wanted > trained:
            raise ConfigError(
                f"prompt and answer have {wanted} tokens, the model has a context of {trained}",
                hint="lower --prompt-tokens or --tokens",
            )
        need = -(-(wanted + _SPARE_TOKENS) // _CONTEXT_STEP) * _CONTEXT_STEP
        return min(need, trained) if trained else need


def _joined(decided: Plan) -> dict[str, Any]:
    from onebit.bench.target import engine_facts

    facts = [engine_facts(spec) for spec in decided.engines]
    return {name: " + ".join(str(fact[name]) for fact in facts) for name in ("device", "build", "flags")}


def serve_arguments(config: ServeConfig, model: Path) -> list[str]:
    """The command line of `onebit serve` for these settings, defaults left out."""
    words = ["-m", str(model)]
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name in ("model", "engine_args", "host", "port") or value == type(config).model_fields[name].default:
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag)
        elif name == "lora":
            words += [word for adapter in value for word in (flag, str(adapter))]
        elif isinstance(value, tuple):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return [*words, *(("--", *config.engine_args) if config.engine_args else ())]
