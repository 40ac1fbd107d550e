"""How long the store remembers: by age, and by used blocks, oldest detail first.

By file size it would delete everything: a DuckDB file never shrinks, its used blocks do.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchscope.exporter.store import Store

DETAIL = ("runs", "gaps", "deferrals", "waits", "blocked", "preemptions", "transfers", "gpu")
"""What explains single iterations and requests: goes first."""
SUMMARY = ("iterations", "requests", "deliveries", "notices", "losses", "marks")
POSTED = ("client_requests", "client_runs")
"""Go with the summaries, but their instants are a client's word and define no span."""
STEP = 0.1
"""Part of the kept time span that one round gives up."""
DETAIL_SHARE = 0.25
"""Detail is cut down to this newest part of the span before summaries are touched."""
MAX_ROUNDS = 20


@dataclass(frozen=True)
class Bounds:
    """What to keep: bytes of used blocks, and age. None: no bound."""

    max_bytes: int | None = None
    max_age_ns: int | None = None


def retain(store: Store, bounds: Bounds, *, now_unix_ns: int) -> int:
    """Delete what exceeds the bounds; how many rows went. Store thread only."""
    gone = 0
    if bounds.max_age_ns is not None:
        oldest = now_unix_ns - bounds.max_age_ns
        gone += _cut(store, (*DETAIL, *SUMMARY, *POSTED), before_unix_ns=oldest)
        store.thin_states(before_unix_ns=oldest)
    for _ in range(MAX_ROUNDS):
        if bounds.max_bytes is None or not _exceeds(store, bounds.max_bytes):
            break
        gone += _round(store)
    return gone


def _exceeds(store: Store, max_bytes: int) -> bool:
    store.checkpoint()  # only this frees the blocks of deleted rows
    return store.used_bytes() > max_bytes


def _round(store: Store) -> int:
    span = _span(store, SUMMARY)
    if span is None:
        return _cut(store, DETAIL, before_unix_ns=2**62)
    first, last = span
    step = max(1, int((last - first) * STEP))
    detail = _span(store, DETAIL)
    if detail is not None and detail[0] < last - (last - first) * DETAIL_SHARE:
        return _cut(store, DETAIL, before_unix_ns=max(first, detail[0]) + step)
    return _cut(store, (*DETAIL, *SUMMARY, *POSTED), before_unix_ns=first + step)


def _span(store: Store, names: tuple[str, ...]) -> tuple[int, int] | None:
    each = " UNION ALL ".join(f"SELECT min(unix_ns), max(unix_ns) FROM {name}" for name in names)  # noqa: S608
    first, last = store.rows(f"SELECT min(a), max(b) FROM ({each}) AS t(a, b)")[0]  # noqa: S608
    return None if first is None else (int(first), int(last))


def _cut(store: Store, names: tuple[str, ...], *, before_unix_ns: int) -> int:
    return sum(store.prune(name, before_unix_ns=before_unix_ns) for name in names)
