"""vLLM's request objects in our terms: who they are, how far they are, how they end. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchscope.adapters.facts import Progress, Request
from batchscope.schemas import reasons
from batchscope.schemas.reasons import FinishReason

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_PREFILL, _DECODE = reasons.Phase.PREFILL.code, reasons.Phase.DECODE.code
_CODES = reasons.codes(FinishReason)
FINISH: Mapping[str, int] = {
    "FINISHED_STOPPED": _CODES[FinishReason.STOP],
    "FINISHED_LENGTH_CAPPED": _CODES[FinishReason.LENGTH],
    "FINISHED_ABORTED": _CODES[FinishReason.ABORT],
    "FINISHED_IGNORED": _CODES[FinishReason.LENGTH],
    "FINISHED_ERROR": _CODES[FinishReason.ERROR],
    "FINISHED_REPETITION": _CODES[FinishReason.STOP],
}
"""vLLM's status at the end -> ours. An ignored prompt was too long; a repetition ended it."""
UNKNOWN_END = _CODES[FinishReason.UNKNOWN]
ERROR_END = _CODES[FinishReason.ERROR]


class Gone(NamedTuple):
    """A member of a batch in flight by its id alone: the scheduler may have forgotten it."""

    request_id: str


def identity(request: Any, *, model: str | None, random_ids: bool) -> Request:
    """Who it is; vLLM's own arrival stamp is its front end's wall clock, in ns."""
    arrival = getattr(request, "arrival_time", None)
    lora = getattr(request, "lora_request", None)
    return Request(
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=getattr(request, "max_tokens", None),
        priority=getattr(request, "priority", None),
        external_id=client_id(request.request_id) if random_ids else None,
        engine_arrival_ns=int(arrival * 1e9) if arrival else None,
        model=model,
        lora=getattr(lora, "lora_name", None),
        trace=trace(getattr(request, "trace_headers", None)),
    )


def client_id(request_id: str) -> str:
    """The id in the reply: no random tail and, of completions, no index of the prompt."""
    named = request_id[:-9] if request_id[-9:-8] == "-" else request_id
    if not named.startswith("cmpl-"):
        return named
    head, _, index = named.rpartition("-")
    return head if index.isdigit() else named


def trace(headers: Any) -> tuple[bytes, bytes] | None:
    """The caller's (trace id, span id), of a W3C traceparent."""
    found = _TRACEPARENT.match(headers.get("traceparent", "")) if headers else None
    return (bytes.fromhex(found.group(1)), bytes.fromhex(found.group(2))) if found else None


def progress(request: Any, *, in_step: Mapping[str, int]) -> Progress:
    """How far it is, without the tokens that the decision now being recorded gave it."""
    computed = request.num_computed_tokens - in_step.get(request.request_id, 0)
    return Progress(
        max(0, computed),
        request.num_output_tokens,
        cached(request),
        getattr(request, "num_preemptions", 0),
        phase(request, computed),
    )


def phase(request: Any, computed: int) -> int:
    """Code of Phase, 0 while it waits. The last token known is the one that decode feeds back."""
    if request.status.name != "RUNNING":
        return 0
    return _PREFILL if computed < prefill_end(request) else _DECODE


def prefill_end(request: Any) -> int:
    """Tokens below which a running request still computes its prompt, or what it lost."""
    return int(max(request.num_prompt_tokens, request.num_tokens - 1))


def queue_ns(request: Any) -> int | None:
    """Time in the queue by vLLM's own events, None where they aren't kept or were sent off."""
    at = {event.type.name: event.timestamp for event in getattr(request, "events", ())}
    if not at.keys() >= {"QUEUED", "SCHEDULED"}:
        return None
    return int((at["SCHEDULED"] - at["QUEUED"]) * 1e9)


def cached(request: Any) -> int | None:
    """Prefix hit at first admission, where the request still knows it."""
    found = getattr(request, "num_cached_tokens", None)
    return found if found is not None and found >= 0 else None
