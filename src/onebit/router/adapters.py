"""A model's adapters as a request may choose them: by name, several at once, or the one that suits the message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from onebit.config.adapters_section import MAX_SCALE, WORDS
from onebit.errors import InvalidRequest, OnebitError, UnknownModel
from onebit.scheduler.choose import AdapterSet

Suit = Callable[[str], int | None]
"""Which adapter of the list suits a text; None: none of them."""

_TEXT_CHARS = 4096  # of a message, its end: enough to know what it is about, and 1 MB of it would take 10 ms


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """One adapter that may be chosen. `id`: llama-server's number of it."""

    id: int
    name: str
    scale: float
    about: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a request is answered with."""

    names: str  # "pirate", "pirate,brief", or "none": for the client
    adapters: AdapterSet  # for the gate: equal ones decode together; for the engine: see `Adapters.field`


class Adapters:
    """The adapters of one model. `always`: the scales of those that are applied to every request."""

    def __init__(self, model: str, always: Sequence[float], listed: Sequence[NamedAdapter], suit: Suit) -> None:
        self.model = model
        self.listed = {adapter.name: adapter for adapter in listed}
        self._always = dict(enumerate(always))
        self._order = tuple(listed)
        self._suit = suit
        self._base = _chosen(())
        self._single = {adapter.name: _chosen(((adapter, adapter.scale),)) for adapter in listed}
        self._fields = {one.adapters: self._field(one.adapters) for one in (self._base, *self._single.values())}

    def choose(self, named: str | None, fields: Mapping[str, Any]) -> Chosen:
        """What a request gets. `named`: the adapter in its model's name; `fields`: its body.

        Raises UnknownModel (404) or InvalidRequest (400): the engine would ignore what it does not know.
        """
        asked = fields.get("lora")
        if named in WORDS and asked in (None, named):
            asked, named = named, None
        if named is not None:
            if named not in self._single:
                raise self._unknown(named, UnknownModel, f"the model {self.model} has no adapter", "model")
            if asked not in (None, named, [named]):
                raise InvalidRequest(
                    f"the model's name chooses the adapter {named} already", hint="leave 'lora' out", param="lora"
                )
            return self._single[named]
        if asked is None or asked == "none":
            return self._base
        if asked == "auto":
            text = last_user_text(fields)
            found = self._suit(text) if text else None
            return self._base if found is None else self._single[self._order[found].name]
        if isinstance(asked, str):
            return _chosen((self._pick(asked),))
        if isinstance(asked, list):
            return self._several(asked)
        raise InvalidRequest(_FORM, param="lora")

    def _several(self, asked: list[Any]) -> Chosen:
        picked = [self._pick(one) for one in asked]
        names = [adapter.name for adapter, _ in picked]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"'lora' names {twice} twice", param="lora")
        return _chosen(picked)

    def field(self, chosen: AdapterSet) -> bytes:
        """What the body's `lora` must be for these engines. Raises InvalidRequest: they have one of them no more."""
        return self._fields.get(chosen) or self._field(chosen)

    def _field(self, chosen: AdapterSet) -> bytes:
        gone = next((name for name, _ in chosen if name not in self.listed), None)
        if gone is not None:
            raise self._unknown(
                gone, InvalidRequest, f"the model {self.model} was reloaded, and has no adapter", "lora"
            )
        scales = self._always | {self.listed[name].id: scale for name, scale in chosen}
        # Never an empty list: llama-server takes that for "as at the start", and then keeps a slot's prompt although
        # another set computed it. Adapters that are not listed have the scale 0.
        listed = scales or {0: 0.0}
        return json.dumps([{"id": number, "scale": scale} for number, scale in sorted(listed.items())]).encode()

    def _pick(self, one: Any) -> tuple[NamedAdapter, float]:
        scale: Any = None
        if isinstance(one, dict):
            if not {"name"} <= one.keys() <= {"name", "scale"}:
                raise InvalidRequest(_FORM, param="lora")
            one, scale = one["name"], one.get("scale")
        if not isinstance(one, str):
            raise InvalidRequest(_FORM, param="lora")
        adapter = self.listed.get(one)
        if adapter is None:
            raise self._unknown(one, InvalidRequest, f"the model {self.model} has no adapter", "lora")
        if scale is None:
            return adapter, adapter.scale
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MAX_SCALE:
            raise InvalidRequest(
                f"the scale of {one} must be a number from {-MAX_SCALE:g} to {MAX_SCALE:g}", param="lora"
            )
        return adapter, float(scale)

    def _unknown(self, name: str, kind: type[OnebitError], what: str, param: str) -> OnebitError:
        near = get_close_matches(name, self.listed, n=3, cutoff=0.5)
        hint = "did you mean " + " or ".join(near) + "?" if near else f"there are {_some(list(self.listed))}"
        return kind(f"{what} {name[:200]!r}", hint=hint, param=param)


def _chosen(picked: Sequence[tuple[NamedAdapter, float]]) -> Chosen:
    used = [(adapter.name, scale) for adapter, scale in picked if scale]
    return Chosen(",".join(name for name, _ in used) or "none", tuple(sorted(used)))


def no_adapters(model: str, named: str | None, fields: Mapping[str, Any]) -> None:
    """A model without adapters to choose from: raises what `Adapters.choose` would for a request that names one."""
    if named is not None:
        raise UnknownModel(f"the model {model} has no adapters to choose from", param="model")
    if fields.get("lora") not in (None, "none", "auto", []):
        raise InvalidRequest(f"the model {model} has no adapters to choose from", hint="leave 'lora' out", param="lora")


_FORM = """'lora' is "auto", "none", a name, or a list of names or of {"name": NAME, "scale": NUMBER}"""


def _some(names: list[str], most: int = 10) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def last_user_text(fields: Mapping[str, Any]) -> str:
    """The end of what the user said last: in a chat, in OpenAI's responses, or as bare prompts. Empty: nothing."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list):  # several, or tokens, among which texts may stand
        prompt = next((text for text in reversed(prompt) if isinstance(text, str)), "")
    said = fields.get("messages", fields.get("input", prompt))
    if isinstance(said, list):
        said = next((m.get("content") for m in reversed(said) if isinstance(m, dict) and m.get("role") == "user"), "")
    if isinstance(said, list):
        texts = [part.get("text") for part in said if isinstance(part, dict)]
        said = "\n".join(text for text in texts if isinstance(text, str))
    return said[-_TEXT_CHARS:] if isinstance(said, str) else ""
