"""What a front end handed to the streams of clients: DELIVERED records become rows of deliveries.

A delivery is one hand-over to one request, of one or more tokens; gaps lie between deliveries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batchscope.exporter.fold.layout import (
    DELIVERIES,
    NULL,
    Bools,
    Ints,
    Rows,
    heads_of,
    shifted,
)
from batchscope.exporter.fold.pieces import Part
from batchscope.exporter.fold.requests import identity, since, tpot
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import FinishReason

LONGEST_LAG_NS = 3_600_000_000_000
"""Beyond an hour, or negative, the core's clock is not ours: it runs on another machine."""
_INSTANTS = ("first", "last", "longest", "first_lag", "longest_lag")


def of_roll(work: Work) -> Rows:
    """What each request of the roll was handed so far, in the roll's order."""
    handed = blank(len(work.roll))
    handed["serial"] = work.rows["serial"]
    before = work.state.deliveries
    handed[work.roll.find(before["serial"])] = before
    return handed


def blank(n: int) -> Rows:
    """N requests that were handed nothing."""
    rows = np.zeros(n, DELIVERIES)
    for name in _INSTANTS:
        rows[name] = NULL
    return rows


def take(work: Work, handed: Rows) -> None:
    """Add the piece's deliveries. Tokens of who is not announced yet are in its LIVE."""
    part = work.piece.of(r.DELIVERED)
    if part is None:
        return
    if (part.fields["flags"] & r.NO_MEMBERS).any():
        miss(work.rows, handed)
    offsets, tokens = part.tail("tokens")
    record = np.repeat(np.arange(len(part)), np.diff(offsets))
    which, actor = work.concerned(tokens["serial"], part.pos[record])
    if not len(which):
        return
    order = np.argsort(actor, kind="stable")
    which, actor = which[order], actor[order]
    heads = np.flatnonzero(heads_of(actor))
    whose = actor[heads]
    at, record = part.wide("at_ns")[record[which]], record[which]
    work.rows["out"][whose] += np.add.reduceat(tokens["tokens"][which].astype(np.int64), heads)
    work.rows["suspect"][whose] = 0
    _note_gaps(handed, whose, heads, at)
    _note_lags(handed, whose, heads, _lags(part, record, at))
    handed["pieces"][whose] += np.diff(heads, append=len(actor))


def miss(rows: Rows, handed: Rows) -> None:
    """Something was handed out since the last record, and nobody knows to whom of these."""
    rows["broken"] = 1
    rows["first_ok"] &= handed["pieces"] > 0
    handed["last"] = NULL


def _note_gaps(handed: Rows, whose: Ints, heads: Ints, at: Ints) -> None:
    """Instants, and the longest gap; across a loss there is none."""
    before = handed["last"][whose]
    gaps = at - shifted(at, heads, np.where(before == NULL, at[heads], before))
    gaps[heads[before == NULL]] = NULL
    first = handed["first"][whose]
    handed["first"][whose] = np.where(first == NULL, at[heads], first)
    handed["last"][whose] = at[np.append(heads[1:], len(at)) - 1]
    longest = np.maximum.reduceat(gaps, heads)
    handed["longest"][whose] = np.maximum(handed["longest"][whose], longest)


def _lags(part: Part, record: Ints, at: Ints) -> Ints:
    """Time since the core had them, NULL where that is unknown."""
    ready = part.wide("ready_at_ns", r.NULL64)[record]
    lags = at - np.where(ready == NULL, at, ready)
    return np.where((ready != NULL) & (lags >= 0) & (lags < LONGEST_LAG_NS), lags, NULL)


def _note_lags(handed: Rows, whose: Ints, heads: Ints, lags: Ints) -> None:
    fresh = handed["pieces"][whose] == 0
    handed["first_lag"][whose] = np.where(fresh, lags[heads], handed["first_lag"][whose])
    longest = np.maximum.reduceat(lags, heads)
    handed["longest_lag"][whose] = np.maximum(handed["longest_lag"][whose], longest)
    known = lags != NULL
    handed["lags"][whose] += np.add.reduceat(known.astype(np.int64), heads)
    handed["lag_sum"][whose] += np.add.reduceat(np.where(known, lags, 0), heads)


