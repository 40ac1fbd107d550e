"""What a scrape sees of the engines: per label set, counters that add up over restarts.

Snapshots, never the fold's own objects: the tail thread publishes, any thread reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from batchscope.exporter.totals import Totals
from batchscope.schemas.catalogue import ENGINE_LABELS

Key = tuple[str, tuple[str, ...]]

_ENDED = ("engine_up", "running_requests", "waiting_requests", "live_requests")
"""Gauges that are 0 once the engine is gone."""
_OF_THE_LIVING = ("kv_blocks", "kv_waste_tokens")
"""Gauges that say nothing once the engine is gone: its memory is, too."""
_BOUNDED_BY_LIVE = ("running_requests", "waiting_requests")


@dataclass(frozen=True)
class EngineView:
    """One label set: hello and gauges of its newest ring, totals summed over all its rings.

    labels: engine, model_name, dp_rank, role ("" unknown). state: live, closed, dead, refused.
    """

    labels: Mapping[str, str]
    hello: Mapping[str, Any]
    state: str
    totals: Totals
    gauges: Mapping[Key, int]
    ring_ids: tuple[int, ...] = field(default=())


def view(
    hello: Mapping[str, Any], ring_id: int, *, state: str, totals: Totals, gauges: Mapping[Key, int]
) -> EngineView:
    """The view of one ring. totals must not change any more."""
    return EngineView(labels(hello), hello, state, totals, settled(gauges, state), (ring_id,))


def labels(hello: Mapping[str, Any]) -> dict[str, str]:
    """The engine labels of a ring."""
    return {name: _text(hello.get(name)) for name in ENGINE_LABELS}


def merged(views: Iterable[EngineView]) -> list[EngineView]:
    """One view per label set, in label order; the newest ring gives hello, state and gauges."""
    groups: dict[tuple[str, ...], list[EngineView]] = {}
    for one in views:
        groups.setdefault(tuple(one.labels.values()), []).append(one)
    return [_merge(group) for _, group in sorted(groups.items())]


def settled(gauges: Mapping[Key, int], state: str) -> dict[Key, int]:
    """Gauges as they are true now.

    The last decision's figures go stale when an engine idles or dies (no further decision says so):
    none runs or waits beyond those that live, a dead engine holds nothing, and of one that can't be
    followed any more (refused) nothing is known.
    """
    if state == "refused":
        return {}
    live = gauges.get(("live_requests", ()))
    known = {key: _bounded(key, value, live) for key, value in gauges.items()}
    if state == "live":
        return known
    kept = {key: value for key, value in known.items() if key[0] not in _OF_THE_LIVING}
    return kept | {(name, ()): 0 for name in _ENDED}


def _bounded(key: Key, value: int, live: int | None) -> int:
    return min(value, live) if live is not None and key[0] in _BOUNDED_BY_LIVE else value


def _merge(group: list[EngineView]) -> EngineView:
    newest = max(group, key=_age)
    total = group[0].totals
    for other in group[1:]:
        total = total + other.totals
    rings = tuple(ring for one in group for ring in one.ring_ids)
    return replace(newest, totals=total, ring_ids=rings)


def _age(one: EngineView) -> tuple[bool, int]:
    return one.state == "live", int(one.hello.get("unix_ns") or 0)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
