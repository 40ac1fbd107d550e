"""Rings that went while no exporter ran (a reboot empties /dev/shm): what they left is ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchscope.exporter import facts, pending, tables
from batchscope.exporter.discover import packed, restore
from batchscope.exporter.fold import FOLD_VERSION
from batchscope.exporter.store import Commit, RingState


def burial(
    gone: Sequence[Mapping[str, Any]], states: Mapping[str, RingState], *, unix_ns: int
) -> Commit:
    """One transaction that marks rings as dead and ends, as `unknown`, who lived in them.

    gone: their rows of `engines`. unix_ns: when it was seen. Their requests end at the latest
    instant that is known of them, batches in flight stay named.
    """
    stored = [(hello, states.get(hello["ring_uuid"])) for hello in gone]
    left = [_ended(hello, state) for hello, state in stored if state is not None]
    opened = pending.tables(rows for _, rows, _ in left)
    dead = [{**hello, "state": "dead", "ended_unix_ns": unix_ns} for hello in gone]
    return Commit(
        appended=pending.tables(rows for rows, _, _ in left),
        replaced={name: opened[name] for name in tables.PER_RING if name in opened}
        | {"engines": facts.table("engines", dead)},
        states=[state for _, _, state in left],
        rings=[hello["ring_id"] for hello in gone],
    )


def _ended(
    hello: Mapping[str, Any], stored: RingState
) -> tuple[pending.Rows, pending.Rows, RingState]:
    """(final rows, what stays open, the state behind them)"""
    iteration, fold = restore(stored, hello=hello, slo=None)
    rows = fold.end()
    state = replace(stored, fold_version=FOLD_VERSION, blob=packed(iteration, fold))
    return rows, fold.open_rows(), state
