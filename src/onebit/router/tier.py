"""Which tier a request runs in: its key's, or a lower one that it asks for itself."""

from __future__ import annotations

from onebit.errors import InvalidRequest
from onebit.tiers import TIERS, Tier

# OpenAI's names. What is sent for later (`flex`) is background here; `auto` is whatever the key allows.
SERVICE_TIERS: dict[str, Tier | None] = {
    "auto": None,
    "priority": Tier.PAID,
    "default": Tier.SUBSCRIBER,
    "flex": Tier.BACKGROUND,
}


def tier_of(allowed: Tier, header: str, service_tier: str | None) -> Tier:
    """The lowest of what the key allows, `X-Onebit-Tier` says and `service_tier` means. Neither can raise it.

    Raises InvalidRequest for names that there are not.
    """
    tiers = [allowed]
    if header:
        if header not in TIERS:
            raise InvalidRequest(
                f"X-Onebit-Tier: there is no tier {header[:64]!r}", hint="there are " + ", ".join(TIERS)
            )
        tiers.append(TIERS[header])
    if service_tier is not None:
        if service_tier not in SERVICE_TIERS:
            raise InvalidRequest(
                f"'service_tier' cannot be {service_tier[:64]!r}",
                hint="there are " + ", ".join(SERVICE_TIERS),
                param="service_tier",
            )
        if (meant := SERVICE_TIERS[service_tier]) is not None:
            tiers.append(meant)
    return min(tiers)
