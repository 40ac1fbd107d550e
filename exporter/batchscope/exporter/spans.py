"""Folded rows -> spans: one root span per iteration, one per request, and the links between them.

Pure: no OpenTelemetry here, every rule is a plain function of rows. Ids follow from the ring and
the number alone, so that a link needs no memory of its span. otel.py sends the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, cast

import numpy as np

from batchscope.schemas.reasons import (
    DeferralReason,
    FinishReason,
    GraphMode,
    Phase,
    Verdict,
    Word,
    words,
)
from batchscope.schemas.records import NULL64

Table = Mapping[str, Any]
Rows = Mapping[str, Table]
"""table -> column -> values: int64 with NULL64 for NULL, enums as wire codes, texts as lists."""
Subject = Literal["iteration", "request"]
Value = str | int | float | bool | list[str]
Columns = Mapping[str, list[Any]]
ToRequest = tuple[int, str, int]
"""serial, why, tokens"""
ToIteration = tuple[int, str]
"""iteration_id, why"""

LINKS = (None, "prefill", "preempted", "stalled")
"""Why an iteration and a request are linked, by code."""
MAX_LINKS = 8
"""128, the usual limit of SDKs, cost 2 ms a span; what exceeds it vanishes silently."""
MAX_REMEMBERED = 16_384
"""Requests, and iterations in flight, that a ring's tracer remembers; the oldest go first."""
STALL_FLOOR_NS = 50_000_000
STALL_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Link:
    """To a span that may be in another trace; `why` is a word of LINKS or "first"."""

    trace_id: int
    span_id: int
    why: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One span in wall-clock nanoseconds. `parent_id` 0: a root. `error` is None for a good end."""

    subject: Subject
    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    links: tuple[Link, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Attribute:
    """A column as a span attribute: enums become words, nanoseconds become seconds."""

    name: str
    column: str
    enum: type[Word] | None = None
    seconds: bool = False


def _counts(prefix: str, *columns: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(f"batchscope.{prefix}.{column}", column) for column in columns)


def _durations(prefix: str, *names: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(f"batchscope.{prefix}.{n}", f"{n}_ns", seconds=True) for n in names)


ITERATION_ATTRIBUTES = (
    *_counts(
        "iteration",
        *("iteration_id", "budget_tokens", "prefill_tokens", "decode_tokens", "draft_tokens"),
        *("recomputed_tokens", "output_tokens", "prefill_members", "decode_members"),
        "decode_gap_members",
        *("running", "waiting", "head_serial", "padded_tokens", "kv_total_blocks"),
        *("kv_used_blocks", "kv_evictable_blocks", "kv_waste_tokens"),
    ),
    Attribute("batchscope.iteration.phase", "phase", Phase),
    Attribute("batchscope.iteration.admission_stop", "admission_stop", DeferralReason),
    Attribute("batchscope.iteration.graph_mode", "graph_mode", GraphMode),
    *_durations("iteration", "interval", "schedule", "host", "exec", "idle", "forward", "observer"),
)
REQUEST_ATTRIBUTES = (
    Attribute("gen_ai.request.model", "model"),
    Attribute("gen_ai.request.max_tokens", "max_tokens"),
    Attribute("gen_ai.usage.input_tokens", "prompt_tokens"),
    Attribute("gen_ai.usage.output_tokens", "output_tokens"),
    Attribute("gen_ai.usage.cache_read.input_tokens", "cached_tokens"),
    *_counts(
        "request",
        *("serial", "request_key", "external_key", "lora", "tenant", "priority", "prefill_tokens"),
        *("decode_tokens", "cached_on_resume_tokens", "recomputed_tokens", "steps", "preemptions"),
        *("lost_tokens", "deferrals", "on_time_tokens", "slo"),
    ),
    Attribute("batchscope.request.finish_reason", "finish_reason", FinishReason),
    Attribute("batchscope.request.verdict", "verdict", Verdict),
    *_durations("request", "in_step", "queue", "ttft", "e2e", "tpot"),
    *_durations("request", "tbt_p50", "tbt_p99", "tbt_max"),
)
_FAILED = (FinishReason.ERROR.value, FinishReason.SHED.value)
"""A client's cancel is no success, and no error of the server either."""
_KEYS = ("request_key", "external_key")
_INSTANTS = (
    *("arrived_at_ns", "first_scheduled_at_ns", "first_token_at_ns", "last_token_at_ns"),
    "finished_at_ns",
)


def span_ids(ring_uuid: str, subject: Subject, number: int) -> tuple[int, int]:
    """(trace id, span id) of an iteration or a request; never zero but by a chance of 2**-64."""
    name = f"{ring_uuid}/{subject}/{number}".encode()
    digest = blake2b(name, digest_size=24).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")


