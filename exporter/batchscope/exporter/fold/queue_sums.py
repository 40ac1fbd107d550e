"""Prefix sums over decisions, and the waits that are differences of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchscope.exporter.fold.layout import NULL, REASONS, Bools, Ints, indices_of
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason

UNKNOWN = DeferralReason.UNKNOWN.code


@dataclass
class Sums:
    """Prefix sums over the decisions of a piece, by reason: row i of n + 1 is before decision i.

    `count`: decisions. `time`: ns up to the decision before, which is `d[i]` (NULL: none yet) and
    stopped at `stop[i]`.
    """

    count: Ints
    time: Ints
    d: Ints
    stop: Ints

    def until(self, index: Ints, instant: Ints) -> tuple[Ints, Ints]:
        """(decisions, ns) by reason up to instants that lie before decision `index`."""
        time = self.time[index]
        d, stop = self.d[index], self.stop[index]
        since = indices_of(d != NULL)
        time[since, stop[since]] += np.maximum(instant[since] - d[since], 0)
        return self.count[index], time


@dataclass
class Spans:
    """Waits of the piece. `begin`, `end` are indices of decisions: the first that left the request
    out, the one that admitted it (or before which it left: `gone`), n: not in this piece.

    `counted`: `count`, `time` hold the sums at its begin already; else they are taken there.
    """

    actor: Ints
    pos: Ints
    since: Ints
    admission: Ints
    begin: Ints
    end: Ints
    gone: Bools
    counted: Bools
    resumed: Bools
    count: Ints
    time: Ints

    def __len__(self) -> int:
        return len(self.actor)


def sums_of(work: Work) -> Sums:
    """Sums over all decisions of the ring so far, at each one of the piece."""
    state, decisions = work.state, work.decisions
    n = len(decisions)
    stop = np.where(decisions.stop == 0, UNKNOWN, decisions.stop)
    stops = np.concatenate([[state.stop], stop])
    d = np.concatenate([[state.d], decisions.at])
    steps = np.zeros((n + 1, REASONS), np.int64)
    steps[np.arange(1, n + 1), stop] = 1
    spent = np.zeros((n + 1, REASONS), np.int64)
    known = indices_of(d[:-1] != NULL)
    spent[known + 1, stops[known]] = np.maximum(d[known + 1] - d[known], 0)
    count = state.cum_n + steps.cumsum(axis=0)
    return Sums(count, state.cum_t + spent.cumsum(axis=0), d, stops)


def left_at(work: Work) -> Ints:
    """Per request of the roll: instant of its FINISHED, 0 where it goes on."""
    out = np.zeros(len(work.roll), np.int64)
    finished = work.piece.of(r.FINISHED)
    if finished is not None:
        out[work.leavers] = finished.wide("at_ns")[work.finished]
    return out
