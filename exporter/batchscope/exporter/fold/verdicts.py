"""Was it in time: the verdict of each request at its end, and its tokens within the deadlines.

A verdict is joint over the SLO's terms; a term that can't be judged leaves it undetermined unless
another one was missed already.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.emissions import Emissions
from batchscope.exporter.fold.layout import NULL, Bools, Ints, among, heads_of, indices_of
from batchscope.exporter.fold.steps import Steps
from batchscope.exporter.fold.work import Work
from batchscope.schemas.reasons import FinishReason, Verdict, words
from batchscope.schemas.slo import Slo

_ENDED_BADLY = {
    FinishReason.ABORT: Verdict.ABORTED,
    FinishReason.ERROR: Verdict.FAILED,
    FinishReason.SHED: Verdict.SHED,
}
_WORDS = words(Verdict)
_BADLY = np.array([reason.code for reason in _ENDED_BADLY])
_VERDICTS = {reason.code: verdict.code for reason, verdict in _ENDED_BADLY.items()}
_MET, _MISSED, _UNDETERMINED, _UNKNOWN = (
    *(verdict.code for verdict in (Verdict.MET, Verdict.MISSED, Verdict.UNDETERMINED)),
    FinishReason.UNKNOWN.code,
)


def judge(work: Work, columns: dict[str, Ints]) -> Ints:
    """Verdicts of finished requests from their `<term>_ns` columns; NULL without an SLO.

    Counts them, and the missed terms.
    """
    slo, reasons = work.slo, columns["finish_reason"]
    if slo is None:
        return np.full(len(reasons), NULL, np.int64)
    missed, unknown = _terms(work, slo, columns)
    out = np.full(len(reasons), _MET, np.int64)
    out[unknown | (reasons == _UNKNOWN)] = _UNDETERMINED
    out[missed] = _MISSED
    for reason, verdict in _VERDICTS.items():
        out[reasons == reason] = verdict
    for code, n in enumerate(np.bincount(out).tolist()):
        work.state.totals.count("slo_requests", n, slo.name, str(_WORDS[code]))
    return out


def _terms(work: Work, slo: Slo, columns: dict[str, Ints]) -> tuple[Bools, Bools]:
    """(some term missed, some term unknown) per request."""
    n = len(columns["finish_reason"])
    missed, unknown = np.zeros(n, bool), np.zeros(n, bool)
    judged = ~among(columns["finish_reason"], _BADLY)
    for term, target in slo.targets:
        values = columns[f"{term}_ns"]
        late = (values != NULL) & (values > target)
        missed |= late
        unknown |= values == NULL
        work.state.totals.count("slo_missed", int((late & judged).sum()), slo.name, term)
    return missed, unknown


def on_time(work: Work, steps: Steps, found: Emissions) -> None:
    """Tokens with t_i <= arrival + D_ttft + (i - 1) D_tbt, counted as they come."""
    deadlines = None if work.slo is None else work.slo.deadlines
    if deadlines is None or work.slo is None or not len(found.at):
        return
    actor = steps.actor[found.at]
    rows = work.rows
    told = ((rows["arrived"] != NULL) & (rows["out_known"] == 1))[actor]
    slack = (rows["arrived"] + deadlines[0])[actor] + found.out_before * deadlines[1]
    counts = np.zeros(len(actor), np.int64)
    many = steps.times[found.at] > 1
    single = indices_of(told & ~many)
    counts[single] = _single(work, steps, found, single, slack=slack[single], each=deadlines[1])
    _blocks(work, steps, found, indices_of(told & many), slack, counts, deadlines[1])
    rows["on_time"] += np.bincount(actor, counts, len(rows)).astype(np.int64)
    work.state.totals.count("on_time_tokens", int(counts.sum()), work.slo.name)


def _single(
    work: Work, steps: Steps, found: Emissions, which: Ints, *, slack: Ints, each: int
) -> Ints:
    """Of n tokens at one instant the first ones are due first: late by the first n that fit."""
    step = found.at[which]
    late = work.completions.c[steps.j[step]] - slack
    out, missed = steps.emitted[step], indices_of(late > 0)
    overdue = -(-late[missed] // each) if each else np.full(len(missed), FAR_TOKENS)
    out[missed] = np.maximum(out[missed] - overdue, 0)
    return out


FAR_TOKENS = 2**31
"""More tokens than a step emits: with a deadline that doesn't grow all of them are late."""


def _blocks(
    work: Work,
    steps: Steps,
    found: Emissions,
    which: Ints,
    slack: Ints,
    counts: Ints,
    each: int,
) -> None:
    """In a block of m identical completions token t of a member is in time when
    c_t - t D_tbt <= its slack: one sort per block, one search per member.
    """
    if not len(which):
        return
    order = which[np.argsort(steps.j[found.at[which]], kind="stable")]
    j = steps.j[found.at[order]]
    edges = indices_of(heads_of(j))
    for members in np.split(order, edges[1:]):
        first = found.at[members[0]]
        m, start = int(steps.times[first]), int(steps.j[first])
        lateness = np.sort(work.completions.c[start : start + m] - np.arange(m) * each)
        counts[members] = lateness.searchsorted(slack[members], side="right")