@dataclass
class Tracer:
    """What must be remembered of one ring to make its spans: live requests' contexts and links."""

    ring_uuid: str
    engine: Mapping[str, Value] = field(default_factory=dict)
    contexts: dict[int, tuple[int, int]] = field(default_factory=dict)
    by_request: dict[int, list[ToIteration]] = field(default_factory=dict)
    by_iteration: dict[int, list[ToRequest]] = field(default_factory=dict)
    intervals: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def spans(self, rows: Rows, *, sampled: Callable[[int], bool]) -> Iterator[Span]:
        """Spans of completed iterations and finished requests, where `sampled` takes the trace id.

        Stalls and requests that missed their SLO are made in any case.
        """
        self._remember_contexts(rows.get("_arrivals", {}))
        self._remember_links(rows.get("_links", {}))
        self._remember_stalls(rows)
        yield from self._iterations(_plain_columns(rows.get("iterations", {})), sampled)
        yield from self._requests(_plain_columns(rows.get("requests", {})), sampled)
        _forget(self.contexts)
        _forget(self.by_request)
        _forget(self.by_iteration)

    def _iterations(self, columns: Columns, sampled: Callable[[int], bool]) -> Iterator[Span]:
        limit_ns = self.stall_ns
        for i, number in enumerate(columns.get("iteration_id", ())):
            linked = self.by_iteration.pop(number, [])
            ids = span_ids(self.ring_uuid, "iteration", number)
            late = columns["interval_ns"][i] > limit_ns or _has_stall(linked)
            if late or sampled(ids[0]):
                yield self._iteration(_row(columns, i), linked, ids)

    def _requests(self, columns: Columns, sampled: Callable[[int], bool]) -> Iterator[Span]:
        for i, serial in enumerate(columns.get("serial", ())):
            linked, row = self.by_request.pop(serial, []), _row(columns, i)
            self._recall_context(row)
            ids = self.request_ids(serial)
            missed = row["verdict"] == Verdict.MISSED.code or _has_stall(linked)
            if missed or sampled(ids[0]):
                yield self._request(row, linked, ids)

    def request_ids(self, serial: int) -> tuple[int, int]:
        """Ids of a request's span; in the caller's trace when it carried one."""
        trace, span = span_ids(self.ring_uuid, "request", serial)
        return self.contexts.get(serial, (trace, 0))[0], span

    def _remember_contexts(self, arrivals: Table) -> None:
        columns = ("serial", "trace_hi", "trace_lo", "parent_span")
        for serial, high, low, parent in _zip(arrivals, columns):
            if high or low:
                trace = (high % 2**64) << 64 | low % 2**64
                self.contexts[serial] = (trace, parent % 2**64)

    def _remember_links(self, links: Table) -> None:
        columns = ("iteration_id", "serial", "link", "tokens")
        for iteration, serial, code, tokens in _zip(links, columns):
            self._link(iteration, serial, str(LINKS[code]), tokens=tokens)

    def _link(self, iteration: int, serial: int, why: str, *, tokens: int) -> None:
        seen = self.by_request.setdefault(serial, [])
        if (iteration, why) in seen:
            return
        self.by_iteration.setdefault(iteration, []).append((serial, why, tokens))
        if not seen:
            seen.append((iteration, "first"))
        if why != "prefill" and len(seen) < MAX_LINKS:
            seen.append((iteration, why))

    def _remember_stalls(self, rows: Rows) -> None:
        """Links requests with the iterations that ended a stalled gap."""
        fresh = _column(rows.get("iterations", {}), "interval_ns")
        self.intervals = np.concatenate([self.intervals, fresh[fresh > 0]])[-512:]
        gaps = rows.get("gaps", {})
        for iteration, serial, gap in _zip(gaps, ("iteration_id", "serial", "gap_ns")):
            if gap > self.stall_ns:
                self._link(iteration, serial, "stalled", tokens=NULL64)

    @property
    def stall_ns(self) -> float:
        """A gap above this is a stall: 3 medians of the last 512 intervals, at least 50 ms."""
        median = float(np.median(self.intervals)) if len(self.intervals) else 0.0
        return max(STALL_FACTOR * median, STALL_FLOOR_NS)

    def _iteration(
        self, row: Mapping[str, Any], linked: Sequence[ToRequest], ids: tuple[int, int]
    ) -> Span:
        took = row["completed_at_ns"] - row["scheduled_at_ns"] + row["schedule_ns"]
        attributes = {**self.engine, **_attributes(row, ITERATION_ATTRIBUTES)}
        attributes["batchscope.iteration.links_left_out"] = max(0, len(linked) - MAX_LINKS)
        end = row["unix_ns"]
        name = f"iteration {_word(row, 'phase', Phase)}"
        links = tuple(self._to_request(*link) for link in _first_links(linked))
        return Span("iteration", name, *ids, 0, end - max(took, 0), end, attributes, links)

    def _to_request(self, serial: int, why: str, tokens: int) -> Link:
        return Link(*self.request_ids(serial), why, None if tokens == NULL64 else tokens)

    def _request(
        self, row: Mapping[str, Any], linked: Sequence[ToIteration], ids: tuple[int, int]
    ) -> Span:
        parent = self.contexts.get(row["serial"], (0, 0))[1]
        reason = _word(row, "finish_reason", FinishReason) or FinishReason.UNKNOWN.value
        error = reason if reason in _FAILED else None
        attributes = {**self.engine, **_attributes(row, REQUEST_ATTRIBUTES)}
        attributes["gen_ai.response.finish_reasons"] = [reason]
        attributes["batchscope.request.arrival_known"] = _known(row, "arrived_at_ns")
        attributes |= {"error.type": error} if error else {}
        links = tuple(self._to_iteration(*link) for link in linked[:MAX_LINKS])
        times = (_start(row), row["unix_ns"])
        return Span("request", "request", *ids, parent, *times, attributes, links, error)

    def _to_iteration(self, iteration: int, why: str) -> Link:
        return Link(*span_ids(self.ring_uuid, "iteration", iteration), why)

    def _recall_context(self, row: Mapping[str, Any]) -> None:
        """After a restart of the exporter the caller's trace is known from the row alone."""
        trace, parent = row.get("trace_id"), row.get("parent_span_id")
        if isinstance(trace, str) and row["serial"] not in self.contexts:
            self.contexts[row["serial"]] = (int(trace, 16), int(parent or "0", 16))


