"""Requests that are passed over while they wait: BLOCKED to UNBLOCKED, or to the wait's end.

What a request waits while it is passed over is taken out of the sums that all waiters share.
Edges are rare (at most 64 a step), so they are followed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchscope.exporter.fold.layout import SKIPS, Ints, indices_of, table
from batchscope.exporter.fold.queue_sums import Spans, Sums, left_at
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r


@dataclass
class Skips:
    """Parts of waits that were passed over: index of the wait, reason, decisions, ns.

    `leaving`: reason by wait, of those whose request ended while the last decision passed it over.
    """

    span: Ints
    reason: Ints
    decisions: Ints
    ns: Ints
    leaving: dict[int, int] = field(default_factory=dict)


@dataclass
class _Found:
    skips: list[tuple[int, int, int, int]] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    leaving: dict[int, int] = field(default_factory=dict)


def passed_over(work: Work, sums: Sums, spans: Spans) -> Skips:
    """Follow the edges; shift the sums of the waits they lie in."""
    state = work.state
    edges = work.piece.of(r.BLOCKED) or work.piece.of(r.UNBLOCKED)
    if not (edges or state.blocked or state.ending or len(state.skips)):
        return _by_reason(np.empty((0, 4), np.int64))
    found = _Found()
    _catch_up(work, sums, spans, found)
    seen = work.piece.lo
    for pos, kind, serial, reason, at in _edges(work, spans):
        if work.piece.hidden and work.happened_between(seen, pos):
            work.state.blocked.clear()
        seen = pos
        if serial in work.state.blocked:
            _end(work, sums, spans, found, serial=serial, pos=pos, at=at)
        if kind == r.BLOCKED.kind:
            work.state.blocked[serial] = _begin(work, sums, reason=reason, pos=pos, at=at)
    _write(work, found)
    skips = _with_earlier(work, spans, found)
    skips.leaving = found.leaving
    return skips


def _edges(work: Work, spans: Spans) -> list[tuple[int, int, int, int, int]]:
    """(position, kind, serial, reason, instant) in order; ends of waits have kind 0."""
    out = []
    for record in (r.BLOCKED, r.UNBLOCKED):
        part = work.piece.of(record)
        if part is not None:
            columns = (part.wide(name).tolist() for name in ("serial", "reason", "at_ns"))
            rows = zip(part.pos.tolist(), *columns, strict=True)
            out += [(pos, record.kind, serial, why, at) for pos, serial, why, at in rows]
    concerned = {serial for _, _, serial, _, _ in out} | set(work.state.blocked)
    if not concerned:
        return []
    return sorted(out + _wait_ends(work, spans, concerned))


def _wait_ends(
    work: Work, spans: Spans, concerned: set[int]
) -> list[tuple[int, int, int, int, int]]:
    n, decisions = len(work.decisions), work.decisions
    finished = work.piece.of(r.FINISHED)
    left = dict(zip(work.leavers.tolist(), work.finished.tolist(), strict=True))
    out = []
    serials = work.roll.serials[spans.actor].tolist()
    for i, serial in enumerate(serials):
        if serial not in concerned or not (spans.gone[i] or spans.end[i] < n):
            continue
        if spans.gone[i] and finished is not None:
            row = left[int(spans.actor[i])]
            out.append((int(finished.pos[row]), 0, serial, 0, int(finished.fields["at_ns"][row])))
        else:
            end = int(spans.end[i])
            out.append((int(decisions.pos[end]), 0, serial, 0, int(decisions.at[end])))
    return out


def _begin(work: Work, sums: Sums, *, reason: int, pos: int, at: int) -> list[Any]:
    """[reason, since, sums of decisions and time at the first decision that passes it over]."""
    index = int(work.decisions.pos.searchsorted(pos))
    return [reason, at, *_sums_at(work, sums, index)]


def _sums_at(work: Work, sums: Sums, index: int) -> list[Any]:
    if index >= len(work.decisions):
        return [None, None]
    return [sums.count[index].tolist(), sums.time[index + 1].tolist()]


def _catch_up(work: Work, sums: Sums, spans: Spans, found: _Found) -> None:
    """What was open behind the last decision meets the first one of this piece."""
    state = work.state
    for serial, entry in list(state.ending.items()):
        del state.ending[serial]
        _settle(work, sums, spans, found, serial=serial, pos=work.piece.lo, entry=entry)
    for entry in state.blocked.values():
        if entry[2] is None:
            entry[2:] = _sums_at(work, sums, 0)


def _end(
    work: Work, sums: Sums, spans: Spans, found: _Found, *, serial: int, pos: int, at: int
) -> None:
    entry = work.state.blocked.pop(serial)
    unix = at + int(work.offsets.at(pos))
    found.rows.append((pos, serial, entry[0], entry[1], at, unix))
    if entry[2] is not None:
        _settle(work, sums, spans, found, serial=serial, pos=pos, entry=entry)


def _settle(
    work: Work,
    sums: Sums,
    spans: Spans,
    found: _Found,
    *,
    serial: int,
    pos: int,
    entry: list[Any],
) -> None:
    """Take it out of its wait, up to the next decision: that is how long a reason lasts."""
    reason, _, count, time = entry
    span = _span_at(work, spans, serial, pos)
    if span is None:
        return
    n = len(work.decisions)
    index = int(work.decisions.pos.searchsorted(pos))
    left = bool(spans.gone[span] and spans.end[span] <= index)
    if left:
        index, instant = int(spans.end[span]), int(left_at(work)[spans.actor[span]])
    elif index < n:
        instant = int(work.decisions.at[index])
    else:
        work.state.ending[serial] = entry
        return
    until_n, until_t = (part[0] for part in sums.until(np.array([index]), np.array([instant])))
    decisions, ns = until_n - np.array(count), until_t - np.array(time)
    if decisions.sum() > 0:
        spans.count[span] += decisions
        spans.time[span] += ns
        if left:
            found.leaving[span] = reason
        found.skips.append((span, reason, int(decisions.sum()), int(ns.sum())))


def _span_at(work: Work, spans: Spans, serial: int, pos: int) -> int | None:
    """The wait of a request that a position lies in."""
    actor = int(work.roll.find(np.array([serial]))[0])
    mine = indices_of((spans.actor == actor) & (spans.pos < pos))
    return int(mine[np.argmax(spans.pos[mine])]) if len(mine) else None


def _write(work: Work, found: _Found) -> None:
    if found.rows:
        columns = [np.array(column, np.int64) for column in zip(*found.rows, strict=True)]
        names = ("serial", "reason", "from_ns", "to_ns", "unix_ns")
        work.emit("blocked", **dict(zip(names, columns[1:], strict=True)))


def _with_earlier(work: Work, spans: Spans, found: _Found) -> Skips:
    """Those of earlier pieces too; what belongs to waits that go on stays in the state."""
    state, n = work.state, len(work.decisions)
    kept = state.skips
    actor = work.roll.find(kept["serial"])
    old = {int(a): i for i, a in enumerate(spans.actor) if spans.pos[i] < 0} if len(kept) else {}
    earlier = [
        (old[int(a)], int(row["reason"]), int(row["decisions"]), int(row["ns"]))
        for a, row in zip(actor, kept, strict=True)
        if int(a) in old
    ]
    rows = np.array([*earlier, *found.skips], np.int64).reshape(-1, 4)
    over = (spans.gone | (spans.end < n))[rows[:, 0]]
    state.skips = table(
        SKIPS,
        serial=work.roll.serials[spans.actor[rows[~over, 0]]],
        reason=rows[~over, 1],
        decisions=rows[~over, 2],
        ns=rows[~over, 3],
    )
    return _by_reason(rows[over])


def _by_reason(rows: Ints) -> Skips:
    """One entry per wait and reason."""
    if not len(rows):
        return Skips(*rows.T)
    keys, index = np.unique(rows[:, :2], axis=0, return_inverse=True)
    sums = np.zeros((len(keys), 2), np.int64)
    np.add.at(sums, index.reshape(-1), rows[:, 2:])
    return Skips(keys[:, 0], keys[:, 1], sums[:, 0], sums[:, 1])
