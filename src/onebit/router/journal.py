"""What became of each request: one line in the log, and a few numbers for /metrics. Prompts are never in either."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram

log = logging.getLogger("onebit.access")

_WAITS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LABELS = ("model", "tier")


@dataclass(slots=True)
class Entry:
    """One request, filled in as it goes. Times in seconds on the monotonic clock."""

    id: str
    path: str
    key: str = ""
    tier: str = ""
    model: str = ""
    began: float = 0.0
    engine: str = ""
    admitted: float | None = None
    first: float | None = None  # when the first byte of the answer went out
    prompt_tokens: int | None = None
    tokens: int | None = None  # of the answer
    preemptions: int = 0
    outcome: str = "ok"  # ok, left (the client), or the error's code
    status: int = 0


class Journal:
    """Writes the log and keeps the numbers. The labels are names from the config: their number is bounded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "onebit_requests", "Requests, by how they ended", (*_LABELS, "outcome"), registry=self.registry
        )
        self._wait = Histogram("onebit_wait_seconds", "Time in line", _LABELS, buckets=_WAITS_S, registry=self.registry)
        self._first = Histogram(
            "onebit_first_token_seconds",
            "Time from the request to the first byte of its answer",
            _LABELS,
            buckets=_WAITS_S,
            registry=self.registry,
        )
        self._tokens = Counter("onebit_tokens", "Tokens generated", _LABELS, registry=self.registry)
        self._prompt_tokens = Counter("onebit_prompt_tokens", "Tokens of prompts", _LABELS, registry=self.registry)
        self._preemptions = Counter(
            "onebit_preemptions", "Times that background requests gave way", ("model",), registry=self.registry
        )

        self._by_labels: dict[tuple[str, str], tuple[Histogram, Histogram, Counter, Counter]] = {}

    def close(self, entry: Entry) -> None:
        """The request is over."""
        now = monotonic()
        if entry.model and entry.tier:
            labels = (entry.model, entry.tier)
            wait, first, tokens, prompt_tokens = self._of(labels)
            self._requests.labels(*labels, entry.outcome).inc()
            if entry.admitted is not None:
                wait.observe(entry.admitted - entry.began)
            if entry.first is not None and entry.admitted is not None:
                first.observe(entry.first - entry.began)
            if entry.tokens:
                tokens.inc(entry.tokens)
            if entry.prompt_tokens:
                prompt_tokens.inc(entry.prompt_tokens)
            if entry.preemptions:
                self._preemptions.labels(entry.model).inc(entry.preemptions)
        if log.isEnabledFor(logging.INFO):
            # Made by hand: `log.info` looks for its caller in the stack, which the request's is deep of.
            record = logging.LogRecord(log.name, logging.INFO, "", 0, "request", None, None)
            record.entry, record.seconds = entry, now - entry.began
            log.handle(record)

    def _of(self, labels: tuple[str, str]) -> tuple[Histogram, Histogram, Counter, Counter]:
        """The numbers of one model and tier; looked up by their labels once, which is most of what they cost."""
        found = self._by_labels.get(labels)
        if found is None:
            found = (
                self._wait.labels(*labels),
                self._first.labels(*labels),
                self._tokens.labels(*labels),
                self._prompt_tokens.labels(*labels),
            )
            self._by_labels[labels] = found
        return found
