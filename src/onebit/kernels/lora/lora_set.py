"""Adapters on the weights of a live model: applied, changed and removed, always from a saved copy of the base.

Subtracting an adapter again does not give the base back: one merge and unmerge of bfloat16 weights changed 10.8 % of
them, fifty changed 62.5 %. So the base of each weight an adapter touches is copied once, and every new set is
computed from the copy. That costs the memory of the touched weights once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from onebit.errors import AdapterError
from onebit.kernels.lora.adapter import Adapter
from onebit.kernels.lora.places import shared
from onebit.kernels.lora.plan import Part, as_stored, match, plan
from onebit.kernels.lora.terms import Mode
from onebit.kernels.lora.weights import Weight, merge_all, weights_of
from onebit.kernels.threads import in_spite_of_ctrl_c

if TYPE_CHECKING:
    import torch


class LoraSet:
    """The adapters of one model, and which of them are merged now. Not for use from several threads at once."""

    def __init__(
        self,
        model: torch.nn.Module | MutableMapping[str, Any],
        *,
        mode: Mode = Mode.EXACT,
        threads: int = 1,
    ) -> None:
        """`model`: a torch module, or weights (tensors or numpy arrays) by name, changed in place.

        Weights on a GPU are merged there (see `onebit.kernels.lora.triton_merge`).
        """
        self._model = model
        self._weights: dict[str, Weight] = weights_of(model)
        self._mode = mode
        self._threads = threads
        self._adapters: dict[str, Adapter] = {}
        self._written: dict[str, frozenset[str]] = {}  # the weights that each adapter changes
        self._base: dict[str, Any] = {}
        self._merged: dict[str, tuple[Part, ...]] = {}
        self._active: dict[str, float] = {}

    @property
    def active(self) -> Mapping[str, float]:
        """The strengths of the adapters merged now, by name."""
        return dict(self._active)

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that can be applied."""
        return tuple(self._adapters)

    def add(self, adapter: Adapter) -> None:
        """Make an adapter known; nothing is merged. Raises AdapterError where it does not fit the model."""
        if adapter.name in self._adapters:
            raise AdapterError(f"there is an adapter {adapter.name} already", hint="give this one another name")
        adapter = as_stored(adapter, {name: weight.transposed for name, weight in self._weights.items()})
        chosen = match(adapter, {name: weight.shape for name, weight in self._weights.items()})
        written = frozenset(chosen.values())
        self._check_weights(adapter, written)
        self._adapters[adapter.name] = adapter.loaded()  # to put weights back, no file may be needed
        self._written[adapter.name] = written

    def discard(self, name: str) -> None:
        """Forget an adapter, after taking it out of the weights."""
        self._known(name)
        self.apply({other: strength for other, strength in self._active.items() if other != name})
        del self._adapters[name], self._written[name]

    def apply(self, strengths: Mapping[str, float]) -> None:
        """Have exactly these adapters merged, in this order; {} gives the base back, bit for bit.

        Only weights whose adapters or strengths differ from those merged now are computed. If anything fails (a
        result that is not finite, too little memory, Ctrl-C), the weights are as before, and the error is raised.
        """
        wanted = [(self._known(name), strength) for name, strength in strengths.items()]
        planned = plan(wanted, {name: weight.shape for name, weight in self._weights.items()}).parts
        self._check_unmoved({**self._merged, **planned})
        changed = [name for name in {**self._merged, **planned} if self._merged.get(name) != planned.get(name)]
        for name in changed:  # all memory is taken before the first weight is changed
            if name not in self._base:
                self._base[name] = self._weights[name].copy()
        with self._all_or_nothing(changed):
            self._write(changed, planned)
        for name in changed:
            if name not in planned:  # it holds its base again: no copy is needed, and training may change it
                del self._base[name]
        self._merged = dict(planned)
        self._active = dict(strengths)

    def remove(self) -> None:
        """Take all adapters out: the base, bit for bit."""
        self.apply({})

    @contextmanager
    def applied(self, strengths: Mapping[str, float]) -> Iterator[None]:
        """`apply` for the length of a block; afterwards the set of before is merged again."""
        before = self.active
        self.apply(strengths)
        try:
            yield
        finally:
            self.apply(before)

    def _known(self, name: str) -> Adapter:
        if name not in self._adapters:
            there = ", ".join(self._adapters) or "none"
            raise AdapterError(f"there is no adapter {name}", hint=f"adapters of this set: {there}")
        return self._adapters[name]

    def _check_weights(self, adapter: Adapter, written: frozenset[str]) -> None:
        for name in sorted(written):
            if problem := self._weights[name].problem():
                raise AdapterError(f"adapter {adapter.name}: {name} cannot be merged into: {problem}")
        places = {name: weight.place() for name, weight in self._weights.items()}
        pair = shared(places, written.union(*self._written.values()))
        if pair is not None:
            raise AdapterError(
                f"adapter {adapter.name}: {pair[0]} and {pair[1]} share memory (tied weights)",
                hint="what is merged into one would change the other, too; untie them (tie_word_embeddings)",
            )
        self._check_unmoved(written)

    def _check_unmoved(self, names: Iterable[str]) -> None:
        """Raises AdapterError where the model has other memory now: what is merged into ours would change nothing."""
        now = weights_of(self._model)
        for name in names:
            if name not in now or now[name].place() != self._weights[name].place():
                raise AdapterError(
                    f"{name} is not where it was when this set was made",
                    hint="the model was moved, or its weights replaced: make a new LoraSet",
                )

    def _write(self, names: Sequence[str], parts: Mapping[str, tuple[Part, ...]]) -> None:
        for name in names:
            self._weights[name].restore(self._base[name])
        work = {
            name: (self._weights[name], [part.factors.term(part.strength) for part in parts[name]])
            for name in names
            if name in parts
        }
        bad = merge_all(work, self._mode, self._threads)
        if bad is not None:
            weight = self._weights[bad]
            weight.restore(self._base[bad])
            cause = "the sum is beyond what the type holds" if weight.finite() else "the base weight has some itself"
            adapters = ", ".join(f"{part.adapter}:{part.strength:g}" for part in parts[bad])
            raise AdapterError(f"merging {adapters} into {bad} gives NaNs or infinities: {cause}")

    @contextmanager
    def _all_or_nothing(self, names: list[str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            in_spite_of_ctrl_c(partial(self._write, names, self._merged))
            raise
