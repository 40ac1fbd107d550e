"""Quantiles of each request's own gaps, exact (quantile_disc), when it ends."""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.emissions import SPAN, SPECIAL
from batchscope.exporter.fold.layout import (
    GAP_WINDOW,
    GAPS,
    NULL,
    Bools,
    Ints,
    Rows,
    extended,
    indices_of,
    spread,
    stacked,
    table,
)
from batchscope.exporter.fold.work import Work

QUANTILES = {"tbt_p50": (50, 100), "tbt_p90": (90, 100), "tbt_p95": (95, 100), "tbt_p99": (99, 100)}
"""Name -> the fraction q = a / b: the ceil(q n)-th of n gaps in order."""
_GAP_BITS = 42
"""Gaps of more than 73 minutes go the slow way."""


def open_gaps(work: Work) -> Rows:
    """All gaps of live requests but the stretches that are still open."""
    if not work.gaps:
        return work.state.gaps
    kept = stacked([work.state.gaps, *work.gaps])
    work.gaps = []
    return kept


def settle(work: Work, leavers: Ints) -> dict[str, Ints]:
    """Quantiles of the leavers, in their order; NULL where gaps are missing or there are none."""
    state, rows = work.state, work.rows.take(leavers)
    gaps = open_gaps(work)
    place = np.full(len(work.roll) + 1, -1, np.int64)
    place[leavers] = np.arange(len(leavers))
    owner = place[work.roll.find(gaps["serial"])]
    state.gaps = gaps.compress(owner < 0)
    if not len(leavers):
        return {name: np.empty(0, np.int64) for name in (*QUANTILES, "tbt_max")}
    complete = _complete(work, leavers, rows)
    told = (owner >= 0) & extended(complete, 0)[owner]
    last = indices_of(complete & (rows["span"] != NULL))
    mine = stacked([gaps.compress(told), _last_stretches(rows.take(last))])
    who, lengths = _expanded(work, mine, np.concatenate([owner[told], last]))
    return _discrete(who, lengths, complete)


def _complete(work: Work, leavers: Ints, rows: Rows) -> Bools:
    """Whose gaps are all known, and not older than what is remembered."""
    done = work.completions
    k = work.state.k - len(done) + done.pos.searchsorted(work.ends[leavers])
    return np.asarray((rows["gaps_ok"] == 1) & (rows["first_k"] >= k - GAP_WINDOW))


def _last_stretches(rows: Rows) -> Rows:
    kind = np.full(len(rows), SPAN)
    return table(GAPS, serial=rows["serial"], kind=kind, a=rows["span"], b=rows["last_k"])


def _expanded(work: Work, gaps: Rows, owner: Ints) -> tuple[Ints, Ints]:
    """(whose, ns) of every single gap."""
    spans, special = gaps["kind"] == SPAN, gaps["kind"] == SPECIAL
    first = gaps["a"][spans]
    counts = gaps["b"][spans] - first + 1
    oldest = work.state.k - len(work.history)
    index = spread(first - oldest, counts)
    intervals = work.history[index] - work.history[index - 1]
    zeros = gaps["b"][special]
    who = [owner[spans].repeat(counts), owner[special], owner[special].repeat(zeros)]
    nothing = np.zeros(int(zeros.sum()), np.int64)
    return np.concatenate(who), np.concatenate([intervals, gaps["a"][special], nothing])


def _discrete(who: Ints, lengths: Ints, complete: Bools) -> dict[str, Ints]:
    """One sort for all requests: by whose, then by length."""
    if len(lengths) and int(lengths.max()) >> _GAP_BITS:
        order = np.lexsort((lengths, who))
        ordered = lengths[order]
    else:
        ordered = np.sort((who << _GAP_BITS) | lengths) & ((1 << _GAP_BITS) - 1)
    n = np.bincount(who, minlength=len(complete)).astype(np.int64)
    base = n.cumsum() - n
    known = complete & (n > 0)
    out = {
        name: _at(ordered, base + -(-n * a // b) - 1, known) for name, (a, b) in QUANTILES.items()
    }
    return out | {"tbt_max": _at(ordered, base + n - 1, known)}


def _at(ordered: Ints, index: Ints, known: Bools) -> Ints:
    out = np.full(len(index), NULL, np.int64)
    out[known] = ordered[index[known]]
    return out


def trim(work: Work) -> None:
    """Forget instants that no live request's gaps reach back to."""
    state, live = work.state, work.state.live
    firsts = live["first_k"][(live["first_k"] != NULL) & (live["gaps_ok"] == 1)]
    oldest = max(int(firsts.min(initial=state.k)), state.k - GAP_WINDOW)
    state.history = work.history[len(work.history) - (state.k - oldest) :].copy()
