"""The one error tree.

Each class carries what a client must be told (HTTP status, OpenAI `type` and `code`, the seconds to wait)
and what a person at a terminal must be told (the message says what and where; `hint` says how to fix it).
Foreign errors are translated into these once, at the boundary where they appear.
"""

from __future__ import annotations

from typing import ClassVar


class OnebitError(Exception):
    """Anything onebit reports on purpose. `message`: what happened and where. `hint`: how to fix it."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    exit_code: ClassVar[int] = 1
    again: ClassVar[bool] = False  # does sending the very same request again make sense?
    refused: ClassVar[str | None] = None  # llm-d's word for why the request was dropped

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        self.retry_after = retry_after  # seconds; None: waiting does not help, or nobody knows


# --- what a client did -------------------------------------------------------------------------------------


class InvalidRequest(OnebitError):
    """The body is not what the endpoint takes."""

    status = 400
    type = "invalid_request_error"


class BodyTooLarge(InvalidRequest):
    """The body is over the limit; it was not read to its end."""

    status = 413
    code = "request_too_large"


class HeadTooLarge(InvalidRequest):
    """URL and headers are over the limit; they were not read to their end."""

    status = 431


class Unauthorized(OnebitError):
    """No API key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class UnknownModel(OnebitError):
    """The request names a model that is not served."""

    status = 404
    type = "not_found_error"
    code = "model_not_found"


class UnknownPath(OnebitError):
    """No such endpoint."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(OnebitError):
    """The endpoint exists, the method does not."""

    status = 405
    type = "invalid_request_error"


# --- what the server cannot do now -------------------------------------------------------------------------


class QueueFull(OnebitError):
    """There is capacity, but it is contended: the line, or the memory for those in it, is at its bound."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    again = True
    refused = "rejected-saturated"


class WaitTooLong(OnebitError):
    """The request waited in line to its deadline."""

    status = 503
    type = "server_error"
    code = "wait_timeout"
    again = True
    refused = "rejected-ttl-expired"


class Unavailable(OnebitError):
    """There is no capacity at all now: engines failed, are loading, or the server is stopping."""

    status = 503
    type = "server_error"
    code = "unavailable"
    again = True
    refused = "rejected-no-capacity"


class LoadFailed(Unavailable):
    """The model could not be loaded; it is tried again when the cool-down is over."""

    code = "load_failed"


class Protected(Unavailable):
    """The memory that the model needs is held for requests of a higher tier."""

    code = "memory_protected"
    refused = "rejected-protected"


class DoesNotFit(Unavailable):
    """The model can never get the memory that it needs: models that never leave hold it."""

    code = "does_not_fit"
    again = False


class EngineLost(OnebitError):
    """The engine died, or its connection broke, while it worked on the request."""

    status = 502
    type = "server_error"
    code = "engine_lost"
    again = True


class Interrupted(OnebitError):
    """The server stopped the request: shutdown, after the grace period."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    again = True


class Evicted(Interrupted):
    """The request's model had to make room for a higher tier, and the grace period is over."""

    code = "evicted"
    refused = "evicted-priority"


class Preempted(Interrupted):
    """A background request gave way when its answer had begun and could not be continued unseen."""

    code = "preempted"
    refused = "evicted-priority"


# --- what a person at a terminal asked for -----------------------------------------------------------------


class ConfigError(OnebitError):
    """A flag, an environment variable or a line of the config file is wrong."""

    exit_code = 2


class ModelFileError(OnebitError):
    """The model file is missing, not GGUF, truncated, or lacks what was asked of it."""


class AdapterError(OnebitError):
    """An adapter cannot be read, or does not fit what it is to be merged into; the message names both."""


class DownloadError(OnebitError):
    """A download failed, or what came is not what was promised."""


class MissingTools(OnebitError):
    """A build needs programs or headers that are not installed."""


class BuildError(OnebitError):
    """Compiling llama-server failed."""


class NoBuild(OnebitError):
    """No llama-server that can serve the device was found."""


class EngineFailed(OnebitError):
    """An engine does not start; the message holds the cause in one sentence."""


class NoServer(OnebitError):
    """No running server was found, or it does not answer."""


class PortTaken(OnebitError):
    """The address to listen on is in use or may not be bound."""


class BenchError(OnebitError):
    """A measurement could not be made, or a file of results cannot be used."""


class ProfileError(OnebitError):
    """A stored profile cannot be read or written."""


class EmbedError(OnebitError):
    """An embedding table, a tokeniser or an index is missing, damaged, or not of a supported kind."""