def _has_stall(linked: Sequence[ToRequest] | Sequence[ToIteration]) -> bool:
    return any(link[1] == "stalled" for link in linked)


def _first_links(linked: Sequence[ToRequest]) -> list[ToRequest]:
    """Preempted and stalled ones first, then the largest prefills: what explains an iteration."""
    return sorted(linked, key=lambda link: (link[1] == "prefill", -link[2]))[:MAX_LINKS]


def _start(row: Mapping[str, Any]) -> int:
    """Arrival on the wall clock, or the earliest instant that is known.

    Counted back from the end on the engine's own clock: a step of the wall clock moves no duration.
    """
    first = next(row[name] for name in _INSTANTS if _known(row, name))
    return int(row["unix_ns"] - max(row["finished_at_ns"] - first, 0))


def _known(row: Mapping[str, Any], column: str) -> bool:
    return row.get(column) not in (None, NULL64)


def _attributes(row: Mapping[str, Any], wanted: Sequence[Attribute]) -> dict[str, Value]:
    """Known values only: NULL is absent, never 0."""
    known = ((a.name, _value(a, row[a.column])) for a in wanted if _known(row, a.column))
    return {name: value for name, value in known if value is not None}


def _value(attribute: Attribute, value: Any) -> Value | None:
    if attribute.enum is not None:
        return _spelled(attribute.enum, value)
    if attribute.column in _KEYS and isinstance(value, int):
        return f"{value % 2**64:016x}"
    return float(value / 1e9) if attribute.seconds else cast("Value", value)


def _spelled(enum: type[Word], code: int) -> str | None:
    """The word of a code; None for one that only a newer adapter knows."""
    known = words(enum)
    return known[code] if 0 <= code < len(known) else None


def _word(row: Mapping[str, Any], column: str, enum: type[Word]) -> str | None:
    return _spelled(enum, row[column]) if _known(row, column) else None


def _column(table: Table, name: str) -> np.ndarray:
    return np.asarray(table.get(name, ()), np.int64)


def _zip(table: Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    if table:
        yield from zip(*(_plain(table[name]) for name in columns), strict=True)


def _plain_columns(table: Table) -> Columns:
    return {name: _plain(values) for name, values in table.items()}


def _row(columns: Columns, i: int) -> dict[str, Any]:
    """Made only for rows that become spans: for the others it was 22 of 25 us."""
    return {name: values[i] for name, values in columns.items()}


def _plain(values: Any) -> list[Any]:
    """Python ints: numpy scalars are no OTLP attribute values."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _forget(memory: dict[int, Any]) -> None:
    """A dict keeps insertion order: the first are the oldest."""
    for key in list(memory)[: max(0, len(memory) - MAX_REMEMBERED)]:
        del memory[key]
