"""What a translation says about an engine, in the vocabulary's terms: plain tuples.

The only engine objects inside are the opaque requests. Made by the adapters' pure functions, turned
into records by the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from batchscope.schemas.records import NULL32

Row = tuple[int, int, int]
"""Requests left out: (how many, reason code, position code)."""
Queue = tuple[int, int, Any, Sequence[Row]]
"""Left waiting, admission stop (code), the request where the scan stopped, rows of the left out."""
NO_QUEUE: Queue = (0, 0, None, ())
Pool = tuple[int, int, int]
"""Blocks: total, used, evictable."""


class Request(NamedTuple):
    """Who a request is. `trace` is the caller's (16 byte trace id, 8 byte span id)."""

    prompt_tokens: int
    max_tokens: int | None = None
    priority: int | None = None
    external_id: str | None = None
    engine_arrival_ns: int | None = None
    model: str | None = None
    lora: str | None = None
    tenant: str | None = None
    trace: tuple[bytes, bytes] | None = None


class Progress(NamedTuple):
    """How far a request is, in tokens; `phase` is a code of Phase, 0 before it was scheduled."""

    computed_tokens: int
    output_tokens: int
    cached_tokens: int | None
    preemptions: int
    phase: int


class Traits(NamedTuple):
    """How to read the engine's own request objects; each function is pure. `id` is called for every
    member that joins: an attrgetter, where a function in Python takes three times as long.
    """

    id: Callable[[Any], str]
    request: Callable[[Any], Request]
    progress: Callable[[Any], Progress]


class Decision(NamedTuple):
    """One return of schedule(): times in ns, everything else as in the record SCHEDULED.

    `decodes` are request objects in any order; `prefill` rows are (request, start, tokens),
    `drafts` (request, tokens) of decode members with other than one token, `deferred` (requests,
    reason code, position code). `head` is the request where the scan stopped. The defaults say
    "absent", as on the wire.
    """

    at_ns: int
    schedule_ns: int
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    decodes: Sequence[Any]
    prefill: Sequence[tuple[Any, int, int]] = ()
    drafts: Sequence[tuple[Any, int]] = ()
    deferred: Sequence[tuple[int, int, int]] = ()
    budget_tokens: int = NULL32
    draft_tokens: int = 0
    head: Any = None
    admission_stop: int = 0
    kv_total_blocks: int = NULL32
    kv_used_blocks: int = NULL32
    kv_evictable_blocks: int = NULL32
    dummy: int = 0
