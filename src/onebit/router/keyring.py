"""Who is asking: API keys, compared so that the time it takes says nothing about any of them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onebit.config.keys import Key
from onebit.errors import Unauthorized
from onebit.tiers import Tier


@dataclass(frozen=True, slots=True)
class Who:
    """A client: the name of its key, empty for none, and the highest tier it may ask for."""

    name: str
    tier: Tier


class KeyRing:
    """The keys there are, and what a request without one gets."""

    def __init__(self, keys: Sequence[Key], default_tier: Tier | None) -> None:
        """`default_tier`: of requests without a key; None refuses them."""
        self._keys = tuple(keys)
        self._anonymous = Who("", default_tier) if default_tier is not None else None

    def __len__(self) -> int:
        return len(self._keys)

    def who(self, headers: Mapping[bytes, bytes], *, key_needed: bool = False) -> Who:
        """Raises Unauthorized: the key is wrong, or there is none where one is needed."""
        given = headers.get(b"authorization", b"")
        if given[:7].lower() == b"bearer ":
            given = given[7:].strip()
        given = given or headers.get(b"x-api-key", b"")
        if given and self._keys:
            # All are compared, each in constant time; an empty list of hits costs what a full one does.
            hits = [key for key in self._keys if hmac.compare_digest(given, key.secret)]
            if hits:
                return Who(hits[0].name, hits[0].tier)
        elif self._anonymous is not None and not (key_needed and self._keys):
            return self._anonymous
        raise Unauthorized("the API key is missing or wrong", hint="send it as `Authorization: Bearer KEY`")
