"""What a streamed answer of the OpenAI API says, event by event. Called by `client`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from batchscope.workload.outcome import Outcome

_TEXTS = ("text", "content", "reasoning_content", "reasoning")


class StreamError(Exception):
    """The server says within the stream that it failed, or what it says makes no sense."""


class Stream:
    """Takes the bytes of one stream and writes what they say into an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self.done = False

    def take(self, at_ns: int, data: bytes) -> None:
        """Bytes that were read at an instant. Raises StreamError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(at_ns, line[5:].strip())

    def _event(self, at_ns: int, payload: bytes) -> None:
        if not payload or payload == b"[DONE]":  # without content: to keep a proxy's connection
            self.done = self.done or bool(payload)
            return
        try:
            self._chunk(at_ns, json.loads(payload))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise StreamError(f"an event makes no sense: {payload[:80]!r}") from error

    def _chunk(self, at_ns: int, chunk: Mapping[str, Any]) -> None:
        if (error := chunk.get("error")) is not None:
            raise StreamError(f"the server says: {_sentence(error)}")
        outcome = self._outcome
        outcome.answer_id = _text(chunk.get("id")) or outcome.answer_id
        for choice in chunk.get("choices") or ():
            outcome.token_ns.extend([at_ns] * tokens(choice))
            outcome.finish_reason = _text(choice.get("finish_reason")) or outcome.finish_reason
        if told := chunk.get("usage"):
            outcome.prompt_tokens = _count(told.get("prompt_tokens"))
            outcome.output_tokens = _count(told.get("completion_tokens"))


def tokens(choice: Mapping[str, Any]) -> int:
    """How many tokens a piece brings: by its ids where it tells them, else 1 for any text."""
    if choice.get("token_ids") is not None:
        return len(choice["token_ids"])
    delta = choice.get("delta") or choice
    return int(any(delta.get(name) for name in _TEXTS) or bool(delta.get("tool_calls")))


def _text(said: Any) -> str | None:
    """Some servers number their answers."""
    return None if said is None else written(said)


def _count(said: Any) -> int | None:
    """A number of tokens; what is none is not known."""
    return said if type(said) is int and said >= 0 else None


def _sentence(error: Any) -> str:
    text = error.get("message") if isinstance(error, Mapping) else error
    return written(text)[:200]


def written(said: Any) -> str:
    """As text that can be stored and printed: JSON may spell half of a character."""
    return str(said).encode("utf-8", "replace").decode()
