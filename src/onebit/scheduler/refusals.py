"""What those are told who do not get in: the truth, and when it makes sense to try again."""

from __future__ import annotations

import math

from onebit.errors import InvalidRequest, LoadFailed, OnebitError, QueueFull, Unavailable, UnknownModel, WaitTooLong
from onebit.scheduler.choose import Need
from onebit.scheduler.model import Model

MAX_RETRY_AFTER_S = 60.0  # OpenAI's SDKs give up on delays over one or two minutes


def bounded(seconds: float) -> float:
    """A time to wait as clients are told it: from one second to a minute."""
    return min(MAX_RETRY_AFTER_S, max(1.0, seconds))


def until_drained(model: Model, now: float) -> float:
    """Seconds until the present line has drained, from the rate at which slots came free lately."""
    if len(model.releases) < 2:
        return 1.0
    span = now - model.releases[0]
    return bounded(math.ceil((model.line.size + 1) * span / len(model.releases)))


def line_full(model: Model, now: float) -> OnebitError:
    """As many wait as may."""
    return QueueFull(
        f"{model.line.size} requests are waiting for {model.name} already, the most this server queues",
        hint="try again later, or start the server with a larger --max-waiting",
        retry_after=until_drained(model, now),
    )


def too_late(model: Model, now: float, max_wait: float) -> OnebitError:
    """It has waited for as long as anyone may."""
    return WaitTooLong(
        f"no slot came free within {max_wait:g} s",
        hint="try again later; --max-wait sets how long a request may wait",
        retry_after=until_drained(model, now),
    )


def gone(name: str) -> OnebitError:
    """The model was taken out of the config."""
    return UnknownModel(f"the model {name!r} is served no more", param="model")


def not_loaded(model: Model, now: float) -> OnebitError | None:
    """Why nobody need wait for a model that is not in memory; None: its load may be waited for."""
    if model.leaving_for_good:
        return gone(model.name)
    if model.cool_until > now:
        return load_failed(model, now)
    return None


def load_failed(model: Model, now: float) -> OnebitError:
    """Its last load failed, and the next is not tried yet."""
    return LoadFailed(
        f"{model.name} could not be loaded: {model.cause}",
        hint="it is tried again after a pause",
        retry_after=bounded(model.cool_until - now),
    )


def hopeless(model: Model, need: Need) -> OnebitError:
    """No engine of the model can ever serve `need`."""
    if need.plain and all(view.drafting for view in model.slots.views()):
        return InvalidRequest(
            "logprobs are not available here: the only engine drafts tokens (--mtp or --draft), and drafted"
            " tokens come without their probabilities",
            hint="leave logprobs out, or serve with --adaptive so that a plain engine runs beside",
            param="logprobs",
        )
    causes = "; ".join(f"{name}: {cause}" for name, cause in model.causes.items())
    return Unavailable(f"no engine is running: {causes}" if causes else "no engine is running", retry_after=1)
