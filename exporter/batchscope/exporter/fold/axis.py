"""The axis of completions: which batch came back when, and what the time between them was.

Interval, host, exec and idle as ledgers define them: completion to completion, never the wait for
a result, never negative.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.layout import (
    FAR,
    IN_FLIGHT,
    NULL,
    Bools,
    Ints,
    differences,
    extended,
    first_of_each,
    indices_of,
    steps_between,
)
from batchscope.exporter.fold.pieces import Part
from batchscope.exporter.fold.work import Completions, Work
from batchscope.schemas import records as r


def leave(work: Work) -> None:
    """Match FINISHED records with requests: every end belongs to one live request."""
    part = work.piece.of(r.FINISHED)
    work.ends = np.full(len(work.roll), FAR, np.int64)
    if part is None:
        return
    serials = part.wide("serial")
    actors = work.roll.find(serials)
    valid = (actors >= 0) & first_of_each(serials)
    if not work.state.lossy:
        work.state.audit.judge(
            "one_end", valid, lambda i: f"request {serials[i]} finished, and was not live"
        )
    work.finished, work.leavers = indices_of(valid), actors[valid]
    work.ends[work.leavers] = part.pos[valid]


def complete(work: Work) -> None:
    """Match COMPLETED records with batches in flight and measure their intervals."""
    part = work.piece.of(r.COMPLETED)
    matched, rows = _match(work, part)
    if part is None:
        _idle(work, np.empty(0, np.int64), np.empty(0, np.int64))
        return
    pos, at = part.pos[matched], part.wide("at_ns")[matched]
    unix = at + work.offsets.at(pos)
    done = Completions(pos, at, unix, rows, matched)
    _fill(work, part, done)
    idle, exact = _idle(work, pos, at)
    strangers = part.pos[_others(len(part), matched)]
    done.plain = _measure(work, done, idle, exact & ~_after_stranger(pos, strangers))
    work.completions = done
    _advance(work, done, strangers)


def _match(work: Work, part: Part | None) -> tuple[Ints, Ints]:
    """(indices of COMPLETED records that end a batch in flight, their rows in the flight table)."""
    flight = work.flight
    if part is None or not len(flight):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ids = part.wide("iteration_id")
    rows = flight["iteration_id"].searchsorted(ids)
    rows = np.minimum(rows, len(flight) - 1)
    known = (flight["iteration_id"][rows] == ids) & (flight["done"][rows] == 0)
    known &= part.pos < given_up(work, ids)
    matched = indices_of(known & first_of_each(ids))
    return matched, rows[matched]


def _others(n: int, which: Ints) -> Bools:
    out = np.ones(n, bool)
    out[which] = False
    return out


def given_up(work: Work, ids: Ints) -> Ints:
    """Position of the decision with which a batch still in flight is given up, FAR: not yet."""
    decisions = work.decisions
    at = decisions.ids.searchsorted(ids + IN_FLIGHT)
    return extended(decisions.pos, FAR)[at]


def _fill(work: Work, part: Part, done: Completions) -> None:
    flight, rows, which = work.flight, done.rows, done.record
    flight["done"][rows] = 1
    flight["k"][rows] = work.state.k + np.arange(len(rows))
    flight["c"][rows], flight["unix"][rows] = done.c, done.unix
    flight["forward"][rows] = part.wide("forward_ns", r.NULL64)[which]
    flight["padded"][rows] = part.wide("padded_tokens", r.NULL32)[which]
    flight["graph"][rows] = part.wide("graph_mode")[which]


def _after_stranger(pos: Ints, strangers: Ints) -> Bools:
    """Completions before which an unknown batch came back: their interval has no known begin."""
    if not len(strangers):
        return np.zeros(len(pos), bool)
    return np.asarray(steps_between(strangers.searchsorted(pos)) > 0)


def _measure(work: Work, done: Completions, idle: Ints, exact: Bools) -> Bools:
    """Fill interval, host, exec, idle; returns which are plain."""
    state, flight, rows = work.state, work.flight, done.rows
    before = np.concatenate([[state.c], done.c[:-1]])
    known = exact & (before != NULL)
    span = np.where(known, done.c - np.where(known, before, 0), 0)
    state.totals.count("clamped_durations", int((known & (span < 0)).sum()))
    whole = np.maximum(span, 0)
    idle = np.minimum(np.maximum(idle, 0), whole)
    interval = whole - idle
    late = np.where(known, flight["at"][rows] - (before + idle), 0)
    host = np.minimum(np.maximum(late, 0), interval)
    for name, values in (
        ("interval", interval),
        ("host", host),
        ("exec", interval - host),
        ("idle", idle),
    ):
        flight[name][rows] = np.where(known, values, NULL)
    return np.asarray(known & (span >= 0) & (idle == 0))


def _advance(work: Work, done: Completions, strangers: Ints) -> None:
    state = work.state
    state.k += len(done)
    if len(done):
        state.c, state.completed_unix = int(done.c[-1]), int(done.unix[-1])
    if len(strangers) and not (len(done) and done.pos[-1] > strangers[-1]):
        state.c = NULL


def _idle(work: Work, pos: Ints, at: Ints) -> tuple[Ints, Bools]:
    """(idle ns before each completion, whether the live count was exact all the while).

    Between two marks (birth, end, completion) nothing happens to the live count; where it is 0
    their distance is idle. Instants are made monotone first.
    """
    state = work.state
    places, times, steps, is_end = _marks(work, pos, at)
    base, since = _base(work, places, steps)
    live = base + steps.cumsum()
    before = np.concatenate([[base], live])[:-1]
    clock = np.maximum.accumulate(np.concatenate([[state.mark], times]))
    moved = differences(np.where(clock == NULL, times[0] if len(times) else 0, clock))
    total = state.idle + np.cumsum(np.where(before <= 0, moved, 0))
    idle = steps_between(total[is_end])
    told = pos > since
    exact = np.concatenate([[state.c_synced], told])[:-1]
    state.c_synced = bool(told[-1]) if len(pos) else state.c_synced
    _judge_live(work, places, live, base, since)
    if len(places):
        ended = int(total[is_end][-1]) if is_end.any() else 0
        state.live_count, state.mark = int(live[-1]), int(clock[-1])
        state.idle = int(total[-1]) - ended
    else:
        state.live_count = base
    state.synced = state.synced or len(work.decisions) > 0
    return idle, exact


def _marks(work: Work, pos: Ints, at: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """(positions, instants, steps of the live count, is a completion) in order."""
    born = indices_of((work.births >= 0) & (work.rows["arrived"] != NULL))
    finished = work.piece.of(r.FINISHED)
    left_pos, left_at = np.empty(0, np.int64), np.empty(0, np.int64)
    if finished is not None:
        left_pos, left_at = finished.pos[work.finished], finished.wide("at_ns")[work.finished]
    places = np.concatenate([work.births[born], left_pos, pos])
    times = np.concatenate([work.rows["arrived"][born], left_at, at])
    steps = np.repeat([1, -1, 0], [len(born), len(left_pos), len(pos)])
    order = np.argsort(places)
    return places[order], times[order], steps[order], steps[order] == 0


def _base(work: Work, places: Ints, steps: Ints) -> tuple[int, int]:
    """(live count before the piece, position from which it is exact).

    Until the first decision after an attach or a loss nobody knows it; that one tells.
    """
    state, decisions = work.state, work.decisions
    if state.synced:
        return state.live_count, -1
    if not len(decisions):
        return state.live_count, FAR
    row = work.flight[decisions.rows[0]]
    net = int(steps[places < decisions.pos[0]].sum())
    return int(row["running"] + row["waiting"]) - net, int(decisions.pos[0])


def _judge_live(work: Work, places: Ints, live: Ints, base: int, since: int) -> None:
    decisions = work.decisions
    later = decisions.pos > since
    at = places.searchsorted(decisions.pos[later])
    ours = np.concatenate([[base], live])[at]
    rows = work.flight.take(decisions.rows[later])
    theirs = rows["running"] + rows["waiting"]
    work.state.audit.judge(
        "live_requests",
        ours == theirs,
        lambda i: (
            f"iteration {rows['iteration_id'][i]}: {ours[i]} live, the engine has {theirs[i]}"
        ),
    )
