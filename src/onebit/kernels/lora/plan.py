"""What a set of adapters does to a model, decided before anything is changed. Pure: names and shapes, no data."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onebit.errors import AdapterError
from onebit.kernels.lora.adapter import Adapter, Factors
from onebit.kernels.lora.resolve import resolve

_SHOWN = 3  # names in a message


@dataclass(frozen=True, slots=True)
class Part:
    """One adapter's factors for one weight, and how strongly they are wanted."""

    adapter: str
    factors: Factors
    strength: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of each weight, in the order in which the adapters were given."""

    parts: Mapping[str, tuple[Part, ...]]  # by the weight's name
    skipped: Mapping[str, tuple[str, ...]]  # by adapter: modules that the model has not; empty unless allowed


def as_stored(adapter: Adapter, transposed: Mapping[str, bool | None]) -> Adapter:
    """The adapter for a model that says how its layers store their weights. `transposed`: by weight, None: it does not.

    peft decides that for each layer by its kind when it attaches an adapter, but saves one `fan_in_fan_out` for all.
    """
    factors = dict(adapter.factors)
    for module, names in resolve(factors, transposed).items():
        stored = transposed[names[0]] if len(names) == 1 else None
        if stored is not None:
            factors[module] = replace(factors[module], transposed=stored)
    return replace(adapter, factors=factors)


def match(
    adapter: Adapter, shapes: Mapping[str, Sequence[int]], *, allow_missing: bool = False, skip: str = ""
) -> dict[str, str]:
    """The weight for each of an adapter's modules. `shapes`: of the model's weights, by name; `skip`: how to allow it.

    Raises AdapterError, naming adapter, module and shapes, for a module that the model has not (unless allowed), or
    has twice, and for factors that do not fit.
    """
    found = resolve(adapter.factors, shapes)
    missing = [module for module, names in found.items() if not names]
    if len(missing) == len(found) or (missing and not allow_missing):
        named = [f"{part.module} ({_product(part)})" for part in map(adapter.factors.__getitem__, missing)]
        raise AdapterError(
            f"adapter {adapter.name}: the model has no {_some(named)}",
            hint=" ".join(["is it for another model?", *([skip] if skip and len(missing) < len(found) else [])]),
        )
    chosen = {}
    for module, names in found.items():
        if len(names) > 1:
            raise AdapterError(f"adapter {adapter.name}: {module} can mean {_some(names)}")
        if names:
            _check(adapter, adapter.factors[module], names[0], tuple(shapes[names[0]]))
            chosen[module] = names[0]
    twice = sorted(name for name, count in Counter(chosen.values()).items() if count > 1)
    if twice:
        raise AdapterError(f"adapter {adapter.name}: several of its modules mean {_some(twice)}")
    return chosen


def plan(
    wanted: Sequence[tuple[Adapter, float]],
    shapes: Mapping[str, Sequence[int]],
    *,
    allow_missing: bool = False,
    skip: str = "",
) -> Plan:
    """Match all adapters with their strengths. Raises AdapterError as `match`, and for a strength that is no number."""
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    skipped = {}
    for adapter, strength in wanted:
        if not math.isfinite(strength):
            raise AdapterError(f"adapter {adapter.name}: its strength is {strength}")
        chosen = match(adapter, shapes, allow_missing=allow_missing, skip=skip)
        for module, weight in chosen.items():
            parts[weight].append(Part(adapter.name, adapter.factors[module], strength))
        if len(chosen) < len(adapter.factors):
            skipped[adapter.name] = tuple(m for m in adapter.factors if m not in chosen)
    return Plan({weight: tuple(some) for weight, some in parts.items()}, skipped)


def _check(adapter: Adapter, factors: Factors, weight: str, shape: tuple[int, ...]) -> None:
    matrix = (shape[0], math.prod(shape[1:])) if shape else ()
    if (
        len(shape) < 2
        or matrix != factors.weight_shape
        or (math.prod(factors.kernel) > 1 and shape[2:] != factors.kernel)
    ):
        raise AdapterError(
            f"adapter {adapter.name}: {factors.module} does not fit {weight}: {_product(factors)} for a weight of "
            f"{'×'.join(str(n) for n in shape) or 'one number'}",
            hint="the adapter was trained on a model of another size",
        )


def _product(factors: Factors) -> str:
    a, b = factors.a, factors.b
    kernel = "×".join(str(n) for n in factors.kernel)
    return f"B {b.rows}×{b.cols} @ A {a.rows}×{a.cols}" + (f" (kernel {kernel})" if kernel else "")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