def finish(work: Work, handed: Rows) -> None:
    """Write the requests that ended, in order of their ends."""
    part = work.piece.of(r.FINISHED)
    if part is None:
        return
    actor = work.roll.find(part.fields["serial"])
    which = np.flatnonzero(actor >= 0)
    work.leavers = actor[which]
    at, said = part.wide("at_ns")[which], part.wide("output_tokens")[which]
    reason = part.wide("reason")[which]
    told = {
        "finished_at_ns": at,
        "finish_reason": np.where(reason == 0, FinishReason.UNKNOWN.code, reason),
        "unix_ns": at + work.offsets.at(part.pos[which]),
    }
    _audit(work, said)
    _write(work, handed, told)


def end_unknown(work: Work, handed: Rows, *, at: int, unix: int) -> None:
    """Write `work.leavers`, who were last seen at an instant."""
    n = len(work.leavers)
    told = {"finished_at_ns": at, "finish_reason": FinishReason.UNKNOWN.code, "unix_ns": unix}
    if n:
        _write(work, handed, {name: np.full(n, value) for name, value in told.items()})


def open_rows(state: State) -> dict[str, Any]:
    """Live requests as they stand."""
    n = len(state.live)
    nothing = np.full(n, NULL, np.int64)
    told = {"finished_at_ns": nothing, "finish_reason": np.zeros(n, np.int64)}
    unix = np.full(n, max(state.unix, 0), np.int64)
    return _columns(state, state.live, state.deliveries) | told | {"unix_ns": unix}


def _write(work: Work, handed: Rows, told: dict[str, Ints]) -> None:
    who, texts = work.leavers, work.state.texts
    columns = _columns(work.state, work.rows[who], handed[who])
    work.emit("deliveries", **columns, **told)
    for serial in work.rows["serial"][who].tolist():
        texts.pop(serial, None)


def _columns(state: State, rows: Rows, handed: Rows) -> dict[str, Any]:
    """What is true of a request at any time: all but its end."""
    whole, first_ok = rows["broken"] == 0, rows["first_ok"] == 1
    first = np.where(first_ok, handed["first"], NULL)
    several = whole & (handed["pieces"] > 1)
    named = identity(state, rows)
    mean = handed["lag_sum"] // np.maximum(handed["lags"], 1)
    return {
        "serial": rows["serial"].copy(),
        **{name: named[name] for name in ("request_key", "external_key")},
        "arrived_at_ns": rows["arrived"].copy(),
        "first_at_ns": first,
        "last_at_ns": handed["last"].copy(),
        "arrived_unix_ns": rows["arrived_unix"].copy(),
        "delivered_tokens": rows["out"].copy(),
        "deliveries": handed["pieces"].copy(),
        "ttft_ns": since(first, rows["arrived"]),
        "e2e_ns": since(handed["last"], rows["arrived"]),
        "tpot_ns": np.where(several, tpot(first, handed["last"], rows["out"]), NULL),
        "gap_max_ns": np.where(several, handed["longest"], NULL),
        "lag_first_ns": np.where(first_ok, handed["first_lag"], NULL),
        "lag_mean_ns": _where(whole & (handed["lags"] > 0), mean),
        "lag_max_ns": _where(whole, handed["longest_lag"]),
        "broken": rows["broken"].copy(),
    }


def _where(known: Bools, values: Ints) -> Ints:
    return np.where(known, values, NULL)


def _audit(work: Work, said: Ints) -> None:
    """The front end's own count, of who was seen whole."""
    rows = work.rows[work.leavers]
    whole = np.flatnonzero((rows["broken"] == 0) & (rows["named"] == 1))
    serials, out, said = rows["serial"][whole], rows["out"][whole], said[whole]
    work.state.audit.judge(
        "tokens_emitted",
        out == said,
        lambda i: f"request {serials[i]}: {out[i]} tokens delivered, its front end says {said[i]}",
    )
