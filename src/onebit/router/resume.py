"""A background stream that gave way is taken up again where it stopped, so that its client sees one answer.

The text so far goes back to the engine as the beginning of the answer: appended to a raw prompt, or as the last
message of a chat, by the assistant, which llama-server continues. What an engine cannot continue faithfully (grammars,
tools, several answers, token probabilities, thinking) is not resumed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from onebit.router.openai import Call

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_NOT_CONTINUED = (
    *("response_format", "json_schema", "grammar", "tools", "tool_choice", "functions", "logprobs", "top_logprobs"),
    *("n_probs", "n_cmpl", "echo", "suffix", "best_of", "stop_at", "return_tokens", "return_progress"),
)
_DONE = b"[DONE]"


@dataclass(slots=True)
class Progress:
    """What a stream has sent so far. `faithful` is False once something came that cannot be continued."""

    text: str = ""
    tokens: int = 0  # chunks with text: llama-server sends one a token
    id: Any = None
    created: Any = None
    faithful: bool = True
    before: int = 0  # tokens of the parts before the present one
    echo: str = ""  # what the present part may begin with: llama-server repeats the beginning it was given of a chat

    def go_on(self) -> None:
        """Another part begins."""
        self.before, self.echo = self.tokens, self.text

    def feed(self, events: bytes) -> None:
        """Note whole events, as they are sent to the client."""
        for event in _data(events):
            for choice in event.get("choices", ()):
                delta = choice.get("delta", {})
                piece = delta.get("content") if "delta" in choice else choice.get("text")
                if any(delta.get(field) for field in ("tool_calls", "reasoning_content")):
                    self.faithful = False
                if piece:
                    self.text += piece
                    self.tokens += 1
            if self.id is None:
                self.id, self.created = event.get("id"), event.get("created")


def continuation(call: Call, progress: Progress) -> Call | None:
    """The call that goes on after `progress`; None: it cannot be."""
    if not progress.faithful or call.need.sequences != 1 or call.endpoint.path not in (_CHAT, _TEXT):
        return None
    fields: dict[str, Any] = json.loads(call.body)
    if any(fields.get(name) for name in _NOT_CONTINUED):
        return None
    if call.endpoint.path == _TEXT:
        if not isinstance(fields.get("prompt"), str):
            return None
        fields["prompt"] += progress.text
    else:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages or messages[-1].get("role") == "assistant":
            return None
        fields["messages"] = [*messages, {"role": "assistant", "content": progress.text}]
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        if isinstance(limit := fields.get(name), int | float) and limit >= 0:
            if limit <= progress.tokens or limit != limit // 1:
                return None
            fields[name] = int(limit) - progress.tokens  # 40.0 is 40 to the engine
    return replace(call, body=json.dumps(fields, ensure_ascii=False).encode())


def joined(events: bytes, progress: Progress) -> bytes:
    """Whole events of a continuation as the client must see them: with the first part's id, one role, all tokens."""
    out = []
    for part in events.split(b"\n\n"):
        if not part.startswith(b"data: ") or part[6:] == _DONE:
            out.append(part)
            continue
        event = json.loads(part[6:])
        event["id"], event["created"] = progress.id, progress.created
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            delta.pop("role", None)
            if progress.echo and (piece := delta.get("content")):
                delta["content"] = piece.removeprefix(progress.echo)
                progress.echo = ""
        if usage := event.get("usage"):
            usage["completion_tokens"] += progress.before
            usage["prompt_tokens"] -= progress.before  # the text so far was sent as a prompt
        out.append(b"data: " + json.dumps(event, separators=(",", ":")).encode())
    return b"\n\n".join(out)


def _data(events: bytes) -> list[dict[str, Any]]:
    parts = (part[6:] for part in events.split(b"\n\n") if part.startswith(b"data: "))
    found = [json.loads(part) for part in parts if part != _DONE]
    return [event for event in found if isinstance(event, dict)]
